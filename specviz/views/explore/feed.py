"""Feed turns a run's events into the messages of the Explore page, as increments that cost O(K) per step.

Every number, width, label and sentence of the page is computed below this class; the browser lays out what it gets.
Records come in order from one thread; any thread may read.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from specviz.analysis.calibration import CalibrationTally
from specviz.drafters import METHODS, facts_of
from specviz.models.generation import describe
from specviz.rules.facts import FACTS
from specviz.trace import Event, Header, ModelInfo, Models, Prompt, Settings, Step, Trace
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, lossy_words, metrics, rounding_words
from specviz.trace.tool_names import other_names
from specviz.trace.values import stopwatch
from specviz.views.blocks import dump
from specviz.views.explore.charts import Figures
from specviz.views.explore.evidence.view import show_making
from specviz.views.explore.inspector import LOG_TICKS, NUMBERS
from specviz.views.explore.message import (
    AnswerEnd,
    HiddenText,
    NextStep,
    ProgressBar,
    PromptPart,
    RunEnd,
    RunHead,
    RunMessage,
    RunState,
)
from specviz.views.explore.next_steps import Rejection, next_steps, rejection_in
from specviz.views.explore.speed import speed_words
from specviz.views.explore.steps import show_step
from specviz.views.palette import palette, word_of
from specviz.views.words import (
    ENDINGS,
    changes,
    filter_words,
    headline,
    label,
    own_sampling,
    prose,
    reveal,
    state_words,
    title_of,
    token_label,
)

if TYPE_CHECKING:
    from specviz.bench.speed import Measuring, Speed

MOST_SENT = 200  # steps per increment, about 1 MB; the page pulls the rest
MOST_PROMPT = 20_000  # characters of a prompt that a page gets
PROMPT_SHOWN = 240  # characters of a long prompt that are shown at first, its end
MOST_REASON = 300  # characters of the reason why a target reads chains only
PROMPT_FITS = 480  # characters of a prompt that is shown whole
_MARK = r"(?:<\|[^<>|\s]{1,40}\|>|<(?:start|end)_of_turn>|\[/?INST\]|</?s>|<(?:bos|eos)>)"
ROLE = re.compile(r"\b(system|user|assistant|model|tool|developer)\b")
TEMPLATE_MARKS = re.compile(rf"{_MARK}(?:\s*{_MARK}|{ROLE.pattern}(?=\s|<))*\s*")
"""Marks of a chat template that stand together, such as "<|im_end|>\\n<|im_start|>user\\n"."""
CODE = re.compile(r"\s*(?:def|class|import|from|#include|function|const|let)\b")
LEGEND = ("accepted", "rejected", "ignored", "resampled", "bonus", "plain")
SIZES = ((1e9, "B"), (1e6, "M"), (1e3, "k"), (1, ""))
INCOMPLETE = "incomplete: the recording stops before the run ends"
SO_FAR = "saved while the run was still going"


class Feed:
    """The page of one run, or of one opened trace."""

    def __init__(self, run_id: str, *, recorded: bool = False) -> None:
        self._run_id = run_id
        self._recorded = recorded  # nothing can be measured for it any more
        self._counters = Counters()
        self._figures = Figures(self._counters)
        self._header: Header | None = None
        self._models: Models | None = None
        self._unended = ""
        self.comparison = ""  # with another run, said at the end of this one
        self._settings: Settings | None = None  # of the newest step
        self._calibration = CalibrationTally()
        self._rejection: Rejection | None = None  # the most telling one
        # the label of every token so far, for evidence that points back into the text
        self._labels: list[str] = []
        # every token so far: its step, its place in the step's pieces, its text
        self._written: list[tuple[int, int, str]] = []
        self.measuring: Measuring | None = None  # the measurement of its speed that goes on
        self.measured: Speed | None = None  # the result of the last one
        self._steps: list[str] = []  # each step as JSON, made once
        self.num_characters = 0  # of all of them

    @classmethod
    def from_trace(
        cls, trace: Trace, run_id: str, *, unended: str = INCOMPLETE, max_cpu_s: float = math.inf
    ) -> Feed:
        """The feed of a recording.

        unended: the words in place of the recording's end if it has none. Raises TraceError where it takes longer than
        `max_cpu_s` of computing.
        """
        check_time = stopwatch(max_cpu_s)
        feed = cls(run_id, recorded=True)
        feed._unended = unended
        for event in trace.events():
            check_time()
            feed.add(event)
        return feed

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def is_over(self) -> bool:
        return self._counters.footer is not None

    def add(self, record: Event) -> None:
        self._counters.add(record)
        if isinstance(record, Header):
            self._header = record
            self._labels = [token_label(token) for token in record.prompt.tokens]
        elif isinstance(record, Models):
            self._models = record
        elif isinstance(record, Step):
            self._add_step(record)

    def _add_step(self, step: Step) -> None:
        self._calibration.add(step)
        sentence = UNSET
        context = UNSET
        if self._settings != step.settings:
            self.measured = None  # it was measured with other settings
            lossy = lossy_words(self._counters)
            rounding = rounding_words(self._counters)
            sentence = headline(step.settings, was_lossy=bool(lossy), rounding=rounding)
            context = _context(step, self._models, lossy, rounding)
            context += _chains_only(self._header, step.settings.target)
        shown = replace(
            show_step(step, self._counters),
            made=show_making(step, self._labels, self._calibration.rows()) or UNSET,
            changes=changes(self._settings, step),
            sentence=sentence,
            context=context,
            points=self._figures.extend(step),
            written="".join(token.text for token in step.emitted),
        )
        self._settings = step.settings
        self._rejection = rejection_in(step, self._rejection)
        self._labels += [token_label(token) for token in step.emitted]
        places = [place for place, (_, kind, _) in enumerate(shown.pieces) if kind != "rejected"]
        for place, token in zip(places, step.emitted, strict=True):
            self._written.append((step.index, place, token.text))
        # A trace holds finite numbers and whole characters only, so this is the JSON of `dump`.
        self._steps.append(msgspec.json.encode(shown).decode())
        self.num_characters += len(self._steps[-1])

    def message(
        self,
        since: int,
        state: RunState | None = None,
        begin: Literal["", "play", "opening", "back"] = "",
    ) -> str:
        """The increment from step `since` on, as JSON.

        begin: the first action of the page: "play" replays the run, "opening" explains one of its steps, "back" brings
        it back.
        """
        message = self._message(since)
        beginning = {begin: True} if begin else {}
        begun = dump(replace(message, state=state or UNSET, **beginning))
        end = min(message.total, since + MOST_SENT)  # more steps may have come meanwhile
        steps = ",".join(self._steps[since:end])
        return f'{begun[:-1]},"steps":[{steps}]}}'

    def since(self, first: int) -> RunMessage:
        """The increment for a page that has `first` steps, at most MOST_SENT steps."""
        return msgspec.convert(json.loads(self.message(first)), RunMessage)

    def recorded_parts(self, run_id: str) -> Iterator[RunMessage]:
        """Yields the whole run as a recording under this id, in the parts that a page pulls."""
        speed = speed_words(self._counters, self.measured, recorded=True)
        for first in range(0, max(1, len(self)), MOST_SENT):
            part = replace(self.since(first), run=run_id, speed=speed)
            if first == 0:
                part = replace(part, head=replace(part.head, recorded=True))
            yield part

    def _message(self, first: int) -> RunMessage:
        """The increment without its steps."""
        end = UNSET
        if self.is_over:
            end = self._end()
        elif self._unended:
            end = RunEnd("cut", self._end_words(self._unended), next=self._next_steps())
        total = len(self._steps)
        return RunMessage(
            run=self._run_id,
            start=first,
            total=total,
            # a stage keeps the first head that it gets: one without a prompt must not arrive
            head=UNSET if first or self._header is None else self._head(self._header),
            speed=speed_words(
                self._counters, self.measured, recorded=self._recorded, measuring=self.measuring
            ),
            numbers=_numbers(self._counters),
            end=end,
            done=total if self.is_over else UNSET,
        )

    def _head(self, header: Header) -> RunHead:
        prompt, hidden = _show_prompt(header.prompt)
        return replace(
            plain_head(METRICS),
            prompt=prompt,
            hidden=hidden,
            is_code=CODE.match(header.prompt.text) is not None,
            recorded=self._recorded,
            figures=self._figures.initial(),
        )

    def _end(self) -> RunEnd:
        """Why the run ended, in words, and the place where its answer ends if that is earlier."""
        footer = self._counters.footer
        words = ENDINGS.get(footer.reason, footer.reason)
        if footer.message:
            words += f": {reveal(footer.message)}"
        if footer.stop:
            words += f", and the answer ends before it: “{label(footer.stop['text'])}”"
        words = self._end_words(words)
        if self.comparison:
            words += f" · {self.comparison}"
        answer = self._end_of_answer(footer.stop["at"]) if footer.stop else UNSET
        return RunEnd(footer.reason, words, answer, self._next_steps())

    def _next_steps(self) -> list[NextStep]:
        if self._header is None or self._settings is None:
            return []
        return next_steps(self._header, self._settings, self._rejection)

    def _end_of_answer(self, length: int) -> AnswerEnd | UnsetType:
        """The place where the answer of this length ends; UNSET where the text is no longer."""
        left = length
        for step, place, text in self._written:
            if left < len(text):
                return AnswerEnd(length, step, place, prose(text[:left]))
            left -= len(text)
        return UNSET

    def _end_words(self, words: str) -> str:
        """The words for the end, followed by how far the run came."""
        if not self._counters.num_steps:
            return words
        return (
            f"{words} · {self._counters.num_emitted:,} tokens in {self._counters.num_steps:,} steps"
        )


def plain_head(names: Iterable[str]) -> RunHead:
    """A head without a prompt, a recording or charts. names: of METRICS."""
    statuses = palette()["statuses"]
    metric_rows = []
    for name in names:
        metric_rows.append((METRICS[name].label, METRICS[name].formula, other_names(name)))
    return RunHead(
        prompt=(),
        is_code=False,
        recorded=False,
        legend=[(status, word_of(status), statuses[status]["means"]) for status in LEGEND],
        figures={},
        metrics=metric_rows,
        look_numbers=NUMBERS,
        log_ticks=LOG_TICKS,
    )


def show_state(
    name: str, message: str | None = None, ahead: int = 0, fraction: float | None = None
) -> RunState:
    """The state of a run with its words. ahead: how many others have the engine first. fraction: loaded so far."""
    words = state_words(name, message or "", ahead)
    return RunState(
        name=name,
        message=message,
        ahead=ahead,
        fraction=fraction,
        words=words,
        progress=None if fraction is None else progress_bar(fraction),
    )


def _show_prompt(prompt: Prompt) -> tuple[list[PromptPart], HiddenText | UnsetType]:
    """The prompt for reading: all of it, or the end of a long one and the text before that."""
    text = prompt.text
    if len(text) <= PROMPT_FITS:
        return list(_fold_marks(text)), UNSET
    start, num_tokens = _shown_start(prompt)
    tokens = f" ({num_tokens:,} tokens)" if num_tokens else ""
    sent = text[max(0, len(text) - MOST_PROMPT) : start]
    num_missing = start - len(sent)
    missing = f"{num_missing:,} characters are not on this page … " if num_missing else ""
    hidden = HiddenText(f"{start:,} characters{tokens} before this", missing + prose(sent))
    return list(_fold_marks(text[start:])), hidden


def _fold_marks(text: str) -> Iterator[PromptPart]:
    """The text in parts: what was said, and between it the marks of a chat template, with the role that they name."""
    start = 0
    for marks in TEMPLATE_MARKS.finditer(text):
        if marks.start() > start:
            yield prose(text[start : marks.start()]), ""
        roles = ROLE.findall(marks[0])
        yield prose(marks[0]), roles[-1] if roles else "…"
        start = marks.end()
    if start < len(text):
        yield prose(text[start:]), ""


def _shown_start(prompt: Prompt) -> tuple[int, int]:
    """The place where the shown end of a prompt begins, and how many tokens stand before it.

    The number is 0 if the tokens do not spell the prompt.
    """
    latest = len(prompt.text) - PROMPT_SHOWN
    if "".join(token.text for token in prompt.tokens) != prompt.text:
        return latest, 0
    starts = [0, *accumulate(len(token.text) for token in prompt.tokens)]
    num_before = bisect_right(starts, latest) - 1
    return starts[num_before], num_before


def progress_bar(fraction: float) -> ProgressBar:
    """How far work has come, as the width of a bar and in words."""
    share = min(1.0, max(0.0, fraction))
    return ProgressBar(round(100 * share, 1), f"{100 * share:.0f}\u00a0%")


def _context(step: Step, models: Models | None, lossy: str, rounding: str) -> list[tuple[str, str]]:
    """The parts that are at work in this step, as (role, words).

    They are the promise and the rule's name, the models with their sizes, the method and the sampling. Options in the
    models' files that no run applies follow. lossy, rounding: the caveats on the steps so far.
    """
    settings = step.settings
    target = models.target if models else None
    draft = models.draft_model if models else None
    words = []
    if not settings.is_foreign:
        words.append(("lossy" if lossy else "exact", promise(settings, lossy or rounding)))
    words.append(("target", model_words(settings.target, target)))
    if settings.draft_model:
        words.append(("draft", model_words(settings.draft_model, draft)))
    if not facts_of(settings.method).is_plain:
        words.append(("method", title_of(settings.method, METHODS)))
    sampling = ["sampling not recorded"]
    if not settings.is_foreign:
        sampling = [f"temperature {settings.temperature:g}", *filter_words(settings)]
    if draft_sampling := own_sampling(settings):
        sampling.append(draft_sampling)
    return [*words, ("sampling", ", ".join(sampling)), *_unused(models)]


def _chains_only(header: Header | None, target: str) -> list[tuple[str, str]]:
    """Why the run's first target reads no token trees: a sentence, if the trace says so."""
    why = header.environment.get("chains_only") if header else None
    if not isinstance(why, str) or header.request.get("target") != target:
        return []
    return [("unused", f"{label(target)}: it reads chains only, as {reveal(why[:MOST_REASON])}")]


