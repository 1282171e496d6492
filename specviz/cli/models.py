"""The command `models`: which models and draft heads are on this machine, and what fits together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from specviz.alignment.causes.doctor import Diagnosis, MethodAdvice, NamedId, Special
from specviz.decoding.forward.transformers_forward import num_layers
from specviz.drafters.heads import KINDS, LoadedHeads, kind_of, load_heads
from specviz.errors import SpecvizError
from specviz.models import memory
from specviz.models.catalog import HEADS, MODELS, CatalogHeads, resolve
from specviz.models.files.hub import head_files
from specviz.models.folder import ModelFolder
from specviz.models.generation import asked_by, describe
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.proofs import read_proof
from specviz.models.tokens import TokenText, differing_ids
from specviz.views.terminal import escape
from specviz.views.words import percent

AWAY = "not on this machine"
ASKING = "Generation settings in a model's files"
MOST_NAMED = 6  # special tokens of a kind


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

    def asks(self) -> str:
        """What its file asks of whoever samples from it, in a sentence; "" for nothing, or a model that is unusable."""
        try:
            return describe(asked_by(self.files.generation(self.files.config())))
        except SpecvizError:
            return ""

    @cached_property
    def text(self) -> TokenText:
        return TokenText(self.files.tokenizer())

    def describe(self) -> str:
        """Its size, and what was found of it when it was last loaded here."""
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
        """Whether `draft` can draft for this one, by their tokenizers."""
        try:
            return (
                "different vocabulary"
                if differing_ids(self.text, draft.text)
                else "same vocabulary"
            )
        except SpecvizError:
            return "unusable"


def overview(cache_dir: Path | None = None) -> str:
    """Tables for the terminal: bundled and fetched models, those in the hub's cache (or this one), and what fits."""
    offered = (name for name, model in MODELS.items() if model.is_bundled or model.download)
    own = {name: LocalModel(name, Path(resolve(name))) for name in offered}
    here = {name: model for name, model in own.items() if model.folder.is_dir()}
    in_cache = _find_cached(cache_dir)
    cached = {name: model for name, model in in_cache.items() if name not in HEADS}
    sections = {
        "Bundled or fetched": (
            (n, own[n].describe() if n in here else AWAY) for n in own if not MODELS[n].dial
        ),
        "In the Hugging Face cache": ((name, model.describe()) for name, model in cached.items()),
        "What drafts for what": _fits({**cached, **here}),
        ASKING: [
            (name, asks) for name, model in {**cached, **here}.items() if (asks := model.asks())
        ],
        "Draft heads": ((name, _heads_words(heads, in_cache)) for name, heads in HEADS.items()),
    }
    if not sections[ASKING]:
        del sections[ASKING]
    return "\n\n".join("\n".join([title, *_table(rows)]) for title, rows in sections.items())


def _find_cached(cache_dir: Path | None) -> dict[str, LocalModel]:
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
    return {
        name: LocalModel(name, revision.snapshot_path) for name, revision in sorted(newest.items())
    }


def _fits(here: Mapping[str, LocalModel]) -> Iterator[tuple[str, str]]:
    """Each target of the catalogue with its drafts, the best first, and whether their tokenizers agree if known."""
    for name, model in MODELS.items():
        for place, draft in enumerate(model.drafts):
            words = (
                AWAY if draft not in here else f"its target is {AWAY}" if name not in here else None
            )
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
        return f"{words} (unusable: {error})"
    return f"{words}, {size / 1e6:,.1f} MB"


def heads_report(name: str, target: str, pool: ModelPool | None = None) -> str:
    """The target's states that the heads read, and their tensors that are used for it and those that are not.
    SpecvizError where none can be used."""
    pool = pool or ModelPool()
    loaded = pool.load(target)
    heads = load_any_kind(pool, name, loaded)
    used, unused = heads.report.used, heads.report.unused
    layers, count = heads.module.hidden_layers, num_layers(loaded.model)
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
    lines += [
        f"not used: {len(unused)} tensors" if unused else "not used: none",
        *(f"  {key}" for key in unused),
    ]
    return "\n".join(lines)


def load_any_kind(pool: ModelPool, name: str, target: LoadedModel) -> LoadedHeads:
    """Heads of the kind that the catalogue names or the files tell; for others, of the first kind whose tensors they
    have."""
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
    """One line per (name, words), the words below each other."""
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
        ["Ways to draft", *_table(_way_row(way, diagnosis.is_direct) for way in diagnosis.ways)],
    )
    return "\n\n".join("\n".join(escape(line, keep=" ") for line in lines) for lines in sections)


def _verdict(diagnosis: Diagnosis) -> list[str]:
    can = "can" if diagnosis.is_direct else "cannot"
    others = [] if diagnosis.is_direct else [way for way in diagnosis.ways if way.works]
    return [
        f"{diagnosis.draft.name} {can} draft for {diagnosis.target.name} directly",
        *(f"  possible: {way.name}, with {way.command}" for way in others),
        *(f"  note: {note}" for note in diagnosis.notes),
    ]


def _id_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    for who, side in (("target", diagnosis.target), ("draft", diagnosis.draft)):
        padding = max(0, side.table - side.num_ids)
        reads = f"reads {side.context_limit:,} tokens"
        yield (
            who,
            f"{side.name}: {side.num_ids:,} ids, a table of {side.table:,} ({padding:,} padding), {reads}",
        )
    yield "same text", f"{diagnosis.num_same:,} ids"
    yield "different text", f"{diagnosis.num_differing:,} ids{':' if diagnosis.differing else ''}"
    for target, draft in diagnosis.differing:
        yield "", f"id {target.id}: {target.label} | {draft.label}"
    if (more := diagnosis.num_differing - len(diagnosis.differing)) > 0:
        yield "", f"and {more:,} more"
    if diagnosis.num_other_special:
        yield (
            "special in both",
            f"{diagnosis.num_other_special:,} ids of different text, which is allowed",
        )
    yield (
        "only in one",
        f"{diagnosis.num_only_target:,} ids of the target, {diagnosis.num_only_draft:,} of the draft",
    )
    common = diagnosis.num_common_texts
    totals = (("target's", diagnosis.num_target_texts), ("draft's", diagnosis.num_draft_texts))
    shares = ", ".join(f"{percent(common / max(total, 1))} of the {who}" for who, total in totals)
    yield "common texts", f"{common:,}: {shares}"


def _special_row(special: Special) -> tuple[str, str]:
    if not special.differs:
        return special.kind, f"{_list_ids(special.target)}, the same"
    return (
        special.kind,
        f"{_list_ids(special.target)} | {_list_ids(special.draft)}: {special.words}",
    )


def _list_ids(ids: tuple[NamedId, ...]) -> str:
    shown = ", ".join(f"{item.label} (id {item.id})" for item in ids[:MOST_NAMED])
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return f"{shown}{more}" or "none"


def _way_row(way: MethodAdvice, is_direct: bool) -> tuple[str, str]:
    state = "no" if not way.works else "not needed" if is_direct and way.name != "direct" else "yes"
    return way.name, f"{state}: {way.words}"
