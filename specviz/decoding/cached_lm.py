"""CachedLM: a causal language model whose KV cache follows whatever tokens it is given.

Each call names the whole text; rows that already spell it are kept, the rest is dropped, what is missing is fed.
There is no rewind, crop or commit anywhere else. A text that is passed again as the same list object must only have
been appended to: then a step costs O(new tokens) in Python, however long the text is.
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
from specviz.decoding.forward.compact_forward import Compact, refusal
from specviz.decoding.forward.products import Products
from specviz.decoding.forward.proof import Proof, find_replay_fault, prove_reading
from specviz.decoding.forward.replays import Replays, can_replay
from specviz.decoding.forward.transformers_forward import (
    Forward,
    TransformersForward,
    num_layers,
    tokens_at_once,
)
from specviz.decoding.turns import give_way
from specviz.errors import SpecvizError

LONG = 256  # so many new tokens are read before a tree behind them: the mask of both together grows with the square

PRODUCTS = Products()
_PROVED: WeakKeyDictionary[PreTrainedModel, tuple[object, Proof]] = WeakKeyDictionary()


class CachedLM:
    """`calls` counts how often the model was asked, however many pieces a long text was read in, and `fed` the tokens
    that it read; both only ever grow.

    products: how few rows are multiplied with a matrix, where the weights are float32 on the CPU. forward: what runs
    the model, over rows that only this reader has; None: the fastest that is right.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        context_limit: int,
        products: Products = PRODUCTS,
        forward: Forward | None = None,
    ) -> None:
        self.model, self.products = model, products
        self.device = model.get_input_embeddings().weight.device
        without_plans(self.device)
        self._forward, self.no_trees = forward, ""
        if forward is None:
            proof = prove_model(model, context_limit, products)
            if proof.chains:
                raise SpecvizError(f"this {type(model).__name__} cannot be used: {proof.chains}")
            self.no_trees = proof.trees
            why, replays = proof.compact, can_replay(self.device) and not proof.replays
            self._forward = (
                TransformersForward(model, products, why)
                if why
                else Compact(model, products, replays)
            )
        self.context_limit, self._at_once = context_limit, tokens_at_once(model)
        head = model.get_output_embeddings()
        self.vocab_size = getattr(
            head, "out_features", head.weight.shape[0]
        )  # packed weights have another shape
        self.calls = 0
        self.fed = 0
        self._windows = _windows(model.config)
        self._captured: tuple[int, ...] = ()
        self._reset()

    def _reset(self) -> None:
        self._forward.clear()
        self._text: Sequence[int] = ()
        self._num_rows = 0  # rows that spell self._text[:num_rows]; the tail's rows follow
        self._tail: tuple[int, ...] = ()
        self._tail_parents: tuple[int, ...] = ()
        self._num_pending = 0  # rows behind the tail whose ids are still on the device
        self._hidden: Tensor | None = None  # [rows, C], what `capture` asked for behind every row

    def capture(self, layers: tuple[int, ...]) -> None:
        """From now on the hidden states of these layers are kept behind every row, for `hidden`.

        layers: numbered as in `Drafter.hidden_layers`. Rows that were read without them are dropped, and so read once
        more.
        """
        if layers == self._captured:
            return
        if layers:
            self._reset()
        self._captured, self._hidden = layers, None

    def hidden(self, tokens: Sequence[int]) -> Tensor | None:
        """The captured states [n, C] of the first n of `tokens` that have been read; None if nothing is captured."""
        if not self._captured:
            return None
        self._follow(tokens)
        if self._hidden is None:
            width = (
                len(self._captured) * self.model.config.get_text_config(decoder=True).hidden_size
            )
            return torch.zeros(0, width, dtype=self.model.dtype, device=self.device)
        return self._hidden

    @property
    def path(self) -> str:
        """Which forward runs, and why no faster one, as a trace's header says it."""
        return self._forward.path

    @property
    def num_layers(self) -> int:
        return num_layers(self.model)

    def exit(self, layers: Sequence[int]) -> CachedLM:
        """A reader that runs only these layers, by their numbers from 0, and then the model's own last norm and head.

        It reads behind this reader's rows of the text and keeps none of its own from one text to the next. Raises
        SpecvizError for a model whose layers cannot be told apart or lie on several devices.
        """
        places = set((getattr(self.model, "hf_device_map", None) or {}).values())
        if len(places) > 1:
            raise SpecvizError(
                "some layers of the target cannot run alone because it is spread over several devices "
                f"({', '.join(sorted(map(str, places)))}); choose another method or a target that fits on one"
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
        new, size = self.missing(tokens), self._at_once
        while len(new) > size or (len(new) > LONG and not draft.is_chain):
            piece = new[: min(size, len(new) - 1)]
            attention = self._attention(self._num_rows, len(piece), EMPTY)
            self._run(to_device(piece, torch.long, self.device), 1, **attention)
            self._num_rows, new = self._num_rows + len(piece), new[len(piece) :]
            give_way()
        self.calls += 1
        ids = to_device([*new, *draft.tokens], torch.long, self.device)
        logits = self._run(ids, len(draft) + 1, **self._attention(self._num_rows, len(new), draft))
        self._num_rows, self._tail, self._tail_parents = len(tokens), draft.tokens, draft.parents
        return logits

    @torch.inference_mode()
    def extend(self, token: Tensor) -> Tensor:
        """Logits [V] after one more token [], whose id may still be on the device: name it later with `settle`."""
        self.calls += 1
        logits = self._run(token.reshape(1), 1, **self._attention(self._total_rows, 1, EMPTY))
        self._num_pending += 1
        return logits[0]

    def settle(self, ids: Sequence[int]) -> None:
        """Names the rows added by `extend` since the last forward; ids beyond them are not cached and are ignored."""
        self._tail = tuple(ids[: self._num_pending])
        self._tail_parents = tuple(range(ROOT, len(self._tail) - 1))
        self._num_pending = 0

    @property
    def _total_rows(self) -> int:
        return self._num_rows + len(self._tail) + self._num_pending

    def _run(self, ids: Tensor, num_logits: int, **attention) -> Tensor:
        self.fed += ids.shape[0]
        try:
            logits, rows = self._forward(
                ids, self._total_rows, num_logits, self._captured, **attention
            )
            if rows is not None:
                self._hidden = rows if self._hidden is None else torch.cat([self._hidden, rows])
        except BaseException:
            self._reset()  # some layers may have grown and others not
            raise
        return logits

    @torch.inference_mode()
    def _follow(self, tokens: Sequence[int]) -> None:
        """Keeps the rows that spell `tokens` without its last one, drops all others."""
        limit = len(tokens) - 1
        if tokens is self._text:
            common = min(self._num_rows, limit)
        else:
            common = common_prefix(self._text, tokens, min(self._num_rows, limit))
        tail = (
            _find_path(self._tail, self._tail_parents, tokens, common, limit)
            if common == self._num_rows
            else []
        )
        self._keep(common, tail)
        self._text, self._num_rows = tokens, common + len(tail)
        self._tail, self._tail_parents, self._num_pending = (), (), 0

    def _keep(self, common: int, kept: list[int]) -> None:
        end = common + len(kept)
        if end == self._total_rows:
            return
        in_place = kept == list(range(len(kept)))
        source = (
            None
            if in_place
            else to_device([common + node for node in kept], torch.long, self.device)
        )
        self._forward.keep(common, end, source)
        if self._hidden is not None:
            if source is not None:
                self._hidden[common:end] = self._hidden[source]
            self._hidden = self._hidden[:end]

    def _attention(self, past: int, num_new: int, draft: Draft) -> dict[str, object]:
        """Nothing for a chain of a model that sees everything; else positions and an additive float mask.

        A boolean mask is silently wrong under eager attention, and a sliding window is not applied to a bare
        DynamicCache, so both are set here.
        """
        total = past + num_new + len(draft)
        windowed = any(window is not None and total > window for window in self._windows.values())
        if draft.is_chain and not windowed:
            return {}
        last = past + num_new - 1
        positions = [*range(past, past + num_new), *(last + depth for depth in draft.depths)]
        position = to_device(positions, torch.long, self.device)
        see = _visibility(num_new, draft).to(self.device, non_blocking=True)
        past_position = torch.arange(past, device=self.device)
        distance = (
            position[:, None] - torch.cat([past_position, position])[None, :]
        )  # [M, past + M]
        see = torch.cat(
            [torch.ones(see.shape[0], past, dtype=torch.bool, device=self.device), see], dim=1
        )
        masks = {
            kind: self._additive_mask(see, distance, window)
            for kind, window in self._windows.items()
        }
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        return {"attention_mask": mask, "position_ids": position[None]}

    def _additive_mask(self, see: Tensor, distance: Tensor, window: int | None) -> Tensor:
        if window is not None:
            see = see & (distance < window)
        dtype = self.model.dtype
        blocked = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=self.device)
        return torch.where(see, torch.zeros((), dtype=dtype, device=self.device), blocked)[
            None, None
        ]