def _unused(models: Models | None) -> list[tuple[str, str]]:
    """The options in the models' files that no run applies: a sentence for each model that has some."""
    sentences = []
    for info in (models.target, models.draft_model) if models else ():
        if info is not None and (words := describe(info.generation_config)):
            sentences.append(("unused", f"{label(info.name)}: {reveal(words)}"))
    return sentences


def promise(settings: Settings, caveat: str) -> str:
    """ "exact", or the `caveat` in its place, or "lossy"; and the rule that judges tokens from here on."""
    words = (caveat or "exact") if settings.lossless else "lossy"
    is_judged = settings.rule is not None and settings.drafts
    return f"{words} · {title_of(settings.rule, FACTS)}" if is_judged else words


def model_words(name: str, info: ModelInfo | None) -> str:
    """A model's name, its size if that is known, and how its weights are stored if that is unusual."""
    if info is None or not info.num_parameters or info.name != name:
        return label(name)
    unit, letter = next(size for size in SIZES if info.num_parameters >= size[0])
    words = f"{label(name)} {info.num_parameters / unit:.3g} {letter}"
    # such as "weights int4 (bitsandbytes)", or the type of a GGUF file
    _, _, stored = (info.dtype or "").partition(", ")
    return f"{words}, {label(stored)}" if stored else words


def _numbers(counters: Counters) -> list[str]:
    """The values of METRICS in order, as words; the reason where there is none."""
    values = metrics(counters)
    words = []
    for name, metric in METRICS.items():
        note = metric.note(counters)
        aside = f" ({note})" if note else ""
        reason = values["reasons"].get(name)
        words.append(f"n/a: {reason}" if reason else f"{metric.spell(values[name])}{aside}")
    return words
