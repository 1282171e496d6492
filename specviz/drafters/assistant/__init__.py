"""Gemma 4's assistant: a small head without keys and values of its own reads those of the target, and writes a chain.

It is Google's multi-token drafter for Gemma 4 (transformers, modeling_gemma4_assistant.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Ahead, Context
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import ModelParam, Value
from specviz.drafters.policy import K_PARAMS, make_policy

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.drafters.assistant.reader import AssistantReader


class AssistantDrafter(ModelDrafter):
    """Writes a chain with an assistant, from the target's last state on."""

    hidden_layers = (-1,)
    _lm: AssistantReader

    def draft(self, context: Context, k: int) -> Draft:
        if context.states is None:
            return EMPTY
        self._lm.see(context.states[-1:])
        return super().draft(context, k)

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        return self._lm.along(tokens, states)


def _build(parts: Parts, params: Mapping[str, Value]) -> AssistantDrafter:
    from specviz.drafters.assistant.reader import AssistantReader  # loads torch

    return AssistantDrafter(AssistantReader(parts.heads, parts.target.lm), make_policy(params))


METHOD = Method(
    name="assistant",
    title="Assistant",
    summary="A small head with no keys and values of its own reads those of the target, and writes K tokens ahead.",
    caution="Only for Gemma 4, with the assistant that was trained for that very model. A token costs a small pass "
    "over the target's keys and values; the head reads no text of its own.",
    source="Google, Gemma 4: transformers, modeling_gemma4_assistant.py",
    roles=("heads",),
    params=(
        ModelParam(
            "heads", "assistant", None, "An assistant that was trained for the target.", "assistant"
        ),
        *K_PARAMS,
    ),
    build=_build,
    proposer="A small head on the target writes ",
    why_no_what_if="an assistant's draft depends on where its step begins",
    reads_ahead=True,
)
