"""The recipe of one bundled model, read from `configs/<edition>/<name>.json` and checked on the way in.

A recipe says everything a run depends on except the machine it runs on. An edition is a whole family of recipes under
the same names: `full` is meant for a GPU, `two-cores` is what two CPU cores finish in about two hours."""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError

CONFIGS = Path(__file__).parent / "configs"
EDITIONS = ("full", "two-cores")
LOSSES = ("total_variation", "forward_kl", "reverse_kl")
HEAD_KINDS = ("medusa", "eagle", "block")


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a Llama-architecture model; `context` is the length it is trained on and is limited to."""

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    context: int

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is no multiple of {self.num_heads} heads"
            )


@dataclass(frozen=True, slots=True)
class EarlyExitRecipe:
    """LayerSkip training (Elhoushi et al., arXiv:2404.16710, section 4.1).

    `weight` of the loss belongs to one exit per step (the `layers` take turns), the rest to the last layer. Whole
    layers are dropped with a probability that grows exponentially from 0 at the first to `dropout` at the last."""

    layers: tuple[int, ...]
    weight: float
    dropout: float


@dataclass(frozen=True, slots=True)
class Distillation:
    """Start from the trained model `start` and learn the target's distribution on the target's own samples.

    `loss`: forward_kl, reverse_kl or total_variation. The samples: `num_samples` continuations, drawn at temperature 1,
    of document openings from the mixture that `start` read, each `sample_length` tokens with its opening."""

    start: str
    loss: str
    num_samples: int
    sample_length: int

    def __post_init__(self) -> None:
        check("loss", self.loss, LOSSES)


@dataclass(frozen=True, slots=True)
class Schedule:
    """`tokens` in all, in windows of `short_length` except the last `long_fraction` of the steps (the whole context).

    Learning rate: linear warm-up, a flat part, then linear decay to zero over `decay_fraction` of the steps."""

    tokens: int
    tokens_per_step: int
    short_length: int
    long_length: int
    long_fraction: float
    learning_rate: float
    warmup_steps: int
    decay_fraction: float
    weight_decay: float
    clip_norm: float


@dataclass(frozen=True, slots=True)
class BiasRecipe:
    """A Markov bias of this rank (DSpark, arXiv:2607.05147), fitted on finished heads, which stay as they are.

    `loss`: forward_kl, reverse_kl or total_variation, between the target's distribution and that of head and bias.
    `has_confidence`: a block's head also gets a confidence head, which learns the overlap of both by cross-entropy."""

    rank: int
    loss: str
    schedule: Schedule
    has_confidence: bool = False

    def __post_init__(self) -> None:
        check("loss", self.loss, LOSSES)


@dataclass(frozen=True, slots=True)
class Heads:
    """Draft heads on the frozen target: `kind` is medusa (`num_heads` of them) or eagle (one layer like the target's).

    `own_output`: every Medusa head has an output matrix of its own, as the public checkpoints do; else they use the
    target's (the others always do). A block drafts `num_heads` tokens at once, with `num_layers` layers of this
    `intermediate_size`. `bias`: what is fitted to Medusa's heads or a block's when they are finished."""

    kind: str
    num_heads: int
    own_output: bool
    num_layers: int | None = None
    intermediate_size: int | None = None
    bias: BiasRecipe | None = None

    def __post_init__(self) -> None:
        check("kind", self.kind, HEAD_KINDS)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One member of the family: what it looks like, what it reads (source name -> share of tokens), how it is trained.

    Exactly one of `shape` (a language model of its own) and `heads` (heads on the frozen target) is given."""

    name: str
    title: str
    edition: str
    tokenizer: str
    mixture: Mapping[str, float]
    schedule: Schedule
    seed: int
    shape: Shape | None = None
    heads: Heads | None = None
    early_exit: EarlyExitRecipe | None = None
    distillation: Distillation | None = None

    def __post_init__(self) -> None:
        if not self.mixture or min(self.mixture.values()) <= 0:
            raise ValueError(f"mixture shares must be positive (got {dict(self.mixture)})")
        if (self.shape is None) == (self.heads is None):
            raise ValueError(f"{self.name}: give either shape or heads")
        if self.early_exit and not all(
            0 < layer < self.shape.num_layers for layer in self.early_exit.layers
        ):
            raise ValueError(
                f"{self.name}: exits {self.early_exit.layers} are not below {self.shape.num_layers} layers"
            )

    @property
    def command(self) -> str:
        """The command of `python -m specviz.zoo` that makes it."""
        return "heads" if self.heads else "distill" if self.distillation else "train"

    @property
    def num_steps(self) -> int:
        return max(1, round(self.schedule.tokens / self.schedule.tokens_per_step))

    def window(self, step: int) -> tuple[int, int]:
        """(number of windows, length of each) at `step`; their product is `tokens_per_step`."""
        schedule = self.schedule
        is_long = step >= self.num_steps * (1 - schedule.long_fraction)
        length = schedule.long_length if is_long else schedule.short_length
        return schedule.tokens_per_step // length, length

    def learning_rate(self, step: int) -> float:
        """The rate of the step that comes after `step` finished ones."""
        warmup = (step + 1) / self.schedule.warmup_steps
        decay = (self.num_steps - step) / (self.num_steps * self.schedule.decay_fraction)
        return self.schedule.learning_rate * min(1.0, warmup, decay)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what is not given is left out."""
        return {
            name: value
            for name, value in json.loads(json.dumps(asdict(self))).items()
            if value is not None
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        return build(cls, values)


@dataclass(frozen=True, slots=True)
class TokenizerRecipe:
    """A byte-level BPE vocabulary: its size and the share of each source in the text it is learned from."""

    vocab_size: int
    sample_bytes: int
    mixture: Mapping[str, float]


def check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)} (got {value!r})")


def build(kind: type, values: Mapping[str, Any]) -> Any:
    """A dataclass from its JSON form: nested dataclasses too, lists as tuples."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: convert(hints[name], value) for name, value in values.items()})


def convert(hint: Any, value: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    nested = next((option for option in options if is_dataclass(option)), None)
    if nested is not None and value is not None:
        return build(nested, value)
    return tuple(value) if isinstance(value, list) else value


def load_recipe(edition: str, name: str) -> Recipe:
    """The recipe called `name` of an edition; raises SpecvizError listing the known ones."""
    if edition not in EDITIONS:
        raise SpecvizError(f"no edition is called {edition!r}; there are: {', '.join(EDITIONS)}")
    if name not in recipe_names():
        raise SpecvizError(f"no recipe is called {name!r}; there are: {', '.join(recipe_names())}")
    values = json.loads((CONFIGS / edition / f"{name}.json").read_text(encoding="utf-8"))
    return Recipe.from_dict({"name": name, "edition": edition, **values})


def recipe_names() -> list[str]:
    """The members of the family, in the order in which they are made."""
    return json.loads((CONFIGS / "family.json").read_text(encoding="utf-8"))


def load_tokenizer_recipes() -> dict[str, TokenizerRecipe]:
    rows = json.loads((CONFIGS / "tokenizers.json").read_text(encoding="utf-8"))
    return {name: TokenizerRecipe(**row) for name, row in rows.items()}
