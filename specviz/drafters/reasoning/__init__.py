"""Whole reasoning steps: a draft model writes one, the target accepts or rejects all of it (arXiv:2504.07891).

The method is lossy by design: an accepted reasoning step has the draft's distribution. After a rejected one the target
writes alone up to the next delimiter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Context, Drafter
from specviz.decoding.work import Work
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import Choice, FloatParam, IntParam, Value
from specviz.drafters.policy import Policy
from specviz.models.tokens import TokenText, Watch

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.cached_lm import CachedLM
    from specviz.drafters.reasoning.grading import MeanLogProbability, Score

MOST_TEXT = 2_000  # characters of a reasoning step in the evidence
DELIMITERS = {"blank_line": b"\n\n", "line": b"\n"}


class UntilDelimiter(Policy):
    """A policy that stops after the token that completes the delimiter or ends the text.

    Every id comes to the host for it.
    """

    def __init__(self, watch: Watch, eos_ids: frozenset[int]) -> None:
        super().__init__()
        self._watch, self._eos_ids = watch, eos_ids

    def most(self, k: int, text: Sequence[int]) -> int:
        self._watch.begin(text)
        return super().most(k, text)

    def stops(self, logits: Tensor, token: Tensor) -> bool:
        token_id = int(token)
        return self._watch.ends_with(token_id) or token_id in self._eos_ids


class ReasoningDrafter(Drafter):
    """Drafts whole reasoning steps. judge: grades them, with its own reader of the target."""

    def __init__(
        self, lm: CachedLM, text: TokenText, delimiter: bytes, judge: MeanLogProbability | Score
    ) -> None:
        self._lm = lm
        self._judge = judge
        self._pieces = text
        self._writer = ModelDrafter(lm, UntilDelimiter(Watch(text, delimiter), text.eos_ids))
        self._watch = Watch(text, delimiter)
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text = tokens
        self._is_waiting = False
        self._num_seen = 0

    @property
    def target_work(self) -> Work:
        return self._judge.lm.work

    def draft(self, context: Context, k: int) -> Draft:
        from specviz.decoding.sampling import TARGET, refuse_nan  # loads torch

        if context.tokens is not self._text:
            self._reset(context.tokens)
        if self._target_is_writing():
            return Draft(evidence=self._evidence(EMPTY, None, "waiting"))
        room = self._judge.lm.context_limit - len(self._text) - self._judge.room
        step = self._writer.draft(context, min(k, room))
        if not len(step):
            return step
        if step.tokens[0] in self._pieces.eos_ids:
            return (
                EMPTY  # the end of the text is no reasoning step: the target decides where it ends
            )
        grade = self._judge.grade(self._text, step)
        refuse_nan([grade], TARGET)
        if grade >= self._judge.threshold:
            return replace(step, evidence=self._evidence(step, grade, "kept"))
        self._is_waiting = True
        self._num_seen = len(self._text)
        self._watch.begin(self._text)
        return Draft(evidence=self._evidence(step, grade, "refused"))

    def _target_is_writing(self) -> bool:
        """Whether the target is still writing the reasoning step that it rejected from the draft."""
        new = self._text[self._num_seen :] if self._is_waiting else ()
        if any(self._watch.ends_with(token) for token in new):
            self._is_waiting = False
        self._num_seen += len(new)
        return self._is_waiting

    def _evidence(self, step: Draft, grade: float | None, verdict: str) -> dict[str, object]:
        text = b"".join(map(self._pieces.bytes_of, step.tokens)).decode("utf-8", "replace")
        return {
            "step": {"text": text[:MOST_TEXT]},
            "grade": grade,
            "threshold": self._judge.threshold,
            "judged_by": self._judge.name,
            "verdict": verdict,
            "tokens": len(step),
        }


def _build(parts: Parts, params: Mapping[str, Value]) -> ReasoningDrafter:
    from specviz.drafters.reasoning.grading import MeanLogProbability, Score  # loads torch

    target = parts.target
    if params["judged_by"] == "score":
        judge = Score(target.another(), target.text, params["least_grade"])
    else:
        judge = MeanLogProbability(target.another(), params["threshold"])
    return ReasoningDrafter(parts.draft.lm, target.text, DELIMITERS[params["delimiter"]], judge)


METHOD = Method(
    name="reasoning",
    title="Reasoning steps",
    summary="A draft model writes a whole reasoning step; the target accepts it or writes that step itself.",
    caution="Changes the text: the draft wrote every accepted reasoning step. Pays where most are good enough: the "
    "target reads each one twice, and a rejected one is wasted. The bundled drafts cannot add, so here it is slower.",
    source="SpecReason: Pan et al., arXiv:2504.07891",
    roles=("draft",),
    params=(
        Choice(
            "judged_by",
            "graded by",
            "mean_logprob",
            "How the target grades: by the probability of the tokens, or by a grade that it is asked for. Only models "
            "that follow instructions can give a grade.",
            {"mean_logprob": "its mean log-probability", "score": "a grade from 0 to 9"},
        ),
        FloatParam(
            "threshold",
            "least log-probability",
            -0.7,
            "The lowest accepted mean per token, in nats; -0.7 means a probability of 50 % on average.",
            -20.0,
            0.0,
            needs=("judged_by", ("mean_logprob",)),
        ),
        FloatParam(
            "least_grade",
            "least grade",
            7.0,
            "The lowest accepted grade, where the target is asked for one.",
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
        IntParam("longest", "longest", 48, "How many tokens a reasoning step has at most.", 1, 256),
    ),
    rules=("graded",),
    build=_build,
    depth="longest",
    proposer="A small draft model writes whole reasoning steps of up to ",
    drafts_as="reasoning step",
    why_no_what_if="whole reasoning steps were judged and not their tokens",
)
