"""CachedLM: a causal language model with a KV cache that follows whatever tokens it is given.

Each call names the whole text. Rows that already spell it are kept, the rest is dropped, and missing tokens are fed.
There is no rewind, crop or commit anywhere else. A list that is passed again may only have been appended to: then a
step costs O(new tokens) in Python, however long the text is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specviz.decoding.device import to_device, without_plans
from specviz.decoding.draft import EMPTY, ROOT, Draft, common_prefix
from specviz.decoding.forward.compact_forward import Compact, layers_for, refusal
from specviz.decoding.forward.products import Products
from specviz.decoding.forward.proof import Proof, find_replay_fault, prove_reading
from specviz.decoding.forward.quick import Quick, compiled_refusal
from specviz.decoding.forward.replays import Replays, can_replay
from specviz.decoding.forward.transformers_forward import (
    Forward,
    TransformersForward,
    num_layers,
    tokens_at_once,
)
from specviz.decoding.turns import give_way
from specviz.decoding.work import Work
from specviz.errors import SpecvizError

LONG = 256
"""New tokens that are read before a tree behind them: one mask for both would grow with the square."""
STATES_ALONE = ("linear_attention", "conv")
BESIDE_STATE = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
"""Kinds of layers that keep a state: without attention, and beside attention of which kind."""
CHUNKED = "chunked_attention"
"""The kind of attention that sees the tokens of its own chunk, as Llama 4 has it."""
MOST_TOGETHER = 16
"""New tokens that a model with a state reads together with a draft: all are read again if some of it is rejected."""

PRODUCTS = Products()
_PROVED: WeakKeyDictionary[PreTrainedModel, tuple[object, Proof]] = WeakKeyDictionary()


class CachedLM:
    """A causal language model with a KV cache that follows whatever tokens it is given."""

    def __init__(
        self,
        model: PreTrainedModel,
        context_limit: int,
        products: Products = PRODUCTS,
        forward: Forward | None = None,
    ) -> None:
        """products: how few rows are multiplied with a matrix on the CPU, and the compiled code if there is any.

        forward: a way to run the model, over rows that only this reader has. None: the fastest one that is right.
        """
        self.model = model
        self.products = products
        self.device = model.get_input_embeddings().weight.device
        without_plans(self.device)
        self.no_trees = ""
        """Why the model reads no token trees, in words; empty where it does."""
        self.proof: Proof | None = None
        """The findings that the forward was chosen by; None where it was given."""
        if forward is None:
            self.proof = proof = prove_model(model, context_limit, products)
            if proof.chains:
                raise SpecvizError(f"this {type(model).__name__} cannot be used: {proof.chains}")
            self.no_trees = proof.trees
            if proof.compact:
                forward = TransformersForward(model, products, proof.compact)
            elif proof.quick:
                replays = can_replay(self.device) and not proof.replays
                forward = Compact(model, products, replays, proof.quick)
            else:
                forward = Quick(model, products)
        self._forward = forward
        self.context_limit = context_limit
        self._at_once = tokens_at_once(model)
        head = model.get_output_embeddings()
        # The shape of packed weights is another one.
        self.vocab_size = getattr(head, "out_features", head.weight.shape[0])
        self.calls = 0
        """How often the model was asked, however many pieces a long text was read in. It only ever grows."""
        self.fed = 0
        """How many tokens the model read. It only ever grows."""
        self.read_again = 0
        """How many of them it had read before, as a state could not be shortened. It only ever grows."""
        self._windows = _windows(model.config)
        self._captured: tuple[int, ...] = ()
        self._reset()

    def _reset(self) -> None:
        self._forward.clear()
        self._text: Sequence[int] = ()
        self._num_known = 0  # tokens of the text that were read
        self._num_rows = 0  # of them, those that the forward holds rows of; the tail's follow
        self._tail: tuple[int, ...] = ()
        self._tail_parents: tuple[int, ...] = ()
        self._num_pending = 0  # rows behind the tail; their ids are still on the device
        self._hidden: Tensor | None = None  # [rows, C] the captured states behind every row

    def capture(self, layers: tuple[int, ...]) -> None:
        """Stores the hidden states of these layers behind every row from now on, for `hidden`.

        layers: numbered as in `Drafter.hidden_layers`. Rows that were read without them are dropped and read again.
        """
        if layers == self._captured:
            return
        if layers:
            self._reset()
        self._captured = layers
        self._hidden = None

    def hidden(self, tokens: Sequence[int]) -> Tensor | None:
        """The captured states [n, C] of the first n of `tokens` that have been read; None if nothing is captured."""
        if not self._captured:
            return None
        self._follow(tokens)
        if self._hidden is None:
            config = self.model.config.get_text_config(decoder=True)
            width = len(self._captured) * config.hidden_size
            return torch.zeros(0, width, dtype=self.model.dtype, device=self.device)
        return self._hidden

    def rows(self, tokens: Sequence[int], layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values [1, heads, n, width] of the first n of `tokens` that have been read.

        They are views, only to be read, and hold until the next call. layer: from 0; it must store rows of its own.
        """
        self._follow(tokens)
        return self._forward.rows(layer, self._num_rows)

    @property
    def work(self) -> Work:
        """The cost of all that it has read."""
        return Work(self.calls, self.fed, self.read_again)

    @property
    def path(self) -> str:
        """The forward that runs, and why no faster one, as a trace's header says it."""
        return self._forward.path

    @property
    def num_layers(self) -> int:
        return num_layers(self.model)

    def exit(self, layers: Sequence[int]) -> CachedLM:
        """A reader that runs only these layers, by their numbers from 0, and then the model's last norm and head.

        It reads behind this reader's rows of the text and stores none of its own from one text to the next. Raises
        SpecvizError for a model with layers that cannot be told apart or lie on several devices.
        """
        device_map = getattr(self.model, "hf_device_map", None) or {}
        devices = sorted({str(device) for device in device_map.values()})
        if len(devices) > 1:
            raise SpecvizError(
                "some layers of the target cannot run alone because it is spread over several devices "
                f"({', '.join(devices)}); choose another method or a target that fits on one"
            )
        return _ExitLM(self, layers)

    def missing(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens that `forward(tokens)` would feed, the last one always among them."""
        self._follow(tokens)
        return tokens[self._num_rows :]

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor:
        """Logits [1+N, V]: row 0 follows the text, row 1+i follows the draft's node i. Needs at least one token."""
        if not tokens:
            raise ValueError("forward needs at least one token (got an empty text)")
        if self.no_trees and not draft.is_chain:
            raise SpecvizError(
                f"this model reads chains only: {self.no_trees}; choose a method that drafts a chain"
            )
        new = self.missing(tokens)
        size = self._at_once
        self.read_again += self._num_known - self._num_rows
        if self._forward.keeps_state and len(draft) and len(new) > MOST_TOGETHER:
            size = min(size, len(new) - 1)  # a copy of the state is made behind them
        while len(new) > size or (len(new) > LONG and not draft.is_chain):
            piece = new[: min(size, len(new) - 1)]
            attention = self._attention(self._num_rows, len(piece), EMPTY)
            self._run(to_device(piece, torch.long, self.device), 1, **attention)
            self._num_rows += len(piece)
            new = new[len(piece) :]
            give_way()
        self.calls += 1
        ids = to_device([*new, *draft.tokens], torch.long, self.device)
        attention = self._attention(self._num_rows, len(new), draft)
        logits = self._run(ids, len(draft) + 1, **attention)
        self._num_known = self._num_rows = len(tokens)
        self._tail = draft.tokens
        self._tail_parents = draft.parents
        return logits

    @torch.inference_mode()
    def extend(self, token: Tensor) -> Tensor:
        """Logits [V] after one more token []. Its id may still be on the device: name it later with `settle`."""
        self.calls += 1
        attention = self._attention(self._total_rows, 1, EMPTY)
        logits = self._run(token.reshape(1), 1, **attention)
        self._num_pending += 1
        return logits[0]

    def settle(self, ids: Sequence[int]) -> None:
        """Names the rows that `extend` has added since the last forward; ids beyond them are ignored."""
        self._tail = tuple(ids[: self._num_pending])
        self._tail_parents = tuple(range(ROOT, len(self._tail) - 1))
        self._num_pending = 0

    @property
    def _total_rows(self) -> int:
        return self._num_rows + len(self._tail) + self._num_pending

    def _run(self, ids: Tensor, num_logits: int, **attention) -> Tensor:
        self.fed += ids.shape[0]
        try:
            logits, states = self._forward(
                ids, self._total_rows, num_logits, self._captured, **attention
            )
            if states is not None:
                before = self._hidden
                if before is not None:
                    states = torch.cat([before[: self._total_rows], states])
                self._hidden = states
        except BaseException:
            self._reset()  # some layers may have grown and others not
            raise
        return logits

    @torch.inference_mode()
    def _follow(self, tokens: Sequence[int]) -> None:
        """Keeps the rows that spell `tokens` without its last one, and drops all others."""
        limit = len(tokens) - 1
        common = min(self._num_known, limit)
        if tokens is not self._text:
            common = common_prefix(self._text, tokens, common)
        path = []
        if common == self._num_known:
            path = _find_path(self._tail, self._tail_parents, tokens, common, limit)
        self._keep(common, path)
        self._text = tokens
        self._num_known = common + len(path)
        self._tail = ()
        self._tail_parents = ()
        self._num_pending = 0

    def _keep(self, common: int, path: list[int]) -> None:
        """Keeps the first `common` rows and, behind them, those of a path in the tail."""
        end = common + len(path)
        if end == self._total_rows and not self._forward.keeps_state:
            self._num_rows = end
            return
        source = None
        if path != list(range(len(path))):
            source = to_device([common + node for node in path], torch.long, self.device)
        self._num_rows = self._forward.keep(common, min(end, self._total_rows), source)
        if self._hidden is not None:
            if source is not None:
                self._hidden[common:end] = self._hidden[source]
            self._hidden = self._hidden[:end]

    def _attention(self, past: int, num_new: int, draft: Draft) -> dict[str, object]:
        """The mask and positions of the next forward; nothing for a chain of a model that sees everything.

        Both are set here: a boolean mask is silently wrong under eager attention, and a sliding window is not applied
        to a bare DynamicCache. M tokens are fed: the new ones, then the draft's.
        """
        total = past + num_new + len(draft)
        windowed = any(window is not None and total > window for window in self._windows.values())
        if draft.is_chain and not windowed:
            return {}
        last = past + num_new - 1
        fed_positions = [*range(past, past + num_new), *(last + depth for depth in draft.depths)]
        position = to_device(fed_positions, torch.long, self.device)  # [M]
        past_position = torch.arange(past, device=self.device)
        all_positions = torch.cat([past_position, position])
        distance = position[:, None] - all_positions[None, :]  # [M, past + M]
        sees_fed = _visibility(num_new, draft).to(self.device, non_blocking=True)  # [M, M]
        sees_past = torch.ones(len(sees_fed), past, dtype=torch.bool, device=self.device)
        sees = torch.cat([sees_past, sees_fed], dim=1)  # [M, past + M]
        masks = {}
        for kind, window in self._windows.items():
            own = sees
            if kind == CHUNKED:
                own = sees & (position[:, None] // window == all_positions[None, :] // window)
            elif window is not None:
                own = sees & (distance < window)
            masks[kind] = self._additive_mask(own)
        if self._forward.keeps_state:
            masks |= dict.fromkeys(STATES_ALONE)
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        return {"attention_mask": mask, "position_ids": position[None]}

    def _additive_mask(self, sees: Tensor) -> Tensor:
        """A float mask [1, 1, M, past + M]: 0 where a token sees another, else the smallest number."""
        dtype = self.model.dtype
        seen = torch.zeros((), dtype=dtype, device=self.device)
        blocked = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=self.device)
        return torch.where(sees, seen, blocked)[None, None]


class _ExitLM(CachedLM):
    """A reader that runs some layers of another reader's model, behind that reader's rows."""

    def __init__(self, whole: CachedLM, layers: Sequence[int]) -> None:
        forward = whole._forward.exit(layers)
        super().__init__(whole.model, whole.context_limit, whole.products, forward)
        self._whole = whole
        self.no_trees = whole.no_trees

    @torch.inference_mode()
    def _follow(self, tokens: Sequence[int]) -> None:
        self._whole._follow(tokens)
        self._reset()
        self._text = tokens
        self._num_known = self._whole._num_known
        self._num_rows = self._whole._num_rows


def prove_model(
    model: PreTrainedModel,
    context_limit: int,
    products: Products = PRODUCTS,
    known: Proof | None = None,
) -> Proof:
    """The findings on how this model can be read; see `proof`.

    A model is proved once, and again if its tables or modules were replaced. known: earlier findings on the same
    model, which then count.
    """
    why_not_compact = refusal(model)
    why_not_quick = why_not_compact or compiled_refusal(layers_for(model, products), products)
    state = (
        why_not_compact,
        why_not_quick,
        products,
        model.device,
        model.dtype,
        *map(id, model.parameters()),
        *map(type, model.modules()),
    )
    proved_state, proof = _PROVED.get(model, (None, known))
    is_outdated = proved_state is not None and proved_state != state
    if proof is None or is_outdated:
        proof = _prove(model, context_limit, products, why_not_compact, why_not_quick)
    elif why_not_quick not in ("", proof.quick):
        proof = replace(proof, quick=why_not_quick)  # what was so then need not be so now
    _PROVED[model] = state, proof
    return proof


def _prove(
    model: PreTrainedModel,
    context_limit: int,
    products: Products,
    why_not_compact: str,
    why_not_quick: str,
) -> Proof:
    def read_through(make: Callable[[PreTrainedModel, Products], Forward]) -> CachedLM:
        return CachedLM(model, context_limit, products, make(model, products))

    if not why_not_quick and not Quick(model, products).can_read:
        why_not_quick = "its tables are of a different kind"
    compact = partial(read_through, Compact)
    quick = partial(read_through, Quick)
    plain = partial(read_through, TransformersForward)
    proof = prove_reading(
        model, context_limit, compact, quick, plain, why_not_compact, why_not_quick
    )
    if can_replay(model.device) and not (proof.compact or proof.chains or proof.untried):
        replayed = read_through(partial(Compact, replays=True))
        fault = find_replay_fault(model, compact(), replayed) or Replays.failure
        proof = replace(proof, replays=fault)
    return proof


def _windows(config) -> dict[str, int | None]:
    """The window or chunk of each kind of attention, None where it sees everything; one entry if all are alike."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {"attention": window}
    chunk = getattr(config, "attention_chunk_size", None)
    sizes = {"sliding_attention": window, CHUNKED: chunk}
    attention = [BESIDE_STATE.get(kind, kind) for kind in kinds if kind not in STATES_ALONE]
    return {kind: sizes.get(kind) for kind in dict.fromkeys(attention)}


def _find_path(
    tail: Sequence[int], parents: Sequence[int], tokens: Sequence[int], start: int, limit: int
) -> list[int]:
    """The nodes of the tail, from the root down, that spell tokens[start:limit], as far as they reach."""
    path: list[int] = []
    parent = ROOT
    for token in tokens[start:limit]:
        later = range(parent + 1, len(tail))
        matches = [node for node in later if parents[node] == parent and tail[node] == token]
        if not matches:
            break
        parent = matches[0]
        path.append(parent)
    return path


def _visibility(num_new: int, draft: Draft) -> Tensor:
    """Whether each of the M fed tokens sees each other one: bool [M, M] on the CPU. All of them see the past."""
    size = num_new + len(draft)
    sees = torch.zeros(size, size, dtype=torch.bool)
    sees[:num_new, :num_new] = torch.ones(num_new, num_new, dtype=torch.bool).tril()
    sees[num_new:, :num_new] = True
    for row, parent in enumerate(draft.parents, start=num_new):
        if parent != ROOT:
            sees[row] |= sees[num_new + parent]
        sees[row, row] = True
    return sees
