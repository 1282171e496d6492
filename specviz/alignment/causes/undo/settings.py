"""Undos of wrong settings: rotary positions, windows of attention, the activation, epsilons, factors."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specviz.alignment.causes.reading import Family, Undo, on_module

BASES = (1e3, 1e4, 1e5, 5e5, 1e6, 1e7)  # of rotary embeddings, as models have them
STRETCHES = (2.0, 4.0, 8.0, 16.0)  # of positions
KINDS_OF_ROPE = (
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
)  # fmt: skip
"""Rope kinds as public models set them: Qwen's for long texts, Llama 3.1's and 3.2's."""
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
SETTINGS = (
    "variance_epsilon",
    "eps",
    "scaling",
    "act_fn",
    "is_causal",
    "final_logit_softcapping",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
)
"""Attributes of modules that should be alike in the draft and the target."""


def families(module: nn.Module, target: nn.Module) -> Iterator[Family]:
    """The undos of all settings. target: the target's model."""
    yield from _rope(module, target)
    yield from _alike(module, target)
    yield from _activations(module)
    yield from _window(module)
    yield from _embedding_scales(module)


def _one(kind: str, cure: str, change: Callable[[nn.Module], None]) -> Family:
    return (on_module(kind, cure, change),)


# ---- rotary positions ------------------------------------------------------------------------------------------------


def _rope(module: nn.Module, target: nn.Module) -> Iterator[Family]:
    """The target's rotary angles, usual bases, stretched positions, usual kinds of rope, and no attention factor.

    Yields nothing for a draft without rotary embeddings of one kind.
    """
    own = _rotary(module)
    if own is None:
        return
    speeds = own.inv_freq  # [D / 2], the angle per position
    known = [speeds.cpu().float()]
    targets = _rotary(target)
    if targets is not None and targets.inv_freq.shape == speeds.shape:
        factor = getattr(targets, "attention_scaling", 1.0)
        is_same = torch.allclose(speeds, targets.inv_freq.to(speeds))
        if not is_same or factor != getattr(own, "attention_scaling", 1.0):
            change = partial(_turn, speeds=targets.inv_freq, factor=factor)
            yield _one("rope", "the target's own rope parameters", change)
            known.append(targets.inv_freq.cpu().float())
    exponents = torch.arange(len(speeds), dtype=torch.float32) / len(speeds)
    for base in BASES:
        of_base = base**-exponents
        if not any(torch.allclose(each, of_base, rtol=1e-3) for each in known):
            yield _one("rope", f"rope_theta = {base:,.0f}", partial(_turn, speeds=of_base))
    for way, words in ((1, "divided"), (-1, "multiplied")):
        family: list[Undo] = []
        for stretch in STRETCHES:
            cure = f"positions {words} by {stretch:g} (rope_scaling)"
            change = partial(_turn, speeds=speeds / stretch**way)
            family.append(on_module("rope", cure, change))
        yield tuple(family)
    yield from _kinds_of_rope(own, known)


def _kinds_of_rope(own: nn.Module, known: Sequence[Tensor]) -> Iterator[Family]:
    if getattr(own, "attention_scaling", 1.0) != 1.0:
        change = partial(_turn, speeds=own.inv_freq, factor=1.0)
        yield _one("rope", "no attention factor (rope_scaling)", change)
    width = 2 * len(own.inv_freq)
    theta = _base(own.inv_freq)
    if theta is None:
        return
    for kind in KINDS_OF_ROPE:
        values = {**kind, "rope_theta": theta}
        config = SimpleNamespace(
            rope_parameters=values,
            rope_scaling=values,
            rope_theta=theta,
            head_dim=width,
            hidden_size=width,
            num_attention_heads=1,
            max_position_embeddings=int(kind["factor"] * kind["original_max_position_embeddings"]),
            standardize_rope_params=lambda: None,
        )
        speeds, factor = ROPE_INIT_FUNCTIONS[kind["rope_type"]](config, torch.device("cpu"))
        if not any(torch.allclose(each, speeds, rtol=1e-3) for each in known) or factor != 1.0:
            cure = f"rope_scaling {kind['rope_type']}, factor {kind['factor']:g}"
            yield _one("rope", cure, partial(_turn, speeds=speeds, factor=factor))


