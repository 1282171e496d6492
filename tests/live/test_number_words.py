"""The page writes numbers and token texts as specviz/views/words.py does."""

import random

import pytest

from specviz.trace import Token
from specviz.views import words
from tests.live.engine import ask
from tests.live.test_tokenizer import texts

GENERATOR = random.Random(4)
NEAR = (0.0, 1e-15, -1e-15, 1e-12, 1e-10, -1e-10, 1e-9, 1e-7)


def shares():
    """Shares at and beside every border, quotients of small numbers, and others of every size."""
    borders = [number / 1_000 + apart for number in range(1_001) for apart in (0, *NEAR)]
    fine = [place + apart for place in (0.0005, 0.00005, 0.0995, 0.995, 0.9995, 1e-5, 1.0) for apart in NEAR]
    quotients = [GENERATOR.randrange(part + 1) / part for part in GENERATOR.choices(range(1, 200), k=2_000)]
    sizes = [GENERATOR.random() * 10 ** -GENERATOR.uniform(0, 14) for _ in range(2_000)]
    return [share for share in (*borders, *fine, *quotients, *sizes, *(1 - each for each in sizes)) if 0 <= share <= 1]


SHARES = shares()
PAIRS = [(GENERATOR.choice(SHARES), GENERATOR.choice(SHARES)) for _ in range(4_000)]
CLOSE_PAIRS = [(one, min(1.0, max(0.0, one + GENERATOR.choice(NEAR)))) for one in GENERATOR.choices(SHARES, k=4_000)]


def same(name, cases, right):
    """cases: the arguments of each call."""
    answers = ask("words", asked=[[name, *case] for case in cases])
    assert [(case, mine, right(*case)) for case, mine in zip(cases, answers, strict=True) if mine != right(*case)] == []


def test_a_share_is_written_as_in_python():
    same("percent", [(share,) for share in SHARES], words.percent)


@pytest.mark.parametrize("digits", [0, 1, 2, 4, 6])
def test_a_number_has_the_digits_of_python(digits):
    halves = [number / 64 for number in range(6_400)]
    cases = [(value, digits) for value in (*halves, *(100 * share for share in SHARES[::3]))]
    same("fixed", cases, lambda value, digits: f"{value:.{digits}f}")


@pytest.mark.parametrize("digits", [1, 2])
def test_a_width_is_rounded_as_in_python(digits):
    cases = [(100 * share, digits) for share in SHARES] + [(number / 800, digits) for number in range(8_000)]
    same("shorten", cases, words.shorten)


def test_two_shares_are_told_apart_as_in_python():
    same("percents", PAIRS + CLOSE_PAIRS, lambda *pair: list(words.percents(*pair)))


def test_a_random_draw_is_told_from_its_chance_as_in_python():
    same("randomDraw", PAIRS + CLOSE_PAIRS, lambda *pair: list(words.random_draw(*pair)))


def test_a_quotient_of_printed_numbers_is_judged_as_in_python():
    cases = []
    for one, other in PAIRS + CLOSE_PAIRS:
        part, whole = words.percents(*sorted((one, other)))
        if float(whole):
            cases.append((part, whole, words.percent(min(one, other) / max(one, other))))
    same("divides", cases, words.divides)


def written_tokens():
    """Texts of tokens, which have at most 48 characters where spaces end them, with the bytes of half characters."""
    yield from ({"text": text[: words.MOST_LABEL]} for text in texts(1_500, seed=9))
    yield from ({"text": text} for text in ("é" * 60, " word" * 30))
    yield from ({"text": text[:3], "bytes": text[:3].encode().hex()} for text in texts(200, seed=10))
    for text, raw in (("", "f0"), ("", "f09f98"), ("\ufffd", "80"), ("\ufffd\ufffda", "808061"), ("", "ff" * 30)):
        yield {"text": text, "bytes": raw}


@pytest.mark.parametrize(("name", "right"), [("tokenLabel", words.token_label), ("quote", words.quote)])
def test_a_token_is_written_as_in_python(name, right):
    same(name, [(token,) for token in written_tokens()], lambda token: right(Token(0, **token)))


def test_a_text_is_written_as_in_python():
    same("prose", [(text,) for text in texts(1_500, seed=9)], words.prose)
