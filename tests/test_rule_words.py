"""The inspector's words for rules other than speculative sampling: what their chance means, where a token came from."""

from dataclasses import replace

import pytest
import traces

from specviz.rules import RULES
from specviz.views.inspector import OVERLAY_RULE, looks
from specviz.views.titles import drawn_title, last_token, rule_title

NEW = [name for name in RULES if name != OVERLAY_RULE]
SURE, FAILS, RESCUED = (0.6, 0.25, "accepted"), (0.6, 0.75, "rejected"), (0.6, 0.75, "accepted")
KEPT, CUT = " The dart fell at 0.25: kept.", " The dart fell at 0.75: cut."
LATER = " The dart fell at 0.75: not here, but the draft stands up to a later token, so this one is kept."
ALONE = "Typical acceptance asks the target alone, without a dart. "


def judged(rule, accept_prob, u, status):
    """A step under `rule` whose first token was judged like this, and the token."""
    step = traces.chain().steps[2]
    token = replace(step.draft[0], text=" fox", accept_prob=accept_prob, u=u, status=status)
    settings = replace(step.settings, rule=rule, lossless=RULES[rule].lossless)
    return replace(step, settings=settings, draft=(token, *step.draft[1:])), token


def words(sentence):
    return "".join(sentence).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("rule", "case", "expected"),
    [
        ("block_verification", SURE, "Judged as a whole, the draft stands up to fox 60 % of the time." + KEPT),
        ("block_verification", FAILS, "Judged as a whole, the draft stands up to fox 60 % of the time." + CUT),
        ("block_verification", RESCUED, "Judged as a whole, the draft stands up to fox 60 % of the time." + LATER),
        ("sample_and_match", FAILS, "The target draws fox itself 60 % of the time." + CUT),
        ("typical", (1.0, 0.75, "accepted"), ALONE + "It finds fox likely enough: kept."),
        ("typical", (0.0, 0.25, "rejected"), ALONE + "It finds fox not likely enough: cut."),
        (
            "lenience",
            SURE,
            "Counting only part of what the draft gave it, this rule keeps fox 60 % of the time." + KEPT,
        ),
        ("ensemble", FAILS, "Against the average of both models' odds, the rule keeps fox 60 % of the time." + CUT),
    ],
)
def test_the_title_says_what_the_chance_is(rule, case, expected):
    assert words(rule_title(*judged(rule, *case))) == expected


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
    assert ("favourite" in said) == (rule == "typical")
    assert ("30 %" in said) == (rule != "typical")
    assert ("for all other tokens" in said) == (rule == "sample_and_match" and kind == "resampled")
    assert ("average" in said) == (rule == "ensemble" and kind == "resampled")


@pytest.mark.parametrize("rule", NEW)
def test_every_new_rule_has_words_of_its_own(rule):
    step, _ = judged(rule, *SURE)
    look = looks(step)["0"]
    assert look["view"] == "threshold"
    assert "The rule “" not in words(look["title"])
