"""Judges that grade a draft model's reasoning step with the target.

A judge has its own reader of the target (`lm`), the lowest accepted grade (`threshold`), and the number of tokens that
it reads besides (`room`).
"""

from collections.abc import Sequence

import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import to_device, to_host
from specviz.decoding.draft import Draft
from specviz.errors import SpecvizError
from specviz.models.tokens import TokenText

_DIGITS = [b"%d" % value for value in range(10)]
QUESTION = "\n\nIs the last step above right and useful? Grade from 0 (wrong) to 9 (surely right):"


class MeanLogProbability:
    """The target's mean log-probability of a reasoning step's tokens, in nats, at temperature 1."""

    name = "mean_logprob"
    room = 0

    def __init__(self, lm: CachedLM, least: float) -> None:
        self.lm = lm
        self.threshold = least

    def grade(self, tokens: Sequence[int], draft: Draft) -> float:
        rows = self.lm.forward(tokens, draft)[:-1]  # [N, V]
        ids = to_device(draft.tokens, torch.long, rows.device)[:, None]
        log_probs = rows.float().log_softmax(-1).gather(1, ids)  # [N, 1]
        return float(to_host(log_probs.mean()))


class Score:
    """The grade from 0 to 9 that the target gives when asked: the mean over its distribution of digits (SpecReason)."""

    name = "score"

    def __init__(self, lm: CachedLM, text: TokenText, least: float) -> None:
        self.lm = lm
        self.threshold = least
        self._question = text.encode(QUESTION, special=False)
        self.room = len(self._question)
        values: list[int] = []
        ids: list[int] = []
        for token in range(text.num_ids):
            piece = text.bytes_of(token).removeprefix(b" ")
            if piece in _DIGITS:
                values.append(int(piece))
                ids.append(token)
        if len(set(values)) < 10:
            raise SpecvizError(
                "judged_by must be mean_logprob for this target: it has no token for every digit"
            )
        self._values = to_device(values, torch.long, lm.device)  # [D]
        self._ids = to_device(ids, torch.long, lm.device)  # [D]

    def grade(self, tokens: Sequence[int], draft: Draft) -> float:
        row = self.lm.forward([*tokens, *draft.tokens, *self._question])[0]  # [V]
        probs = row[self._ids].float().softmax(-1)  # [D]
        return float(to_host((probs * self._values).sum()))
