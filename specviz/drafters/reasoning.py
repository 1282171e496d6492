"""Whole reasoning steps: a draft model writes up to a delimiter, the target grades what it wrote and keeps all or none.

Lossy by design: the text follows the draft's law wherever a reasoning step is kept. After a refusal the target writes
alone up to the next delimiter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..device import to_device, to_host
from ..draft import EMPTY, Draft
from ..errors import SpecvizError
from ..lm import CachedLM
from ..sampling import TARGET, refuse_nan
from ..text import TokenText
from .base import Choice, Context, Decimal, Drafter, Method, Parts, Value, Whole, Work
from .draft_model import ModelDrafter
from .policy import Policy

MOST_TEXT = 2_000  # characters of a reasoning step in the evidence
QUESTION = "\n\nIs the last step above right and useful? Grade from 0 (wrong) to 9 (surely right):"
DELIMITERS = {"blank_line": b"\n\n", "line": b"\n"}


class Watch:
    """Whether the delimiter has come since the place where the watch began."""

    def __init__(self, text: TokenText, delimiter: bytes) -> None:
        self._text, self._delimiter = text, delimiter
        self._tail = b""

    def begin(self, tokens: Sequence[int]) -> None:
        """Behind these tokens; a delimiter may have begun in them."""
        tail = b"".join(map(self._text.bytes_of, tokens[-len(self._delimiter) :]))
        self._tail = b"" if tail.endswith(self._delimiter) else self._short(tail)

    def ends_with(self, token: int) -> bool:
        written = self._tail + self._text.bytes_of(token)
        self._tail = self._short(written)
        return self._delimiter in written

    def _short(self, raw: bytes) -> bytes:
        return raw[max(0, len(raw) - len(self._delimiter) + 1) :]


class UntilDelimiter(Policy):
    """Stops behind the token that completes the delimiter or ends the text; every id comes to the host for it."""

    def __init__(self, watch: Watch, eos_ids: frozenset[int]) -> None:
        super().__init__()
        self._watch, self._eos_ids = watch, eos_ids

    def most(self, k: int, text: Sequence[int]) -> int:
        self._watch.begin(text)
        return super().most(k, text)

    def stops(self, logits: Tensor, token: Tensor) -> bool:
        written = int(token)
        return self._watch.ends_with(written) or written in self._eos_ids

    def evidence(self, k: int) -> dict[str, object]:
        return {}


class MeanLogProbability:
    """The target's mean log-probability of a reasoning step's tokens, in nats, at temperature 1."""

    name = "mean_logprob"
    room = 0  # tokens that it reads besides

    def __init__(self, lm: CachedLM, text: TokenText, least: float) -> None:
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
        spelled = [(int(text.bytes_of(token)), token) for token in range(text.num_ids) if _is_digit(text, token)]
        if len({value for value, _ in spelled}) < 10:
            raise SpecvizError("judged_by must be mean_logprob for this target: it has no token for every digit")
        self._values, self._ids = (to_device(column, torch.long, lm.device) for column in zip(*spelled, strict=True))

    def grade(self, tokens: Sequence[int], draft: Draft) -> float:
        row = self.lm.forward([*tokens, *draft.tokens, *self._question])[0]
        return float(to_host((row[self._ids].float().softmax(-1) * self._values).sum()))


def _is_digit(text: TokenText, token: int) -> bool:
    raw = text.bytes_of(token)
    return raw.removeprefix(b" ") in [b"%d" % value for value in range(10)]


class ReasoningDrafter(Drafter):
    """judge: grades what the draft model wrote; its reader of the target is its own."""

    def __init__(self, lm: CachedLM, text: TokenText, delimiter: bytes, judge: MeanLogProbability | Score) -> None:
        self._writer = ModelDrafter(lm, UntilDelimiter(Watch(text, delimiter), text.eos_ids))
        self._judge, self._pieces = judge, text
        self._watch = Watch(text, delimiter)
        self._forget(())

    def _forget(self, tokens: Sequence[int]) -> None:
        self._text = tokens
        self._is_waiting = False
        self._num_seen = 0

    @property
    def work(self) -> Work:
        return self._writer.work

    @property
    def target_work(self) -> Work:
        return Work(self._judge.lm.calls, self._judge.lm.fed)

    def draft(self, context: Context, k: int) -> Draft:
        if context.tokens is not self._text:
            self._forget(context.tokens)
        if self._waits():
            return Draft(evidence=self._evidence(EMPTY, None, "waiting"))
        written = self._writer.draft(context, min(k, self._judge.lm.context_limit - len(self._text) - self._judge.room))
        if not len(written) or written.tokens[0] in self._pieces.eos_ids:
            return EMPTY  # the end of the text is no reasoning step: the target says itself where it ends
        grade = self._judge.grade(self._text, written)
        refuse_nan([grade], TARGET)
        if grade >= self._judge.threshold:
            return replace(written, evidence=self._evidence(written, grade, "kept"))
        self._is_waiting, self._num_seen = True, len(self._text)
        self._watch.begin(self._text)
        return Draft(evidence=self._evidence(written, grade, "refused"))

    def _waits(self) -> bool:
        """Whether the target is still writing the reasoning step that it refused to take from the draft."""
        new = self._text[self._num_seen :] if self._is_waiting else ()
        if any(self._watch.ends_with(token) for token in new):
            self._is_waiting = False
        self._num_seen += len(new)
        return self._is_waiting

    def _evidence(self, written: Draft, grade: float | None, verdict: str) -> dict[str, object]:
        text = b"".join(map(self._pieces.bytes_of, written.tokens)).decode("utf-8", "replace")
        return {
            "step": {"text": text[:MOST_TEXT]},
            "grade": grade,
            "threshold": self._judge.threshold,
            "judged_by": self._judge.name,
            "verdict": verdict,
            "tokens": len(written),
        }


JUDGES: Mapping[str, tuple[Callable[..., MeanLogProbability | Score], str]] = {
    "mean_logprob": (MeanLogProbability, "threshold"),
    "score": (Score, "least_grade"),
}


def _build(parts: Parts, params: Mapping[str, Value]) -> Drafter:
    judge, least = JUDGES[params["judged_by"]]
    judged = judge(parts.target.another(), parts.target.text, params[least])
    return ReasoningDrafter(parts.draft.lm, parts.target.text, DELIMITERS[params["delimiter"]], judged)


METHOD = Method(
    name="reasoning",
    title="Reasoning steps",
    summary="A draft model writes a whole reasoning step; the target keeps it or writes that reasoning step itself.",
    caution=(
        "Changes the text: where a reasoning step is kept, the draft wrote it; it pays where most are good enough, "
        "as each is read twice by the target and a refused one was for nothing (the bundled drafts' sums mostly are)."
    ),
    source="SpecReason: Pan et al., arXiv:2504.07891",
    roles=("draft",),
    params=(
        Choice(
            "judged_by",
            "graded by",
            "mean_logprob",
            "How the target grades: by how likely it finds the tokens, or by a grade that it is asked for, which only "
            "models that follow instructions can give.",
            {"mean_logprob": "its mean log-probability", "score": "a grade from 0 to 9"},
        ),
        Decimal(
            "threshold",
            "least log-probability",
            -0.7,
            "The mean per token, in nats, that is kept: -0.7 where the target finds a token 50 % likely on average.",
            -20.0,
            0.0,
            needs=("judged_by", ("mean_logprob",)),
        ),
        Decimal(
            "least_grade",
            "least grade",
            7.0,
            "The grade that is kept, where the target is asked for one.",
            0,
            9,
            needs=("judged_by", ("score",)),
        ),
        Choice(
            "delimiter",
            "ends with",
            "blank_line",
            "What ends a reasoning step.",
            {"blank_line": "a blank line", "line": "the end of a line"},
        ),
        Whole("longest", "longest", 48, "A reasoning step has at most so many tokens.", 1, 256),
    ),
    rules=("graded",),
    build=_build,
    depth="longest",
)
