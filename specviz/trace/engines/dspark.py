"""Reads what SGLang records of DSpark's decisions as a trace: drafted ids, how many were checked and accepted.

Two forms, as SGLang writes them: the lines DSPARK_DEBUG_MAIN_OUTPUT={...} of a server's log, and `dspark_info_record`,
alone or inside the answer of GET /server_info. Neither holds a probability, the prompt, the sampling or a text: the
trace says so by missing values, and a token's text is its id.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from specviz.request import RunSettings
from specviz.trace.events import (
    ROOT,
    DraftToken,
    EmittedToken,
    Header,
    ModelInfo,
    Models,
    Prompt,
    Settings,
    Step,
    Timing,
)
from specviz.trace.file import (
    MAX_HELD_BYTES,
    MAX_LOCAL_STEPS,
    MAX_STEPS,
    MAX_UNPACKED_BYTES,
    MAX_UPLOAD_BYTES,
    Trace,
    read_trace,
)
from specviz.trace.lines import held_bytes, numbered_lines, unpack
from specviz.trace.values import Count, Items, Name, Probability, TraceError, require

LINE = b"DSPARK_DEBUG_MAIN_OUTPUT="
RECORD = (b'"dspark_info_record"', b'"verify_num_draft_tokens"')
NOT_KNOWN = "not recorded"
_NO_NUMBERS = dict.fromkeys(("p", "q", "p_judged", "accept_prob", "u"))
_SETTINGS = {
    **dict.fromkeys(("k_policy", *RunSettings.SAMPLING, "rule", "lossless", "draft_model")),
    "method": "dspark",
    "params": {},
    "target": NOT_KNOWN,
}
COMPACT = "compact"  # the mode in which the target reads no more than is checked
Size = Annotated[int, Meta(ge=1, le=1_024)]
MOST_NAMED = 10  # requests in an error
Spell = Callable[[int], tuple[str, str | None]]
"""An id -> its text, and its bytes where these are no whole characters."""
Json = TypeVar("Json")


@dataclass(frozen=True, slots=True)
class Decision:
    """What one step decided for one request; the names are SGLang's."""

    verify_len: Size  # tokens that were checked, the last one of the text included
    acc_len: Count
    correct_drafts: Count
    draft_tokens: Items[Count]
    bonus_token: Count
    rid: Name | None = None
    prefix: Count | None = None  # tokens before the last one of the text
    prefix_len: Count | None = None  # the same, in `dspark_info_record`
    confidence: Items[Probability] | None = None

    @property
    def before(self) -> int:
        return self.prefix_len or 0 if self.prefix is None else self.prefix

    def check(self, gamma: int) -> None:
        """Raises TraceError for numbers that cannot belong together."""
        require(
            self.rid is not None, "rid", "is missing: the steps of requests cannot be told apart"
        )
        require(self.prefix != self.prefix_len, "prefix", "is missing")
        drafted = len(self.draft_tokens)
        require(drafted == gamma, "draft_tokens", f"must be {gamma} tokens (got {drafted})")
        problem = f"must be from 1 to {gamma + 1} (got {self.verify_len})"
        require(self.verify_len <= gamma + 1, "verify_len", problem)
        problem = f"must be below verify_len, {self.verify_len} (got {self.correct_drafts})"
        require(self.correct_drafts < self.verify_len, "correct_drafts", problem)
        problem = f"must be correct_drafts + 1, {self.correct_drafts + 1} (got {self.acc_len})"
        require(self.acc_len == self.correct_drafts + 1, "acc_len", problem)
        if self.confidence is not None:
            problem = f"must be {gamma} numbers (got {len(self.confidence)})"
            require(len(self.confidence) == gamma, "confidence", problem)


@dataclass(frozen=True, slots=True)
class Round:
    """The decisions of one step for all of its requests."""

    reqs: tuple[Decision, ...] | None = None
    gamma: Size | None = None
    mode: Name = ""


@dataclass(frozen=True, slots=True)
class Info:
    """The whole `dspark_info_record` of a server."""

    records: tuple[Round, ...]
    gamma: Size
    mode: Name
    simulate_acc_len: float | None = None  # acceptance was made up, of this length


@dataclass(frozen=True, slots=True)
class Rank:
    dspark_info_record: Info | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of GET /server_info."""

    internal_states: tuple[Rank, ...] = ()


def load_run(path: str | Path, request: str = "", spell: Spell | None = None) -> Trace:
    """Reads a local file, of any size that fits in memory, as `read_run` does."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"cannot be opened ({error.strerror})", str(path)) from None
    limits = {"max_bytes": None, "max_unpacked": None, "max_steps": MAX_LOCAL_STEPS}
    return read_run(content, request, spell, **limits)


def read_run(
    content: bytes,
    request: str = "",
    spell: Spell | None = None,
    *,
    max_bytes: int | None = MAX_UPLOAD_BYTES,
    max_unpacked: int | None = MAX_UNPACKED_BYTES,
    max_steps: int = MAX_STEPS,
    max_cpu_s: float = math.inf,
) -> Trace:
    """Reads a trace's own file, or one request of a record of DSpark's decisions; gzip or not. None lifts a limit.

    request: its rid; else the one with the most steps. spell: a tokenizer's texts; else a text is an id. Raises
    TraceError.
    """
    pieces = unpack(content, max_bytes, max_unpacked)
    head = next(pieces, b"")
    if b'"event"' not in head:
        whole = b"".join([head, *pieces])
        if any(mark in whole for mark in (LINE, *RECORD)):
            return _as_trace([*_decisions(whole)], request, spell, max_steps)
    if request:
        raise TraceError("holds one run and no requests to choose from", "the file")
    limits = {"max_bytes": max_bytes, "max_unpacked": max_unpacked, "max_steps": max_steps}
    return read_trace(content, **limits, max_cpu_s=max_cpu_s)


