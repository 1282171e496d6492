"""What comes out at a recorded place: the bars against the rules' own laws over all of the models' odds."""

from dataclasses import replace
from functools import cache

import pytest

from specviz.checks.one_step import places
from specviz.models.pool import ModelPool
from specviz.rules import RULES
from specviz.rules.broken import BROKEN
from specviz.trace import Step, Trace
from specviz.trace.shipped import shipped_trace
from specviz.views.check import distributions
from specviz.views.check.distributions import distribution_block
from specviz.views.words import label

RIGHT, BROKEN_ONE = "speculative_sampling", "broken:resample_p"
BOTH = [RIGHT, BROKEN_ONE]
OF = {RIGHT: RULES[RIGHT], BROKEN_ONE: BROKEN["resample_p"]}
MOST_STEPS = 8


@cache
def judged():
    """The judged places of the first steps, with the models' whole rows."""
    pool, found = ModelPool(), []
    for place in places(shipped_trace("first-visit"), pool.load("fable-target"), pool.load("fable-draft")):
        if place.step == MOST_STEPS:
            return found
        found += [place] if place.is_judged else []
    raise AssertionError("the run is too short")


def block(place, rules):
    return distribution_block(shipped_trace("first-visit"), place.step, str(place.node), rules)


def ends(rows):
    """Where each bar ends and where its tick stands, in percent of the axis."""
    return [(sum(width for _, width in row.parts), row.tick) for row in rows if row.tick is not None]


def read(values):
    return [float(value.strip("<>\u00a0%")) for value in values]


def texts_at(place):
    """Token ids by their label, as the recorded place knows them."""
    step = shipped_trace("first-visit").steps[place.step]
    position = next(each for each in step.positions if each.child == place.node)
    return {label(text): id_ for id_, text, *_ in position.top}


@pytest.mark.parametrize("rule", BOTH)
def test_every_bar_is_the_rules_own_distribution_over_all_probabilities(rule):
    for place in judged():
        ids, distribution = texts_at(place), OF[rule].one_step_distribution(place.p, place.q)
        bars = [row for row in block(place, [rule]).rows if row.tick is not None]
        assert max(max(pair) for pair in ends(bars)) == pytest.approx(100, abs=1e-2)  # the longest fills the axis
        assert len(bars) == distributions.MOST_ROWS + 1
        for row, (end, tick) in zip(bars[:-1], ends(bars), strict=False):
            token = ids[row.label.removesuffix(", broken")]
            written, target = float(distribution[token]), float(place.p[token])
            assert end * target == pytest.approx(tick * written, abs=0.02)
            assert read(row.values) == pytest.approx([100 * target, 100 * written], rel=0.06, abs=0.1)


def test_under_the_right_rule_every_bar_ends_at_its_tick():
    for place in judged():
        rows = block(place, [RIGHT]).rows
        assert all(end == pytest.approx(tick, abs=2e-3) for end, tick in ends(rows))
        assert rows[-1].values == ("", "0\u00a0%")


def test_all_that_comes_out_is_one_whole_under_each_rule():
    for place in judged():
        rows = [row for row in block(place, BOTH).rows if row.tick is not None]
        for first in (0, 1):
            bars = ends(rows[first::2])
            assert sum(end for end, _ in bars) == pytest.approx(sum(tick for _, tick in bars), abs=0.05)


def test_what_lies_wrong_is_never_said_to_be_more_than_it_is():
    for place in judged():
        distribution = OF[BROKEN_ONE].one_step_distribution(place.p, place.q).double()
        true = float((distribution - place.p).abs().sum() / 2)
        rows = block(place, [BROKEN_ONE]).rows
        said = rows[-1].values[1]
        assert said.startswith("at least ")
        scale = rows[0].tick / float(place.p[place.token])
        moved = rows[-1].parts[0][1] / scale
        assert moved <= true + 1e-3
        assert moved > 0.9 * true or (place.step, place.node) != (0, 1)  # close where the lesson shows it


def test_the_cut_token_stands_first_and_the_rest_last():
    rows = distribution_block(shipped_trace("first-visit"), 0, "1", BOTH).rows
    labels = [row.label.strip() for row in rows]
    assert labels[::2] == ["␣saw", "␣decided", "␣went", "␣found", "␣were", "all others", "misplaced"]
    assert labels[1::2] == ["broken"] * 7


def test_a_token_that_only_the_draft_finds_likely_has_a_row():
    """In step 11 the draft gives shiny more than most, the target not: it is shown in place of a likelier one by p."""
    position = next(each for each in shipped_trace("first-visit").steps[10].positions if each.child == 1)
    p, q = ({text: row[at] for row in position.top for text in [label(row[1])]} for at in (2, 3))
    rows = distribution_block(shipped_trace("first-visit"), 10, "1", [RIGHT]).rows
    shown = [row.label for row in rows if row.label in p]
    assert "␣shiny" in shown
    assert q["␣shiny"] > p["␣bit"] > p["␣shiny"]
    assert "␣bit" not in shown
    assert shown[1:] == sorted(shown[1:], key=lambda text: -p[text])


def test_recorded_probabilities_that_add_up_to_a_little_more_than_one_leave_nothing_to_the_others():
    events = list(shipped_trace("first-visit").events())
    place = next(number for number, event in enumerate(events) if isinstance(event, Step))
    step = events[place]
    at = next(number for number, each in enumerate(step.positions) if each.child == 1)
    (token, text, *_), others = step.positions[at].top[0], step.positions[at].top[1:5]
    rest = 1 + 1e-3 - sum(row[2] for row in others)
    full = replace(step.positions[at], top=((token, text, rest, 1e-6, rest, None, None), *others), overlap=1e-6)
    events[place] = replace(step, positions=(*step.positions[:at], full, *step.positions[at + 1 :]))
    rows = distribution_block(Trace(events), 0, "1", BOTH).rows
    widths = [width for row in rows for _, width in row.parts]
    assert min([*widths, *(row.tick or 0 for row in rows)]) >= 0


def test_a_rule_that_stands_first_is_named_unless_it_is_right():
    rows = distribution_block(shipped_trace("first-visit"), 0, "1", BOTH[::-1]).rows
    assert [row.label.strip() for row in rows[:2]] == ["␣saw, broken", "right"]


@pytest.mark.parametrize(
    ("step", "ref", "rules", "words"),
    [
        (0, "1", ["typical"], "rules must be some of"),
        (0, "1", [], "got none"),
        (99, "1", BOTH, "step must be from 0 to 22"),
        (0, "2", BOTH, "ref must be a drafted token"),
        (0, "last", BOTH, "ref must be a drafted token"),
    ],
)
def test_what_has_no_distribution_is_refused(step, ref, rules, words):
    with pytest.raises(ValueError, match=words):
        distribution_block(shipped_trace("first-visit"), step, ref, rules)
