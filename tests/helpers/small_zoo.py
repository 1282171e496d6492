"""A corpus of made-up words and recipes of a few hundred parameters: the zoo's whole way in seconds."""

import json
import lzma
import random
from dataclasses import replace
from pathlib import Path

from specviz.zoo.config import (
    EDITIONS,
    BiasRecipe,
    Distillation,
    EarlyExitRecipe,
    Heads,
    Recipe,
    Schedule,
    Shape,
    TokenizerRecipe,
)
from specviz.zoo.data.corpus import END_OF_TEXT, CorpusSource

WORDS = ("the", "cat", "sat", "on", "a mat.", "go(x):\n    if", "x:\n        return", "12", "+", "x\n\n")
SOURCES = {
    name: CorpusSource(name, name, f"{name}.txt", f"{name}.valid.txt", "made up", "none")
    for name in ("stories", "code")
}
VOCABULARY = TokenizerRecipe(320, 10_000, {"stories": 0.75, "code": 0.25})
SCHEDULE = Schedule(
    tokens=6 * 64,
    tokens_per_step=64,
    short_length=16,
    long_length=32,
    long_fraction=0.5,
    learning_rate=1e-2,
    warmup_steps=2,
    decay_fraction=0.5,
    weight_decay=0.1,
    clip_norm=1.0,
)
RECIPE = Recipe(
    name="fable-test",
    title="a model for tests",
    edition=EDITIONS[0],
    tokenizer="fable",
    mixture={"stories": 0.75, "code": 0.25},
    schedule=SCHEDULE,
    seed=5,
    shape=Shape(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24, context=32),
)
DEEP = replace(
    RECIPE,
    name="fable-target",
    shape=replace(RECIPE.shape, num_layers=3),
    early_exit=EarlyExitRecipe(layers=(1, 2), weight=0.25, dropout=0.5),
)
BIAS = BiasRecipe(4, "forward_kl", replace(SCHEDULE, long_fraction=0, weight_decay=0))
MEDUSA = replace(RECIPE, name="fable-medusa", shape=None, heads=Heads("medusa", 2, own_output=True, bias=BIAS))
BLOCK = replace(
    RECIPE,
    name="fable-block",
    shape=None,
    heads=Heads(
        "block", 3, own_output=False, num_layers=2, intermediate_size=24, bias=replace(BIAS, has_confidence=True)
    ),
)
EAGLE = replace(RECIPE, name="fable-eagle", shape=None, heads=Heads("eagle", 1, own_output=False))
UNDISTILLED = replace(RECIPE, name="fable-draft-undistilled")
DISTILLED = replace(
    RECIPE,
    name="fable-draft",
    mixture={"samples": 1.0},
    distillation=Distillation(UNDISTILLED.name, "total_variation", num_samples=4, sample_length=24),
)
OTHER = replace(RECIPE, name="fable-draft-othervocab", tokenizer="fable-small")
FAMILY = (DEEP, UNDISTILLED, DISTILLED, OTHER, MEDUSA, EAGLE)


def write_corpus(folder: Path) -> Path:
    for seed, source in enumerate(SOURCES.values()):
        generator = random.Random(seed)
        for file in (source.train, source.valid):
            write_texts(folder / f"{file}.xz", [" ".join(generator.choices(WORDS, k=40)) for _ in range(12)])
    return folder


def write_texts(path: Path, texts: list[str]) -> None:
    path.write_bytes(lzma.compress(f"\n{END_OF_TEXT}\n".join(texts).encode()))


def write_configs(folder: Path) -> Path:
    """The same files as specviz/zoo/configs, for FAMILY."""
    (folder / EDITIONS[0]).mkdir()
    write(folder / "family.json", [recipe.name for recipe in FAMILY])
    write(folder / "sources.json", [fields(source) for source in SOURCES.values()])
    sizes = {"fable": VOCABULARY, "fable-small": replace(VOCABULARY, vocab_size=290)}
    write(folder / "tokenizers.json", {name: fields(recipe) for name, recipe in sizes.items()})
    for recipe in FAMILY:
        values = recipe.to_dict()
        write(folder / EDITIONS[0] / f"{values.pop('name')}.json", {k: v for k, v in values.items() if k != "edition"})
    return folder


def fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def write(path: Path, values: object) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")
