"""The live page generates in the browser: it holds the engine of assets/web/live, the bundled models, and its words.

One file holds everything; a folder has the same beside the page.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specviz import __version__
from specviz.drafters import facts_of as facts_of_method
from specviz.prompts import prompts_file
from specviz.request import RunSettings
from specviz.rules.facts import facts_of
from specviz.settings import assets_dir
from specviz.trace import ModelInfo, Prompt
from specviz.trace.events import event_dict
from specviz.trace.shipped import shipped_trace
from specviz.views.blocks import PageRecord, pack
from specviz.views.bundle import bundle, web_file
from specviz.views.document import document, folder, stage_template
from specviz.views.explore.feed import CODE, model_words, plain_head, promise
from specviz.views.explore.message import RunHead
from specviz.views.explore.steps import ACCEPTED, SPOKEN_CELL
from specviz.views.explore.titles import SENTENCES
from specviz.views.languages import packed_languages
from specviz.views.palette import palette, word_of
from specviz.views.words import CHANGE_NAMES, ENDINGS, SPEECH, Sentence, headline

TITLE = "specviz: speculative decoding in this page"
BODY = """<header class="sv-report sv-site-head"><h1>{title}</h1>
<span class="sv-site-by">written by specviz {version}; works without a network</span>
<button type="button" class="sv-button" id="sv-present" aria-pressed="false">Present</button>
<button type="button" class="sv-button" id="sv-theme">Dark</button></header>
<main id="sv-file">{live}</main>{template}"""
LIVE = '<div id="live" class="sv-live-page"></div>'
"""The place of the live page in a page without a server."""
TARGET = "fable-target"
DRAFTS = {
    "fable-draft": "distilled",
    "fable-draft-tiny": "tiny",
    "fable-draft-code": "misaligned",
}
RUNS = ("k-8", "tiny-draft", "misaligned-draft")
"""Recorded runs that describe these models; what the first records of a request and of settings holds here."""
MOST_K = 12
METRICS_SHOWN = (
    "tokens_per_target_call", "acceptance_rate_judged", "tokens_per_s", "acceptance_rate", "mean_acceptance_length",
    "steps", "drafted", "accepted", "rejected", "ignored", "emitted", "resampled", "bonus", "plain", "target_calls",
    "draft_calls", "acceptance_by_depth_all_steps", "acceptance_histogram",
)  # fmt: skip
SPEED = "tokens/s in this browser"
PASSES = (
    "Read the passes, not the seconds: in this browser a pass over five tokens takes as long as {ratio} over one. "
    "On a GPU, a large model takes about as long for both."
)
"""The words on why a draft saves passes here but hardly time; the ratio is measured on the page."""


class LivePrompt(PageRecord):
    """A ready prompt."""

    title: str
    text: str


class LiveTemplate(PageRecord, kw_only=True):
    """The parts of a trace of this page that are always the same."""

    target: str
    eos: int  # the id that ends a text
    tokenizer_sha: str
    header: Mapping[str, Any]
    settings: Mapping[str, Any]  # of a step


class LiveWords(PageRecord, kw_only=True):
    """The words of the live page."""

    head: RunHead  # without a prompt
    code: str  # the expression by which program code is known
    statuses: Mapping[str, str]
    sentences: Mapping[str, str]  # templates of the inspector's
    speech: Mapping[str, str]  # templates of a step's, for a screen reader
    cell: Mapping[str, str]  # templates of a lane's cell, likewise
    headlines: Sequence[tuple[Sentence, Sentence]]  # by K: at temperature 0, and at any other
    promise: str
    models: Mapping[str, str]  # names, each with its size
    drafts: Mapping[str, str]  # the names of draft models, each with what it is
    prompts: Sequence[LivePrompt]
    changes: Mapping[str, str]  # the names of settings that may change
    accepted: str  # the label of the acceptance rate
    speed: str
    passes: str  # a template
    endings: Mapping[str, str]
    template: LiveTemplate


def live_words() -> LiveWords:
    """The words, and what a trace of this page always holds."""
    recorded = shipped_trace(RUNS[0])
    settings = recorded.steps[0].settings
    params = facts_of_method(settings.method).validate(
        settings.params
    )  # a run may be older than some
    settings = replace(settings, params=params, temperature=1.0, **RunSettings.FILTERS)
    request = {**recorded.header.request, "params": params}
    header = replace(
        recorded.header, specviz=__version__, environment={}, prompt=Prompt("", ()), request=request
    )
    headlines = []
    for k in range(MOST_K + 1):
        both = [headline(replace(settings, k=k, temperature=t)) for t in (0.0, 1.0)]
        headlines.append(tuple(both))
    known = _known_models()
    return LiveWords(
        head=plain_head(METRICS_SHOWN),
        code=CODE.pattern,
        statuses={name: word_of(name) for name in palette()["statuses"]},
        sentences={**SENTENCES, "replaces": facts_of(settings.rule).replaces},
        speech=SPEECH,
        cell=SPOKEN_CELL,
        headlines=headlines,
        promise=promise(settings, ""),
        models={name: model_words(name, info) for name, info in known.items()},
        drafts=DRAFTS,
        prompts=[
            LivePrompt(kind["title"], kind["prompts"][0]["text"])
            for kind in prompts_file()["kinds"]
        ],
        changes=CHANGE_NAMES,
        accepted=ACCEPTED,
        speed=SPEED,
        passes=PASSES,
        endings=ENDINGS,
        template=LiveTemplate(
            target=TARGET,
            eos=_of_model(TARGET, "config.json")["eos_token_id"],
            tokenizer_sha=known[TARGET].tokenizer_sha,
            header=event_dict(header),
            settings=settings.to_dict(),
        ),
    )


def _known_models() -> dict[str, ModelInfo]:
    """The models of this page, as the recorded runs that come with specviz describe them."""
    known = {}
    for name in RUNS:
        for event in shipped_trace(name).models:
            known |= {info.name: info for info in (event.target, event.draft_model)}
    return known


class LiveContent(PageRecord):
    """What the live page begins with; the weights follow when they are needed."""

    words: LiveWords
    tokenizer: Mapping[str, Any]  # its tokenizer.json
    configs: Mapping[str, Any]  # each model's config.json


def live_data() -> dict[str, str]:
    """The texts of the live page by id: what it says, the engine's code, and each model's weights."""
    configs = {name: _of_model(name, "config.json") for name in (TARGET, *DRAFTS)}
    content = LiveContent(live_words(), _of_model(TARGET, "tokenizer.json"), configs)
    data = {
        "sv-live": pack(content),
        "sv-live-engine": pack(bundle(web_file("live/worker.js")).script),
    }
    for name in configs:
        files = [file.read_bytes() for file in sorted(_folder_of(name).glob("*.safetensors"))]
        data[f"sv-weights-{name}"] = "\n".join(
            base64.b64encode(each).decode("ascii") for each in files
        )
    return data


def live_page() -> str:
    """The whole live page in one file."""
    data = {**live_data(), **packed_languages()}
    return document(
        TITLE, _body(), entry="live_file.js", data=data, has_charts=False, computes=True
    )


def live_files() -> dict[str, str]:
    """The live page as a folder, by path: small files that any web server hands out."""
    data = {**live_data(), **packed_languages()}
    return folder(TITLE, _body(), entry="live_file.js", data=data, has_charts=False, computes=True)


def _body() -> str:
    return BODY.format(title=TITLE, version=__version__, live=LIVE, template=stage_template())


def _folder_of(name: str) -> Path:
    return assets_dir() / "models" / name


def _of_model(name: str, file: str) -> Any:
    """The JSON value in a file of a bundled model."""
    return json.loads((_folder_of(name) / file).read_text("utf-8"))
