"""What a draft would save, from the numbers that a training loop holds: exact, without a model and without a run.

Takes arrays of numpy or tensors of torch, gives plain numbers. torch is not imported: tensors bring their own.
"""

from __future__ import annotations

import numpy as np

from specviz.analysis.whatif import (
    BLOCK,
    DEEPEST,
    MOST_K,
    Array,
    Chances,
    acceptance_chances,
    accepted_by_start,
    chances_along_text,
    draft_room,
    is_k,
    start_chances,
)

ROUNDING = 0.01
"""How far the sum of a row may be from 1, and a probability above it: bfloat16 is off by up to 0.004."""


def expected_tokens_per_call(p, q, k: int) -> float:
    """The tokens per target call of speculative sampling with k drafted tokens per step: T over the expected calls.

    p, q: what target and draft give at the T places of one text, as arrays or tensors of any dtype on any device:

    - p [T], q [T]: the probability of each token of a text that was sampled from the target. A judged token is accepted
      with probability min(1, q/p), so this is exact for this text.
    - p [T, V], q [T, V]: the whole distributions. A place accepts with probability sum min(p, q), its mean over the
      tokens that the target may draw there; the contexts count as given. Each row is divided by its sum.
    - q with one more axis, [T, D] or [T, D, V] with D from k to 32 (or k): a head whose guess depends on where its step
      began. Entry [s, j] is about token s + j in a step that begins with token s; entries behind the text are not read.

    The first step may draft; the last token of the text is always the target's own. Give one text at a time, without
    padding: of several, sum their T, and divide by the sum of their T / value. The result is a plain number, through
    which no gradient flows.
    Raises ValueError for k outside 1 to 256, shapes that do not fit, numbers that are no probabilities (negative, not
    a number, more than 0.01 above 1), a drawn token of probability 0, and rows whose sum is more than 0.01 from 1.
    """
    chances = _chances(p, q, k)
    return len(chances) / float(start_chances(chances, [k]).sum())


def expected_acceptance_by_position(p, q, k: int, *, most_tokens: int | None = None) -> Array:
    """The share of drafting steps that are expected to accept 1, 2, ... k tokens or more [k], as engines count it.

    Engines call it the acceptance rate per position: a step that drafts less than k, before the end, counts in all.
    p, q, errors: see `expected_tokens_per_call`. most_tokens: the length that the text was allowed, if it ended before;
    a step at its last token then drafts as well. The shares are nan where no step drafts: in a text of one token.
    """
    chances = _chances(p, q, k, most_tokens)
    begins = start_chances(chances, [k])[0]
    num_drafting, *num_accepting = accepted_by_start(chances, k, begins).sum(1)
    return np.array(num_accepting) / (num_drafting or np.nan)


def _chances(p, q, k: int, most_tokens: int | None = None) -> Chances:
    if not is_k(k):
        raise ValueError(f"k must be a whole number from 1 to {MOST_K} (got {k!r:.40})")
    if _is_tensor(p) and _is_tensor(q):
        p = p.detach()
        q = q.detach()
    else:
        p = _on_cpu(p)
        q = _on_cpu(q)
    if p.ndim not in (1, 2) or not len(p):
        raise ValueError(
            f"p must be [T] or [T, V] with T >= 1, of one text (got shape {tuple(p.shape)})"
        )
    size = len(p)
    if p.shape == q.shape:
        accept = _accept(p, q)
        return chances_along_text(accept, deepest=k, most_tokens=most_tokens)
    by_place = (*q.shape[:1], *q.shape[2:])
    most = max(k, DEEPEST)
    if by_place != tuple(p.shape) or not k <= q.shape[1] <= most:
        raise ValueError(
            f"q must have the shape of p, or one more axis of {k} to {most} depths behind the first (got shapes "
            f"{tuple(p.shape)} and {tuple(q.shape)}; one text at a time, and of whole rows both)"
        )
    accept = np.zeros((size, k))
    for depth in range(min(k, size)):
        accept[: size - depth, depth] = _accept(p[depth:], q[: size - depth, depth])
    return Chances(accept, draft_room(size, most_tokens))


def _accept(p, q) -> Array:
    """The acceptance probability at each place [N], from probabilities [N] or from distributions [N, V]."""
    if p.ndim == 2:
        return _overlaps(p, q)
    p = _numbers(p)
    q = _numbers(q)
    most = max(p.max(), q.max())
    if most > 1 + ROUNDING:
        raise ValueError(f"p and q must be probabilities (got {most:.6g})")
    if not (p != 0).all():
        place = int((p == 0).argmax())
        raise ValueError(
            f"p must be above 0, as these tokens were drawn from it (got 0 at place {place}): leave padding out, and "
            "use a wider number format where a probability is too small for it"
        )
    return acceptance_chances(p, q)


def _overlaps(p, q) -> Array:
    """The sum of min(p, q) over each pair of rows [N], which is 1 less their total variation. p, q: [N, V]."""
    overlaps = np.zeros(len(p))
    for first in range(0, len(p), BLOCK):
        block = slice(first, first + BLOCK)
        differences = _distributions(p[block], "p") - _distributions(q[block], "q")
        overlaps[block] = 1 - _numbers(abs(differences).sum(-1)) / 2
    return overlaps.clip(0, 1)


def _distributions(rows, name: str):
    """The rows [B, V] over their sums, where they are and at least in float32. Raises ValueError for other rows."""
    if not _is_tensor(rows):
        rows = _numbers(rows)
    elif rows.dtype.itemsize < 4:
        rows = rows.float()
    sums = rows.sum(-1)[:, None]
    if not (rows >= 0).all():
        problem = "a negative number or not-a-number"
    elif not (abs(sums - 1) <= ROUNDING).all():
        problem = f"a sum of {float(sums[abs(sums - 1).argmax(), 0]):.6g}"
    else:
        return rows / sums
    raise ValueError(
        f"every row of {name} must hold probabilities whose sum is 1, within {ROUNDING} (got {problem}): apply softmax "
        "to logits"
    )


def _is_tensor(values) -> bool:
    return hasattr(values, "detach")


def _on_cpu(values) -> Array:
    return values.detach().cpu().double().numpy() if _is_tensor(values) else np.asarray(values)


def _numbers(values) -> Array:
    """The values in float64."""
    return np.asarray(_on_cpu(values), dtype=np.float64)
