"""EAGLE heads: decoder layers that go on in the target's feature space (arXiv:2401.15077, EAGLE-3 2503.01840).

A row reads the target's feature at token t and the embedding of token t+1. Its output is the feature at t+1, and an
output matrix turns it into the distribution of token t+2. `read` takes the formats of `layouts`, and raises
SpecvizError for a head that does not fit the target.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specviz.drafters.eagle.layers import (
    AttentionParts,
    FusingLayer,
    HeadRows,
    Layer,
    PlainLayer,
    RMSNorm,
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
"""Names of tensors that nothing needs. The last two are copies of the target's tensors, used in training."""
_BY_ID = (
    "embed_tokens.weight",
    "lm_head.weight",
    "markov.embed.weight",
    "markov.0.weight",
    "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
    "d2t",
    "t2d",
)
_PLAIN = Layout(EAGLE3, {}, {})


class EagleHead(nn.Module):
    """EAGLE-1 and -2: keys `fc.*` and `layers.0.*`. The feature is the target's last state after the final norm.

    num_choices: how many tokens it can propose. embed_tokens, lm_head: its own embeddings and output matrix; None
    where it uses the target's.
    """

    hidden_layers: tuple[int, ...] = (-1,)
    """The target's states that its features are made of."""

    def __init__(
        self, config: LlamaConfig, target: LoadedModel, layout: Layout, parts: AttentionParts
    ) -> None:
        super().__init__()
        embeddings = target.model.get_input_embeddings()
        # in a tuple, or nn.Module would count the target's modules as its own
        self._shared = (embeddings, target.model.get_output_embeddings())
        self._width = target.model.config.get_text_config(decoder=True).hidden_size
        self.embed_tokens: nn.Embedding | None = None
        self.lm_head: nn.Linear | None = None
        self.vocab_size = self.num_choices = target.info.vocab_size
        self._build(config, layout, parts)

    def _build(self, config: LlamaConfig, layout: Layout, parts: AttentionParts) -> None:
        names = layout.names.values()
        size = config.hidden_size
        has_bias = layout.settings.get("bias", True) is not False
        self.fc = nn.Linear(2 * size, size, bias=has_bias)
        self.layers = nn.ModuleList([self._layer(config, parts)])
        # HASS and modules for multi-token prediction have these norms
        self.enorm = _norm(config) if "enorm.weight" in names else nn.Identity()
        self.hnorm = _norm(config) if "hnorm.weight" in names else nn.Identity()

    def _layer(self, config: LlamaConfig, parts: AttentionParts) -> Layer:
        return Layer(config, config.hidden_size, parts)

    def rows(self) -> HeadRows:
        """No rows yet, for one text."""
        return HeadRows([*self.layers], self.rotary)

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [n, C] -> features [n, H]."""
        return states

    def ahead(self, count: int) -> tuple[Tensor, Tensor] | None:
        """The features [count, H] and ids [count] that stand for tokens not drafted yet, if one pass drafts all depths.

        None for a head that goes on from its own features.
        """
        return None

    def forward(
        self,
        features: Tensor,
        ids: Tensor,
        positions: Tensor,
        rows: HeadRows,
        see: Tensor | None,
    ) -> Tensor:
        """Features [M, H] and the tokens [M] that follow them, at `positions` [M] -> the next features [M, H]."""
        embeddings = self.embed_tokens or self._shared[0]
        embedded = embeddings(ids).to(features.dtype)  # [M, H]
        return self._next(embedded, features, rows, positions, see)

    def _next(self, embedded: Tensor, features: Tensor, rows: HeadRows, *where) -> Tensor:
        hidden = self._join(embedded, features)
        return rows.read(hidden, hidden, *where)

    def _join(self, embedded: Tensor, features: Tensor) -> Tensor:
        return self.fc(torch.cat([self.enorm(embedded), self.hnorm(features)], dim=-1))

    def choices(self, features: Tensor) -> Tensor:
        """Features [M, H] -> logits [M, D] over the tokens that it can propose."""
        output = self.lm_head or self._shared[1]
        # a target over several GPUs has its output matrix on the last one
        return output(features).to(features.device)

    def ids(self, choices: Tensor) -> Tensor:
        """The target's ids for these choices, which are numbers below D."""
        return choices

    def spread(self, rows: Tensor) -> Tensor:
        """Logits [M, D] over its choices -> logits [M, V] over the target's vocabulary."""
        lacking = self.vocab_size - rows.shape[-1]
        return pad(rows, (0, lacking), value=float("-inf")) if lacking else rows

    def logits(self, features: Tensor) -> Tensor:
        """Features [M, H] -> logits [M, V] over the target's vocabulary."""
        return self.spread(self.choices(features))

    def take(self, state: Mapping[str, Tensor], num_ids: int) -> set[str]:
        """Reads the tensors beside its layers' weights and returns the names of those that it used.

        num_ids: the rows of its tables. A table or an output matrix that repeats the target's is not stored.
        """
        width = self.fc.out_features
        names = self._take_table(state, width, num_ids)
        output = state.get("lm_head.weight")
        if output is None:
            return names
        _check("lm_head.weight", output, (num_ids, width))
        targets = self._shared[1].weight
        if output.shape != targets.shape or not torch.equal(output.to(targets), targets):
            self.num_choices = num_ids
            self.lm_head = nn.Linear(width, num_ids, bias=False, device="meta")
            self.lm_head.weight = nn.Parameter(output.to(self.fc.weight), requires_grad=False)
        return names | {"lm_head.weight"}

    def _take_table(self, state: Mapping[str, Tensor], width: int, num_ids: int) -> set[str]:
        table = state.get("embed_tokens.weight")
        targets = self._shared[0].weight
        if table is None:
            if width != targets.shape[1]:
                raise SpecvizError(
                    f"it lacks embed_tokens.weight, and the target's embeddings are not {width} wide"
                )
            return set()
        _check("embed_tokens.weight", table, (num_ids, width))
        # public files repeat the target's table
        if width != targets.shape[1] or not torch.equal(table.to(targets), targets[:num_ids]):
            num_lacking = len(targets) - num_ids  # no text holds these ids
            whole = pad(table, (0, 0, 0, num_lacking))
            self.embed_tokens = nn.Embedding.from_pretrained(whole.to(targets))
        return {"embed_tokens.weight"}

    def norms(self) -> list[str]:
        """The names of its norms."""
        return [name for name, module in self.named_modules() if isinstance(module, RMSNorm)]

    def flags(self) -> tuple[str, ...]:
        """The flags of its format that would fit the same weights with either value."""
        return ()


