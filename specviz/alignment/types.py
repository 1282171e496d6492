"""What travels through the alignment lab: rows of the prompt file, shards of work, analysed texts. Plain and picklable.

No model and no tensor; pandas only in the types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas

from specviz.request import Request

Array = np.ndarray
KS = range(1, 17)  # the K that every text is planned for
BINS = 10  # of the draft's confidence, all of equal width
BY_K = ("calls", "emitted", "time_ms", "argmax_calls", "argmax_emitted", "argmax_time_ms")
KEPT = ("kept", "argmax_kept")
DEPTHS = 8  # that a draft which is no model is read to
SAMPLED, GIVEN = "sampled", "given"


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of a conversation. role: one of `chat.CHAT_ROLES`. reasoning: of the assistant, before the content.
    tool_calls: of the assistant, {"id", "type", "function": {"name", "arguments"}} with the arguments as an object.
    tool_call_id, name: whose answer a tool's turn is."""

    role: str
    content: str
    reasoning: str = field(default="", repr=False)
    tool_calls: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    tool_call_id: str = field(default="", repr=False)
    name: str = field(default="", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As chat templates take it."""
        more = {
            "reasoning_content": self.reasoning,
            "tool_calls": list(self.tool_calls),
            "tool_call_id": self.tool_call_id,
            "name": self.name,
        }
        return {"role": self.role, "content": self.content} | {
            name: value for name, value in more.items() if value
        }


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One checked row of the input: a prompt, as text or ids, or messages, and the text that followed, if it exists
    already.

    number: its place among the accepted rows, from 0. line: in the file, from 1. told: {"target", "temperature",
    "top_k", "top_p"} where the row says what its completion was sampled from. answer: the assistant's, where its text
    depends on the chat template: the completion is then its plain form, or None where it calls tools. tools: what it
    may call. chat_options: switches of the chat template.
    """

    number: int
    line: int
    id: str
    tags: tuple[str, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None
    completion: str | tuple[int, ...] | None = None
    told: Mapping[str, object] | None = None
    answer: Message | None = field(default=None, repr=False)
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    chat_options: Mapping[str, bool | int | float | str] = field(default_factory=dict, repr=False)

    @property
    def turns(self) -> tuple[Message, ...]:
        return (*(self.messages or ()), *((self.answer,) if self.answer else ()))

    def asked(self) -> list[dict[str, Any]]:
        """The messages, or the prompt's text as one, as chat templates take them."""
        return [turn.to_dict() for turn in self.messages or (Message("user", self.prompt),)]

    @property
    def only_for_templates(self) -> str:
        """What of it only a chat template can write, in words; empty where there is nothing of the kind."""
        found = {
            "tools": self.tools,
            "tool calls": any(turn.tool_calls for turn in self.turns),
            "answers of tools": any(turn.role == "tool" for turn in self.turns),
        }
        return ", ".join(name for name, is_there in found.items() if is_there)

    def decisive(self) -> str:
        """All that decides what is measured. A row of plain texts is written as in older jobs, so that they can be
        compared."""
        is_plain = all(turn == Message(turn.role, turn.content) for turn in self.turns)
        if is_plain and not self.tools and not self.chat_options:
            return repr(self)
        turns = [turn.to_dict() for turn in self.turns]
        return repr((self, turns, self.tools, sorted(self.chat_options.items())))


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A model of a job. name: as it is shown; content: a hash of what it holds; num_ids: ids with a text that it can
    write; wanted: what it is loaded by, a name, a folder's path or a pair in memory, never shown or stored."""

    name: str
    content: str
    num_ids: int
    wanted: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Shard:
    """A piece of work of its own: what is asked, without a prompt, and the rows that it is asked about.

    request: target, sampling, seed, max_new_tokens and chat count; text number n is drawn with seed_of(seed, n).
    Rejections are priced at its K. drafts: names. step_ms: per draft the time of a step that drafts 0, 1, ... 16
    tokens, where costs are known. batch: the most texts that are read at once. models: who the target and the drafts
    are; without, they are found by their names.
    """

    request: Request
    drafts: tuple[str, ...]
    rows: tuple[PromptRow, ...]
    step_ms: Mapping[str, tuple[float, ...]]
    batch: int = 32
    models: tuple[ModelIdentity, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that could not be used, and why, in words that go on after "line 7"."""

    line: int
    reason: str


Columns = Mapping[str, Any]
"""A table by columns: name -> a numpy array or a list, all of one length."""

AHEAD = ("keep", "hit", "overlap", "most_likely_p", "readable")


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """A draft whose q hangs on where its step began. [s, j] of each array: of the token j places behind start s, given
    the text in between: its chance to be kept if drawn; whether it is the draft's likeliest; sum min(p, q); p of the
    draft's likeliest; whether anything is drafted. waits: the first step of a text drafts nothing."""

    keep: Array
    hit: Array
    overlap: Array
    most_likely_p: Array
    readable: Array
    waits: bool


@dataclass(frozen=True, slots=True)
class RowText:
    """A row with its text. prompt: as the target reads it; is_chat: that is its chat form. ids: None until a text is
    drawn. exact: the text is the target's own at the request's sampling. finish: eos, length, context or given. text:
    of the ids, without one that ends it; empty until it is analysed."""

    row: PromptRow
    prompt: str
    is_chat: bool
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...] | None
    exact: bool
    finish: str = GIVEN
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class AnalysedText:
    """One text of N tokens. tokens: the columns of `columns.TOKENS` that hold for every draft; drafts: those of each
    draft but saved, lost and reason, `ahead` where it is no model, and its `confidence` [BINS, 3]: over all places and
    all tokens x that it might have drawn, by q(x) in ten bins, the sums of q, of q * q and of min(p, q)."""

    written: RowText
    tokens: Columns
    drafts: Mapping[str, Columns]


@dataclass(frozen=True, slots=True, eq=False)
class ShardTables:
    """What a shard comes to: tables (see `columns`), what was refused, and sums of confidence per draft [BINS, 3]."""

    tokens: pandas.DataFrame
    prompts: pandas.DataFrame
    sums: pandas.DataFrame
    confidence: Mapping[str, Array]
    refused: tuple[RefusedRow, ...]
    warnings: tuple[str, ...]
