"""The records of a trace, version 1: one frozen class per event and per part of one, each field typed with its check.

A record checks what it reads and gives back what it read, unknown fields included. `assets/trace.schema.json` says the
same for other tools. Knows neither files nor the order of events; `specviz.trace.file` re-exports what others need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from specviz.trace.values import (
    MAX_TEXT,
    Record,
    TraceError,
    boolean,
    hexadecimal,
    integer,
    json_object,
    maybe,
    number,
    object_of,
    one_of,
    record,
    row_of,
    text,
    tuple_of,
)

VERSION = 1
ROOT = -1  # as a parent or a walk node: the last token of the context
STATUSES = ("accepted", "rejected", "ignored", "scratch")
KINDS = ("accepted", "resampled", "bonus", "plain")
REASONS = ("length", "eos", "context", "time", "stopped", "error")
MAX_PROMPT = 1 << 20

_probability = number(0.0, 1.0, "a probability")
_sums = object_of(dict.fromkeys(("p", "q", "residual", "p_raw", "q_raw"), maybe(_probability)))
_per_model = object_of({"target": integer(), "draft": integer()})


def _version(value: Any) -> int:
    if type(value) is int and value == VERSION:
        return value
    raise TraceError(
        f"{value!r:.20} is not known: this specviz reads version {VERSION}; a newer one may read this file"
    )


Count = Annotated[int, integer()]
Node = Annotated[int, integer(ROOT)]
MaybeNode = Annotated[int | None, maybe(integer())]
Number = Annotated[float, number()]
MaybeNumber = Annotated[float | None, maybe(number())]
Probability = Annotated[float, _probability]
MaybeProbability = Annotated[float | None, maybe(_probability)]
Probabilities = Annotated[tuple[float | None, ...], tuple_of(maybe(_probability), MAX_PROMPT)]
Truth = Annotated[bool, boolean]
Name = Annotated[str, text(1_000)]
MaybeName = Annotated[str | None, maybe(text(1_000))]
Names = Annotated[tuple[str, ...], tuple_of(text(1_000))]
Text = Annotated[str, text()]
LongText = Annotated[str, text(64 * MAX_TEXT)]
MaybeHex = Annotated[str | None, maybe(hexadecimal)]
Object = Annotated[Mapping[str, Any], json_object]
PerModel = Annotated[Mapping[str, int], _per_model]
Extra = Mapping[str, Any]
Row = tuple[int, str, float, float | None, float | None, float | None, float | None]


@record
class Token(Record):
    """A token's id and text; `bytes` (hexadecimal) when its own bytes are not whole characters."""

    id: Count
    text: Text
    bytes: MaybeHex = None
    extra: Extra = field(default_factory=dict)


@record
class Prompt(Record):
    text: LongText
    tokens: Annotated[tuple[Token, ...], tuple_of(Token.from_dict, MAX_PROMPT)]
    extra: Extra = field(default_factory=dict)


@record
class Header(Record):
    """The first event: everything needed to run again, and where it ran."""

    EVENT: ClassVar[str] = "header"
    version: Annotated[int, _version]
    specviz: Name
    created: Name
    request: Object
    environment: Object
    prompt: Annotated[Prompt, Prompt.from_dict]
    extra: Extra = field(default_factory=dict)


@record
class ModelInfo(Record):
    name: Name
    revision: MaybeName
    num_parameters: Annotated[int | None, maybe(integer())]
    dtype: MaybeName
    device: MaybeName
    vocab_size: Annotated[int | None, maybe(integer())]
    context_limit: Annotated[int | None, maybe(integer())]
    tokenizer_sha: MaybeName
    extra: Extra = field(default_factory=dict)


@record
class Models(Record):
    """The models in force from the next step on."""

    EVENT: ClassVar[str] = "models"
    index: Count
    target: Annotated[ModelInfo, ModelInfo.from_dict]
    draft_model: Annotated[ModelInfo | None, maybe(ModelInfo.from_dict)]
    extra: Extra = field(default_factory=dict)


