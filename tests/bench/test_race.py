"""Laws of a race: both sides are really run, alone, warmed up and from nothing; its numbers are its traces' numbers."""

from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest
import torch

from specviz.analysis.rounds import turns
from specviz.bench import race
from specviz.bench.race import Heat, Race, RaceSide, Start, run_race
from specviz.errors import SpecvizError
from specviz.models.busy import OtherWork, other_work
from specviz.models.score import TextIds
from specviz.session.workbench import BackgroundTask, Workbench
from specviz.trace import Trace
from specviz.trace.first_difference import are_of_one_prompt, first_difference
from tests.helpers import traces
from tests.helpers.runs import PROMPT, REQUEST, Fails, greedy, ids

GREEDY = replace(REQUEST, temperature=0.0, max_new_tokens=12)
ALONE = RaceSide("A", replace(GREEDY, method="none"))
NEAR = RaceSide("B", GREEDY)
ODD = RaceSide("B", replace(GREEDY, draft="far", rule="ensemble"))
STARTS = [Start("first", PROMPT), Start("second", "A small dog saw the fox and"), Start("third", "Hello said the dog")]


def raced(bench, *sides, starts=STARTS) -> Race:
    *_, last = bench.in_turns(run_race(*(sides or (ALONE, NEAR)), starts, bench))
    return last


@pytest.fixture(scope="module")
def greedy_race(named_models):
    return raced(Workbench(named_models))


def tokens_per_s(trace):
    seconds = sum(step.timing.total_ms - step.timing.wait_ms for step in trace.steps) / 1000
    return sum(len(step.emitted) for step in trace.steps) / seconds


def test_its_ratios_are_those_of_its_traces(greedy_race):
    result = greedy_race
    assert result.done == result.total == 2 + 4 * len(STARTS)
    by_hand = [tokens_per_s(heat.right) / tokens_per_s(heat.left) for heat in result.heats]
    assert result.comparison.ratios == pytest.approx(by_hand)
    assert result.comparison.ratio == pytest.approx(sorted(by_hand)[1])


def test_greedy_sides_write_what_the_target_writes_alone(greedy_race, named_models):
    result, model = greedy_race, named_models.load("big").model
    for heat, start in zip(result.heats, STARTS, strict=True):
        prompt = [token.id for token in heat.left.header.prompt.tokens]
        assert ids(heat.left) == ids(heat.right) == greedy(model, prompt, 12)
        assert (heat.title, heat.parting) == (start.title, None)
    assert result.difference is None


def test_each_side_warms_up_once_and_the_lot_says_who_begins(bench, monkeypatch):
    order, record = [], race.whole_run
    monkeypatch.setattr(race, "whole_run", lambda active: order.append(active.request.method) or record(active))
    monkeypatch.setattr(race, "turns", partial(turns, lots=Random(1)))
    result = raced(bench)
    one, other = "none", "draft_model"
    abba, baab = [one, other, other, one], [other, one, one, other]
    assert order[:2] == [one, other]
    rounds = [order[start : start + 4] for start in range(2, len(order), 4)]
    assert all(each in (abba, baab) for each in rounds)
    assert abba in rounds
    assert baab in rounds
    assert len(result.heats) == 3


def test_the_quicker_of_a_sides_two_runs_counts_and_the_other_tells_how_steady_it_was(bench, monkeypatch):
    made, record = [], race.whole_run
    monkeypatch.setattr(race, "whole_run", lambda active: made.append(record(active)) or made[-1])
    monkeypatch.setattr(race, "turns", partial(turns, lots=Random(2)))
    (heat,) = raced(bench, starts=STARTS[:1]).heats
    sides = [[], []]
    for trace in made[2:]:
        ms = sum(step.timing.total_ms - step.timing.wait_ms for step in trace.steps)
        sides[trace.header.request["method"] != "none"].append(ms)
    for run, both, slower in zip((heat.left, heat.right), sides, heat.slower_ms, strict=True):
        assert sum(step.timing.total_ms - step.timing.wait_ms for step in run.steps) == pytest.approx(min(both))
        assert slower == pytest.approx(max(both))
    spread = Race(6, 6, "", (heat,)).comparison.spread
    assert spread == pytest.approx(sum(max(both) / min(both) - 1 for both in sides) / 2)


def lasting(*ms):
    """A trace per time, of ten tokens or so."""
    events = list(traces.chain().events())
    share = 1 / sum(hasattr(event, "timing") for event in events)
    return [
        Trace(
            replace(event, timing=replace(event.timing, wait_ms=0.0, total_ms=each * share))
            if hasattr(event, "timing")
            else event
            for event in events
        )
        for each in ms
    ]


def heat(left, right):
    """Of both times of either side."""
    return Heat("", *lasting(min(left), min(right)), (max(left), max(right)))


