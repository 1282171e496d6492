"""Undos of faults in matrices and norms: another scale, exchanged or transposed, rows in another rope's order, norms
off by one, layers in another order.

They go by the structure of the module, not by the names of an architecture, where they can: matrices of a layer that
stand side by side and have one shape may have been exchanged.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor, nn

from specviz.alignment.causes.reading import Family, on_module
from specviz.decoding.forward.transformers_forward import layers_of
from specviz.drafters.eagle.heads import EagleHead

STEPS = (0.5, 1, 1.5, 2, 3, 4)
"""Powers of two by which a scale may be off; half powers are within a fifth of any scale between."""
MOST_COPIED = 2_000_000_000  # parameters that are copied at once
SAME_PRODUCT = ({"q_proj", "k_proj"}, {"v_proj", "o_proj"}, {"up_proj", "down_proj"})
"""Matrices of which each multiplies what the other gives: a scale of one is a scale of the other."""
FORMATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def blocks_of(module: nn.Module) -> Sequence[nn.Module]:
    """The decoder layers of a model or a head; a module without such layers stands for itself."""
    if hasattr(module, "get_decoder"):
        return layers_of(module)
    if isinstance(module, EagleHead):
        first = getattr(module, "midlayer", None)
        return [*([first] if first is not None else []), *module.layers]
    return [module]


def matrices_of(block: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yields the matrices of a layer that are held in full precision: the module around each, its name, itself."""
    for parent in block.modules():
        for name, child in parent.named_children():
            weight = _weight(child)
            if weight is not None and weight.ndim == 2:
                yield parent, name, child


def norms_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields every norm with weights: its name in the module, itself."""
    for name, child in module.named_modules():
        weight = getattr(child, "weight", None)
        if "norm" in type(child).__name__.lower() and is_plain(weight) and weight.ndim == 1:
            yield name, child


def is_plain(weight: object) -> bool:
    """Whether weights are held as plain numbers that can be computed with; quantised ones are of other types."""
    return type(weight) is nn.Parameter and weight.dtype in FORMATS and not weight.is_meta


def put(module: nn.Module, weight: Tensor) -> None:
    """Gives a module of a twin another weight."""
    module.weight = nn.Parameter(weight, requires_grad=False)


def families(module: nn.Module) -> Iterator[Family]:
    """The undos in all layers at once, and of the layers' order."""
    yield from _scales(module, None)
    yield from _norms(module, None)
    yield from _structure(module, None)
    yield from _orders(module)


def families_of_layer(module: nn.Module, place: int) -> Iterator[Family]:
    """The undos of one layer alone."""
    for make in (_scales, _norms, _structure):
        for family in make(module, place):
            yield tuple(replace(undo, is_local=True) for undo in family)


def _where(module: nn.Module, place: int | None) -> str:
    count = len(blocks_of(module))
    if place is None:
        return "in every layer" if count > 1 else "in its layer"
    return f"in layer {place + 1} of {count}"


def _chosen(module: nn.Module, place: int | None) -> Sequence[nn.Module]:
    blocks = blocks_of(module)
    return blocks if place is None else [blocks[place]]


# ---- scales ----------------------------------------------------------------------------------------------------------


def _scales(module: nn.Module, place: int | None) -> Iterator[Family]:
    """Every matrix, those of each part, and those of each name, made smaller or larger."""
    blocks = _chosen(module, place)
    found = [
        (parent, name, child) for block in blocks for parent, name, child in matrices_of(block)
    ]
    if sum(child.weight.numel() for _, _, child in found) > MOST_COPIED:
        return
    names = sorted({name for _, name, _ in found})
    groups = [("all matrices", set(names))]
    for kind in sorted({type(parent).__name__ for parent, _, _ in found}):
        own = {name for parent, name, _ in found if type(parent).__name__ == kind}
        if len(own) > 1 and own != set(names):
            groups.append((f"the matrices of {kind}", own))
    for name in names if len(names) > 1 else ():
        pair = next((pair for pair in SAME_PRODUCT if name in pair), ())
        others = [other for other in pair if other != name and other in names]
        if not others or name < others[0]:  # one of a pair stands for both
            groups.append((f"{name} (or {others[0]})" if others else name, {name}))
    where = _where(module, place)
    for words, group in groups:
        yield from scales_of(f"{words} {where}", partial(_scale, place=place, names=group))


