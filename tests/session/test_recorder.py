"""What a step's record says, against full forwards without a cache and laws recomputed in numpy float64."""

import copy
import itertools
import json
import math
import time
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch

from specviz import trace
from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import NO_EVIDENCE, ROOT, chain
from specviz.decoding.drafter import Drafter
from specviz.decoding.draws import ACCEPT, Seeded
from specviz.decoding.engine import speculate
from specviz.drafters.draft_model import ModelDrafter
from specviz.rules import RULES
from specviz.session import recorder
from specviz.session.recorder import Recorder
from tests.helpers.pretend_device import moved, pretended
from tests.helpers.recorded_steps import (
    DRAFTERS,
    NUM_TOKENS,
    SAMPLINGS,
    SEED,
    SETTINGS,
    entropy,
    full_row,
    generate,
    made,
    models,
    record_all,
    shortfall,
    softmax,
    vocabulary,
)
from tests.helpers.tiny_models import CONTEXT_LIMIT
from tests.helpers.toys import RULE, TableLM, plan_of

COLUMNS = ("p", "q", "residual", "p_raw", "q_raw")
NUM_TOP = 8  # the least number of rows that a reader is promised
CLOSE = {"rel_tol": 1e-7, "abs_tol": 1e-11}


@pytest.fixture(params=itertools.product(DRAFTERS, SAMPLINGS), ids=lambda pair: f"{pair[0]}-T{pair[1].temperature}")
def case(request):
    return made(*request.param)


def same(ours, theirs):
    return ours is theirs is None or math.isclose(ours, theirs, **CLOSE)


def test_the_cases_reach_every_fate_and_kind():
    records = [record for pair in itertools.product(DRAFTERS, SAMPLINGS) for record in made(*pair).records]
    assert {token.status for record in records for token in record.draft} == set(trace.STATUSES)
    assert {token.kind for record in records for token in record.emitted} == set(trace.KINDS)
    siblings = [record for record in records if [node.status for node in record.draft[:2]] == ["rejected", "accepted"]]
    assert siblings


def test_every_drafted_token_has_the_fate_of_the_verdict(case):
    for step, record in case.pairs():
        judged = {check.node for check in step.verdict.checks}
        scratch = range(len(step.draft) - step.draft.num_scratch, len(step.draft))
        for node, token in enumerate(record.draft):
            fate = "accepted" if node in step.verdict.path else "rejected" if node in judged else "ignored"
            assert token.status == ("scratch" if node in scratch else fate)
        assert (len(record.draft), record.truncated) == (len(step.draft), step.truncated)


def test_nodes_keep_their_place_and_text(case):
    for step, record in case.pairs():
        for node, token in enumerate(record.draft):
            assert (token.id, token.parent) == (step.draft.tokens[node], step.draft.parents[node])
            assert token.depth == len(case.text_before(step, node)) - step.context_length
            assert (token.text, token.bytes) == vocabulary().piece(token.id)


def test_p_and_q_of_a_node_are_those_of_full_forwards(case):
    for step, record in case.pairs():
        for node, token in enumerate(record.draft):
            if token.status == "scratch":
                assert (token.p, token.q) == (None, None)
                continue
            assert same(token.p, case.p(step, token.parent)[token.id])
            point_mass = step.draft.probs[node] is None
            assert same(token.q, None if point_mass else case.q(step, node)[token.id])


def test_judged_numbers_are_the_rules_own_arithmetic(case):
    for step, record in case.pairs():
        checks = {check.node: check for check in step.verdict.checks}
        for node, token in enumerate(record.draft):
            if node not in checks:
                assert (token.p_judged, token.accept_prob, token.u) == (None, None, None)
                continue
            p, q = case.judged(step, checks[node])[token.id], case.q(step, node)[token.id]
            assert same(token.p_judged, p)
            assert same(token.accept_prob, min(1.0, p / q))
            assert same(token.u, Seeded(SEED).uniform(ACCEPT, step.context_length + token.depth - 1, node))
            assert (token.u < token.accept_prob) == (token.status == "accepted")


