"""Trials on a draft: each changes the draft in one way, to see whether it then agrees more with the target.

A draft model is changed in a twin that shares its weights, so that nothing changes for anybody else. A head is changed
in what it reads and in its logits.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from specviz.alignment.ahead import Proposer
from specviz.alignment.causes.sample import Change, TargetTexts
from specviz.alignment.types import Array
from specviz.decoding.drafter import Ahead, Drafter
from specviz.decoding.forward.transformers_forward import layers_of, num_layers
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.quantisation import split_format
from specviz.models.score import TextIds

TEMPERATURES = (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 1.7, 2.0, 2.5, 3.5)
TEMPERATURES_OF_HEADS = (0.5, 0.7, 1.4, 1.7, 2.0, 2.5)  # fewer: each reads the texts once more
BASES = (1e3, 1e4, 1e5, 5e5, 1e6, 1e7)  # of rotary embeddings, as models have them
STRETCHES = (0.5, 2.0, 4.0, 8.0)
WINDOWS = (32, 64, 128, 256, 512, 1024, 2048)
DAMPED = (0.25, 0.5, 0.75)
MOST_COPIED = 2_000_000_000  # parameters that are copied into another number format


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A changed draft and the texts that it reads."""

    kind: str
    """The kind of cause that the change would cure, one of `probes.KINDS`."""
    cure: str
    """What was changed, in words that go on after "with"."""
    draft: LoadedModel | Drafter
    texts: Sequence[TextIds] = ()
    """What a draft model reads; empty for drafts that are no models."""
    change: Change | None = None
    """What is done to the logits of a draft model."""


def agreements(trials: Sequence[Trial], sample: TargetTexts) -> list[Array]:
    """The agreement of each trial with the target, by text [texts]. All trials are of one draft."""
    if all(isinstance(trial.draft, LoadedModel) for trial in trials):
        return [sample.agreement(trial.draft, trial.texts, trial.change) for trial in trials]
    return list(sample.agreement_of_drafters([trial.draft for trial in trials]))


def twin(draft: LoadedModel, change: Callable[[nn.Module], None]) -> LoadedModel:
    """Copies the modules of a draft model but not its weights, changes the copy and returns it."""
    tensors = [*draft.model.parameters(), *draft.model.buffers()]
    shared = {id(tensor): tensor for tensor in tensors}
    model = copy.deepcopy(draft.model, shared)
    change(model)
    return replace(draft, model=model)


def all_trials(
    draft: LoadedModel, target: LoadedModel, texts: Sequence[TextIds], pool: ModelPool
) -> Iterator[Trial]:
    """The trials of a draft model, each decided by one pass over the texts. texts: as the target reads them."""
    for temperature in TEMPERATURES:
        cure = f"its logits divided by {temperature:g}"
        yield Trial("temperature", cure, draft, texts, partial(_divide, divisor=temperature))
    for kind, cure, change in _layer_cures(draft):
        yield Trial(kind, cure, twin(draft, change), texts)
    for kind, cure, change in _rotary_cures(draft, target):
        yield Trial(kind, cure, twin(draft, change), texts)
    for kind, cure, change in _setting_cures(draft, target):
        yield Trial(kind, cure, twin(draft, change), texts)
    yield from _window_trials(draft, texts)
    yield from _start_trials(draft, target, texts)
    yield from _precision_trials(draft, texts, pool)


Cure = tuple[str, str, Callable[[nn.Module], None]]
"""The kind of a cause, the cure in words, and a function that changes a model so."""


def _divide(rows: Tensor, divisor: float) -> Tensor:
    return rows / divisor


def _layer_cures(draft: LoadedModel) -> Iterator[Cure]:
    """Leaves out each layer, damps each part of a layer, and swaps each two neighbours."""
    layers = layers_of(draft.model)
    for place, layer in enumerate(layers):
        name = f"layer {place + 1} of {len(layers)}"
        yield "layer", f"{name} left out", partial(_skip_layer, place=place)
        for part in _parts_with_matrices(layer):
            for factor in DAMPED:
                cure = f"the {part.replace('_', ' ')} of {name} damped to {100 * factor:.0f} %"
                yield "layer", cure, partial(_scale_part, place=place, part=part, factor=factor)
        if place > 0:
            yield "order", f"layers {place} and {place + 1} swapped", partial(_swap, place=place)


def _parts_with_matrices(layer: nn.Module) -> list[str]:
    """The names of attention and feed-forward, without norms."""
    names = []
    for name, part in layer.named_children():
        if any(weight.ndim > 1 for weight in part.parameters()):
            names.append(name)
    return names