def scales_of(words: str, change: Callable[..., None]) -> Iterator[Family]:
    """Smaller and larger scales of something. change: scales it in a module, by `factor`."""
    for sign in (-1, 1):
        family = []
        for step in STEPS:
            factor = 2 ** (sign * step)
            cure = f"{words} times {factor:.3g}"
            scaled = partial(change, factor=factor)
            family.append(on_module("scale", cure, scaled, is_soft=True))
        yield tuple(family)


def _scale(module: nn.Module, place: int | None, names: set[str], factor: float) -> None:
    for block in _chosen(module, place):
        for _, name, child in list(matrices_of(block)):
            if name in names:
                put(child, child.weight * factor)


def _norms(module: nn.Module, place: int | None) -> Iterator[Family]:
    """Norm weights one smaller or larger, of all norms or of those of one name."""
    norms = _norms_in(module, place)
    names = sorted({name.rpartition(".")[2] for name, _ in norms})
    groups = [("every norm", frozenset(names))]
    if place is None and len(names) > 1:
        groups += [(f"every {name}", frozenset([name])) for name in names]
    where = "" if place is None else f" {_where(module, place)}"
    for words, group in groups:
        for step, step_words in ((-1, "1 taken from"), (1, "1 added to")):
            change = partial(_add_to_norms, place=place, names=group, step=step)
            yield (on_module("norm", f"{step_words} the weights of {words}{where}", change),)


def _norms_in(module: nn.Module, place: int | None) -> list[tuple[str, nn.Module]]:
    """All norms, also those outside of the layers, or those of one layer."""
    return list(norms_of(module if place is None else blocks_of(module)[place]))


def _add_to_norms(module: nn.Module, place: int | None, names: frozenset[str], step: float) -> None:
    for name, norm in _norms_in(module, place):
        if name.rpartition(".")[2] in names:
            put(norm, norm.weight + step)


# ---- matrices in each other's place ----------------------------------------------------------------------------------


def _structure(module: nn.Module, place: int | None) -> Iterator[Family]:
    """Matrices or norms side by side exchanged, square ones transposed, queries and keys in the other rope's order."""
    blocks = _chosen(module, place)
    where = _where(module, place)
    pairs: dict[tuple[str, str], None] = {}  # an ordered set
    squares: dict[str, None] = {}
    for block in blocks:
        for parent in block.modules():
            children = [
                (name, child)
                for name, child in parent.named_children()
                if _weight(child) is not None
            ]
            for (name, child), (other_name, other) in combinations(children, 2):
                if _weight(child).shape == _weight(other).shape and len(_weight(child).shape) < 3:
                    pairs[name, other_name] = None
            for name, child in children:
                weight = _weight(child)
                if weight.ndim == 2 and weight.shape[0] == weight.shape[1]:
                    squares[name] = None
    for name, other in pairs:
        change = partial(_exchange, place=place, names=(name, other))
        yield (on_module("exchange", f"{name} and {other} {where} exchanged", change),)
    for name in squares:
        change = partial(_transpose, place=place, name=name)
        yield (on_module("exchange", f"{name} {where} transposed", change),)
    if any(_has_heads(part) for block in blocks for part in block.modules()):
        ways = {
            False: "from pairs side by side to halves",
            True: "from halves to pairs side by side",
        }
        for to_pairs, words in ways.items():
            change = partial(_reorder_rope, place=place, to_pairs=to_pairs)
            cure = f"the rows of queries and keys {where} reordered {words}, as the other kind of rope has them"
            yield (on_module("layout", cure, change),)


def _weight(module: nn.Module) -> Tensor | None:
    weight = getattr(module, "weight", None)
    return weight if is_plain(weight) and not isinstance(module, nn.Embedding) else None


def _exchange(module: nn.Module, place: int | None, names: tuple[str, str]) -> None:
    for block in _chosen(module, place):
        for parent in list(block.modules()):
            children = [parent._modules.get(name) for name in names]
            if all(child is not None and _weight(child) is not None for child in children):
                first, second = children
                if first.weight.shape == second.weight.shape:
                    parent._modules[names[0]], parent._modules[names[1]] = second, first


def _transpose(module: nn.Module, place: int | None, name: str) -> None:
    for block in _chosen(module, place):
        for _, own_name, child in list(matrices_of(block)):
            if own_name == name and child.weight.shape[0] == child.weight.shape[1]:
                put(child, child.weight.T.contiguous())


