"""Probabilities from the likeliest tokens alone, against whole rows: inside their bounds, exact where they can be."""

import json

import numpy as np
import pytest
import torch

from specviz.alignment.served.dialects import Vllm
from specviz.alignment.served.numbers import Told, draft_columns
from specviz.alignment.served.top_rows import Entry, TopRows, Untrue, probabilities, rows_of
from specviz.decoding.sampling import Sampling

NUM_TOP = 6
SAMPLINGS = [
    Sampling(temperature, top_k, top_p, min_p)
    for temperature in (0.0, 0.3, 0.7, 1.0, 1.4)
    for top_k in (0, 3, 6, 20)
    for top_p in (1.0, 0.9, 0.6)
    for min_p in (0.0, 0.1)
]


def make_rows(logits: torch.Tensor, tokens: list[int]) -> TopRows:
    """What a server would tell of these places, in float32 as servers do if the logits are."""
    logprobs = torch.log_softmax(logits, -1)
    tops, own = [], []
    for row, token in zip(logprobs, tokens, strict=True):
        values, best = row.topk(NUM_TOP)
        tops.append([Entry(int(t), float(v), f"t{int(t)}") for v, t in zip(values, best, strict=True)])
        own.append(Entry(token, float(row[token]), f"t{token}"))
    return rows_of(tops, own, tokens)


def texts(seed: int, size: int = 60, vocab: int = 80) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Logits of two models along a text of the first, some places sharp and some flat."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(size, 1, generator=generator, dtype=torch.float64) * 5
    target = torch.randn(size, vocab, generator=generator, dtype=torch.float64) * scale
    draft = target + torch.randn(size, vocab, generator=generator, dtype=torch.float64)
    tokens = torch.multinomial(torch.softmax(target, -1), 1, generator=generator)[:, 0]
    return target, draft, tokens.tolist()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_true_probabilities_lie_inside_the_bounds(sampling):
    for seed in range(6):
        logits, _, tokens = texts(seed)
        rows = make_rows(logits, tokens)
        true = sampling.probs(logits).numpy()
        found = probabilities(rows, sampling)
        places = np.arange(len(tokens))
        own = true[places, tokens]
        assert (found.token.low <= own + 1e-9).all()
        assert (own <= found.token.high + 1e-9).all()
        top = np.take_along_axis(true, rows.ids, 1)
        assert (found.top.low <= top + 1e-9).all()
        assert (top <= found.top.high + 1e-9).all()
        others = true.copy()
        np.put_along_axis(others, rows.ids, 0.0, 1)
        others[places, tokens] = 0.0
        assert (others.max(1) <= found.other + 1e-9).all()


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0.0), Sampling(0.7, 3), Sampling(1.4, 5), Sampling(1.4, 4, 0.9), Sampling(0.7, 3, 0.8, 0.05)],
    ids=str,
)
def test_bounds_meet_where_everything_is_known(sampling):
    for seed in range(6):
        logits, _, tokens = texts(seed)
        found = probabilities(make_rows(logits, tokens), sampling)
        true = sampling.probs(logits).numpy()[np.arange(len(tokens)), tokens]
        np.testing.assert_allclose(found.token.low, true, atol=1e-12)
        np.testing.assert_allclose(found.token.high, true, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.005, 0.5, 1.2, 1.5, 2.0])
