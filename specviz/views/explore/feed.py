"""Feed: trace records in, what the Explore page shows out, as increments that cost O(K) per step.

Every number, width, label and sentence of the page is computed below this class; the browser lays out what it gets.
Records come in order from one thread; reading is safe from any.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from specviz.drafters import METHODS, facts_of
from specviz.models.generation import describe
from specviz.rules.facts import FACTS
from specviz.trace import Event, Header, ModelInfo, Models, Prompt, Settings, Step, Trace
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, lossy_words, metrics, rounding_words
from specviz.trace.tool_names import other_names
from specviz.trace.values import stopwatch
from specviz.views.blocks import Props, dump
from specviz.views.explore.charts import Figures
from specviz.views.explore.evidence.view import made_props
from specviz.views.explore.inspector import LOG_TICKS, NUMBERS
from specviz.views.explore.speed import speed_words
from specviz.views.explore.steps import step_props
from specviz.views.palette import palette, word_of
from specviz.views.words import (
    ENDINGS,
    changes,
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

MOST_SENT = 200  # steps per increment, about 1 MB; the page pulls what is left
MOST_PROMPT = 20_000  # characters of a prompt that a page gets
PROMPT_SHOWN = 240  # characters of a long prompt that are shown at first, its end
MOST_REASON = 300  # characters of why a target reads chains only
PROMPT_FITS = 480  # a prompt up to here is shown whole
LEGEND = ("accepted", "rejected", "ignored", "resampled", "bonus", "plain")
SIZES = ((1e9, "B"), (1e6, "M"), (1e3, "k"), (1, ""))
INCOMPLETE = "incomplete: the recording stops before the run ends"
SO_FAR = "saved while the run was still going"
_ROUNDED = {float, list, dict}


class Feed:
    """One run's or one opened trace's page. `recorded`: nothing can be measured for it any more.

    measuring: the measurement of its speed that goes on; measured: what the last one found; comparison: what is said of
    another run at the end of this one.
    """

    def __init__(self, run_id: str, *, recorded: bool = False) -> None:
        self._run_id = run_id
        self._recorded = recorded
        self._counters = Counters()
        self._figures = Figures()
        self._header: Header | None = None
        self._models: Models | None = None
        self._unended = ""
        self.comparison = ""
        self._settings: Settings | None = None  # of the newest step
        self._labels: list[
            str
        ] = []  # of every token so far, for evidence that points back into the text
        self._written: list[
            tuple[int, int, str]
        ] = []  # of every token: its step, its place in the pieces, its text
        self.measuring: Measuring | None = None
        self.measured: Speed | None = None
        self._steps: list[str] = []  # each step's props as JSON, made once
        self.num_characters = 0  # of all of them

    @classmethod
    def from_trace(
        cls, trace: Trace, run_id: str, *, unended: str = INCOMPLETE, max_cpu_s: float = math.inf
    ) -> Feed:
        """The feed of a recording. unended: what is said in place of its end if it has none. Raises TraceError where
        it takes longer than `max_cpu_s` of computing."""
        feed, check_time = cls(run_id, recorded=True), stopwatch(max_cpu_s)
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
        props = step_props(step, self._counters)
        if (made := made_props(step, self._labels)) is not None:
            props["made"] = made
        props["changes"] = changes(self._settings, step)
        if self._settings != step.settings:
            self.measured = None  # of other settings
            lossy, rounding = lossy_words(self._counters), rounding_words(self._counters)
            props["sentence"] = headline(step.settings, was_lossy=bool(lossy), rounding=rounding)
            context = _context(step, self._models, lossy, rounding)
            props["context"] = [*context, *_chains_only(self._header, step.settings.target)]
        props["points"] = _round(self._figures.extend(step))
        props["written"] = "".join(
            token.text for token in step.emitted
        )  # for the clipboard alone: exactly the text
        self._settings = step.settings
        self._labels += [token_label(token) for token in step.emitted]
        places = (place for place, (_, kind, _) in enumerate(props["pieces"]) if kind != "rejected")
        self._written += [
            (step.index, place, token.text)
            for place, token in zip(places, step.emitted, strict=True)
        ]
        self._steps.append(dump(props))
        self.num_characters += len(self._steps[-1])

    def message(self, since: int, status: Mapping[str, Any] | None, begin: str = "") -> str:
        """The increment from step `since` on, as JSON. begin: what the page does first: "play" replays the run,
        "opening" explains one of its steps."""
        props = self._props(since)
        if status is not None:
            words = state_words(
                status["name"], status.get("message") or "", status.get("ahead") or 0
            )
            props["state"] = {
                **status,
                "words": words,
                "progress": _progress(status.get("fraction")),
            }
        if begin:
            props[begin] = True
        steps = ",".join(
            self._steps[since : min(props["total"], since + MOST_SENT)]
        )  # more may have come meanwhile
        return f'{dump(props)[:-1]},"steps":[{steps}]}}'

    def since(self, first: int) -> Props:
        """What a page that has `first` steps lacks, at most MOST_SENT steps of it."""
        return json.loads(self.message(first, None))

    def recorded_parts(self, run_id: str) -> Iterator[Props]:
        """The whole run under this id, part by part as a page pulls it, as a recording: nothing is measured for it."""
        speed = speed_words(self._counters, self.measured, recorded=True)
        for first in range(0, max(1, len(self)), MOST_SENT):
            part = {**self.since(first), "run": run_id, "speed": speed}
            yield part if first else {**part, "head": {**part["head"], "recorded": True}}

    def _props(self, first: int) -> Props:
        props: Props = {"run": self._run_id, "from": first, "total": len(self._steps)}
        if first == 0:
            props["head"] = self._head()
        props["speed"] = speed_words(
            self._counters, self.measured, recorded=self._recorded, measuring=self.measuring
        )
        props["numbers"] = _numbers(self._counters)
        if self.is_over:
            props |= {"end": self._end(), "done": len(self._steps)}
        elif self._unended:
            props["end"] = {"reason": "cut", "words": self._end_words(self._unended)}
        return props

    def _head(self) -> Props:
        return {
            **(_prompt(self._header.prompt) if self._header else {"prompt": ""}),
            "recorded": self._recorded,
            "legend": [
                [status, word_of(status), palette()["statuses"][status]["means"]]
                for status in LEGEND
            ],
            "figures": self._figures.initial(),
            "metrics": [
                [each.label, each.formula, other_names(name)] for name, each in METRICS.items()
            ],
            "look_numbers": NUMBERS,
            "log_ticks": LOG_TICKS,
        }

    def _end(self) -> Props:
        footer = self._counters.footer
        words = ENDINGS.get(footer.reason, footer.reason)
        detail = f": {reveal(footer.message)}" if footer.message else ""
        detail += (
            f", and the answer ends before it: “{label(footer.stop['text'])}”"
            if footer.stop
            else ""
        )
        said = filter(None, [self._end_words(f"{words}{detail}"), self.comparison])
        ends = {"answer": self._end_of_answer(footer.stop["at"])} if footer.stop else {}
        return {"reason": footer.reason, "words": " · ".join(said), **ends}

    def _end_of_answer(self, length: int) -> Props:
        """The first piece of the text that is not all of the answer, and what of it is. length: the answer's."""
        left = length
        for step, place, text in self._written:
            if left < len(text):
                return {"length": length, "step": step, "place": place, "text": prose(text[:left])}
            left -= len(text)
        return {}

    def _end_words(self, words: str) -> str:
        """The end in these words, and how far the run came."""
        count = f"{self._counters.num_emitted:,} tokens in {self._counters.num_steps:,} steps"
        return f"{words} · {count}" if self._counters.num_steps else words