def _skip_layer(model: nn.Module, place: int) -> None:
    """Makes the layer return its input."""

    def return_input(_, args, kwargs, output):
        hidden = args[0] if args else kwargs["hidden_states"]
        return hidden if isinstance(output, Tensor) else (hidden, *output[1:])

    layers_of(model)[place].register_forward_hook(return_input, with_kwargs=True)


def _scale_part(model: nn.Module, place: int, part: str, factor: float) -> None:
    """Multiplies what this part of a layer adds."""

    def scale_output(_, args, output):
        if isinstance(output, Tensor):
            return factor * output
        return (factor * output[0], *output[1:])

    getattr(layers_of(model)[place], part).register_forward_hook(scale_output)


def _swap(model: nn.Module, place: int) -> None:
    stack = layers_of(model)
    stack[place - 1], stack[place] = stack[place], stack[place - 1]


def _rotary_cures(draft: LoadedModel, target: LoadedModel) -> Iterator[Cure]:
    """Gives the draft the target's rotary speeds, usual bases, and stretched positions.

    Yields nothing for a draft without rotary embeddings of one kind.
    """
    draft_speeds = _rotary_speeds(draft.model)
    if draft_speeds is None or draft_speeds.ndim != 1:
        return
    known = [draft_speeds.cpu().float()]
    target_speeds = _rotary_speeds(target.model)
    has_same_size = target_speeds is not None and target_speeds.shape == draft_speeds.shape
    if has_same_size and not torch.allclose(draft_speeds, target_speeds.to(draft_speeds)):
        change = partial(_set_rotary_speeds, speeds=target_speeds)
        yield "rope", "the target's own rope parameters", change
        known.append(target_speeds.cpu().float())
    exponents = torch.arange(len(draft_speeds), dtype=torch.float32) / len(draft_speeds)
    for base in BASES:
        speeds = base**-exponents
        if not any(torch.allclose(each, speeds, rtol=1e-3) for each in known):
            change = partial(_set_rotary_speeds, speeds=speeds)
            yield "rope", f"rope_theta = {base:,.0f}", change
    for factor in STRETCHES:
        change = partial(_set_rotary_speeds, speeds=draft_speeds / factor)
        yield "rope", f"positions divided by {factor:g} (rope_scaling)", change


def _rotary_speeds(model: nn.Module) -> Tensor | None:
    """The angle per position of each pair of dimensions; None without rotary embeddings."""
    modules = _modules_with(model, "inv_freq")
    return modules[0].inv_freq if modules else None


def _set_rotary_speeds(model: nn.Module, speeds: Tensor) -> None:
    for module in _modules_with(model, "inv_freq"):
        if module.inv_freq.shape == speeds.shape:
            module.inv_freq = speeds.to(module.inv_freq)


_SETTINGS = (
    "variance_epsilon",
    "eps",
    "scaling",
    "act_fn",
    "sliding_window",
    "is_causal",
    "final_logit_softcapping",
)
"""Attributes of modules that should be alike in the draft and the target."""


def _setting_cures(draft: LoadedModel, target: LoadedModel) -> Iterator[Cure]:
    """Gives the draft the target's value of each setting that differs, where the target has one value alone."""
    for name in _SETTINGS:
        draft_values = _values_by_words(draft.model, name)
        target_values = _values_by_words(target.model, name)
        if not draft_values or len(target_values) != 1:
            continue
        if draft_values.keys() != target_values.keys():
            words, value = next(iter(target_values.items()))
            yield "setting", f"the target's {name} ({words})", partial(_set, name=name, value=value)


def _values_by_words(model: nn.Module, name: str) -> dict[str, object]:
    """The different values of an attribute of modules, by their words."""
    found = {}
    for module in _modules_with(model, name):
        value = getattr(module, name)
        words = type(value).__name__ if isinstance(value, nn.Module) else str(value)
        found[words] = value
    return found


def _set(model: nn.Module, name: str, value: object) -> None:
    for module in _modules_with(model, name):
        setattr(module, name, value)


def _modules_with(model: nn.Module, name: str) -> list[nn.Module]:
    """The modules with an attribute of this name that is not None."""
    return [module for module in model.modules() if getattr(module, name, None) is not None]


