"""The command `models`: the models and draft heads on this machine, and what fits together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from specviz.alignment.causes.doctor import Diagnosis, MethodAdvice, NamedId, Special
from specviz.alignment.causes.files import faults
from specviz.alignment.causes.undo.rounding import coarse_words
from specviz.decoding.forward.transformers_forward import num_layers
from specviz.drafters.heads import KINDS, LoadedHeads, kind_of, load_heads
from specviz.errors import SpecvizError
from specviz.models import memory
from specviz.models.catalog import HEADS, MODELS, CatalogHeads, resolve
from specviz.models.files.hub import find, head_files, ignore_progress
from specviz.models.folder import ModelFolder
from specviz.models.generation import asked_by, describe
from specviz.models.gguf import fetch_model
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.proofs import read_proof
from specviz.models.tokens import TokenText, differing_ids
from specviz.settings import settings
from specviz.views.terminal import escape
from specviz.views.words import percent

AWAY = "not on this machine"
ASKING = "Generation settings in a model's files"
MOST_NAMED = 6  # special tokens of a kind


def token_text(name: str) -> TokenText:
    """The tokenizer of a target, without its weights. Raises SpecvizError."""
    folder, _ = fetch_model(
        find(name, allow_any=True), may_download=True, on_progress=ignore_progress, weights=False
    )
    return TokenText(ModelFolder(folder, name).tokenizer())


@dataclass(frozen=True)
class LocalModel:
    """The folder of a model; weights are never read. Raises SpecvizError for a model that specviz cannot run."""

    name: str
    folder: Path

    @cached_property
    def files(self) -> ModelFolder:
        files = ModelFolder(self.folder, self.name)
        files.config()
        return files

    def asks(self) -> str:
        """A sentence on the generation settings in its file; "" for none, or for an unusable model."""
        try:
            return describe(asked_by(self.files.generation(self.files.config())))
        except SpecvizError:
            return ""

    @cached_property
    def text(self) -> TokenText:
        return TokenText(self.files.tokenizer())

    def describe(self) -> str:
        """Words for the model's size, and for what was found when it was last loaded here."""
        try:
            size = f"{self.files.num_parameters() / 1e6:,.1f} M parameters"
            home = memory.device()
            proof = read_proof(self.files.proof_path((home,), memory.dtype(home)))
        except SpecvizError as error:
            return f"unusable: {error}"
        if proof is None:
            return size
        return f"unusable: {proof.chains}" if proof.chains else f"{size}; {proof.words()}"

    def fit(self, draft: "LocalModel") -> str:
        """Words for whether `draft` can draft for this model, by their tokenizers."""
        try:
            differs = differing_ids(self.text, draft.text)
        except SpecvizError:
            return "unusable"
        return "different vocabulary" if differs else "same vocabulary"


def overview(cache_dir: Path | None = None) -> str:
    """Tables for the terminal: bundled and fetched models, those in the hub's cache (or this one), and what fits."""
    offered = {}
    for name, model in MODELS.items():
        if model.is_bundled or model.download:
            offered[name] = LocalModel(name, Path(resolve(name)))
    here = {name: model for name, model in offered.items() if model.folder.is_dir()}
    in_cache = _find_cached(cache_dir)
    cached = {name: model for name, model in in_cache.items() if name not in HEADS}
    own_rows = []
    for name, model in offered.items():
        if not MODELS[name].dial:
            own_rows.append((name, model.describe() if name in here else AWAY))
    asking_rows = []
    for name, model in {**cached, **here}.items():
        words = model.asks()
        if words:
            asking_rows.append((name, words))
    sections = {
        "Bundled or fetched": own_rows,
        "In the Hugging Face cache": [(name, cached[name].describe()) for name in cached],
        "What drafts for what": _fits({**cached, **here}),
    }
    if asking_rows:
        sections[ASKING] = asking_rows
    sections["Draft heads"] = [(name, _heads_words(HEADS[name], in_cache)) for name in HEADS]
    return "\n\n".join("\n".join([title, *_table(rows)]) for title, rows in sections.items())