def test_emitted_tokens_carry_the_targets_p_and_the_drafts_q(case):
    for step, record in case.pairs():
        *accepted, last = record.emitted if not record.truncated else (*record.emitted, None)
        for token, node in zip(accepted, step.verdict.path, strict=False):
            drafted = record.draft[node]
            assert (token.node, token.kind, token.id) == (node, "accepted", drafted.id)
            assert (token.p, token.q) == (drafted.p, drafted.q)
        if last is not None:
            assert (last.node, last.kind, last.id) == (None, step.verdict.kind, step.verdict.token)
            assert same(last.p, case.p(step, step.verdict.last_node)[last.id])
            rejected = step.verdict.checks[-1].node if last.kind == "resampled" else None
            has_q = rejected is not None and step.draft.probs[rejected] is not None
            assert same(last.q, case.q(step, rejected)[last.id] if has_q else None)


def test_there_is_one_position_per_draw_of_the_walk(case):
    for step, record in case.pairs():
        nodes = [(step.draft.parents[check.node], check.node) for check in step.verdict.checks]
        assert [(row.node, row.child) for row in record.positions] == [*nodes, (step.verdict.last_node, None)]


def test_rows_hold_the_distributions_of_their_draw(case):
    for step, position, p, q, residual in case.draws:
        point_mass = position.child is not None and step.draft.probs[position.child] is None
        for token, _, *values in position.top:
            assert same(values[0], p[token])
            assert same(values[1], None if q is None or point_mass else q[token])
            if residual is None or not np.array_equal(p, residual):  # p = q owes nothing: no row is marked
                assert same(values[2], None if residual is None else residual[token])


def test_rows_and_rest_are_whole_distributions(case):
    for _, position, p, _, residual in case.draws:
        for place, name in enumerate(COLUMNS, start=2):
            column = [row[place] for row in position.top]
            if position.rest[name] is None:
                assert set(column) == {None}
            elif not (name == "residual" and np.array_equal(p, residual)):
                assert abs(sum(column) + position.rest[name] - 1) < 1e-6


def test_raw_columns_are_the_unfiltered_softmax(case):
    for step, position, _, q, _ in case.draws:
        p_raw = softmax(full_row("target", case.text_before(step, position.node)))
        has_q = q is not None and step.draft.probs[position.child] is not None
        has_logits = has_q and case.name in ("model", "scratch")
        q_raw = softmax(full_row("draft", case.text_before(step, position.node))) if has_logits else None
        for token, *_, p_value, q_value in position.top:
            assert same(p_value, p_raw[token])
            if has_logits or not has_q:
                assert same(q_value, None if q_raw is None else q_raw[token])


def test_rows_hold_both_models_likeliest_tokens_once_and_the_drawn_ones_first(case):
    for step, position, p, q, _ in case.draws:
        ids = [row[0] for row in position.top]
        assert len(ids) == len(set(ids)) >= NUM_TOP
        for values in (p, p if q is None else q):
            assert {int(token) for token in np.argsort(-values)[:NUM_TOP] if values[token] > 0} <= set(ids)
        assert all(label == vocabulary().label(token) for token, label, *_ in position.top)
        emitted = [*(step.draft.tokens[node] for node in step.verdict.path), step.verdict.token]
        depth = 0 if position.node == ROOT else len(case.text_before(step, position.node)) - step.context_length
        drafted = [] if position.child is None else [step.draft.tokens[position.child]]
        first = list(dict.fromkeys([*drafted, emitted[depth]]))
        assert ids[: len(first)] == first


