"""What the page starts with: the models and ready prompts to choose from, the first request, the browser's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specviz import catalog
from specviz.dialogue import as_lines
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.settings import assets_dir

FIRST_SEED = 5
"""With the bundled pair and the first prompt: a rejection in the middle, a full accept with its bonus, a rejection at
once, in the first three steps."""
Choice = tuple[str, str]
"""What a list shows, and the name it stands for."""


@dataclass(frozen=True, slots=True)
class Offer:
    """`prompts`: kind -> title -> text, `dialogues` those kinds whose texts are conversations.

    `any_model`: whether names that are not in the lists may be typed.
    """

    targets: tuple[Choice, ...]
    drafts: tuple[Choice, ...]
    prompts: Mapping[str, Mapping[str, str]]
    first: Request
    any_model: bool
    dialogues: tuple[str, ...] = ()

    def allows(self, name: str) -> bool:
        return self.any_model or any(name == known for _, known in (*self.targets, *self.drafts))


def make_offer(target: str | None = None, draft: str | None = None, *, any_model: bool = True) -> Offer:
    """The catalogue's offer, beginning with `target` and `draft` or the bundled pair."""
    bundled_target, bundled_draft = catalog.default_pair()
    target = target or bundled_target
    draft = draft or (bundled_draft if target == bundled_target else next(iter(catalog.drafts_for(target)), None))
    prompts, dialogues = ready_prompts(), ready_dialogues()
    prompt = next(text for texts in prompts.values() for text in texts.values())
    first = Request(prompt=prompt, target=target, draft=draft, seed=FIRST_SEED)
    targets = _choices((target, *catalog.targets()))
    return Offer(targets, draft_choices(target, draft), prompts | dialogues, first, any_model, tuple(dialogues))


def draft_choices(target: str, *others: str | None) -> tuple[Choice, ...]:
    """The draft models that suit `target`, and the `others` named."""
    return _choices((*others, *catalog.drafts_for(target)))


def _choices(names: tuple[str | None, ...]) -> tuple[Choice, ...]:
    return tuple((Path(name).name, name) for name in dict.fromkeys(names) if name is not None)


def ready_prompts() -> dict[str, dict[str, str]]:
    """The ready prompts: kind -> title -> text."""
    kinds = prompts_file()["kinds"]
    return {kind["title"]: {_title(prompt["name"]): prompt["text"] for prompt in kind["prompts"]} for kind in kinds}


def ready_dialogues() -> dict[str, dict[str, str]]:
    """The ready conversations as text, likewise."""
    kind = prompts_file()["dialogues"]
    return {kind["title"]: {_title(prompt["name"]): as_lines(prompt["messages"]) for prompt in kind["prompts"]}}


def _title(name: str) -> str:
    return name.replace("-", " ").capitalize()


def first_visit_file() -> Path:
    """Where the recorded run lies that a first visit sees."""
    return assets_dir() / "traces" / "first-visit.jsonl.gz"


def web_files() -> dict[str, Path]:
    """The browser's half by file name: the views' files and the page's own."""
    folders = (assets_dir() / "web", Path(__file__).parent)
    suffixes = (".js", ".css", ".html", ".json")
    return {path.name: path for folder in folders for path in sorted(folder.iterdir()) if path.suffix in suffixes}
