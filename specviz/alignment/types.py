"""The values that the alignment lab passes on: rows of the prompt file, shards of work, analysed texts.

Plain and picklable: no model and no tensor; pandas only in the types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas

from specviz.request import Request

Array = np.ndarray
KS = range(1, 17)  # the K that every text is planned for
BINS = 10  # of the draft's confidence, all equally wide
BY_K = ("calls", "emitted", "time_ms", "argmax_calls", "argmax_emitted", "argmax_time_ms")
"""Columns of the sums with a number for every K."""
ACCEPTED = (
    "kept",
    "argmax_kept",
)  # of the sums: steps that draft, then that accept 1, 2, ... 16 or more
WIDEST = 0.1
"""Tokens per target call whose bounds are further apart, as a share of the lower one, are not given."""
DEPTHS = 8  # read of a draft that is no model
SAMPLED, GIVEN = "sampled", "given"


def is_vague(fewest: float, most: float) -> bool:
    """Whether these bounds of a number lie further apart than WIDEST allows."""
    return most > (1 + WIDEST) * fewest


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of a conversation."""

    role: str  # one of `chat.CHAT_ROLES`
    content: str
    reasoning: str = field(default="", repr=False)  # of the assistant, before the content
    tool_calls: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """Of the assistant: {"id", "type", "function": {"name", "arguments"}} with the arguments as an object."""
    tool_call_id: str = field(default="", repr=False)  # the call that a tool's turn answers
    name: str = field(default="", repr=False)  # of the tool that answers

    def to_dict(self) -> dict[str, Any]:
        """The turn in the form that chat templates take."""
        turn = {"role": self.role, "content": self.content}
        optional = {
            "reasoning_content": self.reasoning,
            "tool_calls": list(self.tool_calls),
            "tool_call_id": self.tool_call_id,
            "name": self.name,
        }
        return turn | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A checked row of the input: a prompt or messages, and the text that followed if it exists already."""

    number: int  # place among the accepted rows, from 0
    line: int  # in the file, from 1
    id: str
    tags: tuple[str, ...] = ()
    prompt: str | tuple[int, ...] | None = None  # text or ids
    messages: tuple[Message, ...] | None = None
    completion: str | tuple[int, ...] | None = None  # text or ids
    told: Mapping[str, object] | None = None
    """{"target", "temperature", "top_k", "top_p", "min_p"} if the row says how its completion was sampled."""
    answer: Message | None = field(default=None, repr=False)
    """The assistant's turn if its text depends on the chat template.

    The completion is then its plain form, or None if it calls tools."""
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)  # that it may call
    chat_options: Mapping[str, bool | int | float | str] = field(default_factory=dict, repr=False)
    """Switches of the chat template."""

    @property
    def turns(self) -> tuple[Message, ...]:
        turns = self.messages or ()
        return (*turns, self.answer) if self.answer else turns

    def asked(self) -> list[dict[str, Any]]:
        """The messages, or the prompt's text as one message, in the form that chat templates take."""
        messages = self.messages or (Message("user", self.prompt),)
        return [turn.to_dict() for turn in messages]

    @property
    def only_for_templates(self) -> str:
        """Names the parts that only a chat template can write; empty where there are none."""
        parts = {
            "tools": self.tools,
            "tool calls": any(turn.tool_calls for turn in self.turns),
            "answers of tools": any(turn.role == "tool" for turn in self.turns),
        }
        return ", ".join(name for name, is_there in parts.items() if is_there)

    def decisive(self) -> str:
        """Everything that decides what is measured, for a fingerprint.

        A row of plain texts is written as in older jobs, so that jobs can be compared."""
        is_plain = all(turn == Message(turn.role, turn.content) for turn in self.turns)
        if is_plain and not self.tools and not self.chat_options:
            return repr(self)
        turns = [turn.to_dict() for turn in self.turns]
        return repr((self, turns, self.tools, sorted(self.chat_options.items())))


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A model of a job."""

    name: str  # shown to people
    content: str  # a hash of the weights, tokenizer and configuration
    num_ids: int  # ids with a text that the model can write; 0 where that is not known
    number_format: str  # of its weights, in words
    wanted: Any = field(repr=False)
    """A name, a folder's path or a pair in memory, to load the model by; never shown or stored."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How servers are asked."""

    num_top: int  # the likeliest tokens to name at each place
    timeout_s: float  # for an answer to begin, or to go on


