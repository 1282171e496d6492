"""The run that shows a method at its best: a ready prompt of `shows` in prompts.json, on a target that suits it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specviz.drafters.method import Method
from specviz.models import catalog
from specviz.models.pool import ModelPool
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.ui.choices import choose_draft, make_offer, texts_by_title, title_of_prompt
from specviz.ui.reports.trace_models import lacks


@dataclass(frozen=True, slots=True)
class Showcase:
    """A run to show a method with."""

    words: str
    request: Request


def showcase(method: Method, target: str, pool: ModelPool) -> Showcase | None:
    """The showcase of a method for a target; None for a method that any ready prompt shows.

    A chat model is asked a question. Where it has none for the method, or lacks what the method needs, the bundled
    target takes its place.
    """
    file = prompts_file()
    bundled, _ = catalog.default_pair()
    for shown_on in (target, bundled):
        kinds = [file["dialogues"]] if catalog.chats(shown_on) else file["kinds"]
        texts: dict[str, str] = {}
        for known in texts_by_title(kinds).values():
            texts |= known
        for entry in file["shows"].get(method.name, ()):
            title = title_of_prompt(entry["prompt"])
            if title in texts and not lacks(method, shown_on, pool):
                words = f"Show it on: {title}"
                if shown_on != target:
                    words += f", with {shown_on}"
                return Showcase(words, _request(method, shown_on, texts[title], entry))
    return None


def _request(method: Method, target: str, prompt: str, entry: Mapping[str, Any]) -> Request:
    first = make_offer(target).first
    return replace(
        first,
        prompt=prompt,
        method=method.name,
        rule=None,
        draft=choose_draft(method, target, first.draft),
        temperature=float(entry.get("temperature", first.temperature)),
    )