class _ExitLM(CachedLM):
    """Some layers of another reader's model, behind that reader's own rows."""

    def __init__(self, whole: CachedLM, layers: Sequence[int]) -> None:
        super().__init__(
            whole.model, whole.context_limit, whole.products, whole._forward.exit(layers)
        )
        self._whole, self.no_trees = whole, whole.no_trees

    @torch.inference_mode()
    def _follow(self, tokens: Sequence[int]) -> None:
        self._whole._follow(tokens)
        self._reset()
        self._text, self._num_rows = tokens, self._whole._num_rows


def prove_model(
    model: PreTrainedModel,
    context_limit: int,
    products: Products = PRODUCTS,
    known: Proof | None = None,
) -> Proof:
    """What this model was found to do; see `proof`. It is found out once, and again where tables or modules were put in
    place of others. known: what was found of the same model before, which then counts."""
    why = refusal(model)
    state = (
        why,
        products,
        model.device,
        model.dtype,
        *map(id, model.parameters()),
        *map(type, model.modules()),
    )
    remembered, found = _PROVED.get(model, (None, known))
    if found is None or remembered not in (None, state):

        def through(make: Callable[[PreTrainedModel, Products], Forward]) -> CachedLM:
            return CachedLM(model, context_limit, products, make(model, products))

        compact, plain = partial(through, Compact), partial(through, TransformersForward)
        found = prove_reading(model, context_limit, compact, plain, why)
        if can_replay(model.device) and not (found.compact or found.chains or found.untried):
            replayed = through(partial(Compact, replays=True))
            found = replace(
                found, replays=find_replay_fault(model, compact(), replayed) or Replays.failure
            )
    _PROVED[model] = state, found
    return found


