"""What is tried on a draft to see whether it then agrees more: each trial is a cure in words and a changed twin.

A twin shares the weights of its model, so that nothing changes for anybody else. Heads are changed in what they read.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

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
    """kind: of the cause. cure: what was changed, as words behind "with". change: of a model's logits. texts: what a
    model reads."""

    kind: str
    cure: str
    draft: LoadedModel | Drafter
    texts: Sequence[TextIds] = ()
    change: Change | None = None


def agreements(trials: Sequence[Trial], sample: TargetTexts) -> list[Array]:
    """Of each trial of one draft the mean of sum min(p, q) over each text [texts]."""
    if all(isinstance(each.draft, LoadedModel) for each in trials):
        return [sample.agreement(each.draft, each.texts, each.change) for each in trials]
    return list(sample.ahead([each.draft for each in trials]))


def twin(draft: LoadedModel, change: Callable[[nn.Module], None]) -> LoadedModel:
    """The same weights in modules of its own, which are then changed."""
    tensors = [*draft.model.parameters(), *draft.model.buffers()]
    model = copy.deepcopy(draft.model, {id(tensor): tensor for tensor in tensors})
    change(model)
    return replace(draft, model=model)


def all_trials(
    draft: LoadedModel, target: LoadedModel, texts: Sequence[TextIds], pool: ModelPool
) -> Iterator[Trial]:
    """Those that one pass of the draft each decides. texts: as the target reads them."""
    for each in TEMPERATURES:
        cure = f"its logits divided by {each:g}"
        yield Trial("temperature", cure, draft, texts, lambda rows, each=each: rows / each)
    for kind, cure, change in (*_layers(draft), *_rotary(draft, target), *_settings(draft, target)):
        yield Trial(kind, cure, twin(draft, change), texts)
    yield from _windows(draft, texts)
    yield from _starts(draft, target, texts)
    yield from _precision(draft, texts, pool)


Made = tuple[str, str, Callable[[nn.Module], None]]


def _layers(draft: LoadedModel) -> Iterator[Made]:
    """Each layer left out, each part of a layer damped, and two neighbours swapped."""
    layers = layers_of(draft.model)
    for place, layer in enumerate(layers):
        name = f"layer {place + 1} of {len(layers)}"
        yield "layer", f"{name} left out", lambda model, place=place: skip(layers_of(model)[place])
        parts = [
            part
            for part, own in layer.named_children()
            if any(each.ndim > 1 for each in own.parameters())
        ]
        for part, times in product(
            parts, DAMPED
        ):  # those with matrices: attention and feed-forward
            cure = f"the {part.replace('_', ' ')} of {name} damped to {100 * times:.0f} %"
            yield "layer", cure, partial(_scale, place=place, part=part, times=times)
        if place:
            yield "order", f"layers {place} and {place + 1} swapped", partial(_swap, place=place)


def skip(layer: nn.Module) -> None:
    """Makes the layer return its input."""

    def return_input(_, args, kwargs, output):
        given = args[0] if args else kwargs["hidden_states"]
        return given if isinstance(output, Tensor) else (given, *output[1:])

    layer.register_forward_hook(return_input, with_kwargs=True)


def _scale(model: nn.Module, place: int, part: str, times: float) -> None:
    """Makes this part of a layer add so many times what it adds."""

    def scaled(_, args, output):
        return times * output if isinstance(output, Tensor) else (times * output[0], *output[1:])

    getattr(layers_of(model)[place], part).register_forward_hook(scaled)


def _swap(model: nn.Module, place: int) -> None:
    stack = layers_of(model)
    stack[place - 1], stack[place] = stack[place], stack[place - 1]


def _rotary(draft: LoadedModel, target: LoadedModel) -> Iterator[Made]:
    """The target's angles of positions where it has as many, usual bases, and positions stretched."""
    ours, theirs = (
        next((part.inv_freq for part in _with(model.model, "inv_freq")), None)
        for model in (draft, target)
    )
    if ours is None or ours.ndim != 1:
        return
    known = [ours.cpu().float()]
    if (
        theirs is not None
        and theirs.shape == ours.shape
        and not torch.allclose(ours, theirs.to(ours))
    ):
        yield "rope", "the target's own rope parameters", partial(_turn, speeds=theirs)
        known.append(theirs.cpu().float())
    exponents = torch.arange(len(ours), dtype=torch.float32) / len(ours)
    for base in BASES:
        speeds = base**-exponents
        if not any(torch.allclose(each, speeds, rtol=1e-3) for each in known):
            yield "rope", f"rope_theta = {base:,.0f}", partial(_turn, speeds=speeds)
    for factor in STRETCHES:
        cure = f"positions divided by {factor:g} (rope_scaling)"
        yield "rope", cure, partial(_turn, speeds=ours / factor)


def _turn(model: nn.Module, speeds: Tensor) -> None:
    for part in _with(model, "inv_freq"):
        if part.inv_freq.shape == speeds.shape:
            part.inv_freq = speeds.to(part.inv_freq)


_SETTINGS = (
    "variance_epsilon",
    "eps",
    "scaling",
    "act_fn",
    "sliding_window",
    "is_causal",
    "final_logit_softcapping",
)