def test_rounding_of_a_sum_is_not_taken_for_knowledge(temperature):
    """At a high temperature, tokens that seem to have nothing left weigh much: sharp places of a large vocabulary."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 50_000, generator=generator)
    logits[:, :NUM_TOP] += 20 * torch.rand(40, 1, generator=generator) + 5
    tokens = logits.argmax(-1).tolist()
    true = Sampling(temperature).probs(logits.double()).numpy()[np.arange(40), tokens]
    found = probabilities(make_rows(logits, tokens), Sampling(temperature)).token
    assert np.isfinite(found.low).all()
    assert (found.low <= true + 1e-5).all()
    assert (true <= found.high + 1e-5).all()


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, NUM_TOP - 1), Sampling(0.7, NUM_TOP - 2), Sampling(1.4, NUM_TOP)], ids=str
)
def test_tokens_that_tie_with_the_last_of_top_k_count(sampling):
    """Logits of few bits tie often; the engine keeps all that tie."""
    for seed in range(20):
        logits, _, tokens = texts(seed)
        logits = (2 * logits).round() / 2
        true = sampling.probs(logits).numpy()[np.arange(len(tokens)), tokens]
        found = probabilities(make_rows(logits, tokens), sampling).token
        assert (found.low <= true + 1e-9).all()
        assert (true <= found.high + 1e-9).all()


def test_bounds_of_other_temperatures_are_worth_something():
    logits, _, tokens = texts(0)
    found = probabilities(make_rows(logits, tokens), Sampling(0.5)).token
    assert (found.high - found.low).mean() < 0.02


@pytest.mark.parametrize("temperature", [0.4, 0.8, 1.0])
def test_acceptance_and_overlap_lie_inside_their_bounds(temperature):
    sampling = Sampling(temperature)
    for seed in range(6):
        target, draft, tokens = texts(seed)
        found = draft_columns(Told.of(make_rows(target, tokens), sampling), Told.of(make_rows(draft, tokens), sampling))
        p, q = sampling.probs(target).numpy(), sampling.probs(draft).numpy()
        places = np.arange(len(tokens))
        keep = np.minimum(1, q[places, tokens] / p[places, tokens])
        bounds = found["bounds"]
        assert (bounds.keep.low <= keep + 1e-9).all()
        assert (keep <= bounds.keep.high + 1e-9).all()
        best = q.argmax(1)
        assert (found["draft_most_likely"] == best).all()
        assert (bounds.argmax.low <= p[places, best] + 1e-9).all()
        assert (p[places, best] <= bounds.argmax.high + 1e-9).all()


@pytest.mark.parametrize("num_top", [1, 3, 6])
def test_the_mean_of_overlaps_is_that_of_whole_rows(num_top):
    """Over all tokens that the text might have had, by vLLM's own form: it names the text's token whatever its rank."""
    target, draft, _ = texts(3, size=6, vocab=40)
    p, q = (torch.softmax(logits, -1).numpy() for logits in (target, draft))
    found = np.zeros(len(p))
    for token in range(p.shape[1]):
        tokens = [token] * len(p)
        told = [Told.of(by_vllm(logits, tokens, num_top), Sampling()) for logits in (target, draft)]
        found += p[:, token] * draft_columns(*told)["overlap"]
    np.testing.assert_allclose(found, np.minimum(p, q).sum(1), atol=1e-9)


def by_vllm(logits: torch.Tensor, tokens: list[int], num_top: int) -> TopRows:
    """The rows as vLLM tells them, behind a prompt of one token."""
    rows: list[dict | None] = [None]
    for row, token in zip(torch.log_softmax(logits, -1), tokens, strict=True):
        rank = int((row >= row[token]).sum())
        named = {str(token): {"logprob": float(row[token]), "rank": rank}}
        values, best = row.topk(num_top)
        for place, (value, other) in enumerate(zip(values, best, strict=True), 1):
            named[str(int(other))] = {"logprob": float(value), "rank": place}
        rows.append(named)
    answer = json.dumps({"choices": [{"prompt_logprobs": rows}]}).encode()
    return Vllm().read_rows(answer, [0, *tokens], 1, num_top)


def test_confidences_are_those_of_whole_rows():
    """All bins but the first hold tokens that a server names: at most ten have a tenth or more."""
    target, draft, tokens = texts(1)
    told = [Told.of(make_rows(logits, tokens), Sampling()) for logits in (target, draft)]
    found = draft_columns(*told)["confidence"]
    q = torch.softmax(draft, -1).numpy()
    for number in range(3, 10):
        inside = q[(q >= number / 10) & (q < (number + 1) / 10)]
        assert found[number, 0] == pytest.approx(inside.sum())
        assert found[number, 1] == pytest.approx((inside**2).sum())
    assert found[:, 0].sum() == pytest.approx(len(tokens))


def test_numbers_that_are_no_log_probabilities_are_refused():
    rows = make_rows(*[texts(0)[i] for i in (0, 2)])
    rows.check(NUM_TOP)
    raised = TopRows(rows.tokens, rows.token_logprobs, rows.ids, rows.logprobs + 1.0, rows.texts)
    with pytest.raises(Untrue, match="add up to"):
        raised.check(NUM_TOP)
    with pytest.raises(Untrue, match="no log-probability of the token id 7 at place 0"):
        rows_of([[]], [None], [7])
    with pytest.raises(Untrue, match="2 places instead of 1"):
        rows_of([[], []], [None, None], [7])