def _prompt(prompt: Prompt) -> Props:
    """The prompt for reading; of a long one its end, and what is `hidden` before it, in words and on demand."""
    text = prompt.text
    if len(text) <= PROMPT_FITS:
        return {"prompt": prose(text)}
    cut, num_tokens = _shown_start(prompt)
    tokens = f" ({num_tokens:,} tokens)" if num_tokens else ""
    kept = text[max(0, len(text) - MOST_PROMPT) : cut]
    lost = cut - len(kept)
    words = [
        f"{cut:,} characters{tokens} before this",
        f"{lost:,} characters are not on this page … " if lost else "",
    ]
    return {
        "prompt": prose(text[cut:]),
        "hidden": {"words": words[0], "text": words[1] + prose(kept)},
    }


def _shown_start(prompt: Prompt) -> tuple[int, int]:
    """Where the shown end of a prompt begins, and how many tokens are before; 0 if they do not spell the prompt."""
    latest = len(prompt.text) - PROMPT_SHOWN
    if "".join(token.text for token in prompt.tokens) != prompt.text:
        return latest, 0
    starts = [0, *accumulate(len(token.text) for token in prompt.tokens)]
    num_before = bisect_right(starts, latest) - 1
    return starts[num_before], num_before


def _progress(fraction: float | None) -> Props | None:
    """How far work has come, as the width of a bar and in words; None where it is unknown."""
    if fraction is None:
        return None
    share = min(1.0, max(0.0, fraction))
    return {"width": round(100 * share, 1), "words": f"{100 * share:.0f}\u00a0%"}


