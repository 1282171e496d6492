"""The records of a trace, version 1: a frozen class for each event and each part of it, with limits for its fields.

`parse_event` reads a parsed line, `dump_event` writes one. `python -m specviz.trace.schema` makes
`assets/trace.schema.json` from these classes and their docstrings. `specviz.trace.file` knows files and the order of
events.
"""

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args

from msgspec import Meta

from specviz.request import RunSettings
from specviz.trace.values import (
    MAX_INTEGER,
    Count,
    Hex,
    Items,
    LongItems,
    LongText,
    Name,
    Number,
    Object,
    Probability,
    Record,
    Text,
    TraceError,
    json_value,
    require,
)

VERSION = 1
ROOT = -1  # as a parent or a walk node: the last token of the context
Node = Annotated[
    int,
    Meta(
        ge=ROOT,
        le=MAX_INTEGER,
        description="an index in draft, -1 for the last token of the context",
    ),
]
Status = Literal["accepted", "rejected", "ignored", "scratch"]
Kind = Literal["accepted", "resampled", "bonus", "plain"]
Reason = Literal["length", "eos", "stop", "context", "time", "stopped", "error"]
STATUSES = get_args(Status)
KINDS = get_args(Kind)
Chance = Probability | None
NOT_TOLD = Meta(description="null in the record of another engine that does not tell it")
OF_DRAFT = Meta(description="the draft's own; missing: as the target's")
Row = tuple[Count, Text, Probability, Chance, Chance, Chance, Chance]


class PerModel(TypedDict):
    target: Count
    draft: Count


class Sums(TypedDict):
    """The sums over all other tokens."""

    p: Probability | None
    q: Probability | None
    residual: Probability | None
    p_raw: Probability | None
    q_raw: Probability | None


class BaselineSpeed(TypedDict):
    """What every baseline has."""

    tokens_per_s: Number
    num_tokens: Count
    environment: Object


class Baseline(BaselineSpeed, total=False):
    """The speed without a draft; rounds: in how many it took turns with the run; between: their ratio's interval."""

    rounds: Count
    between: tuple[Number, Number]


class Stop(TypedDict):
    """The text that ended the answer, and where it begins in the generated text, in characters."""

    text: Text
    at: Count


@dataclass(frozen=True, slots=True)
class Token(Record):
    """A token's id and text; `bytes` (hexadecimal) when its own bytes are not whole characters."""

    id: Count
    text: Text
    bytes: Hex | None = None


@dataclass(frozen=True, slots=True)
class Prompt(Record):
    text: LongText
    tokens: LongItems[Token]