def _base(speeds: Tensor) -> float | None:
    """The rope_theta of plain rotary speeds [D / 2]; None for other kinds."""
    if len(speeds) < 2:
        return None
    theta = float(1 / speeds[1].double()) ** len(speeds)
    exponents = torch.arange(len(speeds), dtype=torch.float64) / len(speeds)
    is_plain = torch.allclose(theta**-exponents, speeds.cpu().double(), rtol=1e-3)
    return theta if is_plain else None


def _rotary(module: nn.Module) -> nn.Module | None:
    """The part of a text model with the angle per position of each pair of dimensions [D / 2]."""
    found = _with_angles(module)
    return found[0] if found and found[0].inv_freq.ndim == 1 else None


def _with_angles(module: nn.Module) -> list[nn.Module]:
    """The parts with rotary angles; of a model that reads images too, those of its text model."""
    decoder = module.get_decoder() if hasattr(module, "get_decoder") else None
    return modules_with(decoder or module, "inv_freq")


def _turn(module: nn.Module, speeds: Tensor, factor: float | None = None) -> None:
    for rotary in _with_angles(module):
        if rotary.inv_freq.shape == speeds.shape:
            rotary.inv_freq = speeds.to(rotary.inv_freq)
            if factor is not None:
                rotary.attention_scaling = factor


# ---- other settings --------------------------------------------------------------------------------------------------


def _alike(module: nn.Module, target: nn.Module) -> Iterator[Family]:
    """The target's value of each setting that differs, where the target has one value alone."""
    for name in SETTINGS:
        own = _values_by_words(module, name)
        targets = _values_by_words(target, name)
        if own and len(targets) == 1 and own.keys() != targets.keys():
            words, value = next(iter(targets.items()))
            yield _one(
                "setting", f"the target's {name} ({words})", partial(_set, name=name, value=value)
            )


def _activations(module: nn.Module) -> Iterator[Family]:
    own = _values_by_words(module, "act_fn")
    for name in ACTIVATIONS if own else ():
        value = ACT2FN[name]
        if type(value).__name__ not in own:
            yield _one(
                "setting", f"the activation {name}", partial(_set, name="act_fn", value=value)
            )


def _values_by_words(module: nn.Module, name: str) -> dict[str, object]:
    """The different values of an attribute of modules, by their words."""
    found = {}
    for part in modules_with(module, name):
        value = getattr(part, name)
        words = type(value).__name__ if isinstance(value, nn.Module) else str(value)
        found[words] = value
    return found


def _set(module: nn.Module, name: str, value: object) -> None:
    for part in modules_with(module, name):
        setattr(part, name, value)


def modules_with(module: nn.Module, name: str) -> list[nn.Module]:
    """The modules with an attribute of this name that is not None."""
    return [part for part in module.modules() if getattr(part, name, None) is not None]


def _window(module: nn.Module) -> Iterator[Family]:
    """Full attention in every layer, for a draft whose attention reaches a window alone."""
    config = getattr(module, "config", None)
    if getattr(config, "sliding_window", None) and modules_with(module, "self_attn"):
        cure = f"full attention instead of a window of {config.sliding_window:,} tokens"
        yield _one("narrow window", cure, _open_window)


def _open_window(module: nn.Module) -> None:
    config = copy.copy(module.config)
    config.sliding_window = None
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * len(config.layer_types)
    for part in module.modules():
        if getattr(part, "config", None) is module.config and part is not module:
            part.config = config
        if getattr(part, "sliding_window", None) is not None:
            part.sliding_window = None
        if getattr(part, "attention_type", None) is not None:
            part.attention_type = "full_attention"
        if getattr(part, "has_sliding_layers", False):
            part.has_sliding_layers = False
    module.config = config


def _embedding_scales(module: nn.Module) -> Iterator[Family]:
    """The embedding times or over sqrt(width), as some families of models scale it; by the root of that first."""
    if not hasattr(module, "get_input_embeddings"):
        return
    width = module.get_input_embeddings().weight.shape[1]
    for way, words in ((1, "times"), (-1, "over")):
        family = []
        for power in (0.25, 0.5):
            factor = width ** (way * power)
            name = f"sqrt({width})" if power == 0.5 else f"{width**power:.3g}"
            change = partial(_scale_embedding, factor=factor)
            family.append(on_module("scale", f"the embedding {words} {name}", change))
        yield tuple(family)


def _scale_embedding(module: nn.Module, factor: float) -> None:
    module.get_input_embeddings().register_forward_hook(lambda _, __, rows: factor * rows)
