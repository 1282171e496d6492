"""Whole reasoning steps: a draft model writes up to a delimiter, the target grades what it wrote and keeps all or none.

Lossy by design: the text follows the draft's law wherever a reasoning step is kept. After a refusal the target writes
alone up to the next delimiter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Context, Drafter, Work
from specviz.decoding.sampling import TARGET, refuse_nan
from specviz.drafters.draft_model.drafter import ModelDrafter
from specviz.drafters.method import Parts
from specviz.drafters.params import Value
from specviz.drafters.reasoning.delimiters import DELIMITERS, UntilDelimiter, Watch
from specviz.drafters.reasoning.grading import MeanLogProbability, Score
from specviz.models.tokens import TokenText

MOST_TEXT = 2_000  # characters of a reasoning step in the evidence


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


def build(parts: Parts, params: Mapping[str, Value]) -> Drafter:
    judge, least = JUDGES[params["judged_by"]]
    judged = judge(parts.target.another(), parts.target.text, params[least])
    return ReasoningDrafter(parts.draft.lm, parts.target.text, DELIMITERS[params["delimiter"]], judged)
