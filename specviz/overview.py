"""overview(): which models are on this machine, bundled or in the hub's cache, and which draft for which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from .catalog import MODELS, resolve
from .errors import SpecvizError
from .models import Files
from .text import TokenText, differing_ids

AWAY = "not on this machine"


@dataclass(frozen=True)
class LocalModel:
    """A model's folder; weights are never read. Raises SpecvizError for one that specviz cannot run."""

    name: str
    folder: Path

    @cached_property
    def files(self) -> Files:
        files = Files(self.folder, self.name)
        files.config()
        return files

    @cached_property
    def text(self) -> TokenText:
        return TokenText(self.files.tokenizer())

    def size(self) -> str:
        try:
            return f"{self.files.num_parameters() / 1e6:,.1f} M parameters"
        except SpecvizError as error:
            return f"cannot be used: {error}"

    def fit(self, draft: LocalModel) -> str:
        """Whether `draft` can draft for this one, by their tokenizers."""
        try:
            return "other vocabulary" if differing_ids(self.text, draft.text) else "same vocabulary"
        except SpecvizError:
            return "cannot be used"


def overview(cache_dir: Path | None = None) -> str:
    """Tables for the terminal: bundled models, models in the hub's cache (or `cache_dir`), and what fits together."""
    bundled = {name: LocalModel(name, Path(resolve(name))) for name, model in MODELS.items() if model.is_bundled}
    here = {name: model for name, model in bundled.items() if model.folder.is_dir()}
    cached = _cached(cache_dir)
    return "\n".join(
        [
            "Bundled",
            *_table((name, here[name].size() if name in here else AWAY) for name in bundled),
            "",
            "In the Hugging Face cache",
            *_table((name, model.size()) for name, model in cached.items()),
            "",
            "What drafts for what",
            *_table(_fits({**cached, **here})),
        ]
    )


def _cached(cache_dir: Path | None) -> dict[str, LocalModel]:
    """The models in the hub's cache by hub id, each at its newest revision."""
    try:
        repos = scan_cache_dir(cache_dir).repos
    except CacheNotFound:
        return {}
    newest = {
        repo.repo_id: max(repo.revisions, key=lambda revision: revision.last_modified)
        for repo in repos
        if repo.repo_type == "model" and repo.revisions
    }
    return {name: LocalModel(name, revision.snapshot_path) for name, revision in sorted(newest.items())}


def _fits(here: Mapping[str, LocalModel]) -> Iterator[tuple[str, str]]:
    """Each target of the catalogue with its drafts, the best first, and whether their tokenizers agree if known."""
    for name, model in MODELS.items():
        for place, draft in enumerate(model.drafts):
            words = AWAY if draft not in here else f"its target is {AWAY}" if name not in here else None
            yield name if place == 0 else "", f"{draft} ({words or here[name].fit(here[draft])})"


def _table(rows: Iterator[tuple[str, str]]) -> list[str]:
    lines = list(rows) or [("none", "")]
    width = max(len(name) for name, _ in lines)
    return [f"  {name:<{width}}  {words}".rstrip() for name, words in lines]