def test_statistics_are_those_of_the_whole_distributions(case):
    for step, position, p, q, _ in case.draws:
        assert same(position.p_entropy, entropy(p))
        if q is None or step.draft.probs[position.child] is None:
            assert (position.overlap, position.kl, position.q_entropy) == (None, None, None)
            continue
        assert same(position.q_entropy, entropy(q))
        alone = len(step.draft.children(position.node)) == 1
        assert same(position.overlap, np.minimum(p, q).sum() if alone else None)
        infinite = bool((q[p > 0] == 0).any())
        assert (position.kl is None) == infinite
        if not infinite:
            assert same(position.kl, (p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


def numbers(value):
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, float) else []


def test_numbers_are_finite_and_have_nine_significant_digits(case):
    for record in case.records:
        for number in numbers(trace.event_dict(record)):
            assert math.isfinite(number)
            assert float(f"{number:.9g}") == number


def test_a_record_is_what_its_line_reads_back_as(case):
    for record in case.records:
        assert trace.parse_event(json.loads(trace.dump_event(record))) == record


def test_recording_changes_nothing(case):
    alone = list(generate(case.name, case.sampling, case.prompt))
    recorder = Recorder(vocabulary())
    watched = []
    for step in generate(case.name, case.sampling, case.prompt):
        recorder.record(step, SETTINGS, started=0.0, at_ms=1.0)
        watched.append(step)
    assert [step.verdict for step in watched] == [step.verdict for step in alone]
    assert [step.tokens for step in watched] == [step.tokens for step in case.steps]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: f"T{sampling.temperature}")
def test_a_record_takes_one_copy_from_a_gpu_and_waits_for_nothing_else(sampling):
    told = made("model", sampling).records[:3]
    with pretended() as traffic:
        target, draft = (CachedLM(moved(model), CONTEXT_LIMIT) for model in models())
        plan, recorder = plan_of(target, ModelDrafter(draft), 4, sampling), Recorder(vocabulary())
        steps = speculate(made("model", sampling).prompt, lambda: plan, Seeded(SEED), max_new_tokens=NUM_TOKENS)
        for record, step in zip(told, steps, strict=False):
            traffic.forget()
            own = recorder.record(step, SETTINGS, started=0.0, at_ms=1.0)
            assert (traffic.copies, traffic.hidden) == (1, [])
            assert replace(own, timing=record.timing) == record


def together(steps):
    """The records of steps that are recorded at once."""
    recorder = Recorder(vocabulary())
    for step in steps:
        recorder.keep(step, SETTINGS, started=0.0, at_ms=1.0)
    return [record for _, record in recorder.flush()]


def test_steps_recorded_at_once_are_those_recorded_one_by_one(case):
    for own, record in zip(together(case.steps), case.records, strict=True):
        assert replace(own, timing=record.timing) == record


def test_a_lossy_rules_shift_and_unfiltered_rows_are_those_of_each_step_alone():
    target, draft = models()
    lenient = RULES["lenience"]
    plan = replace(plan_of(CachedLM(target, CONTEXT_LIMIT), ModelDrafter(CachedLM(draft, CONTEXT_LIMIT))), rule=lenient)
    steps = list(speculate([1, 2, 3], lambda: plan, Seeded(0), max_new_tokens=24))
    alone = record_all(steps)
    assert any(position.one_step_tv for record in alone for position in record.positions)
    for own, record in zip(together(steps), alone, strict=True):
        assert replace(own, timing=record.timing) == record


@pytest.mark.timed  # a pause of the machine between two records would count as nobody's
def test_what_is_recorded_at_once_takes_one_copy_and_each_step_bears_its_share():
    with pretended() as traffic:
        target, draft = (CachedLM(moved(model), CONTEXT_LIMIT) for model in models())
        plan, recorder = plan_of(target, ModelDrafter(draft), 4), Recorder(vocabulary())
        started = time.perf_counter()
        for step in speculate([1, 2, 3], lambda: plan, Seeded(SEED), max_new_tokens=NUM_TOKENS):
            recorder.keep(step, SETTINGS, started=time.perf_counter(), wait_ms=5.0)
        traffic.forget()
        flushing = time.perf_counter()
        records = [record for _, record in recorder.flush()]
        flush_ms = 1e3 * (time.perf_counter() - flushing)
        assert (traffic.copies, traffic.hidden) == (1, [])
    assert len(records) > 2
    for record in records:
        assert record.timing.total_ms >= record.timing.record_ms + 5
    assert 0.5 * flush_ms < sum(record.timing.record_ms for record in records) <= flush_ms
    own_ms = sum(record.timing.working_ms for record in records)
    assert own_ms <= 1e3 * (time.perf_counter() - started)


