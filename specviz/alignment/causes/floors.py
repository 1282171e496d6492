"""Two floors under every draft: how far token frequencies and token pairs alone agree with the target.

Both are counted on the target's own probabilities for the other texts. A draft that agrees no more than these knows
nothing of what it reads: something is broken in it.
"""

from collections.abc import Sequence

import numpy as np
import torch

from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.summary import Floors
from specviz.models.score import overlap_of

STRENGTH = 1.0
"""How many places the frequencies alone count for, beside the places behind the same token."""


def floors_of(samples: Sequence[TargetTexts]) -> Floors:
    """The agreement of both floors with the target over all texts, each measured on texts that it was not counted on.

    One draws every token by its frequency, the other by its frequency behind the token before.
    """
    p = torch.cat([sample.p for sample in samples])  # [R, V]
    texts = [text for sample in samples for text in sample.texts]
    text_of = np.repeat(np.arange(len(texts)), [len(text.ids) for text in texts])  # [R]
    before = np.concatenate([[text.prompt[-1], *text.ids[:-1]] for text in texts])  # [R]
    whole = p.sum(0)  # [V]
    others: dict[int, torch.Tensor] = {}  # the frequencies over all other texts [V], by text
    for number in range(len(texts)):
        rest = whole - p[text_of == number].sum(0)
        others[number] = rest / rest.sum().clamp_min(1e-9)
    by_frequency = 0.0
    by_pairs = 0.0
    for token in np.unique(before):
        rows = np.flatnonzero(before == token)
        behind = p[rows].sum(0)  # [V]
        for number in np.unique(text_of[rows]):
            own = p[rows[text_of[rows] == number]]  # [n, V]
            frequencies = others[int(number)]
            num_counted = len(rows) - len(own)
            pairs = (behind - own.sum(0)).clamp_min(0) + STRENGTH * frequencies
            by_frequency += float(overlap_of(own, frequencies).sum())
            by_pairs += float(overlap_of(own, pairs / (num_counted + STRENGTH)).sum())
    return Floors(by_frequency / len(p), by_pairs / len(p), len(texts))
