"""Generated arithmetic with worked steps, one step per paragraph: the text on which step-level speculation is shown.

Training skips a twentieth of all pairs of numbers; held-out problems are drawn from all pairs that no training problem
has."""

import random
from collections.abc import Iterator
from functools import cache
from itertools import islice

PLACES = ("units", "tens", "hundreds", "thousands", "ten thousands")
NUM_PROBLEMS = {"train": 60_000, "valid": 1_500}
SEEDS = {"train": 11, "valid": 12}


def problems(split: str) -> Iterator[str]:
    """The documents of one split ("train" or "valid"), always the same ones; each is one problem."""
    return (text for text, _ in problems_with_pairs(split))


def problems_with_pairs(split: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The documents of `problems`, each with its two numbers."""
    generator = random.Random(SEEDS[split])
    drawn = iter(lambda: problem(generator), None)
    allowed = (
        made for made in drawn if (is_held_out if split == "valid" else is_trained_on)(*made[1])
    )
    return islice(allowed, NUM_PROBLEMS[split])


def is_trained_on(a: int, b: int) -> bool:
    """Whether training may draw this pair."""
    return (a * 7919 + b * 104_729) % 20 != 0


def is_held_out(a: int, b: int) -> bool:
    """Whether no training problem has these two numbers."""
    return (a, b) not in trained_pairs()


@cache
def trained_pairs() -> frozenset[tuple[int, int]]:
    return frozenset(numbers for _, numbers in problems_with_pairs("train"))


def problem(generator: random.Random) -> tuple[str, tuple[int, int]]:
    """One problem and its two numbers: mostly sums of two three-digit numbers, some longer, some of other kinds."""
    kind = generator.choices(
        ("sum", "short sum", "long sum", "difference", "product"), (50, 10, 10, 18, 12)
    )[0]
    if kind == "difference":
        a, b = sorted(
            (generator.randrange(100, 1000), generator.randrange(100, 1000)), reverse=True
        )
        return worked_difference(a, b), (a, b)
    if kind == "product":
        a, b = generator.randrange(100, 1000), generator.randrange(2, 10)
        return worked_product(a, b), (a, b)
    low, high = {"sum": (100, 1000), "short sum": (10, 100), "long sum": (1000, 10_000)}[kind]
    a, b = generator.randrange(low, high), generator.randrange(low, high)
    return worked_sum(a, b), (a, b)


def worked_sum(a: int, b: int) -> str:
    """The sum of two numbers with equally many digits, place by place with its carries:

    Sum: 347 + 586 / units 7 + 6 = 13, write 3 carry 1 / tens 4 + 8 + 1 = 13, write 3 carry 1 / ... / 347 + 586 = 933,
    where each slash is a blank line.
    """
    steps, carry = [], 0
    digits = list(zip(digits_of(a), digits_of(b), strict=True))
    for place, (x, y) in enumerate(digits):
        total = x + y + carry
        terms = f"{x} + {y} + {carry}" if carry else f"{x} + {y}"
        steps.append(written(place, f"{terms} = {total}", total, is_last=place == len(digits) - 1))
        carry = total // 10
    return document(f"Sum: {a} + {b}", steps, f"{a} + {b} = {a + b}")


def worked_difference(a: int, b: int) -> str:
    """Writes a - b place by place with what is borrowed; a >= b have equally many digits."""
    steps, borrowed = [], 0
    for place, (x, y) in enumerate(zip(digits_of(a), digits_of(b), strict=True)):
        terms = f"{x} - {y} - {borrowed}" if borrowed else f"{x} - {y}"
        rest = x - y - borrowed
        borrowed = int(rest < 0)
        loan = (
            f" + 10 = {rest + 10}, write {rest + 10} borrow 1"
            if borrowed
            else f" = {rest}, write {rest}"
        )
        steps.append(f"{PLACES[place]} {terms}{loan}")
    return document(f"Difference: {a} - {b}", steps, f"{a} - {b} = {a - b}")


def worked_product(a: int, b: int) -> str:
    """Writes a times the one-digit number b, place by place with its carries."""
    steps, carry = [], 0
    digits = digits_of(a)
    for place, x in enumerate(digits):
        total = x * b + carry
        terms = f"{x} * {b} + {carry}" if carry else f"{x} * {b}"
        steps.append(written(place, f"{terms} = {total}", total, is_last=place == len(digits) - 1))
        carry = total // 10
    return document(f"Product: {a} * {b}", steps, f"{a} * {b} = {a * b}")


def written(place: int, equation: str, total: int, *, is_last: bool) -> str:
    """One place's step; the last place writes its whole total."""
    if is_last:
        return f"{PLACES[place]} {equation}, write {total}"
    carried = f" carry {total // 10}" if total >= 10 else ""
    return f"{PLACES[place]} {equation}, write {total % 10}{carried}"


def digits_of(number: int) -> list[int]:
    """Decimal digits, the units first."""
    return [int(digit) for digit in reversed(str(number))]


def document(question: str, steps: list[str], answer: str) -> str:
    return "\n\n".join([question, *steps, answer]) + "\n\n"
