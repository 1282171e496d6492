"""Overlap at other temperatures of the draft: the range that a trace allows, and the exact curve of the models."""

from dataclasses import replace

import numpy as np
import pytest

from specviz.analysis.draft_temperature import OverlapCurve, ask_models, read_overlaps
from specviz.checks.rows import step_rows
from specviz.errors import SpecvizError
from specviz.models.score import overlap_of
from specviz.views.compare.plan import draft_temperature
from specviz.views.words import percent
from tests.helpers import traces
from tests.helpers.page_records import kinds
from tests.helpers.runs import made

PLACES = {each: place for place, each in enumerate(OverlapCurve.temperatures)}


@pytest.fixture
def models(named_models):
    return named_models.load("big"), named_models.load("near")


def slow_means(recorded, models):
    """The mean overlap over the judged positions at each temperature, from full rows of both models."""
    means = []
    for temperature in OverlapCurve.temperatures:
        events = traces.events_of(recorded)
        for event in events:
            if event["event"] == "step":
                event["settings"]["draft_temperature"] = temperature
        found = []
        for rows in step_rows(traces.read_events(events), *models):
            judged = [node for node, token in enumerate(rows.record.draft) if token.is_judged]
            found += [float(overlap_of(rows.probs[node], rows.draft.probs[node])) for node in judged]
        means.append(np.mean(found))
    return np.array(means)


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.6}, {"temperature": 0.0, "draft_temperature": 1.4}], ids=str)
def test_what_a_trace_allows_holds_the_overlap_of_its_models(bench, models, changes):
    recorded = made(bench, **changes, max_new_tokens=12)
    curve, slow = read_overlaps(recorded), slow_means(recorded, models)
    assert np.all(np.array(curve.low) <= slow + 1e-6)
    assert np.all(slow <= np.array(curve.high) + 1e-6)
    assert curve.low[0] == pytest.approx(slow[0], abs=1e-6) == curve.high[0]
    assert curve.own == changes.get("draft_temperature", changes.get("temperature", 1.0))
    assert [known for known in curve.known if known is not None] == pytest.approx(
        [value for value, known in zip(slow, curve.known, strict=True) if known is not None], abs=0.01
    )


@pytest.mark.parametrize("own", [None, 0.5])
def test_the_models_curve_runs_through_the_overlap_that_the_run_was_scored_with(bench, models, own):
    recorded = made(bench, draft_temperature=own)
    curve = ask_models(recorded, *models)
    scored = recorded.scores[-1].overlap
    assert curve.low[PLACES[own or 1.0]] == pytest.approx(np.mean(scored), abs=1e-6)
    assert (curve.num_positions, curve.is_exact) == (len(scored), True)
    assert curve.best == max(zip(curve.temperatures, curve.low, strict=True), key=lambda pair: pair[1])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "prompt_lookup"}, "judged against a q of its own"),
        ({"top_k": 3}, "filtered by top-k, top-p or min-p"),
        ({"min_p": 0.1}, "filtered by top-k, top-p or min-p"),
        ({"draft_top_p": 0.9}, "filtered by top-k, top-p or min-p"),
    ],
)
def test_what_the_trace_does_not_tell_is_said(bench, changes, says):
    with pytest.raises(SpecvizError, match=says):
        read_overlaps(made(bench, **changes))


def test_the_section_names_the_best_temperature_only_where_every_value_is_known():
    known = tuple(0.5 - abs(each - 0.6) / 10 for each in OverlapCurve.temperatures)
    exact = OverlapCurve(known, known, 64, 1.0, is_exact=True)
    words = draft_temperature(exact).blocks[-1].words
    assert words == ["The overlap is largest at ", "0.6", f": {percent(0.5)}. This run's draft was sampled at 1."]
    vague = replace(exact, high=tuple(each + 0.3 for each in known), is_exact=False)
    shown = draft_temperature(vague, may_ask=True)
    assert kinds(shown) == ["words", "chart"]
    assert "Ask the models" in shown.blocks[0].words
    assert [trace["name"] for trace in shown.blocks[1].figure["data"]] == ["overlap", "at least", "at most"]
