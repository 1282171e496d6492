"""Generated arithmetic: every step is true, the steps give the answer, and held-out problems are never read."""

import re
from itertools import islice

import pytest

from specviz.zoo.arithmetic import PLACES, is_held_out, problems, worked_difference, worked_product, worked_sum
from specviz.zoo.evaluation.trials import held_out_sums

EQUATION = re.compile(r"([\d +*-]+) = (\d+)")
WRITTEN = re.compile(r"write (\d+)")


def steps_of(text: str) -> list[str]:
    return text.removesuffix("\n\n").split("\n\n")


def test_a_sum_reads_as_documented():
    assert worked_sum(347, 586) == (
        "Sum: 347 + 586\n\nunits 7 + 6 = 13, write 3 carry 1\n\ntens 4 + 8 + 1 = 13, write 3 carry 1\n\n"
        "hundreds 3 + 5 + 1 = 9, write 9\n\n347 + 586 = 933\n\n"
    )


def test_a_difference_borrows_and_a_product_carries():
    assert steps_of(worked_difference(512, 347))[1:3] == [
        "units 2 - 7 + 10 = 5, write 5 borrow 1",
        "tens 1 - 4 - 1 + 10 = 6, write 6 borrow 1",
    ]
    assert steps_of(worked_product(347, 6))[1:3] == [
        "units 7 * 6 = 42, write 2 carry 4",
        "tens 4 * 6 + 4 = 28, write 8 carry 2",
    ]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_every_equation_is_true_and_the_written_digits_are_the_answer(split):
    for text in islice(problems(split), 150):
        question, *steps, answer = steps_of(text)
        equations = [EQUATION.search(line).groups() for line in (*steps, answer)]
        assert all(eval(left) == int(right) for left, right in equations), text  # the grammar admits digits only
        assert question.split(": ")[1] == answer.split(" = ")[0]
        written = "".join(reversed([WRITTEN.search(step)[1] for step in steps]))
        assert int(written) == int(answer.split(" = ")[1])
        assert [step.split()[0] for step in steps] == [place.split()[0] for place in PLACES[: len(steps)]]


def test_no_held_out_pair_is_ever_read():
    read, kept = (
        {tuple(map(int, re.findall(r"\d+", text.split("\n")[0]))) for text in islice(problems(split), 3000)}
        for split in ("train", "valid")
    )
    assert not read & kept
    assert all(is_held_out(*pair) for pair in kept)
    assert not any(is_held_out(*pair) for pair in read)


def test_held_out_sums_are_a_fair_sample():
    """Their last digits are spread over all ten, each within four standard errors of a tenth."""
    sums = [a + b for a, b in held_out_sums()]
    counts = [sum(total % 10 == digit for total in sums) for digit in range(10)]
    expected = len(sums) / 10
    assert all(abs(count - expected) < 4 * (0.9 * expected) ** 0.5 for count in counts), counts


def test_the_same_problems_come_every_time():
    assert list(islice(problems("train"), 20)) == list(islice(problems("train"), 20))
