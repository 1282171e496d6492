"""How a target grades a reasoning step that a draft model wrote. A judge has a reader of the target of its own (`lm`),
the least grade that is kept (`threshold`), and the room that it needs behind the text."""

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
    room = 0  # tokens that it reads besides

    def __init__(self, lm: CachedLM, least: float) -> None:
        self.lm, self.threshold = lm, least

    def grade(self, tokens: Sequence[int], draft: Draft) -> float:
        rows = self.lm.forward(tokens, draft)[:-1]
        ids = to_device(draft.tokens, torch.long, rows.device)[:, None]
        return float(to_host(rows.float().log_softmax(-1).gather(1, ids).mean()))


class Score:
    """The grade from 0 to 9 that the target gives when it is asked for one, on average over its odds (SpecReason)."""

    name = "score"

    def __init__(self, lm: CachedLM, text: TokenText, least: float) -> None:
        self.lm, self.threshold = lm, least
        self._question = text.encode(QUESTION, special=False)
        self.room = len(self._question)
        pieces = ((text.bytes_of(token).removeprefix(b" "), token) for token in range(text.num_ids))
        digits = [(int(piece), token) for piece, token in pieces if piece in _DIGITS]
        if len({value for value, _ in digits}) < 10:
            raise SpecvizError(
                "judged_by must be mean_logprob for this target: it has no token for every digit"
            )
        self._values, self._ids = (
            to_device(column, torch.long, lm.device) for column in zip(*digits, strict=True)
        )

    def grade(self, tokens: Sequence[int], draft: Draft) -> float:
        row = self.lm.forward([*tokens, *draft.tokens, *self._question])[0]
        return float(to_host((row[self._ids].float().softmax(-1) * self._values).sum()))