def _context(step: Step, models: Models | None, lossy: str, rounding: str) -> list[list[str]]:
    """What is at work, as [role, words]: the promise and the rule's name, the models with their sizes, the method, the
    sampling, and what the models' files ask for in vain. lossy, rounding: what must be said of the steps so far."""
    settings = step.settings
    words = [["lossy" if lossy else "exact", _promise(settings, lossy or rounding)]]
    words.append(["target", _model(settings.target, models and models.target)])
    if settings.draft_model:
        words.append(["draft", _model(settings.draft_model, models and models.draft_model)])
    if not facts_of(settings.method).is_plain:
        words.append(["method", title_of(settings.method, METHODS)])
    sampling = [f"temperature {settings.temperature:g}"]
    sampling += [f"top-k {settings.top_k}"] if settings.top_k else []
    sampling += [f"top-p {settings.top_p:g}"] if settings.top_p < 1 else []
    sampling += filter(None, [own_sampling(settings)])
    return [*words, ["sampling", ", ".join(sampling)], *_unused(models)]


def _chains_only(header: Header | None, target: str) -> list[list[str]]:
    """Why the target that a run began with reads no token trees, a sentence where the trace says so."""
    why = header.environment.get("chains_only") if header else None
    if not isinstance(why, str) or header.request.get("target") != target:
        return []
    return [["unused", f"{label(target)}: it reads chains only, as {reveal(why[:MOST_REASON])}"]]


def _unused(models: Models | None) -> list[list[str]]:
    """What the models' files ask for and no run applies, a sentence for each that asks for something."""
    infos = filter(None, () if models is None else (models.target, models.draft_model))
    told = ((info.name, describe(info.generation_config)) for info in infos)
    return [["unused", f"{label(name)}: {reveal(words)}"] for name, words in told if words]


def _promise(settings: Settings, but: str) -> str:
    """ "exact", or what must be said instead (`but`), or "lossy"; and by which rule tokens are judged from here on."""
    promise = (but or "exact") if settings.lossless else "lossy"
    judged = settings.rule is not None and settings.drafts
    return f"{promise} · {title_of(settings.rule, FACTS)}" if judged else promise


def _model(name: str, info: ModelInfo | None) -> str:
    if info is None or not info.num_parameters or info.name != name:
        return label(name)
    size = next(size for size in SIZES if info.num_parameters >= size[0])
    held = (info.dtype or "").partition(", ")[
        2
    ]  # "weights int4 (bitsandbytes)", or what a GGUF file was
    return ", ".join(
        filter(None, (f"{label(name)} {info.num_parameters / size[0]:.3g} {size[1]}", label(held)))
    )


def _numbers(counters: Counters) -> list[str]:
    """The values of METRICS in order, as words; the reason where there is none."""
    values = metrics(counters)
    words = []
    for name, metric in METRICS.items():
        note = f" ({metric.note(counters)})" if metric.note(counters) else ""
        reason = values["reasons"].get(name)
        words.append(f"n/a: {reason}" if reason else f"{metric.spell(values[name])}{note}")
    return words


def _round(value: Any) -> Any:
    """The same points with numbers of four decimals."""
    kind = type(value)
    if kind is float:
        return round(value, 4)
    if kind is list:
        return [_round(item) if type(item) in _ROUNDED else item for item in value]
    return {name: _round(item) for name, item in value.items()} if kind is dict else value