@dataclass(frozen=True, slots=True)
class Shard:
    """A piece of work that stands alone: a request without a prompt, and the rows that it is made for."""

    request: Request
    """Target, sampling, seed, max_new_tokens and chat count; text number n is drawn with seed_of(seed, n).

    Rejections are priced at its K."""
    drafts: tuple[str, ...]  # names
    rows: tuple[PromptRow, ...]
    step_ms: Mapping[str, tuple[float, ...]]
    """The time of a step that drafts 0, 1, ... 16 tokens, by draft, where costs are known."""
    batch: int = 32  # the most texts that are read at once
    models: tuple[ModelIdentity, ...] = ()  # target first; if empty, models are found by name
    reference: ModelIdentity | None = (
        None  # a sound ancestor of the drafts, to compare tensors with
    )
    asking: Asking | None = None  # None: the models' weights are here
    is_counted: bool = False  # whether an engine's counters are compared with the draft


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that could not be used."""

    line: int
    reason: str  # words that go on after "line 7"


Columns = Mapping[str, Any]
"""A table by columns: name -> a numpy array or a list, all of one length."""

AHEAD = ("acceptance", "hit", "overlap", "most_likely_p", "readable")  # the arrays of `Ahead`


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """A draft along one text, when its q depends on where the step began.

    Entry [s, j] of every array is about the token j places behind start s, given the text in between.
    """

    acceptance: Array  # the probability that the token is accepted if it is drawn
    hit: Array  # whether the token is the draft's most likely one
    overlap: Array  # sum min(p, q)
    most_likely_p: Array  # p of the draft's most likely token
    readable: Array  # whether anything is drafted
    waits: bool  # whether the first step of a text drafts nothing


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Numbers that are known between two bounds."""

    low: Array
    high: Array

    @property
    def middle(self) -> Array:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """What is known between two bounds of a draft at each place [N], where whole rows of p and q are not known."""

    keep: Range  # min(1, q/p) of the text's token
    overlap: Range  # sum min(p, q)
    argmax: Range  # p of the draft's most likely token


@dataclass(frozen=True, slots=True)
class RowText:
    """A row with its text."""

    row: PromptRow
    prompt: str  # as the target reads it
    is_chat: bool  # whether the prompt is in the target's chat form
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...] | None  # None until a text is drawn
    exact: bool  # whether the text is the target's own at the request's sampling
    finish: str = GIVEN  # eos, length, context or given
    text: str = ""  # of the ids without an end token; empty until it is analysed


@dataclass(frozen=True, slots=True, eq=False)
class AnalysedText:
    """A text of N tokens with what every model says of it."""

    written: RowText
    tokens: Columns  # the columns of `columns.TOKENS` that are alike for every draft
    drafts: Mapping[str, Columns]
    """The other columns by draft, except saved, lost and reason.

    Also `ahead` for a draft that is no model, `bounds` where a server tells only the likeliest tokens, and
    `confidence` [BINS, 3]: sums of q, of q * q and of min(p, q). They go over all places and all tokens x that the
    draft might have drawn, by q(x) in ten bins."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardTables:
    """The result of a shard: its tables (see `columns`) and what could not be used."""

    tokens: pandas.DataFrame
    prompts: pandas.DataFrame
    sums: pandas.DataFrame
    bounds: pandas.DataFrame  # no rows where everything is known exactly
    confidence: Mapping[str, Array]  # by draft, summed over texts [BINS, 3]
    refused: tuple[RefusedRow, ...]
    warnings: tuple[str, ...]
