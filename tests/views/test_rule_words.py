"""Rules and methods in words: what a rule's chance means, where a token came from, and what the help panel says."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from specviz.decoding.draft import chain
from specviz.drafters import METHODS
from specviz.rules import RULES
from specviz.trace.counters import Counters
from specviz.views.explore.help import method_help, sources
from specviz.views.explore.inspector import NUMBERS, looks
from specviz.views.explore.steps import show_step
from specviz.views.explore.titles import chance_accepted, drawn_title, last_token, rule_title
from tests.helpers import traces
from tests.helpers.messages import as_json

NEW = [name for name, rule in RULES.items() if not rule.facts.is_plain]
SURE, FAILS, RESCUED = (0.6, 0.25, "accepted"), (0.6, 0.75, "rejected"), (0.6, 0.75, "accepted")
KEPT, CUT = " The random draw fell at 0.25: accepted.", " The random draw fell at 0.75: rejected."
LATER = " The random draw fell at 0.75: not here, but a later test passed, so this token is accepted too."
WHOLE = (
    "The stopping test at fox passes 60 % of the time. The token is accepted 80 % of the time, as a later test may "
    "pass."
)
ALONE = "Typical acceptance looks at the target alone, without a random draw. "


def judged(rule, accept_prob, u, status):
    """A step under `rule` whose first token was judged like this, and the token."""
    step = traces.chain().steps[2]
    token = replace(step.draft[0], text=" fox", p=0.4, q=0.5, accept_prob=accept_prob, u=u, status=status)
    settings = replace(step.settings, rule=rule, lossless=RULES[rule].lossless)
    return replace(step, settings=settings, draft=(token, *step.draft[1:])), token


def words(sentence):
    return "".join(sentence).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("rule", "case", "expected"),
    [
        ("block_verification", SURE, WHOLE + KEPT),
        ("block_verification", FAILS, WHOLE + CUT),
        ("block_verification", RESCUED, WHOLE + LATER),
        ("sample_and_match", FAILS, "The target draws fox itself 60 % of the time." + CUT),
        ("typical", (1.0, 0.75, "accepted"), ALONE + "It finds fox likely enough: accepted."),
        ("typical", (0.0, 0.25, "rejected"), ALONE + "It finds fox not likely enough: rejected."),
        (
            "lenience",
            SURE,
            "This rule counts only part of the draft's probability. It accepts fox 60 % of the time." + KEPT,
        ),
        (
            "ensemble",
            FAILS,
            "Against the average of both models' probabilities, the rule accepts fox 60 % of the time." + CUT,
        ),
    ],
)
def test_the_title_says_what_the_chance_is(rule, case, expected):
    assert words(rule_title(*judged(rule, *case))) == expected


def test_under_block_verification_the_stopping_test_and_the_chance_to_be_kept_are_two_numbers():
    look = as_json(looks(judged("block_verification", *SURE)[0]))["0"]
    numbers = dict(zip([name for name, _ in NUMBERS], look["numbers"], strict=True))
    assert numbers["probability of acceptance"].startswith("0.8000")
    assert numbers["stopping test"] == "0.6000"
    assert (look["draw"]["fill"], "stopping test" in look["draw"]["words"]) == (60.0, True)
    lane = as_json(show_step(judged("block_verification", *SURE)[0], Counters()))
    assert lane["whole"]
    assert "stopping test 60" in lane["cells"][0]["say"]
    other = as_json(looks(judged("sample_and_match", *SURE)[0]))["0"]
    assert (other["numbers"][-1], "words" in other["draw"]) == ("", False)


@pytest.mark.parametrize("seed", range(3))
def test_the_chance_to_be_kept_under_block_verification_is_that_over_all_that_may_follow(seed):
    """By enumeration: after every prefix, what follows is drawn from the draft and judged by the rule's own program."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.rand(size, 3, generator=generator, dtype=torch.float64) for size in (4, 3))
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    step, settings = traces.chain().steps[0], replace(traces.chain().steps[0].settings, rule="block_verification")
    for prefix in itertools.chain.from_iterable(itertools.product(range(3), repeat=n) for n in (1, 2, 3)):
        kept = 0.0
        for rest in itertools.product(range(3), repeat=3 - len(prefix)):
            chance = math.prod(float(q[len(prefix) + i, token]) for i, token in enumerate(rest))
            distribution = RULES["block_verification"].length_distribution(chain((*prefix, *rest), tuple(q)), p)
            kept += chance * float(distribution[len(prefix) :].sum())
        distributions = [(float(p[i, token]), float(q[i, token])) for i, token in enumerate(prefix)]
        drafted = tuple(replace(step.draft[i], p=p_i, q=q_i) for i, (p_i, q_i) in enumerate(distributions))
        assert chance_accepted(replace(step, settings=settings, draft=drafted), drafted[-1]) == pytest.approx(
            kept, abs=1e-9
        )


def last_of(kind):
    """A step of the sample run whose own token is of this kind."""
    builder = traces.Builder().chain(4, 2).chain(3, 3).chain(0, 0)
    return next(step for step in builder.trace.steps if step.emitted[-1].kind == kind)


@pytest.mark.parametrize("rule", NEW)
@pytest.mark.parametrize("kind", ["resampled", "bonus", "plain"])
def test_the_last_token_says_where_it_came_from(rule, kind):
    step = last_of(kind)
    step = replace(step, settings=replace(step.settings, rule=rule))
    said = words(drawn_title(step, last_token(step), 0.3))
    assert ("most likely token" in said) == (rule == "typical")
    assert ("30 %" in said) == (rule != "typical")
    assert ("of all other tokens" in said) == (rule == "sample_and_match" and kind == "resampled")
    assert ("average" in said) == (rule == "ensemble" and kind == "resampled")


@pytest.mark.parametrize("rule", NEW)
def test_every_new_rule_has_words_of_its_own(rule):
    step, _ = judged(rule, *SURE)
    look = as_json(looks(step))["0"]
    assert look["view"] == "threshold"
    assert "The rule “" not in words(look["title"])


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_method_says_what_it_does_and_when_it_pays(method):
    said = method_help(method, RULES[method.default_rule], has_k=method.depth is None)
    assert said.summary.endswith(".")
    assert said.caution.endswith(".") or method.name == "none"
    assert all(address for words, address in said.sources if "arXiv" in words)
    assert all(param.help.endswith(".") for param in method.params)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_the_badge_is_that_of_the_rule_alone(rule):
    said = method_help(METHODS["draft_model"], rule, has_k=True).rule
    assert (said.title, said.badge) == (rule.title, "exact" if rule.lossless else "lossy")
    assert ("not distributed as if" in said.meaning) != rule.lossless


@pytest.mark.parametrize(
    ("source", "pieces"),
    [
        ("", []),
        (
            "A, arXiv:2211.17192; B, arXiv:2302.01318",
            ["https://arxiv.org/abs/2211.17192", "https://arxiv.org/abs/2302.01318"],
        ),
        ("A blog; B, arXiv:2401.10774, section 2", [None, "https://arxiv.org/abs/2401.10774"]),
        ("arXiv:evil/../x", [None]),
        ("javascript:alert(1)", [None]),
    ],
)
def test_a_paper_leads_to_arxiv_and_everything_else_nowhere(source, pieces):
    assert [address for _, address in sources(source)] == pieces


def test_the_help_says_what_stands_for_k():
    deep = replace(METHODS["prompt_lookup"], depth="max_ngram")
    notes = method_help(deep, RULES["typical"], has_k=False).notes
    assert "longest match" in notes[0]
    assert method_help(METHODS["none"], RULES["typical"], has_k=False).notes == []
