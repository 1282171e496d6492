"""Heads that draft a block at once (DFlash, arXiv:2602.06036).

The target's states at the tokens of the text, several layers of them fused, are keys and values for every layer of the
head. One pass reads the text's last token and mask tokens behind it, each of which sees the text and the whole block.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from specviz.drafters.block.layouts import BlockLayout, find_layout, fused_layers
from specviz.drafters.eagle import heads as eagle
from specviz.drafters.eagle.layers import AttentionParts, HeadRows, PlainLayer, RMSNorm
from specviz.models.files.checkpoint import LoadReport
from specviz.models.pool import LoadedModel

IGNORED = rf"{eagle.IGNORED}|confidence_head\..*"
"""The last are DSpark's, for a scheduler that is not run here."""


class BlockHead(eagle.Eagle3Head):
    """The layers of a block's head: keys `fc.weight`, `hidden_norm.weight`, `layers.*` and `norm.weight`.

    Without an embedding or an output matrix of its own it takes the target's.
    """

    def _build(self, config: LlamaConfig, layout: BlockLayout, parts: AttentionParts) -> None:
        self.num_choices = config.vocab_size
        size = config.hidden_size
        self._layout = layout
        self._windows = {str(window): window for window in layout.windows}
        self.fc = nn.Linear(len(self.hidden_layers) * self._width, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(PlainLayer(config, parts) for _ in layout.windows)
        self.norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self.markov = layout.markov

    @property
    def most_tokens(self) -> int:
        """How many tokens it drafts at once."""
        return self._layout.block_size - (not self._layout.from_anchor)

    def rows(self) -> HeadRows:
        return HeadRows([*self.layers], self.rotary, list(map(str, self._layout.windows)))

    def fuse(self, states: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(states))

    def guess(self, rows: HeadRows, last: Tensor, starts: Tensor) -> Tensor:
        """The features [S, N, H] of the N tokens that it drafts behind each of S places of a text.

        rows: the text's features, stored. last: the ids [S] of the tokens at `starts` [S], the places that the blocks
        begin at; a block sees the rows before its own.
        """
        size = self._layout.block_size
        ids = last.new_full((len(last), size), self._layout.mask)
        ids[:, 0] = last
        places = starts[:, None] + torch.arange(size, device=starts.device)  # [S, B]
        block = torch.arange(len(last), device=starts.device).repeat_interleave(size)  # [S * B]
        places = places.flatten()
        past = rows.count
        before = torch.arange(past, device=places.device)
        sees_text = before < starts[block][:, None]  # [S * B, past]
        sees = torch.cat([sees_text, block[:, None] == block], dim=1)
        distance = (places[:, None] - torch.cat([before, places])).abs()
        see = {}
        for kind, window in self._windows.items():
            see[kind] = sees if window is None else sees & (distance <= window)
        embeddings = self.embed_tokens or self._shared[0]
        x = embeddings(ids.flatten()).to(self.fc.weight)
        features = rows.read(x, None, places, see)
        rows.count = past
        return features.view(len(last), size, -1)[:, -self.most_tokens :]

    def choices(self, features: Tensor) -> Tensor:
        output = self.lm_head or self._shared[1]
        return output(self.norm(features)).to(features.device)

    def borrow_output(self, *, is_tied: bool = False) -> None:
        if self.num_choices == self.vocab_size:
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
