"""What Python sends to the views, for the tests in node: python -m tests.web.messages FOLDER writes it as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from specviz.alignment.report.texts import texts_block
from specviz.analysis.rounds import SpeedComparison
from specviz.bench.speed import Measuring, Speed
from specviz.trace import Footer, Header, Prompt, Token, Trace
from specviz.trace.shipped import shipped_trace
from specviz.views.blocks import dump
from specviz.views.document import stage_html
from specviz.views.explore.feed import Feed, show_state
from specviz.views.explore.opening import opening
from specviz.views.learn.lesson import lesson_props
from specviz.views.learn.predict import predict_block
from specviz.views.palette import palette
from tests.browser.stage_page import whole
from tests.helpers import evidence_traces, traces
from tests.helpers.hostile_trace import EVIL
from tests.helpers.lesson_texts import hostile_lesson, other_lesson, stage_lesson, taught
from tests.helpers.made_summaries import HOSTILE, NAMES, made_text
from tests.helpers.written_messages import written_messages

LONG_PROMPT = "word " * 300


def stopped(back: int) -> Trace:
    """The chain, ended by a stop text that is its last `back` characters."""
    made = traces.chain()
    stop = {"text": made.text[-back:], "at": len(made.text) - back}
    return Trace(
        [replace(each, reason="stop", stop=stop) if isinstance(each, Footer) else each for each in made.events()]
    )


def prompted(text: str, words: list[str]) -> Trace:
    prompt = Prompt(text, tuple(Token(number, word) for number, word in enumerate(words)))
    return Trace(
        [replace(each, prompt=prompt) if isinstance(each, Header) else each for each in traces.chain().events()]
    )


def behind_end() -> Trace:
    return traces.Builder().chain(4, 4, truncated=3).finish("eos")


RUNS: dict[str, Callable[[], Trace]] = {
    **{name: make for name, make in traces.ALL.items() if name != "empty"},
    **{f"made {name}": make for name, make in evidence_traces.ALL.items()},
    **{f"stopped {back}": lambda back=back: stopped(back) for back in range(1, 9)},
    "long": lambda: traces.long(60),
    "long prompt": lambda: prompted(LONG_PROMPT, ["word "] * 300),
    "behind end": behind_end,
}
"""Runs by name; each is sent whole, as a recorded one."""


def loading(fraction: float | None) -> dict:
    return json.loads(Feed("run").message(0, show_state("loading", "downloading fable-target", fraction=fraction)))


def measuring() -> list[dict]:
    """A finished run before, during and after its speed is measured."""
    feed = Feed("run")
    for event in traces.Builder().chain().finish(baseline=None).events():
        feed.add(event)
    sent = [feed.message(0, show_state("finished"))]
    feed.measuring = Measuring(7, 26, round=2)
    sent.append(feed.message(1, None))
    feed.measuring, feed.measured = None, Speed(31.0, 43.4, 4.0, 64, SpeedComparison((1.4,) * 6, most=4.0))
    sent.append(feed.message(1, None))
    return [json.loads(each) for each in sent]


def token_texts() -> dict:
    """Six texts of twelve tokens under three drafts, with what is known of them, and more texts than a list shows."""
    texts = [made_text(number, 12) for number in range(6)]
    texts[1] = made_text(1, 12, NAMES, {"overlap": [0.97] * 12})
    texts[2] = made_text(2, 12, NAMES, dict.fromkeys(("text", "most_likely_text"), [HOSTILE] * 12), prompt=HOSTILE)
    texts[3] = replace(texts[3], tags=["fables and tales"])
    texts[5] = replace(texts[5], prompt="Fox and\n Hawaii")
    saved = [[text.drafts[name]["saved"] for name in NAMES] for text in texts]
    tokens = [text.tokens["text"] for text in texts]
    many = (made_text(number, 3, NAMES[:1]) for number in range(250))
    return {
        "few": texts_block(texts, NAMES, 6),
        "many": texts_block(many, NAMES[:1], 250),
        "saved": saved,
        "tokens": tokens,
    }


def lessons() -> dict:
    made = (stage_lesson(), other_lesson(), hostile_lesson())
    with TemporaryDirectory() as folder, taught(Path(folder), *made):
        return {lesson["name"]: lesson_props(lesson["name"]) for lesson in made}


def messages() -> dict:
    made = {name: make() for name, make in RUNS.items()}
    return {
        "markup": stage_html(),
        "palette": palette(),
        "runs": {name: whole(trace, recorded=True) for name, trace in made.items()},
        "answers": {name: trace.answer for name, trace in made.items()},
        "loading": {"known": loading(0.43), "unknown": loading(None)},
        "measuring": measuring(),
        "lessons": lessons(),
        "shipped": {name: whole(shipped_trace(name), f"shipped:{name}") for name in ("first-visit", "sum", "eagle")},
        "texts": token_texts(),
        "opening": opening(made["chain"], 1),
        "predict": {
            "one": predict_block({"first": traces.chain()}),
            "two": predict_block({EVIL: traces.hostile(), "second": traces.chain()}),
        },
    }


def write(folder: Path) -> None:
    """Writes these messages into messages.json, and those of each record into a file beside it."""
    (folder / "messages.json").write_text(dump(messages()), "utf-8")
    for name, content in written_messages().items():
        (folder / f"{name}.json").write_text(dump(content), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
