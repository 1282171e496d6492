"""Laws of a race: both sides are really run, alone, warmed up and from nothing; its numbers are its traces' numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import traces
from runs import PROMPT, REQUEST, Fails, greedy, ids
from scipy.stats import binom

from specviz import race
from specviz.beside import Beside, others
from specviz.errors import SpecvizError
from specviz.loading import Loading
from specviz.parting import are_of_one_prompt, parting
from specviz.race import Heat, Race, Side, Start, racing
from specviz.ratios import COVERAGE, interval, is_far, middle
from specviz.score import Text
from specviz.trace import Trace

GREEDY = replace(REQUEST, temperature=0.0, max_new_tokens=12)
ALONE = Side("A", replace(GREEDY, method="none"))
NEAR = Side("B", GREEDY)
ODD = Side("B", replace(GREEDY, draft="far", rule="ensemble"))
STARTS = [Start("first", PROMPT), Start("second", "A small dog saw the fox and"), Start("third", "Hello said the dog")]


def raced(bench, *sides, starts=STARTS) -> Race:
    *_, last = bench.in_turns(racing(*(sides or (ALONE, NEAR)), starts, bench))
    return last


def tokens_per_s(trace):
    seconds = sum(step.timing.total_ms - step.timing.wait_ms for step in trace.steps) / 1000
    return sum(len(step.emitted) for step in trace.steps) / seconds


def test_its_ratios_are_those_of_its_traces(bench):
    result = raced(bench)
    assert result.done == result.total == 2 + 4 * len(STARTS)
    by_hand = [tokens_per_s(heat.right) / tokens_per_s(heat.left) for heat in result.heats]
    assert result.ratios == pytest.approx(by_hand)
    assert result.ratio == pytest.approx(sorted(by_hand)[1])


def test_greedy_sides_write_what_the_target_writes_alone(bench):
    result, model = raced(bench), bench.library.load("big").model
    for heat, start in zip(result.heats, STARTS, strict=True):
        prompt = [token.id for token in heat.left.header.prompt.tokens]
        assert ids(heat.left) == ids(heat.right) == greedy(model, prompt, 12)
        assert (heat.title, heat.parted) == (start.title, None)
    assert result.difference is None


def test_each_side_warms_up_once_and_who_begins_changes(bench, monkeypatch):
    order, record = [], race.record
    monkeypatch.setattr(race, "record", lambda cast: order.append(cast.request.method) or record(cast))
    result = raced(bench)
    one, other = "none", "draft_model"
    abba, baab = [one, other, other, one], [other, one, one, other]
    assert order == [one, other, *abba, *baab, *abba]
    assert len(result.heats) == 3


def test_the_quicker_of_a_sides_two_runs_counts_and_the_other_tells_how_steady_it_was(bench, monkeypatch):
    made, record = [], race.record
    monkeypatch.setattr(race, "record", lambda cast: made.append(record(cast)) or made[-1])
    (heat,) = raced(bench, starts=STARTS[:1]).heats
    times = [sum(step.timing.total_ms - step.timing.wait_ms for step in trace.steps) for trace in made[2:]]
    sides = (times[0], times[3]), (times[1], times[2])
    for run, both, slower in zip((heat.left, heat.right), sides, heat.slower_ms, strict=True):
        assert sum(step.timing.total_ms - step.timing.wait_ms for step in run.steps) == pytest.approx(min(both))
        assert slower == pytest.approx(max(both))
    assert heat.unsteadiness == pytest.approx([max(both) / min(both) - 1 for both in sides])


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


@pytest.mark.parametrize(
    ("left", "right", "ahead"),
    [
        ((100, 110), (50, 60), 1), ((50, 60), (100, 110), -1), ((100, 130), (90, 99), 0), ((90, 99), (100, 130), 0),
        ((100, 100), (86, 86), 1), ((100, 100), (88, 88), 0), ((100, 140), (80, 130), 0), ((80, 130), (100, 140), 0),
    ],
)  # fmt: skip
def test_a_side_is_clearly_ahead_when_both_its_runs_beat_both_of_the_other_by_far(left, right, ahead):
    heat = Heat("", *lasting(left[0], right[0]), (left[1], right[1]))
    assert heat.ahead == ahead
    assert replace(heat, slower_ms=None).ahead == 0


def test_a_races_unsteadiness_is_the_median_over_sides_and_prompts():
    heats = [Heat("", *lasting(100, 100), slower) for slower in ((110, 120), (130, 300), (101, 102))]
    assert Race(1, 1, "", tuple(heats)).unsteadiness == pytest.approx(0.15)
    assert Race(1, 1, "", (replace(heats[0], slower_ms=None),)).unsteadiness is None


def test_the_median_of_ratios_does_not_depend_on_who_is_called_a():
    pairs = [(100, 50), (100, 80), (70, 100), (100, 90)]
    there, back = (
        Race(1, 1, "", tuple(Heat("", *lasting(*each)) for each in way)) for way in (pairs, [(b, a) for a, b in pairs])
    )
    assert there.ratio == pytest.approx(1 / back.ratio)


def test_one_run_is_made_per_turn(bench, monkeypatch):
    made, record = [], race.record
    monkeypatch.setattr(race, "record", lambda cast: made.append(cast) or record(cast))
    for number, _ in enumerate(racing(ALONE, NEAR, STARTS[:1], bench)):
        assert len(made) == number


def test_reading_the_prompt_counts_on_both_sides(bench):
    for heat in raced(bench, starts=STARTS[:1]).heats:
        for each in (heat.left, heat.right):
            first = each.steps[0]
            assert first.fed["target"] >= len(each.header.prompt.tokens) + len(first.draft)


def test_a_race_that_shared_the_engine_says_so(bench):
    work = racing(ALONE, NEAR, STARTS[:1], bench)
    assert not raced(bench, starts=STARTS[:1]).is_shared
    tickets = [bench.engine.join(), bench.engine.join()]
    *_, last = work
    assert last.is_shared
    for ticket in tickets:
        bench.engine.leave(ticket)


@pytest.mark.parametrize("when", [0, 3])
def test_other_work_of_this_process_during_any_run_counts_as_sharing(bench, monkeypatch, when):
    runs, record = [], race.record

    def disturbed(cast):
        runs.append(cast)
        if len(runs) == 3 + when:  # two warm up
            with others.work():
                pass
        return record(cast)

    monkeypatch.setattr(race, "record", disturbed)
    assert raced(bench, starts=STARTS[:1]).is_shared


def test_work_before_or_after_a_watch_is_none_of_its_business():
    beside = Beside()
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
    is_disturbed = others.watch()
    Loading(lambda report: None).wait(5)
    assert is_disturbed()


def test_a_prompt_of_ids_is_fed_as_ids(bench):
    prompt = (5, 6, 7, 8)
    (heat,) = raced(bench, starts=[Start("ids", "other words", prompt)]).heats
    assert [token.id for token in heat.left.header.prompt.tokens] == list(prompt)


def test_a_draft_of_another_vocabulary_is_not_asked_about_the_difference(bench):
    foreign = Side("B", replace(GREEDY, draft="stranger", method="cross_vocabulary"))
    casts = [race._run(side, STARTS[0], bench)[0] for side in (ALONE, NEAR, foreign)]
    names = [each.name for each in race._readings(Text(list(range(4, 12)), [5, 6]), (5, 6), casts)]
    assert names == ["big", "near"]


def test_a_draft_that_cannot_read_so_far_is_not_asked(bench):
    short = Side("B", replace(GREEDY, draft="brief"))
    cast = race._run(short, Start("short", "Hello said"), bench)[0]
    for number, names in ((8, ["big", "brief"]), (60, ["big"])):
        text = Text([4 + place % 20 for place in range(number)], [5, 6])
        assert [each.name for each in race._readings(text, (5, 6), [cast])] == names


def test_the_tie_of_a_number_format_is_its_own():
    assert (race.tie_of("float64"), race.tie_of("float32")) == (1e-6, 1e-3)
    assert race.tie_of("float16") == race.tie_of("bfloat16") == race.tie_of(None) == 0.25


def test_prompts_of_one_length_need_not_be_one_prompt():
    left, right = traces.chain(), traces.chain()
    prompt = right.header.prompt
    token = replace(prompt.tokens[-1], id=prompt.tokens[-1].id + 1)
    other = replace(right.header, prompt=replace(prompt, tokens=(*prompt.tokens[:-1], token)))
    changed = Trace(other if event is right.header else event for event in right.events())
    assert not are_of_one_prompt(left, changed)


# ---- ratios ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "left_out"), [(1, 0), (2, 0), (5, 0), (7, 0), (8, 1), (10, 1), (11, 2), (12, 2)])
def test_the_interval_of_a_median_leaves_out_what_the_binomial_law_allows(number, left_out):
    values = [float(value) for value in range(number, 0, -1)]
    assert interval(values) == (1.0 + left_out, number - left_out)
    if number >= 5:
        inside, narrower = (
            binom.cdf(number - 1 - out, number, 0.5) - binom.cdf(out, number, 0.5) for out in (left_out, left_out + 1)
        )
        assert inside > COVERAGE > narrower


def test_far_is_far_on_both_sides_and_the_middle_lies_halfway_by_ratio():
    assert is_far(1.151) and is_far(1 / 1.151) and is_far(0.0)  # noqa: PT018
    assert not is_far(1.149) and not is_far(1 / 1.149)  # noqa: PT018
    assert middle([0.5, 2.0]) == pytest.approx(1)
    assert middle([0.5, 2.0, 3.0]) == pytest.approx(2)


def test_the_first_difference_has_the_logits_of_both_models(bench):
    result = raced(bench, ALONE, ODD, starts=STARTS)
    found = result.difference
    heat = next(heat for heat in result.heats if heat.parted is not None)
    place = next(i for i, (a, b) in enumerate(zip(ids(heat.left), ids(heat.right), strict=False)) if a != b)
    assert (found.title, found.place, result.heats[found.heat]) == (heat.title, place, heat)
    assert (found.left.id, found.right.id) == (ids(heat.left)[place], ids(heat.right)[place])
    text = [token.id for token in heat.left.header.prompt.tokens] + ids(heat.left)[:place]
    for reading, name in zip(found.readings, ("big", "far"), strict=True):
        with torch.inference_mode():
            row = bench.library.load(name).model(torch.tensor([text])).logits[0, -1].double().numpy()
        odds = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        assert reading.logits == pytest.approx([row[found.left.id], row[found.right.id]], abs=1e-4)
        assert reading.best == pytest.approx(row.max(), abs=1e-4)
        assert reading.odds == pytest.approx([odds[found.left.id], odds[found.right.id]], abs=1e-4)
    assert found.readings[0].logits[0] > found.readings[0].logits[1]
    assert not found.is_tie


def test_two_logits_that_are_closer_than_the_number_format_tells_are_a_tie(bench, monkeypatch):
    monkeypatch.setitem(race.TIE, "float32", 1e9)
    assert raced(bench, ALONE, ODD).difference.is_tie


def test_two_tokens_of_which_neither_is_the_favourite_are_no_tie(bench, monkeypatch):
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
        raced(bench, ALONE, Side("B", replace(GREEDY, draft="stranger")))
    hook = bench.library.load("near").model.register_forward_pre_hook(Fails(1, RuntimeError("out of luck")))
    try:
        with pytest.raises(SpecvizError, match=r"^B could not be run: RuntimeError: out of luck"):
            raced(bench)
    finally:
        hook.remove()


def test_texts_part_at_the_first_token_of_another_id_or_spelling():
    left, right = traces.chain(), traces.chain()
    assert parting(left, right) is None
    assert are_of_one_prompt(left, right)
    token = right.steps[1].emitted[0]
    others = replace(token, text="other"), replace(token, id=token.id + 1), replace(token, bytes="ff")
    for other in others:
        step = replace(right.steps[1], emitted=(other, *right.steps[1].emitted[1:]))
        changed = traces.chain()
        changed.steps[1] = step
        assert parting(left, changed) == len(left.steps[0].emitted)


def test_a_text_that_ends_early_has_not_parted():
    left, right = traces.chain(), traces.chain()
    del right.steps[2:]
    assert parting(left, right) is None