def _find_cached(cache_dir: Path | None) -> dict[str, LocalModel]:
    """The models in the hub's cache by hub id, each at its newest revision."""
    try:
        repos = scan_cache_dir(cache_dir).repos
    except CacheNotFound:
        return {}
    models = {}
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        if repo.repo_type == "model" and repo.revisions:
            newest = max(repo.revisions, key=lambda revision: revision.last_modified)
            models[repo.repo_id] = LocalModel(repo.repo_id, newest.snapshot_path)
    return models


def _fits(here: Mapping[str, LocalModel]) -> Iterator[tuple[str, str]]:
    """Yields each target of the catalogue with its drafts, the best first, and whether their tokenizers agree."""
    for name, model in MODELS.items():
        for place, draft in enumerate(model.drafts):
            if draft not in here:
                words = AWAY
            elif name not in here:
                words = f"its target is {AWAY}"
            else:
                words = here[name].fit(here[draft])
            yield name if place == 0 else "", f"{draft} ({words})"


def _heads_words(heads: CatalogHeads, cached: Mapping[str, LocalModel]) -> str:
    """Words for the kind, the target and the size of draft heads; only the size of their files is read."""
    words = f"{heads.kind}, for {heads.target}"
    folder = None
    if heads.is_bundled:
        folder = Path(resolve(heads.name))
    elif heads.name in cached:
        folder = cached[heads.name].folder
    if folder is None or not folder.is_dir():
        return f"{words} ({AWAY})"
    try:
        size = sum(file.stat().st_size for file in head_files(folder, heads.name))
    except (SpecvizError, OSError) as error:
        return f"{words} (unusable: {error})"
    return f"{words}, {size / 1e6:,.1f} MB"


def heads_report(name: str, target: str, pool: ModelPool | None = None) -> str:
    """A report on draft heads: the target's states that they read, and their tensors that are used and not used.

    Raises SpecvizError where none can be used.
    """
    pool = pool or ModelPool()
    loaded = pool.load(target)
    heads = load_any_kind(pool, name, loaded)
    used = heads.report.used
    unused = heads.report.unused
    layers = heads.module.hidden_layers
    count = num_layers(loaded.model)
    places = {
        0: "the embeddings",
        count: f"behind layer {count}, before the final norm",
        -1: "behind the final norm",
    }
    lines = [f"{heads.name} are {heads.kind} heads and fit {loaded.name}"]
    lines.append(
        f"read: {len(layers)} of the states of {loaded.name}, whose layers are 1 to {count}"
    )
    lines += [f"  {places.get(layer, f'behind layer {layer}')}" for layer in layers]
    lines.append(f"used: {len(used)} tensors")
    lines += [f"  {key}" for key in used]
    lines.append(f"not used: {len(unused)} tensors" if unused else "not used: none")
    lines += [f"  {key}" for key in unused]
    return "\n".join(lines)


def load_any_kind(pool: ModelPool, name: str, target: LoadedModel) -> LoadedHeads:
    """Loads heads of the kind that the catalogue or the files name; else of the first kind whose tensors they have.

    Raises SpecvizError.
    """
    known = HEADS[name].kind if name in HEADS else kind_of(Path(name))
    refusals: dict[str, str] = {}
    for kind in [known] if known else KINDS:
        try:
            return load_heads(pool, name, kind, target)
        except SpecvizError as refusal:
            refusals[kind] = str(refusal)
    if len(set(refusals.values())) == 1:
        raise SpecvizError(next(iter(refusals.values())))
    raise SpecvizError("; ".join(f"as {kind} heads: {words}" for kind, words in refusals.items()))


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each (name, words); the words stand below each other."""
    lines = list(rows) or [("none", "")]
    width = max(len(name) for name, _ in lines)
    return [f"  {name:<{width}}  {words}".rstrip() for name, words in lines]


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The verdict first, then the numbers behind it; model names and token texts cannot steer a terminal."""
    sections = (
        _verdict(diagnosis),
        ["Ids", *_table(_id_rows(diagnosis))],
        ["Special tokens (target | draft)", *_table(map(_special_row, diagnosis.special))],
        ["Chat format", f"  {diagnosis.chat}"],
        ["Settings of the draft that are not the target's", *_lines(diagnosis.settings)],
        ["Ways to draft", *_table(_way_row(way, diagnosis.is_direct) for way in diagnosis.ways)],
    )
    paragraphs = []
    for lines in sections:
        paragraphs.append("\n".join(escape(line, keep=" ") for line in lines))
    return "\n\n".join(paragraphs)


