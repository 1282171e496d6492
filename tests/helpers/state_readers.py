"""For methods that read the target's states: a reader that has them from the first step on, and a text's own law."""

import torch

from specviz.decoding.cached_lm import CachedLM


class AlwaysRead(CachedLM):
    """Has the states behind every text at once: what is drafted depends on the text alone, as an enumeration needs."""

    def hidden(self, tokens):
        known = super().hidden(tokens)
        if known is not None and len(known) < len(tokens) - 1:
            self.forward(tokens)
            known = super().hidden(tokens)
        return known


@torch.no_grad()
def own_distribution(model, prompt, num_tokens):
    """The exact joint law of the next tokens at temperature 1, by the model's own forward over the whole text."""
    distributions = {(): 1.0}
    for _ in range(num_tokens):
        rows = {text: model(torch.tensor([[*prompt, *text]])).logits[0, -1].softmax(-1) for text in distributions}
        distributions = {
            (*text, x): c * float(p) for text, c in distributions.items() for x, p in enumerate(rows[text])
        }
    return distributions
