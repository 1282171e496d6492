"""K over a finished run: against real runs at other K, against every pattern that chance allows, and its refusals."""

import itertools
import json
import math

import pytest

from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session import run as session
from specviz.session.workbench import Workbench
from specviz.trace.metrics import metrics
from specviz.trace.shipped import shipped_trace
from specviz.views.explore.every_k import MOST_K, every_k
from specviz.views.explore.feed import Feed
from tests.helpers import traces
from tests.helpers.messages import as_json
from tests.helpers.runs import made

KS = (1, 2, 3, 5, 8, 16)


@pytest.fixture(scope="module")
def bundled():
    """Runs of the bundled pair, by a real model and its real draft."""
    bench = Workbench(ModelPool())

    def run(**changes):
        asked = {"target": "fable-target", "draft": "fable-draft", "prompt": "One day, a little fox", **changes}
        begun = session.open_run(Request(max_new_tokens=48, temperature=0.0, **asked), bench=bench)
        for _ in begun.events():
            pass
        return begun.trace

    return run


def lanes_of(told, k):
    """What the lanes show at this K: per step its drafted texts, how many of them are accepted, its last text and kind.

    A text that nobody has recorded is None.
    """
    start, lanes, texts = 0, [], [text for text, *_ in told["tokens"]]
    for accepted, drafted, kind in told["by_k"][k - 1]["steps"]:
        place, kind = start + accepted, told["kinds"][kind]
        known = told["drafted"].get(str(place), []) + [None] * drafted
        cells = [*texts[start:place], *known][:drafted]
        lanes.append((cells, accepted, *((None, None) if kind == "accepted" else (texts[place], kind))))
        start = place + (kind != "accepted")
    assert start == len(texts)
    return lanes


def lanes_of_run(recorded):
    feed, lanes = Feed.from_trace(recorded, "run"), []
    for step in as_json(feed.since(0))["steps"]:
        last = step["last"] or {"text": None, "status": None}
        kept = sum(cell["status"] == "accepted" and not cell.get("behind_end") for cell in step["cells"])
        lanes.append(([cell["text"] for cell in step["cells"]], kept, last["text"], last["status"]))
    return lanes


def same(imagined, real):
    """Equal in all that is known. A half character is spelled by what stands before it, drafted or not."""

    def equal(one, other):
        return one in (None, other) or "\ufffd" in f"{one}{other}"

    pairs = list(itertools.zip_longest(imagined, real, fillvalue=((), None, None, None)))
    cells = [all(map(equal, a[0], b[0])) and len(a[0]) == len(b[0]) for a, b in pairs]
    return all(cells) and all(a[1::2] == b[1::2] and equal(a[2], b[2]) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("own", [1, 4])
@pytest.mark.parametrize("draft", ["fable-draft", "fable-draft-tiny"])
def test_at_temperature_0_the_lanes_are_those_of_a_real_run_at_that_k(bundled, draft, own):
    told = as_json(every_k(bundled(draft=draft, num_speculative_tokens=own)))
    assert told["sure"]
    assert told["own"] == told["at"] == own
    for k in KS:
        real = bundled(draft=draft, num_speculative_tokens=k)
        assert same(lanes_of(told, k), lanes_of_run(real)), f"K {k}"
        values, totals = metrics(real), told["by_k"][k - 1]["totals"]
        last = as_json(Feed.from_trace(real, "run").since(0))["steps"][-1]["totals"]
        assert totals == {name: last[name] for name in totals}
        assert f"this text takes {values['target_calls']} target calls." in told["by_k"][k - 1]["sentence"][2]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "draft"), [("big", "near"), ("big", "far"), ("ending", "near")])
def test_so_they_are_for_other_pairs_and_for_texts_that_end_by_themselves(bench, target, draft):
    options = {"target": target, "draft": draft, "temperature": 0.0, "max_new_tokens": 40}
    told = as_json(every_k(made(bench, num_speculative_tokens=3, **options)))
    for k in KS:
        real = made(bench, num_speculative_tokens=k, **options)
        assert same(lanes_of(told, k), lanes_of_run(real)), f"K {k}"