def test_a_race_compares_its_sides_prompt_by_prompt_in_time_per_token():
    heats = [heat((100, 110), (50, 60)), heat((100, 130), (80, 80)), heat((70, 77), (100, 101))]
    found = Race(1, 1, "", tuple(heats))
    assert found.comparison.ratios == pytest.approx([2, 1.25, 0.7])
    assert found.comparison.spread == pytest.approx(0.1)  # the median of 10, 20, 30, 0, 10 and 1 %
    assert found.wins_and_losses == (0, 0)  # two runs of one side lie 30 % apart


def test_a_race_without_a_clock_compares_nothing():
    assert Race(1, 1).comparison is None
    assert Race(1, 1, "", (heat((0, 0), (0, 0)),)).comparison is None
    assert Race(1, 1, "", (heat((0, 0), (0, 0)),)).wins_and_losses == (0, 0)


def test_a_race_is_divided_where_each_side_is_beyond_doubt_ahead_on_a_prompt():
    heats = heat((100, 101), (50, 51)), heat((50, 51), (100, 101)), heat((50, 50), (100, 100))
    assert Race(1, 1, "", heats).wins_and_losses == (1, 2)
    assert Race(1, 1, "", heats[:1]).wins_and_losses == (0, 0)


def test_the_median_of_ratios_does_not_depend_on_who_is_called_a():
    pairs = [(100, 50), (100, 80), (70, 100), (100, 90)]
    there, back = (
        Race(1, 1, "", tuple(heat((one,) * 2, (other,) * 2) for one, other in way))
        for way in (pairs, [(b, a) for a, b in pairs])
    )
    assert there.comparison.ratio == pytest.approx(1 / back.comparison.ratio)


def test_one_run_is_made_per_turn(bench, monkeypatch):
    made, record = [], race.whole_run
    monkeypatch.setattr(race, "whole_run", lambda active: made.append(active) or record(active))
    for number, _ in enumerate(run_race(ALONE, NEAR, STARTS[:1], bench)):
        assert len(made) == number


def test_reading_the_prompt_counts_on_both_sides(greedy_race):
    for heat in greedy_race.heats:
        for each in (heat.left, heat.right):
            first = each.steps[0]
            assert first.fed["target"] >= len(each.header.prompt.tokens) + len(first.draft)


def test_a_race_that_shared_the_engine_says_so(bench):
    work = run_race(ALONE, NEAR, STARTS[:1], bench)
    assert not raced(bench, starts=STARTS[:1]).is_shared
    tickets = [bench.engine.join(), bench.engine.join()]
    *_, last = work
    assert last.is_shared
    for ticket in tickets:
        bench.engine.leave(ticket)


@pytest.mark.parametrize("when", [0, 3])
def test_other_work_of_this_process_during_any_run_counts_as_sharing(bench, monkeypatch, when):
    runs, record = [], race.whole_run

    def disturbed(active):
        runs.append(active)
        if len(runs) == 3 + when:  # two warm up
            with other_work.work():
                pass
        return record(active)

    monkeypatch.setattr(race, "whole_run", disturbed)
    assert raced(bench, starts=STARTS[:1]).is_shared


def test_work_before_or_after_a_watch_is_none_of_its_business():
    beside = OtherWork()
    with beside.work():
        seen = beside.watch()
        assert seen()
    assert seen()
    seen = beside.watch()
    assert not seen()
    with beside.work():
        assert seen()
    assert seen()
    assert not beside.watch()()


def test_loading_a_model_and_making_a_file_count_as_other_work():
    is_disturbed = other_work.watch()
    BackgroundTask(lambda report: None).wait(5)
    assert is_disturbed()


def test_a_prompt_of_ids_is_fed_as_ids(bench):
    prompt = (5, 6, 7, 8)
    (heat,) = raced(bench, starts=[Start("ids", "other words", prompt)]).heats
    assert [token.id for token in heat.left.header.prompt.tokens] == list(prompt)


def test_a_draft_of_another_vocabulary_is_not_asked_about_the_difference(bench):
    foreign = RaceSide("B", replace(GREEDY, draft="stranger", method="cross_vocabulary"))
    active_setups = [race._run(side, STARTS[0], bench)[0] for side in (ALONE, NEAR, foreign)]
    names = [each.name for each in race._readings(TextIds(list(range(4, 12)), [5, 6]), (5, 6), active_setups)]
    assert names == ["big", "near"]


def test_a_draft_that_cannot_read_so_far_is_not_asked(bench):
    short = RaceSide("B", replace(GREEDY, draft="brief"))
    active = race._run(short, Start("short", "Hello said"), bench)[0]
    for number, names in ((8, ["big", "brief"]), (60, ["big"])):
        text = TextIds([4 + place % 20 for place in range(number)], [5, 6])
        assert [each.name for each in race._readings(text, (5, 6), [active])] == names