def _text_of(token: int, spell: Spell | None) -> tuple[str, str | None]:
    """The tokenizer's text, or the id where there is none."""
    text = ("", None) if spell is None else spell(token)
    return text if any(text) else (f" #{token}", None)


def _decisions(content: bytes) -> Iterator[tuple[int, str, Decision]]:
    """Yields (gamma, mode, decision) in the order of the record. Raises TraceError."""
    if LINE not in content:
        for info in _infos(content):
            yield from _of_rounds(info.records, info.gamma, info.mode)
        return
    held = 0
    for number, line, whole in numbered_lines([content], max_lines=len(content)):
        _, mark, record = line.partition(LINE)
        if mark and whole:
            held += held_bytes(record)
            try:
                found = _parse(record, Round, held)
                require(found.gamma is not None, "gamma", "is missing")
                yield from _of_rounds((found,), found.gamma, found.mode)
            except TraceError as error:
                raise TraceError(error.problem, error.path, number) from None


def _infos(content: bytes) -> Iterator[Info]:
    held = held_bytes(content)
    if RECORD[0] in content:
        ranks = _parse(content, Answer, held).internal_states
        infos = [rank.dspark_info_record for rank in ranks if rank.dspark_info_record is not None]
    else:
        infos = [_parse(content, Info, held)]
    for info in infos:
        problem = "acceptance was simulated, so the record tells nothing of the draft"
        require(info.simulate_acc_len is None, "simulate_acc_len", problem)
        yield info


def _of_rounds(
    rounds: tuple[Round, ...], gamma: int, mode: str
) -> Iterator[tuple[int, str, Decision]]:
    for each in rounds:
        for place, decision in enumerate(each.reqs or ()):
            try:
                decision.check(gamma)
            except TraceError as error:
                raise error.within(f"reqs[{place}]") from None
            yield gamma, mode, decision


def _parse(text: bytes, kind: type[Json], held: int) -> Json:
    """The value of a JSON text. held: the bytes of memory that all texts so far take."""
    problem = f"the record takes more than {MAX_HELD_BYTES >> 20} MB of memory"
    require(held <= MAX_HELD_BYTES, "", problem)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise TraceError(
            f"is no record of DSpark's decisions as SGLang writes it ({error})"
        ) from None


def _as_trace(
    decisions: list[tuple[int, str, Decision]], request: str, spell: Spell | None, max_steps: int
) -> Trace:
    """The steps of one request as a trace."""
    by_request: dict[str, list[tuple[int, str, Decision]]] = {}
    for each in decisions:
        by_request.setdefault(each[2].rid or "", []).append(each)
    if not by_request:
        raise TraceError(
            "holds no requests; record them with SGLANG_DSPARK_DEBUG_DUMP=core,reqs", "the file"
        )
    request = request or max(by_request, key=lambda rid: len(by_request[rid]))
    if request not in by_request:
        names = ", ".join([*by_request][:MOST_NAMED])
        raise TraceError(
            f"holds {len(by_request):,} requests, such as {names} (got {request!r:.100})",
            "the file",
        )
    chosen = by_request[request]
    require(len(chosen) <= max_steps, "", f"the request has more than {max_steps:,} steps")
    told = {
        "record": "SGLang, DSpark's decisions",
        "request": request,
        "requests": len(by_request),
    }
    info = ModelInfo(NOT_KNOWN, None, None, None, None, None, None, None)
    trace = Trace([Header(1, "", "", {}, told, Prompt("", ())), Models(0, info, None)])
    behind = chosen[0][2].before
    for index, (gamma, mode, decision) in enumerate(chosen):
        problem = f"request {request!r:.100}: step {index + 1:,} begins behind {decision.before:,} tokens, but the one "
        how = "a part of the record is missing" if decision.before > behind else "it stands twice"
        problem += f"before ended behind {behind:,}: {how}"
        require(decision.before == behind, "", problem)
        trace.append(_step(index, gamma, mode, decision, spell))
        behind += decision.acc_len
    return trace


def _step(index: int, gamma: int, mode: str, decision: Decision, spell: Spell | None) -> Step:
    num_accepted = decision.correct_drafts
    num_checked = decision.verify_len - 1
    draft = []
    emitted = []
    for node, token in enumerate(decision.draft_tokens):
        text = _text_of(token, spell)
        status = "rejected" if node == num_accepted and node < num_checked else "ignored"
        if node < num_accepted:
            status = "accepted"
            emitted.append(EmittedToken(token, *text, node=node, kind=status, p=None, q=None))
        place = {"parent": node + ROOT, "depth": node + 1, "status": status}
        draft.append(DraftToken(token, *text, **place, **_NO_NUMBERS))
    kind = "resampled" if num_accepted < num_checked else "bonus" if num_checked else "plain"
    token = decision.bonus_token
    emitted.append(
        EmittedToken(token, *_text_of(token, spell), node=None, kind=kind, p=None, q=None)
    )
    evidence = {"checked": num_checked}
    if decision.confidence is not None:
        evidence["confidence"] = list(decision.confidence)
    return Step(
        index=index,
        at_ms=0,
        context_length=decision.before + 1,
        truncated=0,
        settings=Settings(k=gamma, **_SETTINGS),
        changed=(),
        calls={"target": 1, "draft": 1},
        fed={"target": decision.verify_len if mode == COMPACT else gamma + 1, "draft": gamma},
        draft=tuple(draft),
        emitted=tuple(emitted),
        positions=(),
        timing=Timing(0, 0, 0, 0, 0, 0),
        evidence=evidence,
    )