def test_steps_are_followed_to_the_end_however_they_are_flushed(case, monkeypatch):
    for seconds in (0.0, 1e6):
        monkeypatch.setattr("specviz.session.recorder.FLUSH_S", seconds)
        followed = Recorder(vocabulary()).follow(iter(case.steps[:-1]), SETTINGS)
        for (step, own), expected, record in zip(followed, case.steps[:-1], case.records, strict=False):
            assert step is expected
            assert replace(own, at_ms=record.at_ms, timing=record.timing) == record


def test_texts_join_to_the_generated_text(case):
    tokens = [token for step in case.steps for token in step.tokens]
    decoded = vocabulary().tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    joined = "".join(token.text for record in case.records for token in record.emitted)
    assert decoded.startswith(joined)
    assert set(decoded[len(joined) :]) <= {"\ufffd"}  # a character that was still incomplete at the end


def test_work_and_times_are_the_steps_own(case):
    for step, record in case.pairs():
        assert record.calls == {"target": step.target_work.calls, "draft": step.draft_work.calls}
        assert record.fed == {"target": step.target_work.fed, "draft": step.draft_work.fed}
        parts = (record.timing.draft_ms, record.timing.verify_ms, record.timing.accept_ms)
        assert parts == tuple(map(trace.round9, astuple(step.timing)))
        assert sum(parts) + record.timing.record_ms <= record.timing.total_ms


def scripted(p, q, token, rule=RULE, evidence=NO_EVIDENCE):
    """One recorded step of a target and a draft whose laws are given: `token` is drafted; q None: a point mass."""
    p_row = torch.tensor(p, dtype=torch.float64)
    q_row = None if q is None else torch.tensor(q, dtype=torch.float64).log().softmax(-1)  # equal laws, equal bits

    class Fixed(Drafter):
        def draft(self, context, k):
            if q_row is None:
                return chain([token], evidence=evidence)
            return chain([token], [q_row], [q_row.log()], evidence)

    target = TableLM(0, vocab_size=len(p))
    target.table[:] = p_row.log()
    plan = replace(plan_of(target, Fixed(), k=1), rule=rule)
    return record_all([next(speculate([0, 0], lambda: plan, Seeded(0), max_new_tokens=9))])[0]


def test_unfiltered_probabilities_are_the_models_own_also_where_the_rule_writes_its_most_likely():
    probabilities = [0.5, 0.3, 0.2]
    record = scripted(probabilities, probabilities, token=0, rule=RULES["typical"])
    assert [token.kind for token in record.emitted] == ["accepted", "bonus"]
    rows = {row[0]: row for row in record.positions[-1].top}
    assert [rows[token][2] for token in range(3)] == [1.0, 0.0, 0.0]
    assert [rows[token][5] for token in range(3)] == pytest.approx(probabilities)
    assert record.emitted[-1].p == pytest.approx(probabilities[0])


def test_what_is_shortfall_to_unlisted_tokens_alone_is_in_the_rest():
    p = [0.05] * NUM_TOP + [0.6 / 56] * 56
    q = [0.06] * NUM_TOP + [0.52 / 56] * 56
    record = scripted(p, q, token=0)
    position = record.positions[0]
    assert record.draft[0].status == "accepted"
    assert {row[4] for row in position.top} == {0.0}
    assert position.rest["residual"] == 1.0


