"""Laws of a race: both sides are really run, alone, warmed up and from nothing; its numbers are its traces' numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import traces
from runs import PROMPT, REQUEST, Fails, greedy, ids

from specviz import race
from specviz.errors import SpecvizError
from specviz.parting import are_of_one_prompt, parting
from specviz.race import Race, Side, Start, racing

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
    assert result.done == result.total == 2 * (len(STARTS) + 1)
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
    assert order == ["none", "draft_model"] * 2 + ["draft_model", "none"] + ["none", "draft_model"]
    assert len(result.heats) == 3


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