class MtpHead(EagleHead):
    """One module for multi-token prediction, used again for every further token (FastMTP, arXiv:2509.18362).

    It is a plain layer behind norms and a projection. Its normalised output is its next feature.
    """

    def _build(self, config: LlamaConfig, layout: Layout, parts: AttentionParts) -> None:
        super()._build(config, layout, parts)
        self.enorm = _norm(config)
        self.hnorm = _norm(config)
        self.norm = _norm(config)

    def _layer(self, config: LlamaConfig, parts: AttentionParts) -> PlainLayer:
        return PlainLayer(config, parts)

    def _next(self, embedded: Tensor, features: Tensor, rows: HeadRows, *where) -> Tensor:
        hidden = self._join(embedded, features)
        return self.norm(rows.read(hidden, None, *where))


class Eagle3Head(EagleHead):
    """EAGLE-3: keys `fc.weight`, `midlayer.*`, `norm.weight`, `lm_head.weight`, and `d2t`, `t2d` for fewer tokens.

    Several of the target's states make one feature. The head's own output is its next feature. EAGLE-3.1 adds norms
    and layers. P-EAGLE adds a feature that stands for a token not known yet.
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
        self.num_choices = config.vocab_size
        self._mask = layout.mask
        self._norms_output = layout.flag("norm_output")
        num_states = len(self.hidden_layers)
        input_size = num_states * self._width
        self.fc = nn.Linear(input_size, config.hidden_size, bias=False)
        norms_residual = layout.flag("norm_before_residual")
        self.midlayer = FusingLayer(config, parts, norms_residual=norms_residual)
        num_plain = config.num_hidden_layers - 1
        self.layers = nn.ModuleList(PlainLayer(config, parts) for _ in range(num_plain))
        self.norm = _norm(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        has_input_norm = layout.flag("norm_before_fc")
        self.input_norm = _norm(config, input_size) if has_input_norm else nn.Identity()
        self.fc_norm = nn.ModuleList()
        if layout.flag("fc_norm"):
            self.fc_norm.extend(_norm(config, self._width) for _ in range(num_states))
        if self._mask is not None:
            self.mask_hidden = nn.Parameter(self.fc.weight.new_empty(1, 1, input_size))

    def rows(self) -> HeadRows:
        return HeadRows([self.midlayer, *self.layers], self.rotary)

    def fuse(self, states: Tensor) -> Tensor:
        states = self.input_norm(states)
        if self.fc_norm:
            parts = states.split(self._width, dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            states = torch.cat(normed, dim=-1)
        return self.fc(states)

    def ahead(self, count: int) -> tuple[Tensor, Tensor] | None:
        if self._mask is None:
            return None
        features = self.fuse(self.mask_hidden[0]).expand(count, -1)
        return features, torch.full((count,), self._mask, device=features.device)

    def _next(self, embedded: Tensor, features: Tensor, rows: HeadRows, *where) -> Tensor:
        first = self.midlayer
        normed = first.hidden_norm(features)
        inputs = torch.cat([first.input_layernorm(embedded), normed], dim=-1)  # [M, 2 * H]
        residual = normed if first.norms_residual else features
        hidden = rows.read(residual, inputs, *where)
        return self.norm(hidden) if self._norms_output else hidden

    def choices(self, features: Tensor) -> Tensor:
        return self.lm_head(features if self._norms_output else self.norm(features))

    def ids(self, choices: Tensor) -> Tensor:
        return self.target_ids[choices]

    def spread(self, rows: Tensor) -> Tensor:
        wide = rows.new_full((len(rows), self.vocab_size), float("-inf"))
        return wide.index_copy(1, self.target_ids, rows)

    def take(self, state: Mapping[str, Tensor], num_ids: int) -> set[str]:
        names = {name for name in ("d2t", "t2d") if name in state}
        ids = _target_ids(state, self.num_choices, num_ids, self.vocab_size)
        self.target_ids = ids.to(self._shared[0].weight.device)
        return names | self._take_table(state, self.fc.out_features, num_ids)

    def flags(self) -> tuple[str, ...]:
        return ("norm_before_residual", "norm_output")

    def flip(self, flag: str) -> None:
        """Turns one of its `flags` round."""
        if flag == "norm_output":
            self._norms_output = not self._norms_output
        else:
            self.midlayer.norms_residual = not self.midlayer.norms_residual

    def borrow_output(self, *, is_tied: bool = False) -> None:
        """Takes the target's output rows of its tokens as output matrix, if they are as wide as its features.

        is_tied: it takes the rows of its own embeddings instead, if it has any (SGLang, models/llama_eagle3.py).
        """
        table = self._shared[1].weight
        if is_tied and self.embed_tokens:
            table = self.embed_tokens.weight
        if table.shape[1] == self.fc.out_features:
            rows = table[self.target_ids.to(table.device)].to(self.target_ids.device)
            self.lm_head.weight = nn.Parameter(rows, requires_grad=False)


def _norm(config: LlamaConfig, size: int | None = None) -> RMSNorm:
    return RMSNorm(size or config.hidden_size, eps=config.rms_norm_eps)


_HEADS: Mapping[str, type[EagleHead]] = {EAGLE: EagleHead, MTP: MtpHead, EAGLE3: Eagle3Head}


def read(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[EagleHead, LoadReport]:
    """Makes a head for `target` from a checkpoint's settings and tensors; the tensors' names tell the layouts apart.

    Missing tensors stay on the meta device. Raises SpecvizError for a head that does not fit.
    """
    layout = find_layout(config, state, target)
    layers = (fused_layers(layout, target),) if layout.kind == EAGLE3 else ()
    return make_head(_HEADS[layout.kind], layout, layers, state, target)


def make_head(
    kind: type[EagleHead],
    layout: Layout,
    layers: tuple[tuple[int, ...], ...],
    state: Mapping[str, Tensor],
    target: LoadedModel,
) -> tuple[EagleHead, LoadReport]:
    """Makes a head of this kind from a checkpoint's tensors.

    layers: nothing, or the target's states that an Eagle3Head reads.
    """
    shape = shape_of(layout, target)
    is_third = issubclass(kind, Eagle3Head)
    with torch.device("meta"):
        head = kind(shape, target, layout, _parts(layout), *layers)  # ty: ignore[too-many-positional-arguments]
    like = torch.empty(0, dtype=target.model.dtype, device=target.model.device)
    num_rows = layout.vocabulary(target)
    num_ids = min(num_rows, target.info.vocab_size)
    plain: dict[str, Tensor] = {}
    for key, tensor in state.items():
        plain[key] = _remove_padding(layout.names[key], tensor, num_rows, num_ids)
    if is_third:
        _check_states(layout, plain, head)
    keys = fill(head, plain, like, layout.names)
    taken_names = head.take({layout.names[key]: plain[key] for key in plain}, num_ids)
    missing = keys.missing
    is_whole = head.num_choices == num_ids
    if is_third and "lm_head.weight" in missing and (layout.of_speculators or is_whole):
        is_tied = not layout.of_speculators and layout.flag("tie_word_embeddings")
        head.borrow_output(is_tied=is_tied)
        if head.lm_head is None or not head.lm_head.weight.is_meta:
            missing = tuple(name for name in missing if name != "lm_head.weight")
    head.rotary = LlamaRotaryEmbedding(shape).to(like.device)  # stays in float32
    taken = sorted(key for key in keys.unused if layout.names[key] in taken_names)
    unused = tuple(key for key in keys.unused if key not in taken)
    return head, LoadReport((*keys.used, *taken), unused, missing)


def _remove_padding(name: str, tensor: Tensor, num_rows: int, num_ids: int) -> Tensor:
    """The tensor without padding rows. A mask gets the shape that speculators gives it, not vLLM's."""
    if name == "mask_hidden":
        return tensor.reshape(1, 1, -1)
    is_by_id = name in _BY_ID and tensor.ndim > 0 and len(tensor) == num_rows
    return tensor[:num_ids] if is_by_id else tensor