def test_a_lookup_that_needs_no_model_has_sure_lanes_too(bench):
    options = {"method": "prompt_lookup", "temperature": 0.0}
    told = as_json(every_k(made(bench, num_speculative_tokens=3, **options)))
    for k in KS:
        assert same(lanes_of(told, k), lanes_of_run(made(bench, num_speculative_tokens=k, **options))), f"K {k}"


def chances_of(told, k):
    return [told["labels"][place] for place in told["by_k"][k - 1]["chances"]]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_above_0_each_token_has_its_chance_over_every_pattern(bench, k):
    recorded = made(bench, max_new_tokens=9, seed=3)
    told, size = as_json(every_k(recorded)), 9
    scores = recorded.scores[-1]
    a = [min(1.0, q / p) for p, q in zip(scores.p, scores.q, strict=True)]
    accepted, judged, calls = [0.0] * size, 0.0, 0.0
    for flags in itertools.product((False, True), repeat=size):
        chance = math.prod(one if flag else 1 - one for one, flag in zip(a, flags, strict=True))
        at = 0
        while at < size:
            depth = min(k, size - at - 1)
            kept = next((j for j in range(depth) if not flags[at + j]), depth)
            for place in range(at, at + kept):
                accepted[place] += chance
            judged += chance * (kept + (kept < depth))
            calls += chance
            at += kept + 1
    assert not told["sure"]
    assert [width for _, width in chances_of(told, k)] == pytest.approx([100 * each for each in accepted], abs=0.55)
    about = told["by_k"][k - 1]
    assert about["totals"]["tokens_per_call"] == f"{size / calls:.1f}"
    assert float(about["totals"]["accepted"].split()[0]) == pytest.approx(100 * sum(accepted) / judged, abs=0.6)
    assert f"takes {calls:.1f} target calls on average" in about["sentence"][2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_message_holds_every_k_and_is_small(bench, temperature):
    recorded = made(bench, temperature=temperature, max_new_tokens=128)
    told = as_json(every_k(recorded))
    assert [each["k"] for each in told["by_k"]] == [*range(1, MOST_K + 1)]
    assert len(told["tokens"]) == 128
    assert len(json.dumps(told, separators=(",", ":"))) < 30_000


def test_a_token_leads_to_its_place_in_the_run():
    recorded = shipped_trace("first-visit")
    steps = as_json(Feed.from_trace(recorded, "run").since(0))["steps"]
    for text, step, ref in as_json(every_k(recorded))["tokens"]:
        cells = {cell["ref"]: cell for cell in [*steps[step]["cells"], steps[step]["last"]]}
        assert cells[ref]["text"] == text
        assert cells[ref]["status"] in ("accepted", "resampled", "bonus")


@pytest.mark.parametrize(
    ("recorded", "says", "whole"),
    [
        (
            lambda: shipped_trace("tree"),
            "this run drafted token trees",
            " (Token tree), and K is the length of a chain.",
        ),
        (
            lambda: shipped_trace("real-eagle"),
            "its other drafts are unknown",
            "draft depends on where its step begins.",
        ),
        (lambda: traces.empty(), "the text has fewer than two tokens", "two tokens."),
        (
            lambda: traces.resampling_changed(),
            "the target or the sampling changed during the run",
            "so its text has no single distribution.",
        ),
    ],
)
def test_where_the_distribution_does_not_allow_it_a_short_sentence_says_why_and_a_longer_one_all(recorded, says, whole):
    told = as_json(every_k(recorded()))
    assert told["refusal"] == f"No other K here: {says}."
    assert len(told["refusal"]) < 70
    assert told["why"].startswith("No other K here: ")
    assert told["why"].endswith(whole)
    assert ";" not in told["why"]