@record
class Settings(Record):
    """What was in force during one step."""

    k: Count
    k_policy: MaybeName
    temperature: Number
    top_k: Count
    top_p: Probability
    method: Name
    params: Object
    rule: MaybeName
    lossless: Truth
    draft_model: MaybeName
    target: Name
    extra: Extra = field(default_factory=dict)

    @property
    def drafts(self) -> bool:
        """Whether the step had a draft to judge: "none" is how a trace calls the method that makes none."""
        return self.method != "none"


@record
class DraftToken(Record):
    """A node of the draft. `p`, `q` are taken at the parent; `p_judged`, `accept_prob`, `u` are None if not judged."""

    id: Count
    text: Text
    bytes: MaybeHex
    parent: Node
    depth: Annotated[int, integer(1)]
    status: Annotated[str, one_of(*STATUSES)]
    p: MaybeProbability
    q: MaybeProbability
    p_judged: MaybeProbability
    accept_prob: MaybeProbability
    u: MaybeProbability
    extra: Extra = field(default_factory=dict)

    @property
    def is_judged(self) -> bool:
        return self.status in ("accepted", "rejected")


@record
class EmittedToken(Record):
    """A token of the generated text; `node` is its draft node if it was drafted."""

    id: Count
    text: Text
    bytes: MaybeHex
    node: MaybeNode
    kind: Annotated[str, one_of(*KINDS)]
    p: MaybeProbability
    q: MaybeProbability
    extra: Extra = field(default_factory=dict)


@record
class Position(Record):
    """One draw of the acceptance walk: at `node`, judging `child`, or the final sample when `child` is None.

    `top` rows are (id, text, p, q, residual, p_raw, q_raw) over the union of both models' likeliest tokens; `rest` sums
    all others. `one_step_tv`: under a lossy rule, how far its law of one token lies from p (total variation).
    """

    OMITTED_WHEN_NONE: ClassVar[tuple[str, ...]] = ("one_step_tv",)
    node: Node
    child: MaybeNode
    top: Annotated[
        tuple[Row, ...],
        tuple_of(row_of(integer(), text(), _probability, *[maybe(_probability)] * 4), 256),
    ]
    rest: Annotated[Mapping[str, float | None], _sums]
    overlap: MaybeProbability
    kl: MaybeNumber
    p_entropy: MaybeNumber
    q_entropy: MaybeNumber
    one_step_tv: MaybeProbability = None
    extra: Extra = field(default_factory=dict)


@record
class Timing(Record):
    draft_ms: Number
    verify_ms: Number
    accept_ms: Number
    record_ms: Number
    wait_ms: Number
    total_ms: Number
    extra: Extra = field(default_factory=dict)

    @property
    def working_ms(self) -> float:
        """Time without the waiting that a slower pace adds."""
        return max(0.0, self.total_ms - self.wait_ms)