def _check_states(layout: Layout, state: Mapping[str, Tensor], head: EagleHead) -> None:
    """Raises SpecvizError if the head's matrix reads another number of states than its settings name."""
    count = len(head.hidden_layers)
    state_size = head.fc.in_features // count
    for key, tensor in state.items():
        if layout.names[key] == "fc.weight" and tensor.ndim == 2:
            num_read, rest = divmod(tensor.shape[-1], state_size)
            break
    else:
        return
    if num_read == count or rest:
        return
    named = layout.layers()
    no_words = f"does not say which ones (EAGLE-3 reads {count})"
    words = no_words if named is None else f"names {count} ({named.field})"
    raise SpecvizError(
        f"its fc.weight reads {num_read} of the target's states, and its config.json {words}"
    )


def _parts(layout: Layout) -> AttentionParts:
    """The parts of the head's attention: the bias by the settings, the rest by the tensors' names."""
    names = layout.names.values()
    settings = layout.settings
    norms = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
    has_bias = settings.get("qkv_bias", settings.get("attention_bias")) is True
    has_output_bias = any(name.endswith("self_attn.o_proj.bias") for name in names)
    has_norms = any(name.endswith(norms) for name in names)
    return AttentionParts(has_bias, has_output_bias, has_norms)


def _target_ids(
    state: Mapping[str, Tensor], num_choices: int, num_ids: int, vocab_size: int
) -> Tensor:
    """The target's id [D] of each token that the head can propose; d2t holds the difference to the token's number.

    num_ids: the rows of the head's tables. Their padding may differ from the target's vocab_size.
    """
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
        marked = state["t2d"].cpu().nonzero().flatten()
        if marked.tolist() != sorted(ids.tolist()):
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