def _has_heads(part: nn.Module) -> bool:
    return hasattr(part, "head_dim") and hasattr(part, "q_proj") and hasattr(part, "k_proj")


def _reorder_rope(module: nn.Module, place: int | None, *, to_pairs: bool) -> None:
    """Reorders the rows of each head: numbers that are rotated together stand side by side, or half a head apart."""
    for block in _chosen(module, place):
        for part in block.modules():
            if not _has_heads(part):
                continue
            size = part.head_dim
            shape = (2, size // 2) if to_pairs else (size // 2, 2)
            order = torch.arange(size).view(shape).T.flatten()
            for name in ("q_proj", "k_proj", "q_norm", "k_norm"):
                child = part._modules.get(name)
                for kind in ("weight", "bias"):
                    table = getattr(child, kind, None)
                    if is_plain(table) and len(table) % size == 0:
                        heads = table.unflatten(0, (-1, size))[:, order.to(table.device)]
                        setattr(child, kind, nn.Parameter(heads.flatten(0, 1), requires_grad=False))


# ---- whole layers ----------------------------------------------------------------------------------------------------


def _orders(module: nn.Module) -> Iterator[Family]:
    """Neighbours exchanged, all layers the other way round or moved round by one, a copied layer left out."""
    if not hasattr(module, "get_decoder"):
        return
    count = len(layers_of(module))
    for place in range(1, count):
        order = list(range(count))
        order[place - 1 : place + 1] = [place, place - 1]
        yield _order(f"layers {place} and {place + 1} exchanged", order)
    if count > 2:
        yield _order("the layers in reverse", list(range(count))[::-1])
        yield _order("the first layer put behind the last", [*range(1, count), 0])
        yield _order("the last layer put before the first", [count - 1, *range(count - 1)])
    for copied, _ in copies(module):
        yield (on_module("tensors", f"layer {copied + 1} left out", partial(_skip, place=copied)),)


def _order(cure: str, order: Sequence[int]) -> Family:
    return (on_module("order", cure, partial(_put_in_order, order=order)),)


def copies(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Yields the layers whose matrices all equal those of an earlier layer, and that layer."""
    blocks = [[linear.weight for _, _, linear in matrices_of(block)] for block in blocks_of(module)]
    for place, own in enumerate(blocks):
        for earlier in range(place):
            pairs = zip(own, blocks[earlier], strict=False)
            if own and all(a is not b and torch.equal(a, b) for a, b in pairs):
                yield place, earlier
                break


def _put_in_order(module: nn.Module, order: Sequence[int]) -> None:
    stack = layers_of(module)
    layers = list(stack)
    for place, source in enumerate(order):
        stack[place] = layers[source]


# ---- where it hurts: no causes ---------------------------------------------------------------------------------------


def damped(module: nn.Module) -> Iterator[tuple[int, Family]]:
    """Each layer left out, and each part of a layer damped: the number of the layer, and the family."""
    if not hasattr(module, "get_decoder"):
        return
    layers = layers_of(module)
    for place, layer in enumerate(layers):
        name = f"layer {place + 1} of {len(layers)}"
        yield place, (on_module("layer", f"{name} left out", partial(_skip, place=place)),)
        for part, child in layer.named_children():
            if any(weight.ndim > 1 for weight in child.parameters()):
                family = []
                for factor in (0.75, 0.5, 0.25):
                    cure = f"the {part.replace('_', ' ')} of {name} damped to {100 * factor:.0f} %"
                    change = partial(_damp, place=place, part=part, factor=factor)
                    family.append(on_module("layer", cure, change))
                yield place, tuple(family)


def _skip(module: nn.Module, place: int) -> None:
    """Makes the layer return its input."""

    def return_input(_, args, kwargs, output):
        hidden = args[0] if args else kwargs["hidden_states"]
        return hidden if isinstance(output, Tensor) else (hidden, *output[1:])

    layers_of(module)[place].register_forward_hook(return_input, with_kwargs=True)


def _damp(module: nn.Module, place: int, part: str, factor: float) -> None:
    """Multiplies what this part of a layer adds."""

    def scale_output(_, args, output):
        if isinstance(output, Tensor):
            return factor * output
        return (factor * output[0], *output[1:])

    getattr(layers_of(module)[place], part).register_forward_hook(scale_output)
