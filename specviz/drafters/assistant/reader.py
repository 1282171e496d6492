"""AssistantReader: an assistant over the target's rows, behind the interface of a CachedLM."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import to_device
from specviz.decoding.drafter import Ahead
from specviz.decoding.work import Work
from specviz.drafters.assistant.heads import Assistant, Rows


class AssistantReader:
    """Reads the target's rows of the text anew for every draft, and stores none of its own.

    An assistant attends to the tokens that the target has read: not to the text's last token, and not to those that it
    has drafted. Each of its calls is told the token before and the state that came with it, and the place is that of
    the text's last token all the time (transformers, SinglePositionMultiTokenCandidateGenerator).
    """

    def __init__(self, assistant: Assistant, target: CachedLM) -> None:
        self._assistant = assistant
        self._target = target
        self._embed = target.model.get_input_embeddings()
        self.vocab_size = target.vocab_size
        self.context_limit = target.context_limit
        self.work = Work()

    def see(self, state: Tensor) -> None:
        """Takes the target's last state [1, H], after the norm, at the last token of the next text that it has read."""
        self._state = state

    def missing(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[-1:]

    def forward(self, tokens: Sequence[int]) -> Tensor:
        """Logits [1, V] of the token after the text."""
        device = self._state.device
        self._places = torch.full((1,), len(tokens) - 1, device=device)
        self._rows = self._rows_of(tokens)
        self._masks = self._assistant.masks(self._places, len(tokens) - 1)
        return self.extend(to_device(tokens[-1:], torch.long, device))[None]

    def extend(self, token: Tensor) -> Tensor:
        """Logits [V] after one more token []; its id may still be on the device."""
        self.work += Work(1, 1)
        inputs = torch.cat([self._embed(token.reshape(1)), self._state], dim=-1)
        logits, self._state = self._assistant(inputs, self._places, self._rows, self._masks)
        return logits[0]

    def settle(self, ids: Sequence[int]) -> None:
        """Does nothing: no row was made that a name would be needed for."""

    def _rows_of(self, tokens: Sequence[int]) -> Mapping[str, Rows]:
        layers = self._assistant.layers
        return {kind: self._target.rows(tokens, layer) for kind, layer in layers.items()}

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        """The drafts at any place of a known text [T], from the target's states [T, H]: one pass per depth.

        The target reads the text once more for it.
        """
        text = tokens.tolist()
        self._target.forward(text)
        rows = self._rows_of([*text, 0])
        embeddings = self._embed(tokens)

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            state = states[starts - 2]
            places = starts - 1
            masks = self._assistant.masks(places, len(text))
            for depth in range(depths):
                read = embeddings[(places + depth).clamp_max(len(text) - 1)]
                inputs = torch.cat([read, state], dim=-1)
                logits, state = self._assistant(inputs, places, rows, masks)
                yield logits, None

        return ahead