def _window_trials(draft: LoadedModel, texts: Sequence[TextIds]) -> Iterator[Trial]:
    """Shortens prompts to their first token and their last ones, where any prompt is longer."""
    longest = max(len(text.prompt) for text in texts)
    for size in WINDOWS:
        if size < longest:
            shortened = [TextIds(_shorten(text.prompt, size), text.ids) for text in texts]
            cure = f"only the last {size:,} tokens of each prompt to read"
            yield Trial("window", cure, draft, shortened)


def _shorten(prompt: Sequence[int], size: int) -> list[int]:
    with_first = [*prompt[:1], *prompt[-size:]]
    return with_first[-len(prompt) :]


def _start_trials(
    draft: LoadedModel, target: LoadedModel, texts: Sequence[TextIds]
) -> Iterator[Trial]:
    """Puts the start token of either model before every text, or leaves it out where every text begins with it."""
    for bos in dict.fromkeys((draft.tokenizer.bos_token_id, target.tokenizer.bos_token_id)):
        if bos is None or bos >= draft.info.vocab_size:
            continue
        name = f"the start token {draft.text.label(bos)} (id {bos})"
        if all(text.prompt[0] == bos and len(text.prompt) > 1 for text in texts):
            without = [TextIds(text.prompt[1:], text.ids) for text in texts]
            yield Trial("start", f"{name} left out", draft, without)
        elif all(len(text) < draft.info.context_limit for text in texts):
            longer = [TextIds([bos, *text.prompt], text.ids) for text in texts]
            yield Trial("start", f"{name} before every text", draft, longer)


def _precision_trials(
    draft: LoadedModel, texts: Sequence[TextIds], pool: ModelPool
) -> Iterator[Trial]:
    """Takes the weights before quantisation, or float32 for 16-bit weights."""
    plain_name, bits = split_format(draft.name)
    dtype = draft.model.dtype
    if bits is not None:
        plain = pool.load(plain_name, as_draft=True)
        yield Trial("precision", f"its own weights instead of {bits}", plain, texts)
    elif dtype in (torch.bfloat16, torch.float16) and draft.info.num_parameters <= MOST_COPIED:
        wide = replace(draft, model=copy.deepcopy(draft.model).float())
        cure = f"float32 instead of {str(dtype).removeprefix('torch.')}"
        yield Trial("precision", cure, wide, texts)


# ---- heads: the target's states of a neighbouring layer or position, and another temperature -------------------------


class Changed(Drafter):
    """A drafter that reads other states of the target, or divides its logits."""

    def __init__(
        self,
        drafter: Drafter,
        layers: tuple[int, ...] | None = None,
        places: int = 0,
        divided_by: float = 1.0,
    ) -> None:
        """Wraps a drafter.

        layers: the layers with the states to read; None: the drafter's own. places: how many tokens older each state is
        than the drafter's own; at the ends of the text the nearest state is taken. divided_by: of the logits.
        """
        self._drafter = drafter
        self._places = places
        self._divided_by = divided_by
        self.hidden_layers = drafter.hidden_layers if layers is None else layers

    @property
    def waits(self) -> bool:
        return self._drafter.waits

    def along(self, tokens: Tensor, states: Tensor) -> Ahead | None:
        places = torch.arange(len(states), device=states.device) - self._places
        nearest = places.clamp(0, len(states) - 1)
        ahead = self._drafter.along(tokens, states[nearest])

        def changed_ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, Tensor | None]]:
            for rows, known in ahead(starts, depths):
                is_logits = rows.dim() == 2  # else the ids of drafted tokens
                yield rows / self._divided_by if is_logits else rows, known

        return changed_ahead


def head_trials(proposer: Proposer) -> Iterator[Trial]:
    """The trials of a draft that is no model; none where it has neither states nor probabilities."""
    if proposer.setup.method.replays_from_text:
        return
    drafter = proposer.drafter()
    for temperature in TEMPERATURES_OF_HEADS:
        cure = f"its logits divided by {temperature:g}"
        yield Trial("temperature", cure, Changed(drafter, divided_by=temperature))
    if not drafter.hidden_layers:
        return
    last = num_layers(proposer.setup.target.model)
    for step, layer_words, token_words in ((-1, "earlier", "behind"), (1, "later", "before")):
        layers = tuple(layer % (last + 1) + step for layer in drafter.hidden_layers)
        if all(0 <= layer <= last for layer in layers):
            yield Trial("feature", f"the states of 1 layer {layer_words}", Changed(drafter, layers))
        shifted = Changed(drafter, places=step)
        yield Trial("feature", f"the states of the token {token_words}", shifted)