def _lines(found: Iterable[str]) -> list[str]:
    return [f"  {words}" for words in found] or ["  none"]


def files_text(diagnosis: Diagnosis, draft: str) -> str:
    """What the tensors of a draft model say; empty where its weights are not on this machine. Raises SpecvizError."""
    folder = diagnosis.draft.folder
    if folder is None or not any(folder.glob("*.safetensors")):
        return ""
    loaded = ModelPool(allow_any=settings().commands_take_any_model).load(draft, as_draft=True)
    found = list(faults(loaded.model, loaded.unused))
    words, _ = coarse_words(loaded.model)
    lines = ["Tensors of the draft", *_lines([*found, words] if words else found)]
    return "\n".join(escape(line, keep=" ") for line in lines)


def _verdict(diagnosis: Diagnosis) -> list[str]:
    can = "can" if diagnosis.is_direct else "cannot"
    lines = [f"{diagnosis.draft.name} {can} draft for {diagnosis.target.name} directly"]
    for way in diagnosis.ways:
        if way.works and not diagnosis.is_direct:
            lines.append(f"  possible: {way.name}, with {way.command}")
    return lines + [f"  note: {note}" for note in diagnosis.notes]


def _id_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    for who, side in (("target", diagnosis.target), ("draft", diagnosis.draft)):
        padding = max(0, side.table - side.num_ids)
        reads = f"reads {side.context_limit:,} tokens"
        table = f"a table of {side.table:,} ({padding:,} padding)"
        yield who, f"{side.name}: {side.num_ids:,} ids, {table}, {reads}"
    yield "same text", f"{diagnosis.num_same:,} ids"
    colon = ":" if diagnosis.differing else ""
    yield "different text", f"{diagnosis.num_differing:,} ids{colon}"
    for target, draft in diagnosis.differing:
        yield "", f"id {target.id}: {target.label} | {draft.label}"
    num_more = diagnosis.num_differing - len(diagnosis.differing)
    if num_more > 0:
        yield "", f"and {num_more:,} more"
    if diagnosis.num_other_special:
        words = f"{diagnosis.num_other_special:,} ids of different text, which is allowed"
        yield "special in both", words
    only_draft = f"{diagnosis.num_only_draft:,} of the draft"
    yield "only in one", f"{diagnosis.num_only_target:,} ids of the target, {only_draft}"
    common = diagnosis.num_common_texts
    of_target = percent(common / max(diagnosis.num_target_texts, 1))
    of_draft = percent(common / max(diagnosis.num_draft_texts, 1))
    yield "common texts", f"{common:,}: {of_target} of the target's, {of_draft} of the draft's"


def _special_row(special: Special) -> tuple[str, str]:
    of_target = _list_ids(special.target)
    if not special.differs:
        return special.kind, f"{of_target}, the same"
    return special.kind, f"{of_target} | {_list_ids(special.draft)}: {special.words}"


def _list_ids(ids: tuple[NamedId, ...]) -> str:
    shown = ", ".join(f"{item.label} (id {item.id})" for item in ids[:MOST_NAMED])
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return f"{shown}{more}" or "none"


def _way_row(way: MethodAdvice, is_direct: bool) -> tuple[str, str]:
    state = "yes" if way.works else "no"
    if way.works and is_direct and way.name != "direct":
        state = "not needed"
    return way.name, f"{state}: {way.words}"
