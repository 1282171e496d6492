"""Heads that draft a block at once (DFlash, arXiv:2602.06036).

The target's states at the tokens of the text, several layers of them fused, are keys and values for every layer of the
head. One pass reads the text's last token and mask tokens behind it, each of which sees the text and the whole block.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import LlamaConfig

from specviz.drafters.block.convolution import ConvolvedLayer
from specviz.drafters.block.layouts import BlockLayout, find_layout, fused_layers
from specviz.drafters.block.successors import BIASES, CandidateSelector, ConfidenceHead
from specviz.drafters.eagle import heads as eagle
from specviz.drafters.eagle.layers import AttentionParts, HeadRows, PlainLayer, RMSNorm
from specviz.drafters.markov import Biased, MarkovBias, bias_sizes
from specviz.models.files.checkpoint import LoadReport
from specviz.models.pool import LoadedModel

IGNORED = eagle.IGNORED


class BlockHead(eagle.Eagle3Head):
    """The layers of a block's head: keys `fc.weight`, `hidden_norm.weight`, `layers.*` and `norm.weight`.

    Without an embedding or an output matrix of its own it takes the target's. DSpark adds a bias and a confidence head,
    DFlash2 convolutions and a selector.
    """

    markov: MarkovBias | None
    candidate_selector: CandidateSelector | None
    confidence_head: ConfidenceHead | None

    def _build(self, config: LlamaConfig, layout: BlockLayout, parts: AttentionParts) -> None:
        self.num_choices = config.vocab_size
        size = config.hidden_size
        self.layout = layout
        self.fc = nn.Linear(len(self.hidden_layers) * self._width, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(self._block_layer(config, parts) for _ in layout.sights)
        self.norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self.markov = self._empty_bias(config)
        self.candidate_selector = None
        if layout.selector is not None:
            self.candidate_selector = CandidateSelector(size, self.vocab_size, *layout.selector)
        self.confidence_head = self._empty_confidence(size)

    def reread(self, **settings: object) -> None:
        """Reads its blocks as its files would tell with other `settings` of BlockLayout."""
        self.layout = replace(self.layout, **settings)  # ty: ignore[invalid-argument-type]
        for layer in self.layers:
            layer.block_size = self.layout.block_size

    def _block_layer(self, config: LlamaConfig, parts: AttentionParts) -> PlainLayer:
        if self.layout.convolution is None:
            return PlainLayer(config, parts)
        return ConvolvedLayer(config, parts, self.layout.block_size, *self.layout.convolution)

    def _empty_bias(self, config: LlamaConfig) -> MarkovBias | None:
        """A bias for the tensors that the checkpoint has."""
        kind = self.layout.markov
        if kind is None:
            return None
        shapes = self.layout.shapes
        rank, num_tables = bias_sizes(shapes, self.vocab_size, self.most_tokens)
        if kind not in BIASES:
            return MarkovBias(self.vocab_size, rank, num_tables, config.vocab_size)
        return BIASES[kind](config.hidden_size, self.vocab_size, rank, config.vocab_size)

    def _empty_confidence(self, size: int) -> ConfidenceHead | None:
        layout = self.layout
        weight = layout.shapes.get("confidence_head.proj.weight")
        if weight is None:
            return None
        reads_row = self.markov is not None and weight[-1:] != (size,)
        rank = self.markov.embed.embedding_dim if reads_row else 0
        return ConfidenceHead(size + rank, "confidence_head.proj.bias" in layout.shapes)

    @property
    def most_tokens(self) -> int:
        """How many tokens it drafts at once."""
        return self.layout.block_size - (not self.layout.from_anchor)

    @property
    def num_masks(self) -> int:
        """How many mask tokens it reads behind the text's last token."""
        return self.layout.block_size - 1

    def rows(self) -> HeadRows:
        return HeadRows([*self.layers], self.rotary, list(map(repr, self.layout.sights)))

    def fuse(self, states: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(states))

    def guess(self, rows: HeadRows, last: Tensor, starts: Tensor) -> Tensor:
        """The features [S, N, H], normalised, of the N tokens that it drafts behind each of S places of a text.

        rows: the text's features, stored. last: the ids [S] of the tokens at `starts` [S], the places that the blocks
        begin at; a block sees the rows before its own.
        """
        size = self.layout.block_size
        ids = last.new_full((len(last), size), self.layout.mask)
        ids[:, 0] = last
        places = starts[:, None] + torch.arange(size, device=starts.device)  # [S, B]
        block = torch.arange(len(last), device=starts.device).repeat_interleave(size)  # [S * B]
        places = places.flatten()
        past = rows.count
        see = self._see(past, places, block, starts[block])
        x = self._embed(ids.flatten()).to(self.fc.weight)
        features = rows.read(x, None, places, see)
        rows.count = past
        return self.norm(features.view(len(last), size, -1)[:, -self.most_tokens :])

    def _see(self, past: int, places: Tensor, block: Tensor, anchors: Tensor) -> dict[str, Tensor]:
        """The rows [S * B, past + S * B] that each place of the blocks sees, by what layers see.

        block [S * B]: the number of each place's block; anchors [S * B]: that block's first place.
        """
        before = torch.arange(past, device=places.device)
        of_text = before < anchors[:, None]  # [S * B, past]
        of_block = block[:, None] == block
        see = {}
        for sight in set(self.layout.sights):
            text, own = of_text, of_block
            if sight.is_causal:
                own = own & (places <= places[:, None])
            if sight.window is not None:
                origin = anchors if sight.by_anchor else places
                text = text & (origin[:, None] - before <= sight.window)
                if not sight.by_anchor:
                    own = own & ((places[:, None] - places).abs() <= sight.window)
            see[repr(sight)] = torch.cat([text, own], dim=1)
        return see

    def _embed(self, ids: Tensor) -> Tensor:
        embeddings = self.embed_tokens or self._shared[0]
        scale = self.layout.embedding_scale
        if scale is None:
            return embeddings(ids)
        return embedding(ids, embeddings.weight) * scale

    def chain(self, features: Tensor) -> Biased | None:
        """What the token before says of the next, behind the features of a block [N, H], or of several [S, N, H].

        None where nothing does. Depths are asked in order.
        """
        if self.candidate_selector is not None:
            return self.candidate_selector.chain(features)
        if self.markov is None:
            return None
        addition = self.markov.additions(features)

        def biased(depth: int, before: Tensor, logits: Tensor) -> Tensor:
            added = addition(depth, before)
            return (
                logits + added if self._in_order else logits.index_add(-1, self.target_ids, added)
            )

        return biased

    def confidence(self, feature: Tensor, before: Tensor) -> Tensor:
        """How probable it is [] that the token at a place is accepted, if those before it are; of a confidence head.

        feature [H]: of the place. before []: the token before it.
        """
        head = self.confidence_head
        reads_row = head.proj.in_features > feature.shape[-1]
        return head(feature, self.markov.embed(before) if reads_row else None)

    def choices(self, features: Tensor) -> Tensor:
        output = self.lm_head or self._shared[1]
        rows = output(features).to(features.device) * self.layout.output_multiplier
        if bound := self.layout.output_softcap:
            rows = (rows / bound).tanh() * bound
        return rows

    def take(self, state: Mapping[str, Tensor], num_ids: int) -> set[str]:
        names = super().take(state, num_ids)
        every_id = torch.arange(self.vocab_size, device=self.target_ids.device)
        self._in_order = torch.equal(self.target_ids, every_id)  # it can propose all, as numbered
        return names

    def borrow_output(self, *, is_tied: bool = False) -> None:
        if self._in_order:
            self.lm_head = None  # all rows of the target's: no copy
        else:
            super().borrow_output(is_tied=is_tied)

    def flags(self) -> tuple[str, ...]:
        return ()


def read(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[eagle.EagleHead, LoadReport]:
    """Makes a head for `target` from a checkpoint's settings and tensors; see `eagle.heads.read`."""
    layout = find_layout(config, state, target)
    return eagle.make_head(BlockHead, layout, (fused_layers(layout, target),), state, target)