def _settings(draft: LoadedModel, target: LoadedModel) -> Iterator[Made]:
    """What modules of the same name hold in both models and that differs: the target's value."""
    for name in _SETTINGS:
        ours, theirs = (_values(model.model, name) for model in (draft, target))
        if ours and len(theirs) == 1 and ours.keys() != theirs.keys():
            ((words, value),) = theirs.items()
            cure = f"the target's {name} ({words})"
            yield "setting", cure, partial(_set, name=name, value=value)


def _values(model: nn.Module, name: str) -> dict[str, object]:
    """By its words."""
    found = [getattr(part, name) for part in _with(model, name)]
    return {
        (type(each).__name__ if isinstance(each, nn.Module) else str(each)): each for each in found
    }


def _set(model: nn.Module, name: str, value: object) -> None:
    for part in _with(model, name):
        setattr(part, name, value)


def _with(model: nn.Module, name: str) -> list[nn.Module]:
    return [part for part in model.modules() if getattr(part, name, None) is not None]


def _windows(draft: LoadedModel, texts: Sequence[TextIds]) -> Iterator[Trial]:
    longest = max(len(text.prompt) for text in texts)
    for size in WINDOWS:
        if size < longest:
            cut = [
                TextIds([*text.prompt[:1], *text.prompt[-size:]][-len(text.prompt) :], text.ids)
                for text in texts
            ]
            yield Trial(
                "window", f"only the last {size:,} tokens of each prompt to read", draft, cut
            )


def _starts(draft: LoadedModel, target: LoadedModel, texts: Sequence[TextIds]) -> Iterator[Trial]:
    """With the start token of either before every text, or without the one that is there."""
    for bos in {model.tokenizer.bos_token_id: None for model in (draft, target)}:
        if bos is None or bos >= draft.info.vocab_size:
            continue
        name = f"the start token {draft.text.label(bos)} (id {bos})"
        if all(text.prompt[0] == bos and len(text.prompt) > 1 for text in texts):
            yield Trial(
                "start",
                f"{name} left out",
                draft,
                [TextIds(text.prompt[1:], text.ids) for text in texts],
            )
        elif all(len(text) < draft.info.context_limit for text in texts):
            more = [TextIds([bos, *text.prompt], text.ids) for text in texts]
            yield Trial("start", f"{name} before every text", draft, more)


def _precision(draft: LoadedModel, texts: Sequence[TextIds], pool: ModelPool) -> Iterator[Trial]:
    plain, bits = split_format(draft.name)
    if bits is not None:
        yield Trial(
            "precision",
            f"its own weights instead of {bits}",
            pool.load(plain, as_draft=True),
            texts,
        )
    elif (
        draft.model.dtype in (torch.bfloat16, torch.float16)
        and draft.info.num_parameters <= MOST_COPIED
    ):
        wide = replace(draft, model=copy.deepcopy(draft.model).float())
        yield Trial(
            "precision",
            f"float32 instead of {str(draft.model.dtype).removeprefix('torch.')}",
            wide,
            texts,
        )


# ---- heads: the target's states of a neighbouring layer or position, and another temperature -------------------------


class Changed(Drafter):
    """Another drafter along a text, with its states or its logits changed.

    layers: the states that it reads instead of its own. places: these come from so many tokens before, at the ends the
    nearest.
    """

    def __init__(
        self,
        drafter: Drafter,
        layers: tuple[int, ...] | None = None,
        places: int = 0,
        divided_by: float = 1.0,
    ) -> None:
        self._drafter, self._places, self._divided_by = drafter, places, divided_by
        self.hidden_layers = drafter.hidden_layers if layers is None else layers

    @property
    def waits(self) -> bool:
        return self._drafter.waits

    def along(self, tokens: Tensor, states: Tensor) -> Ahead | None:
        places = torch.arange(len(states), device=states.device) - self._places
        ahead = self._drafter.along(tokens, states[places.clamp(0, len(states) - 1)])

        def changed(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, Tensor | None]]:
            return (
                (rows / self._divided_by if rows.dim() == 2 else rows, known)
                for rows, known in ahead(starts, depths)
            )

        return changed


def head_trials(proposer: Proposer) -> Iterator[Trial]:
    """Nothing for drafts without states and without probabilities."""
    drafter, target = proposer.drafter(), proposer.setup.target
    if proposer.setup.method.replays_from_text:
        return
    for each in TEMPERATURES_OF_HEADS:
        yield Trial(
            "temperature", f"its logits divided by {each:g}", Changed(drafter, divided_by=each)
        )
    if not drafter.hidden_layers:
        return
    count = num_layers(target.model)
    for step, layer_words, token_words in ((-1, "earlier", "behind"), (1, "later", "before")):
        layers = tuple(layer % (count + 1) + step for layer in drafter.hidden_layers)
        if all(0 <= layer <= count for layer in layers):
            yield Trial("feature", f"the states of 1 layer {layer_words}", Changed(drafter, layers))
        yield Trial(
            "feature", f"the states of the token {token_words}", Changed(drafter, places=step)
        )
