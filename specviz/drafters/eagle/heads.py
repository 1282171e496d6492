"""EAGLE heads: decoder layers that go on in the target's feature space (arXiv:2401.15077, EAGLE-3 2503.01840).

A row reads the target's feature at token t and the embedding of token t+1; its output is the feature at t+1, which an
output matrix turns into the law of token t+2. `read` takes the formats of `layouts`; whatever does not fit the target
is refused by a SpecvizError.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specviz.drafters.eagle.layers import (
    AttentionParts,
    FusingLayer,
    KeyValueRows,
    Layer,
    PlainLayer,
)
from specviz.drafters.eagle.layouts import (
    EAGLE,
    EAGLE3,
    MTP,
    Layout,
    find_layout,
    fused_layers,
    shape_of,
)
from specviz.drafters.heads import check_ids
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import LoadReport, fill
from specviz.models.pool import LoadedModel

IGNORED = r"(.*\.)?rotary_emb\.inv_freq|verifier_(norm|lm_head)\.weight"
"""Names of tensors that nothing needs; the last two are copies of the target's that training used."""
_BY_ID = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
_PLAIN = Layout(EAGLE3, {}, {})


class EagleHead(nn.Module):
    """EAGLE-1 and -2: keys `fc.*` and `layers.0.*`; the feature is the target's last state after the final norm.

    hidden_layers: the target's states that its features are made of. num_choices: how many tokens it can propose.
    lm_head: its own output matrix where it has one; else the target's gives its logits.
    """

    hidden_layers: tuple[int, ...] = (-1,)

    def __init__(
        self, config: LlamaConfig, target: LoadedModel, layout: Layout, parts: AttentionParts
    ) -> None:
        super().__init__()
        self._shared = (
            target.model.get_input_embeddings(),
            target.model.get_output_embeddings(),
        )  # not its own
        self._width = target.model.config.get_text_config(decoder=True).hidden_size
        self.embed_tokens: nn.Embedding | None = None
        self.lm_head: nn.Linear | None = None
        self.vocab_size = self.num_choices = target.info.vocab_size
        self._build(config, layout, parts)

    def _build(self, config: LlamaConfig, layout: Layout, parts: AttentionParts) -> None:
        names = layout.names.values()
        self.fc = nn.Linear(
            2 * config.hidden_size,
            config.hidden_size,
            bias=layout.settings.get("bias", True) is not False,
        )
        self.layers = nn.ModuleList([self._layer(config, parts)])
        self.enorm, self.hnorm = (  # of HASS and of modules for multi-token prediction
            _norm(config) if f"{name}.weight" in names else nn.Identity()
            for name in ("enorm", "hnorm")
        )

    def _layer(self, config: LlamaConfig, parts: AttentionParts) -> Layer:
        return Layer(config, config.hidden_size, parts)

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [n, C] -> features [n, H]."""
        return states

    def ahead(self, count: int) -> tuple[Tensor, Tensor] | None:
        """Features [count, H] and ids [count] that stand for tokens not drafted yet, where one pass drafts them all;
        None for a head that goes on from its own features."""
        return None

    def forward(
        self,
        features: Tensor,
        ids: Tensor,
        positions: Tensor,
        rows: KeyValueRows,
        see: Tensor | None,
    ) -> Tensor:
        """Features [M, H] and the tokens [M] that follow them, at `positions` [M] -> the next features [M, H]."""
        embedded = (self.embed_tokens or self._shared[0])(ids).to(features.dtype)
        hidden = self._next(embedded, features, self.rotary(features, positions[None]), rows, see)
        rows.count += len(ids)
        return hidden

    def _next(self, embedded: Tensor, features: Tensor, *attention) -> Tensor:
        hidden = self.fc(torch.cat([self.enorm(embedded), self.hnorm(features)], dim=-1))
        return self.layers[0](hidden, hidden, *attention)

    def choices(self, features: Tensor) -> Tensor:
        """Features [M, H] -> logits [M, D] over the tokens that it can propose."""
        output = self.lm_head or self._shared[1]
        return output(features).to(
            features.device
        )  # of a target over several GPUs it is on the last one

    def ids(self, choices: Tensor) -> Tensor:
        """The target's ids of these choices, numbers below D."""
        return choices

    def spread(self, rows: Tensor) -> Tensor:
        """Logits [M, D] over its choices -> logits [M, V] over the target's vocabulary."""
        lacking = self.vocab_size - rows.shape[-1]
        return pad(rows, (0, lacking), value=float("-inf")) if lacking else rows

    def logits(self, features: Tensor) -> Tensor:
        """Features [M, H] -> logits [M, V] over the target's vocabulary."""
        return self.spread(self.choices(features))

    def take(self, state: Mapping[str, Tensor], num_ids: int) -> set[str]:
        """Reads the tensors beside its layers' weights; returns the names of those it has used. num_ids: the rows of
        its tables. A table or an output matrix that repeats the target's own is not kept."""
        width, own = self.fc.out_features, self._shared[1].weight
        names, output = self._take_table(state, width, num_ids), state.get("lm_head.weight")
        if output is None:
            return names
        _check("lm_head.weight", output, (num_ids, width))
        if output.shape != own.shape or not torch.equal(output.to(own), own):
            self.num_choices, self.lm_head = (
                num_ids,
                nn.Linear(width, num_ids, bias=False, device="meta"),
            )
            self.lm_head.weight = nn.Parameter(output.to(self.fc.weight), requires_grad=False)
        return names | {"lm_head.weight"}

    def _take_table(self, state: Mapping[str, Tensor], width: int, num_ids: int) -> set[str]:
        table, own = state.get("embed_tokens.weight"), self._shared[0].weight
        if table is None:
            if width != own.shape[1]:
                raise SpecvizError(
                    f"it lacks embed_tokens.weight, and the target's embeddings are not {width} wide"
                )
            return set()
        _check("embed_tokens.weight", table, (num_ids, width))
        if width != own.shape[1] or not torch.equal(
            table.to(own), own[:num_ids]
        ):  # public files repeat the target's
            whole = pad(table, (0, 0, 0, len(own) - num_ids))  # no text holds the ids that it lacks
            self.embed_tokens = nn.Embedding.from_pretrained(whole.to(own))
        return {"embed_tokens.weight"}

    def norms(self) -> list[str]:
        return [name for name, module in self.named_modules() if isinstance(module, LlamaRMSNorm)]

    def flags(self) -> tuple[str, ...]:
        """Flags of its format that could be the other way round with the same weights."""
        return ()

    def without(self, norm: str) -> "EagleHead":
        """The same head, weights shared, that skips a norm."""
        twin = self._twin()
        twin.set_submodule(norm, nn.Identity())
        return twin

    def _twin(self) -> "EagleHead":
        shared = [*self.parameters(), *self.buffers(), *self._shared]
        return copy.deepcopy(self, {id(each): each for each in shared})


