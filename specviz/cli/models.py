"""overview(): which models and draft heads are on this machine, bundled or in the hub's cache, and what fits together.

heads_report(): how one set of draft heads loads for a target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from specviz.drafters.heads import KINDS, LoadedHeads, load_heads
from specviz.errors import SpecvizError
from specviz.models.catalog import HEADS, MODELS, CatalogHeads, resolve
from specviz.models.folder import ModelFolder
from specviz.models.hub import head_files
from specviz.models.library import Library, LoadedModel
from specviz.models.tokens import TokenText, differing_ids

AWAY = "not on this machine"


@dataclass(frozen=True)
class LocalModel:
    """A model's folder; weights are never read. Raises SpecvizError for one that specviz cannot run."""

    name: str
    folder: Path

    @cached_property
    def files(self) -> ModelFolder:
        files = ModelFolder(self.folder, self.name)
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
    in_cache = _cached(cache_dir)
    cached = {name: model for name, model in in_cache.items() if name not in HEADS}
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
            "",
            "Draft heads",
            *_table((name, _heads_words(heads, in_cache)) for name, heads in HEADS.items()),
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


def _heads_words(heads: CatalogHeads, cached: Mapping[str, LocalModel]) -> str:
    """The kind, the target and the size of draft heads; nothing of their files but the size is read."""
    words = f"{heads.kind}, for {heads.target}"
    in_cache = cached.get(heads.name)
    folder = Path(resolve(heads.name)) if heads.is_bundled else in_cache and in_cache.folder
    if folder is None or not folder.is_dir():
        return f"{words} ({AWAY})"
    try:
        size = sum(file.stat().st_size for file in head_files(folder, heads.name))
    except (SpecvizError, OSError) as error:
        return f"{words} (cannot be used: {error})"
    return f"{words}, {size / 1e6:,.1f} MB"


def heads_report(name: str, target: str, library: Library | None = None) -> str:
    """Which of the heads' tensors are used for that target and which are not. Raises SpecvizError: why none can be."""
    library = library or Library()
    loaded = library.load(target)
    heads = _first_that_loads(library, name, loaded)
    used, unused = heads.report.used, heads.report.unused
    lines = [f"{heads.name} are heads of the kind {heads.kind} and fit {loaded.name}", f"used: {len(used)} tensors"]
    lines += [f"  {key}" for key in used]
    lines += [f"not used: {len(unused)} tensors" if unused else "not used: none", *(f"  {key}" for key in unused)]
    return "\n".join(lines)


def _first_that_loads(library: Library, name: str, target: LoadedModel) -> LoadedHeads:
    """Of the kind that the catalogue names; of a stranger's heads, the first kind whose tensors they have."""
    refusals = []
    for kind in [HEADS[name].kind] if name in HEADS else KINDS:
        try:
            return load_heads(library, name, kind, target)
        except SpecvizError as refusal:
            refusals.append(f"as {kind} heads: {refusal}")
    raise SpecvizError("; ".join(refusals))


def _table(rows: Iterator[tuple[str, str]]) -> list[str]:
    lines = list(rows) or [("none", "")]
    width = max(len(name) for name, _ in lines)
    return [f"  {name:<{width}}  {words}".rstrip() for name, words in lines]
