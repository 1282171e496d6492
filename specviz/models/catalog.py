"""What is offered: the bundled models and well-known public families that share a vocabulary.

Data, standard library only. Where a server allows no other models, these names are still allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SpecvizError
from specviz.settings import assets_dir


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model on offer. drafts: the names that suit it as draft model, the best first; none: it is only a draft.

    foreign: drafts of another vocabulary. A bundled model lies in assets/models/<name>; the name of any other is its
    Hugging Face hub id.
    """

    name: str
    title: str
    drafts: tuple[str, ...] = ()
    is_bundled: bool = False
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogHeads:
    """Draft heads on offer. kind: see heads.KINDS; target: the model that they were trained on. Names as for models."""

    name: str
    title: str
    kind: str
    target: str
    is_bundled: bool = False


_SMOLLM2 = "HuggingFaceTB/SmolLM2"
_QWEN2 = "Qwen/Qwen2.5"
_QWEN3 = "Qwen/Qwen3"
_PYTHIA = "EleutherAI/pythia"
_GPT2 = "openai-community/gpt2"
_DISTILGPT2 = "distilbert/distilgpt2"
_MEDUSA = "FasterDecoding/medusa-vicuna"
_VICUNA = "lmsys/vicuna"

_ALL = (
    CatalogModel(
        "fable-target",
        "Fable, the large one (bundled)",
        ("fable-draft", "fable-draft-tiny", "fable-draft-undistilled", "fable-draft-code"),
        is_bundled=True,
        foreign=("fable-draft-othervocab",),
    ),
    CatalogModel("fable-draft", "Fable, the small one (bundled)", is_bundled=True),
    CatalogModel("fable-draft-tiny", "Fable, the tiny one (bundled)", is_bundled=True),
    CatalogModel("fable-draft-undistilled", "Fable, the small one before its distillation (bundled)", is_bundled=True),
    CatalogModel("fable-draft-code", "Fable, one that has read only Python (bundled)", is_bundled=True),
    CatalogModel("fable-draft-othervocab", "Fable, one that cuts text into other tokens (bundled)", is_bundled=True),
    CatalogModel(
        f"{_SMOLLM2}-1.7B-Instruct",
        "SmolLM2 1.7B Instruct",
        (f"{_SMOLLM2}-135M-Instruct", f"{_SMOLLM2}-360M-Instruct"),
    ),
    CatalogModel(f"{_SMOLLM2}-360M-Instruct", "SmolLM2 360M Instruct", (f"{_SMOLLM2}-135M-Instruct",)),
    CatalogModel(f"{_SMOLLM2}-135M-Instruct", "SmolLM2 135M Instruct"),
    CatalogModel(
        f"{_QWEN2}-7B-Instruct",
        "Qwen2.5 7B Instruct",
        (f"{_QWEN2}-0.5B-Instruct", f"{_QWEN2}-1.5B-Instruct"),
    ),
    CatalogModel(f"{_QWEN2}-1.5B-Instruct", "Qwen2.5 1.5B Instruct", (f"{_QWEN2}-0.5B-Instruct",)),
    CatalogModel(f"{_QWEN2}-0.5B-Instruct", "Qwen2.5 0.5B Instruct"),
    CatalogModel(f"{_QWEN3}-8B", "Qwen3 8B", (f"{_QWEN3}-0.6B", f"{_QWEN3}-1.7B")),
    CatalogModel(f"{_QWEN3}-1.7B", "Qwen3 1.7B", (f"{_QWEN3}-0.6B",)),
    CatalogModel(f"{_QWEN3}-0.6B", "Qwen3 0.6B"),
    CatalogModel(f"{_PYTHIA}-1.4b", "Pythia 1.4B", (f"{_PYTHIA}-160m", f"{_PYTHIA}-70m")),
    CatalogModel(f"{_PYTHIA}-160m", "Pythia 160M", (f"{_PYTHIA}-70m",)),
    CatalogModel(f"{_PYTHIA}-70m", "Pythia 70M"),
    CatalogModel(f"{_GPT2}-large", "GPT-2 Large", (_DISTILGPT2, _GPT2)),
    CatalogModel(_GPT2, "GPT-2", (_DISTILGPT2,)),
    CatalogModel(_DISTILGPT2, "DistilGPT-2"),
)

FORMATS = ("int8", "int4")
"""What a model's name may end in, behind a colon: the format that its weights are to be held in."""

MODELS: Mapping[str, CatalogModel] = {model.name: model for model in _ALL}

HEADS: Mapping[str, CatalogHeads] = {
    heads.name: heads
    for heads in (
        CatalogHeads("fable-medusa", "Fable, Medusa heads (bundled)", "medusa", "fable-target", is_bundled=True),
        CatalogHeads("fable-eagle", "Fable, an EAGLE head (bundled)", "eagle", "fable-target", is_bundled=True),
        CatalogHeads(f"{_MEDUSA}-7b-v1.3", "Vicuna 7B v1.3, Medusa heads", "medusa", f"{_VICUNA}-7b-v1.3"),
        CatalogHeads(f"{_MEDUSA}-13b-v1.3", "Vicuna 13B v1.3, Medusa heads", "medusa", f"{_VICUNA}-13b-v1.3"),
        CatalogHeads("AngelSlim/Qwen3-8B_eagle3", "Qwen3 8B, an EAGLE-3 head", "eagle", f"{_QWEN3}-8B"),
        CatalogHeads("AngelSlim/Qwen3-1.7B_eagle3", "Qwen3 1.7B, an EAGLE-3 head", "eagle", f"{_QWEN3}-1.7B"),
    )
}


def default_pair() -> tuple[str, str]:
    """The names of the target and the draft that a first visit runs with."""
    target = _ALL[0]
    return target.name, target.drafts[0]


def targets() -> tuple[str, ...]:
    return tuple(model.name for model in _ALL if model.drafts)


def drafts_for(target: str, *, foreign: bool = False) -> tuple[str, ...]:
    """The names that suit `target` as draft model, the best first; none for a target that is not in the catalogue.

    foreign: those of other vocabularies first, for a method that can use them.
    """
    target = without_format(target)
    if target not in MODELS:
        return ()
    return (*MODELS[target].foreign, *MODELS[target].drafts) if foreign else MODELS[target].drafts


def names_for(target: str, kind: str) -> tuple[str, ...]:
    """The names of what a parameter may stand for: drafts ("draft", the smallest first) or heads of a kind."""
    if kind == "draft":
        return drafts_for(target)[::-1]
    target = without_format(target)
    return tuple(heads.name for heads in HEADS.values() if (heads.kind, heads.target) == (kind, target))


def without_format(name: str) -> str:
    """A model's own name; see FORMATS."""
    plain, _, ending = name.rpartition(":")
    return plain if plain and ending in FORMATS else name


def is_known(name: str) -> bool:
    """Whether the name, with or without a format of weights, is one of the catalogue's."""
    return name in HEADS or without_format(name) in MODELS


def resolve(name: str) -> Path | str:
    """The folder of a bundled model or head, the hub id of any other on offer. SpecvizError for another name."""
    known = MODELS.get(name) or HEADS.get(name)
    if known is None:
        raise SpecvizError(f"no model named {name!r} is on offer; choose one of {', '.join(MODELS)}")
    return assets_dir() / "models" / name if known.is_bundled else name