class MtpHead(EagleHead):
    """One module for multi-token prediction, used again for every further token (FastMTP, arXiv:2509.18362): a plain
    layer behind norms and a projection; its own normalised output is its next feature."""

    def _build(self, config: LlamaConfig, layout: Layout, parts: AttentionParts) -> None:
        super()._build(config, layout, parts)
        self.enorm, self.hnorm, self.norm = (_norm(config) for _ in range(3))

    def _layer(self, config: LlamaConfig, parts: AttentionParts) -> PlainLayer:
        return PlainLayer(config, parts)

    def _next(self, embedded: Tensor, features: Tensor, *attention) -> Tensor:
        hidden = self.fc(torch.cat([self.enorm(embedded), self.hnorm(features)], dim=-1))
        return self.norm(self.layers[0](hidden, *attention))


class Eagle3Head(EagleHead):
    """EAGLE-3: keys `fc.weight`, `midlayer.*`, `norm.weight`, `lm_head.weight`, and `d2t`, `t2d` for fewer tokens.

    Its feature is made of several of the target's states; its own output is its next feature. EAGLE-3.1 adds norms and
    layers, P-EAGLE a feature that stands for what is not known yet.
    """

    def __init__(
        self,
        config: LlamaConfig,
        target: LoadedModel,
        layout: Layout = _PLAIN,
        parts: AttentionParts = AttentionParts(),  # noqa: B008
        hidden_layers: tuple[int, ...] = (0, 0, 0),
    ) -> None:
        self.hidden_layers = hidden_layers
        super().__init__(config, target, layout, parts)

    def _build(self, config: LlamaConfig, layout: Layout, parts: AttentionParts) -> None:
        self.num_choices, count = config.vocab_size, len(self.hidden_layers)
        self._mask, self._norms_output = layout.mask, layout.flag("norm_output")
        self.fc = nn.Linear(count * self._width, config.hidden_size, bias=False)
        self.midlayer = FusingLayer(
            config, parts, norms_residual=layout.flag("norm_before_residual")
        )
        self.layers = nn.ModuleList(
            PlainLayer(config, parts, layer) for layer in range(1, config.num_hidden_layers)
        )
        self.norm = _norm(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.input_norm = (
            _norm(config, count * self._width) if layout.flag("norm_before_fc") else nn.Identity()
        )
        each = count if layout.flag("fc_norm") else 0
        self.fc_norm = nn.ModuleList(_norm(config, self._width) for _ in range(each))
        if self._mask is not None:
            self.mask_hidden = nn.Parameter(torch.empty(1, 1, count * self._width))

    def fuse(self, states: Tensor) -> Tensor:
        states = self.input_norm(states)
        if self.fc_norm:
            parts = states.split(self._width, dim=-1)
            states = torch.cat(
                [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1
            )
        return self.fc(states)

    def ahead(self, count: int) -> tuple[Tensor, Tensor] | None:
        if self._mask is None:
            return None
        features = self.fuse(self.mask_hidden[0]).expand(count, -1)
        return features, torch.full((count,), self._mask, device=features.device)

    def _next(self, embedded: Tensor, features: Tensor, *attention) -> Tensor:
        hidden = self.midlayer(embedded, features, *attention)
        for layer in self.layers:
            hidden = layer(hidden, *attention)
        return self.norm(hidden) if self._norms_output else hidden

    def choices(self, features: Tensor) -> Tensor:
        return self.lm_head(features if self._norms_output else self.norm(features))

    def ids(self, choices: Tensor) -> Tensor:
        return self._target_ids[choices]

    def spread(self, rows: Tensor) -> Tensor:
        return rows.new_full((len(rows), self.vocab_size), float("-inf")).index_copy(
            1, self._target_ids, rows
        )

    def take(self, state: Mapping[str, Tensor], num_ids: int) -> set[str]:
        names = {name for name in ("d2t", "t2d") if name in state}
        ids = _target_ids(state, self.num_choices, num_ids, self.vocab_size)
        self._target_ids = ids.to(self._shared[0].weight.device)
        return names | self._take_table(state, self.fc.out_features, num_ids)

    def flags(self) -> tuple[str, ...]:
        return ("norm_before_residual", "norm_output")

    def with_flag_flipped(self, flag: str) -> "Eagle3Head":
        """The same head, weights shared, with one of its `flags` the other way round."""
        twin = self._twin()
        if flag == "norm_output":
            twin._norms_output = not twin._norms_output
        else:
            twin.midlayer.norms_residual = not twin.midlayer.norms_residual
        return twin

    def borrow_output(self, *, is_tied: bool = False) -> None:
        """Takes the target's own rows of its tokens as output matrix, where they fit. is_tied: its own table's, if it
        has one (SGLang, models/llama_eagle3.py)."""
        own = self.embed_tokens.weight if is_tied and self.embed_tokens else self._shared[1].weight
        if own.shape[1] == self.fc.out_features:
            rows = own[self._target_ids.to(own.device)].to(self._target_ids.device)
            self.lm_head.weight = nn.Parameter(rows, requires_grad=False)


def _norm(config: LlamaConfig, size: int | None = None) -> LlamaRMSNorm:
    return LlamaRMSNorm(size or config.hidden_size, eps=config.rms_norm_eps)


_HEADS: Mapping[str, type[EagleHead]] = {EAGLE: EagleHead, MTP: MtpHead, EAGLE3: Eagle3Head}


def read(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[EagleHead, LoadReport]:
    """A head for `target` from a checkpoint's settings and tensors, whose names tell the layouts apart. SpecvizError.

    Tensors that are missing stay on the meta device.
    """
    layout = find_layout(config, state, target)
    shape, is_third = shape_of(layout, target), layout.kind == EAGLE3
    layers = (fused_layers(layout, target),) if is_third else ()
    with torch.device("meta"):
        head = _HEADS[layout.kind](shape, target, layout, _parts(layout), *layers)
    like = torch.empty(0, dtype=target.model.dtype, device=target.model.device)
    num_held = layout.vocabulary(target)
    num_ids = min(num_held, target.info.vocab_size)
    state = {
        key: _plain(layout.names[key], tensor, num_held, num_ids) for key, tensor in state.items()
    }
    if is_third:
        _check_states(layout, state, head)
    keys = fill(head, state, like, layout.names)
    taken = head.take({layout.names[key]: tensor for key, tensor in state.items()}, num_ids)
    missing = keys.missing
    is_whole = head.num_choices == num_ids
    if is_third and "lm_head.weight" in missing and (layout.of_speculators or is_whole):
        head.borrow_output(is_tied=not layout.of_speculators and layout.flag("tie_word_embeddings"))
        missing = tuple(
            name for name in missing if name != "lm_head.weight" or head.lm_head.weight.is_meta
        )
    head.rotary = LlamaRotaryEmbedding(shape).to(like.device)  # stays in float32
    taken = sorted(key for key in keys.unused if layout.names[key] in taken)
    return head, LoadReport(
        (*keys.used, *taken), tuple(key for key in keys.unused if key not in taken), missing
    )


def _plain(name: str, tensor: Tensor, num_held: int, num_ids: int) -> Tensor:
    """The tensor without the rows of its padding; a mask in the shape that speculators gives it, not in vLLM's."""
    if name == "mask_hidden":
        return tensor.reshape(1, 1, -1)
    is_by_id = name in _BY_ID and tensor.ndim > 0 and len(tensor) == num_held
    return tensor[:num_ids] if is_by_id else tensor


def _check_states(layout: Layout, state: Mapping[str, Tensor], head: EagleHead) -> None:
    """Refuses a head whose matrix reads another number of states than its settings name."""
    sizes = [
        tensor.shape[-1]
        for key, tensor in state.items()
        if layout.names[key] == "fc.weight" and tensor.ndim == 2
    ]
    named, count = layout.layers(), len(head.hidden_layers)
    reads, rest = divmod(sizes[0], head.fc.in_features // count) if sizes else (count, 0)
    if reads != count and not rest:
        told = (
            f"does not say which ones (EAGLE-3 reads {count})"
            if named is None
            else f"names {count} ({named.field})"
        )
        raise SpecvizError(
            f"its fc.weight reads {reads} of the target's states, and its config.json {told}"
        )


def _parts(layout: Layout) -> AttentionParts:
    """What the settings, or for what they do not tell, the tensors say of the head's attention."""
    names, settings = layout.names.values(), layout.settings
    has_bias = settings.get("qkv_bias", settings.get("attention_bias")) is True
    has_norms = any(
        name.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight")) for name in names
    )
    return AttentionParts(
        has_bias, any(name.endswith("self_attn.o_proj.bias") for name in names), has_norms
    )


def _target_ids(
    state: Mapping[str, Tensor], num_choices: int, num_ids: int, vocab_size: int
) -> Tensor:
    """The target's id [D] of each token that the head can propose: d2t holds the difference. num_ids: the rows of the
    head's tables, which may be padded otherwise than the target's vocab_size."""
    if "d2t" not in state and num_choices != num_ids:
        raise SpecvizError(
            f"it proposes {num_choices} of {vocab_size} tokens and lacks d2t, which says which ones"
        )
    shift = state.get("d2t", torch.zeros(num_choices, dtype=torch.long))
    _check("d2t", shift, (num_choices,), is_float=False)
    if num_choices != num_ids and not shift.any():
        raise SpecvizError(
            f"its d2t is all zeros: it must say which {num_choices} of the target's {vocab_size} tokens the head "
            "proposes"
        )
    ids = check_ids("d2t", torch.arange(num_choices) + shift.cpu().long(), vocab_size)
    if "t2d" in state:
        _check("t2d", state["t2d"], (num_ids,), is_float=False)
        if state["t2d"].cpu().nonzero().flatten().tolist() != sorted(ids.tolist()):
            raise SpecvizError(
                "its t2d must mark the very ids that its d2t leads to; they disagree"
            )
    return ids


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], *, is_float: bool = True) -> None:
    if tuple(tensor.shape) != shape or tensor.is_floating_point() != is_float:
        kind = "decimal" if is_float else "whole"
        got = f"{tensor.dtype}, {list(tensor.shape)!s:.60}"
        raise SpecvizError(
            f"{name} must hold {kind} numbers in the shape {list(shape)} (got {got})"
        )