@record
class Step(Record):
    """One draft-verify round."""

    EVENT: ClassVar[str] = "step"
    index: Count
    at_ms: Number
    context_length: Count
    truncated: Count
    settings: Annotated[Settings, Settings.from_dict]
    changed: Names
    calls: PerModel
    fed: PerModel
    draft: Annotated[tuple[DraftToken, ...], tuple_of(DraftToken.from_dict)]
    emitted: Annotated[tuple[EmittedToken, ...], tuple_of(EmittedToken.from_dict)]
    positions: Annotated[tuple[Position, ...], tuple_of(Position.from_dict)]
    timing: Annotated[Timing, Timing.from_dict]
    evidence: Object
    extra: Extra = field(default_factory=dict)

    @property
    def is_tree(self) -> bool:
        """Whether drafted tokens stand beside each other, so that not all of them can be kept."""
        parents = [token.parent for token in self.draft if token.status != "scratch"]
        return len(set(parents)) < len(parents)

    def check(self) -> None:
        """Nodes stand after their parents; accepted ones form one path, which the emitted tokens follow."""
        self._check_draft()
        self._check_emitted()
        for index, position in enumerate(self.positions):
            require(position.node < len(self.draft), f"positions[{index}].node", "is not a node of the draft")
            if position.child is not None:
                is_child = position.child < len(self.draft) and self.draft[position.child].parent == position.node
                require(is_child, f"positions[{index}].child", f"is not a child of node {position.node}")

    def _check_draft(self) -> None:
        path_end = ROOT
        for index, token in enumerate(self.draft):
            depth = 1 if token.parent == ROOT else self._depth_below(token.parent, index)
            require(token.depth == depth, f"draft[{index}].depth", f"must be {depth} (got {token.depth})")
            scratch_or_p = token.status == "scratch" or token.p is not None
            require(scratch_or_p, f"draft[{index}].p", "must be a probability unless the token is scratch (got None)")
            if token.status == "accepted":
                require(
                    token.parent == path_end, f"draft[{index}].status", f"cannot be accepted beside node {path_end}"
                )
                path_end = index

    def _depth_below(self, parent: int, index: int) -> int:
        require(parent < index, f"draft[{index}].parent", f"must be an earlier node (got {parent})")
        return self.draft[parent].depth + 1

    def _check_emitted(self) -> None:
        node = ROOT
        for index, token in enumerate(self.emitted):
            path = f"emitted[{index}]"
            if token.kind != "accepted":
                require(token.node is None, f"{path}.node", f"must be null for a {token.kind} token (got {token.node})")
                require(index == len(self.emitted) - 1, path, f"is {token.kind} but not the last token of the step")
                return
            known = token.node is not None and token.node < len(self.draft)
            drafted = self.draft[token.node] if known else None
            fits = drafted and (drafted.parent, drafted.status, drafted.id) == (node, "accepted", token.id)
            require(
                fits, f"{path}.node", f"is not the accepted draft token that follows node {node} (got {token.node})"
            )
            node = token.node


def require(holds: object, path: str, problem: str) -> None:
    if not holds:
        raise TraceError(problem, path)


@record
class Scores(Record):
    """One teacher-forced pass of both models over the emitted text so far: one value per emitted token."""

    EVENT: ClassVar[str] = "scores"
    draft_model: MaybeName
    sampling: Object
    p: Probabilities
    q: Probabilities
    overlap: Probabilities
    extra: Extra = field(default_factory=dict)

    def check(self) -> None:
        same = len(self.p) == len(self.q) == len(self.overlap)
        require(same, "overlap", f"must be as long as p and q (got {len(self.p)}, {len(self.q)}, {len(self.overlap)})")


@record
class Footer(Record):
    """Why the generation ended, and the measured NoDraft speed of the same session if there is one."""

    EVENT: ClassVar[str] = "footer"
    reason: Annotated[str, one_of(*REASONS)]
    message: Annotated[str | None, maybe(text())]
    baseline: Annotated[
        Mapping[str, Any] | None,
        maybe(object_of({"tokens_per_s": number(), "num_tokens": integer(), "environment": json_object})),
    ]
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a later minor version: kept and written back as it came."""

    data: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.data)


Event = Header | Models | Step | Scores | Footer | UnknownEvent
EVENTS = {cls.EVENT: cls for cls in (Header, Models, Step, Scores, Footer)}


def parse_event(data: Mapping[str, Any]) -> Event:
    """The record of one parsed line; TraceError says which field is wrong."""
    name = data.get("event")
    if type(name) is not str:
        raise TraceError("must be an event: an object with a text field 'event'")
    if name not in EVENTS:
        return UnknownEvent(json_object(dict(data)))
    try:
        return EVENTS[name].from_dict({key: value for key, value in data.items() if key != "event"})
    except TraceError as error:
        raise error.within(name) from None


def event_dict(event: Event) -> dict[str, Any]:
    return event.to_dict() if isinstance(event, UnknownEvent) else {"event": event.EVENT, **event.to_dict()}


def dump_event(event: Event) -> str:
    """One line of JSON without its newline; ValueError for NaN, infinity and half surrogate pairs."""
    line = json.dumps(event_dict(event), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    line.encode("utf-8")
    return line
