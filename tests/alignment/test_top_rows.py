"""Probabilities from the likeliest tokens alone, against whole rows: inside their bounds, exact where they can be."""

import numpy as np
import pytest
import torch

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
    """What a server would tell of these places."""
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


def test_the_mean_of_overlaps_is_that_of_whole_rows():
    """Drawn again and again, the text's own token stands for all that the servers do not name."""
    target, draft, _ = texts(3, size=40)
    p, q = torch.softmax(target, -1), torch.softmax(draft, -1)
    true = torch.minimum(p, q).sum(-1).numpy()
    generator = torch.Generator().manual_seed(0)
    total = np.zeros(len(p))
    count = 400
    for _ in range(count):
        tokens = torch.multinomial(p, 1, generator=generator)[:, 0].tolist()
        told = [Told.of(make_rows(logits, tokens), Sampling()) for logits in (target, draft)]
        total += draft_columns(*told)["overlap"]
    np.testing.assert_allclose(total / count, true, atol=0.12)
    assert abs((total / count - true).mean()) < 0.01


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