def test_the_tie_of_a_number_format_is_its_own():
    assert (race.tie_tolerance("float64"), race.tie_tolerance("float32")) == (1e-6, 1e-3)
    assert race.tie_tolerance("float32, Q4_1, computed from its dequantised weights") == 1e-3
    assert race.tie_tolerance("float32, weights int8 (bitsandbytes)") == 0.25
    assert race.tie_tolerance("float16") == race.tie_tolerance("bfloat16") == race.tie_tolerance(None) == 0.25


def test_prompts_of_one_length_need_not_be_one_prompt():
    left, right = traces.chain(), traces.chain()
    prompt = right.header.prompt
    token = replace(prompt.tokens[-1], id=prompt.tokens[-1].id + 1)
    other = replace(right.header, prompt=replace(prompt, tokens=(*prompt.tokens[:-1], token)))
    changed = Trace(other if event is right.header else event for event in right.events())
    assert not are_of_one_prompt(left, changed)


def test_the_first_difference_has_the_logits_of_both_models(bench):
    result = raced(bench, ALONE, ODD, starts=STARTS)
    found = result.difference
    heat = next(heat for heat in result.heats if heat.parting is not None)
    place = next(i for i, (a, b) in enumerate(zip(ids(heat.left), ids(heat.right), strict=False)) if a != b)
    assert (found.title, found.place, result.heats[found.heat]) == (heat.title, place, heat)
    assert (found.left.id, found.right.id) == (ids(heat.left)[place], ids(heat.right)[place])
    text = [token.id for token in heat.left.header.prompt.tokens] + ids(heat.left)[:place]
    for reading, name in zip(found.readings, ("big", "far"), strict=True):
        with torch.inference_mode():
            row = bench.pool.load(name).model(torch.tensor([text])).logits[0, -1].double().numpy()
        probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        assert reading.logits == pytest.approx([row[found.left.id], row[found.right.id]], abs=1e-4)
        assert reading.best == pytest.approx(row.max(), abs=1e-4)
        assert reading.probabilities == pytest.approx(
            [probabilities[found.left.id], probabilities[found.right.id]], abs=1e-4
        )
    assert found.readings[0].logits[0] > found.readings[0].logits[1]
    assert not found.is_tie


def test_two_logits_that_are_closer_than_the_number_format_tells_are_a_tie(bench, monkeypatch):
    monkeypatch.setitem(race.TIE, "float32", 1e9)
    assert raced(bench, ALONE, ODD).difference.is_tie


def test_two_tokens_of_which_neither_is_the_most_likely_are_no_tie(bench, monkeypatch):
    own = race._reading
    far = lambda *given: replace(own(*given), logits=(2.0, 2.0), best=3.0)  # noqa: E731
    monkeypatch.setattr(race, "_reading", far)
    assert not raced(bench, ALONE, ODD).difference.is_tie
    monkeypatch.setitem(race.TIE, "float32", 1.0)
    assert raced(bench, ALONE, ODD).difference.is_tie


def test_above_temperature_0_no_difference_is_looked_for(bench):
    warm = [replace(side, request=replace(side.request, temperature=1.0)) for side in (ALONE, NEAR)]
    result = raced(bench, *warm, starts=STARTS[:1])
    assert result.difference is None
    assert len(result.heats[0].left.tokens) == len(result.heats[0].right.tokens) == 12


def test_an_error_names_its_side(bench):
    with pytest.raises(SpecvizError, match=r"^B: "):
        raced(bench, ALONE, RaceSide("B", replace(GREEDY, draft="stranger")))
    near = bench.pool.load("near")
    proved = near.model.register_forward_pre_hook(lambda *_: None)
    near.cached_lm()  # a model with hooks is proved anew, by forwards that do not count
    hook = near.model.register_forward_pre_hook(Fails(1, RuntimeError("out of luck")))
    try:
        with pytest.raises(SpecvizError, match=r"^B could not be run: RuntimeError: out of luck"):
            raced(bench)
    finally:
        hook.remove()
        proved.remove()


def test_texts_part_at_the_first_token_of_another_id_or_spelling():
    left, right = traces.chain(), traces.chain()
    assert first_difference(left, right) is None
    assert are_of_one_prompt(left, right)
    token = right.steps[1].emitted[0]
    others = replace(token, text="other"), replace(token, id=token.id + 1), replace(token, bytes="ff")
    for other in others:
        step = replace(right.steps[1], emitted=(other, *right.steps[1].emitted[1:]))
        changed = traces.chain()
        changed.steps[1] = step
        assert first_difference(left, changed) == len(left.steps[0].emitted)


def test_a_text_that_ends_early_has_not_parted():
    left, right = traces.chain(), traces.chain()
    del right.steps[2:]
    assert first_difference(left, right) is None
