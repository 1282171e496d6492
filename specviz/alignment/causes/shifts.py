"""What is tried on heads: the target's states of a neighbouring layer or position, and another temperature."""

from collections.abc import Iterator

import torch
from torch import Tensor

from specviz.alignment.ahead import Proposer
from specviz.alignment.causes.trials import Trial
from specviz.decoding.drafter import Ahead, Drafter

TEMPERATURES = (0.5, 0.7, 1.4, 1.7, 2.0, 2.5)  # fewer than for a model: each reads the texts once more


class Changed(Drafter):
    """Another drafter along a text, with its states or its logits changed.

    layers: its states come from so many layers later. places: and from so many tokens before, at the ends the nearest.
    """

    def __init__(self, drafter: Drafter, layers: int = 0, places: int = 0, divided_by: float = 1.0) -> None:
        self._drafter, self._places, self._divided_by = drafter, places, divided_by
        self.hidden_layers = tuple(layer + layers for layer in drafter.hidden_layers)

    @property
    def waits(self) -> bool:
        return self._drafter.waits

    def along(self, tokens: Tensor, states: Tensor) -> Ahead | None:
        rows = torch.arange(len(states), device=states.device) - self._places
        ahead = self._drafter.along(tokens, states[rows.clamp(0, len(states) - 1)])

        def changed(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, Tensor | None]]:
            return (
                (rows / self._divided_by if rows.dim() == 2 else rows, known) for rows, known in ahead(starts, depths)
            )

        return changed


def shift_trials(proposer: Proposer) -> Iterator[Trial]:
    """Nothing for drafts without states and without probabilities."""
    drafter, target = proposer.drafter(), proposer.setup.target
    if proposer.setup.method.replays_from_text:
        return
    for each in TEMPERATURES:
        yield Trial("temperature", f"its logits divided by {each:g}", Changed(drafter, divided_by=each))
    if not drafter.hidden_layers:
        return
    count = target.model.config.get_text_config(decoder=True).num_hidden_layers
    for step, layer_words, token_words in ((-1, "earlier", "behind"), (1, "later", "before")):
        if all(0 <= layer % (count + 1) + step <= count for layer in drafter.hidden_layers):
            yield Trial("feature", f"the states of 1 layer {layer_words}", Changed(drafter, layers=step))
        yield Trial("feature", f"the states of the token {token_words}", Changed(drafter, places=step))
