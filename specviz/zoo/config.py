"""The recipe of one bundled model, read from `configs/<name>.json` and checked on the way in.

A recipe says everything a run depends on except the machine it runs on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError

CONFIGS = Path(__file__).parent / "configs"


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a Llama-architecture model; `context` is the length it is trained on and is limited to."""

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    context: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """`tokens` in all, in windows of `short_length` except the last `long_fraction` of the steps (the whole context).

    Learning rate: linear warm-up, a flat part, then linear decay to zero over `decay_fraction` of the steps."""

    tokens: int
    tokens_per_step: int
    short_length: int
    long_fraction: float
    learning_rate: float
    warmup_steps: int
    decay_fraction: float
    weight_decay: float
    clip_norm: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model: what it looks like, what it reads (source name -> share of the training tokens), how it is trained."""

    name: str
    title: str
    shape: Shape
    mixture: Mapping[str, float]
    schedule: Schedule
    seed: int

    def __post_init__(self) -> None:
        if not self.mixture or min(self.mixture.values()) <= 0:
            raise ValueError(f"mixture shares must be positive (got {dict(self.mixture)})")
        if self.shape.hidden_size % self.shape.num_heads:
            raise ValueError(f"hidden_size {self.shape.hidden_size} is no multiple of {self.shape.num_heads} heads")

    @property
    def num_steps(self) -> int:
        return max(1, round(self.schedule.tokens / self.schedule.tokens_per_step))

    def window(self, step: int) -> tuple[int, int]:
        """(number of windows, length of each) at `step`; their product is `tokens_per_step`."""
        is_long = step >= self.num_steps * (1 - self.schedule.long_fraction)
        length = self.shape.context if is_long else self.schedule.short_length
        return self.schedule.tokens_per_step // length, length

    def learning_rate(self, step: int) -> float:
        """The rate of the step that comes after `step` finished ones."""
        warmup = (step + 1) / self.schedule.warmup_steps
        decay = (self.num_steps - step) / (self.num_steps * self.schedule.decay_fraction)
        return self.schedule.learning_rate * min(1.0, warmup, decay)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        shape, schedule = Shape(**values["shape"]), Schedule(**values["schedule"])
        return cls(**{**values, "shape": shape, "schedule": schedule})


@dataclass(frozen=True, slots=True)
class TokenizerRecipe:
    """A byte-level BPE vocabulary: its size and the share of each source in the text it is learned from."""

    vocab_size: int
    sample_bytes: int
    mixture: Mapping[str, float]


def load_recipe(name: str) -> Recipe:
    """The recipe called `name`; raises SpecvizError listing the known ones."""
    if name not in recipe_names():
        raise SpecvizError(f"no recipe is called {name!r}; there are: {', '.join(recipe_names())}")
    return Recipe.from_dict(json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8")))


def recipe_names() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("fable-*.json"))


def load_tokenizer_recipe() -> TokenizerRecipe:
    return TokenizerRecipe(**json.loads((CONFIGS / "tokenizer.json").read_text(encoding="utf-8")))