def test_equal_distributions_owe_nothing():
    p = [0.5, 0.25, 0.125, 0.125]
    position = scripted(p, p, token=1).positions[0]
    assert {row[4] for row in position.top} == {0.0}
    assert (position.rest["residual"], position.overlap, position.kl) == (0.0, 1.0, 0.0)


def test_a_draft_in_another_number_format_is_recorded():
    target, draft = models()
    narrow = ModelDrafter(CachedLM(copy.deepcopy(draft).float(), CONTEXT_LIMIT))
    plan = plan_of(CachedLM(target, CONTEXT_LIMIT), narrow)
    records = record_all(speculate([1, 2, 3], lambda: plan, Seeded(0), max_new_tokens=12))
    for token in (token for record in records for token in record.draft if token.p_judged is not None):
        assert math.isclose(token.accept_prob, min(1.0, token.p_judged / token.q), rel_tol=1e-6)


def test_ids_come_whole_from_a_device_whose_widest_numbers_are_float32():
    target, draft = (TableLM(seed, vocab_size=9000) for seed in range(2))
    plan, text = plan_of(target, ModelDrafter(draft)), [0, 0]
    for step in speculate(text, lambda: plan, Seeded(0), max_new_tokens=12):
        (draws,) = recorder._walks([step])
        numbers = recorder._unpack(draws[0], recorder._pack([step], draws).float().tolist()[0])
        ids, p = numbers.ids, numbers.p
        np.testing.assert_allclose(p, target.row(text).softmax(0)[ids].numpy(), rtol=1e-5)
        text = [*text, *step.tokens]


def one_token(p, q, rule):
    """The law of one token under these rules, by their formulas."""
    if rule == "lenience":
        kept = q * np.minimum(1, 2 * p / q)
        return kept + (1 - kept.sum()) * shortfall(p, q)
    if rule == "ensemble":
        return (p + q) / 2
    entropy_of_p = entropy(p)
    kept = q * (p > min(0.09, 0.3 * math.exp(-entropy_of_p)))
    return kept + (1 - kept.sum()) * np.eye(len(p))[p.argmax()]


@pytest.mark.parametrize("rule", ["lenience", "ensemble", "typical"])
def test_a_lossy_rule_says_at_every_judged_token_how_far_it_moves_it(rule):
    p, q = np.array([0.5, 0.25, 0.125, 0.125]), np.array([0.1, 0.6, 0.2, 0.1])
    for token in range(4):
        judged, final = scripted(p.tolist(), q.tolist(), token, RULES[rule]).positions
        assert math.isclose(judged.one_step_tv, np.abs(one_token(p, q, rule) - p).sum() / 2, **CLOSE)
        assert final.one_step_tv is None


def test_a_point_mass_under_a_lossy_rule_is_judged_as_one():
    p = np.array([0.5, 0.25, 0.125, 0.125])
    judged, _ = scripted(p.tolist(), None, 1, RULES["lenience"]).positions
    assert math.isclose(judged.one_step_tv, 0.25, **CLOSE)  # kept with 2 p(1) in place of p(1)


def test_a_lossless_rule_moves_nothing_and_says_nothing(case):
    for record in case.records:
        assert all(position.one_step_tv is None for position in record.positions)
        assert "one_step_tv" not in trace.dump_event(record)


def test_evidence_is_recorded_with_the_texts_of_its_tokens():
    told = {"found": [({"id": 3}, {"id": 5})], "score": 1 / 3}
    record = scripted([0.5, 0.5], None, 1, evidence=told)
    texts = [vocabulary().piece(token)[0] for token in (3, 5)]
    found = [[{"id": 3, "text": texts[0]}, {"id": 5, "text": texts[1]}]]
    assert record.evidence == {"found": found, "score": 0.333333333}
    assert trace.parse_event(json.loads(trace.dump_event(record))) == record