def _windows(config) -> dict[str, int | None]:
    """Attention kind of the layers -> its window; one entry where all layers are alike."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {"attention": window}
    return {kind: window if kind == "sliding_attention" else None for kind in dict.fromkeys(kinds)}


def _find_path(
    tail: Sequence[int], parents: Sequence[int], tokens: Sequence[int], start: int, limit: int
) -> list[int]:
    """The path of the tail's nodes, from the root, whose tokens are tokens[start:limit], as far as it reaches."""
    path: list[int] = []
    parent = ROOT
    for position in range(start, limit):
        matches = (node for node in range(parent + 1, len(tail)) if parents[node] == parent)
        node = next((node for node in matches if tail[node] == tokens[position]), None)
        if node is None:
            break
        path.append(node)
        parent = node
    return path


def _visibility(num_new: int, draft: Draft) -> Tensor:
    """Which of the M fed tokens sees which of them: bool [M, M] on the CPU; all of them see the past."""
    size = num_new + len(draft)
    see = torch.zeros(size, size, dtype=torch.bool)
    see[:num_new, :num_new] = torch.ones(num_new, num_new, dtype=torch.bool).tril()
    see[num_new:, :num_new] = True
    for node, parent in enumerate(draft.parents, start=num_new):
        if parent != ROOT:
            see[node] |= see[num_new + parent]
        see[node, node] = True
    return see