@dataclass(frozen=True, slots=True)
class Header(Record):
    """The first event: everything needed to run again, and where it ran."""

    version: Literal[1]
    specviz: Name
    created: Name
    request: Object
    environment: Object
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class ModelInfo(Record):
    name: Name
    revision: Name | None
    num_parameters: Count | None
    dtype: Name | None
    device: Name | None
    vocab_size: Count | None
    context_limit: Count | None
    tokenizer_sha: Name | None
    generation_config: Annotated[
        dict[Name, bool | float | Text] | None,
        Meta(
            description="what its generation_config.json asks for beside end tokens; a run applies none of it"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Models(Record):
    """The models in force from the next step on."""

    index: Count
    target: ModelInfo
    draft_model: ModelInfo | None


@dataclass(frozen=True, slots=True)
class Settings(Record):
    """What was in force during one step."""

    k: Count
    k_policy: Name | None
    temperature: Annotated[Number | None, NOT_TOLD]
    top_k: Annotated[Count | None, NOT_TOLD]
    top_p: Annotated[Probability | None, NOT_TOLD]
    method: Name
    params: Object
    rule: Name | None
    lossless: Annotated[bool | None, NOT_TOLD]
    draft_model: Name | None
    target: Name
    draft_temperature: Annotated[Number | None, OF_DRAFT] = None
    draft_top_k: Annotated[Count | None, OF_DRAFT] = None
    draft_top_p: Annotated[Probability | None, OF_DRAFT] = None
    min_p: Annotated[Probability | None, NOT_TOLD] = 0.0
    draft_min_p: Annotated[Probability | None, OF_DRAFT] = None
    by_time: Annotated[
        Items[Name] | None,
        Meta(
            description="the params whose values were the best by time on the device, as measured"
        ),
    ] = None

    @property
    def distribution(self) -> tuple[str | float, ...]:
        """Everything that decides the target's distribution of a token, p."""
        return self.target, *(getattr(self, name) for name in RunSettings.SAMPLING)

    @property
    def is_foreign(self) -> bool:
        """Whether another engine made the step, and its record tells no probability and no sampling."""
        return self.lossless is None

    @property
    def drafts(self) -> bool:
        """Whether the method makes drafts; a trace calls the method without drafts "none"."""
        return self.method != "none"


@dataclass(frozen=True, slots=True)
class DraftToken(Token):
    """A node of the draft tree; parents stand before children. ignored = drafted, never judged."""

    _: KW_ONLY
    parent: Node
    depth: Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
    status: Status
    p: Annotated[
        Probability | None,
        Meta(
            description="the target's probability at the parent; null for scratch, and where lossless is null"
        ),
    ]
    q: Annotated[
        Probability | None,
        Meta(description="the draft's probability at the parent; null for a point mass"),
    ]
    p_judged: Annotated[
        Probability | None, Meta(description="p after earlier siblings failed; null if not judged")
    ]
    accept_prob: Annotated[
        Probability | None, Meta(description="probability of acceptance; null if not judged")
    ]
    u: Annotated[Probability | None, Meta(description="the uniform draw; null if not judged")]

    @property
    def is_judged(self) -> bool:
        return self.status in ("accepted", "rejected")


@dataclass(frozen=True, slots=True)
class EmittedToken(Token):
    """A token of the generated text; `node` is its draft node if it was drafted."""

    _: KW_ONLY
    node: Count | None
    kind: Kind
    p: Probability | None
    q: Probability | None


@dataclass(frozen=True, slots=True)
class Position(Record):
    """One draw of the acceptance walk: a judged child of a node, or the final sample (child null)."""

    node: Node
    child: Count | None
    top: Annotated[
        tuple[Row, ...],
        Meta(
            max_length=256,
            description="(id, text, p, q, residual, p_raw, q_raw) of both models' most likely tokens",
        ),
    ]
    rest: Sums
    overlap: Probability | None
    kl: Annotated[Number | None, Meta(description="KL(p||q) in nats; null when infinite")]
    p_entropy: Number | None
    q_entropy: Number | None
    one_step_tv: Annotated[
        Probability | None,
        Meta(
            description="under a lossy rule: total variation between its distribution of one token and p"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Timing(Record):
    draft_ms: Number
    verify_ms: Number
    accept_ms: Number
    record_ms: Number
    wait_ms: Number
    total_ms: Number

    @property
    def working_ms(self) -> float:
        """The time without the waiting that a slower pace adds."""
        return max(0.0, self.total_ms - self.wait_ms)


_DRAFTED = [status for status in STATUSES if status != "scratch"]
_HAS_P = {
    "if": {"properties": {"status": {"enum": _DRAFTED}}},
    "then": {"properties": {"p": {"type": "number"}}},
}
_TOLD = {"properties": {"settings": {"properties": {"lossless": {"type": "boolean"}}}}}
NEEDS_P = {"if": _TOLD, "then": {"properties": {"draft": {"items": _HAS_P}}}}
"""The schema of a step, beside its fields."""
NEEDS_NODE = {
    "if": {"properties": {"kind": {"const": "accepted"}}},
    "then": {"properties": {"node": {"type": "integer"}}},
    "else": {"properties": {"node": {"type": "null"}}},
}


@dataclass(frozen=True, slots=True)
class Step(Record):
    """One draft-verify round."""

    index: Count
    at_ms: Number
    context_length: Count
    truncated: Count
    settings: Settings
    changed: Items[Name]
    calls: PerModel
    fed: PerModel
    draft: Items[DraftToken]
    emitted: Items[Annotated[EmittedToken, Meta(extra_json_schema=NEEDS_NODE)]]
    positions: Items[Position]
    timing: Timing
    evidence: Annotated[
        Object,
        Meta(description='what the drafter tells of its draft; {"id"} is a token, with its text'),
    ]
    read_again: Annotated[
        PerModel | None,
        Meta(
            description="of the tokens fed, those read before: a state was put back after a rejection"
        ),
    ] = None

    @property
    def is_tree(self) -> bool:
        """Whether two drafted tokens have one parent, so that not all can be accepted."""
        parents = [token.parent for token in self.draft if token.status != "scratch"]
        return len(set(parents)) < len(parents)

    def check(self) -> None:
        """Checks that nodes follow their parents, and that the accepted ones form the path of the emitted tokens."""
        for name in RunSettings.SAMPLING:
            is_told = getattr(self.settings, name) is not None
            problem = "must be null exactly where lossless is"
            require(is_told is not self.settings.is_foreign, f"settings.{name}", problem)
        self._check_draft()
        self._check_emitted()
        num_nodes = len(self.draft)
        for index, position in enumerate(self.positions):
            path = f"positions[{index}]"
            require(position.node < num_nodes, f"{path}.node", "is not a node of the draft")
            child = position.child
            if child is not None:
                is_child = child < num_nodes and self.draft[child].parent == position.node
                require(is_child, f"{path}.child", f"is not a child of node {position.node}")

    def _check_draft(self) -> None:
        path_end = ROOT
        for index, token in enumerate(self.draft):
            path = f"draft[{index}]"
            parent = token.parent
            require(parent < index, f"{path}.parent", f"must be an earlier node (got {parent})")
            depth = 1 if parent == ROOT else self.draft[parent].depth + 1
            require(token.depth == depth, f"{path}.depth", f"must be {depth} (got {token.depth})")
            needs_p = token.status != "scratch" and not self.settings.is_foreign
            problem = "must be a probability unless the token is scratch (got None)"
            require(token.p is not None or not needs_p, f"{path}.p", problem)
            if token.status == "accepted":
                problem = f"cannot be accepted beside node {path_end}"
                require(parent == path_end, f"{path}.status", problem)
                path_end = index

    def _check_emitted(self) -> None:
        node = ROOT
        for index, token in enumerate(self.emitted):
            path = f"emitted[{index}]"
            if token.kind != "accepted":
                problem = f"must be null for a {token.kind} token (got {token.node})"
                require(token.node is None, f"{path}.node", problem)
                problem = f"is {token.kind} but not the last token of the step"
                require(index == len(self.emitted) - 1, path, problem)
                return
            problem = f"is not the accepted draft token that follows node {node} (got {token.node})"
            require(self._follows(token, node), f"{path}.node", problem)
            node = token.node

    def _follows(self, token: EmittedToken, node: int) -> bool:
        """Whether an emitted token is an accepted draft token whose parent is this node."""
        if token.node is None or token.node >= len(self.draft):
            return False
        drafted = self.draft[token.node]
        is_accepted_child = drafted.parent == node and drafted.status == "accepted"
        return is_accepted_child and drafted.id == token.id


@dataclass(frozen=True, slots=True)
class Scores(Record):
    """One teacher-forced pass of both models over the emitted text: one value per emitted token so far."""

    draft_model: Name | None
    sampling: Object
    p: LongItems[Probability | None]
    q: LongItems[Probability | None]
    overlap: LongItems[Probability | None]

    def check(self) -> None:
        lengths = [len(self.p), len(self.q), len(self.overlap)]
        problem = f"must be as long as p and q (got {', '.join(map(str, lengths))})"
        require(len(set(lengths)) == 1, "overlap", problem)


@dataclass(frozen=True, slots=True)
class Footer(Record):
    """Why the generation ended, and the measured speed without a draft if there is one."""

    reason: Reason
    message: Text | None
    baseline: Baseline | None
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a later minor version: kept and written back as it came."""

    data: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.data)


Event = Header | Models | Step | Scores | Footer | UnknownEvent
EVENTS: Mapping[str, type[Record]] = {
    kind.__name__.lower(): kind for kind in (Header, Models, Step, Scores, Footer)
}


def parse_event(data: Mapping[str, Any]) -> Event:
    """The record of one parsed line. Raises TraceError that names the field."""
    name = data.get("event")
    if type(name) is not str:
        raise TraceError("must be an event: an object with a text field 'event'")
    if name not in EVENTS:
        return UnknownEvent(json_value(dict(data)))
    fields = {key: value for key, value in data.items() if key != "event"}
    version = fields.get("version", VERSION) if name == "header" else VERSION
    is_known = type(version) is int and version == VERSION
    readers = f"this specviz reads version {VERSION}; a newer one may read this file"
    require(is_known, "header.version", f"{version!r:.20} is not known: {readers}")
    try:
        return EVENTS[name].from_dict(fields)
    except TraceError as error:
        raise error.within(name) from None


def event_dict(event: Event) -> dict[str, Any]:
    """The event as plain JSON values."""
    if isinstance(event, UnknownEvent):
        return event.to_dict()
    return {"event": type(event).__name__.lower(), **event.to_dict()}


def dump_event(event: Event) -> str:
    """The event as a line of JSON without its newline. Raises ValueError for NaN, infinity and half surrogate pairs."""
    line = json.dumps(event_dict(event), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    line.encode("utf-8")
    return line
