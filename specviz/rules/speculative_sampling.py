"""Speculative sampling, over chains and over token trees: the rule of the field, and lossless."""

from __future__ import annotations

from specviz.rules.tree_walk import TreeRule


class SpeculativeSampling(TreeRule):
    """Keep x with probability min(1, p/q), else draw from norm(max(0, p - q)).

    Leviathan et al. 2022, section 2.3; Chen et al. 2023, algorithm 2. Over siblings p becomes that residual after each
    failure (SpecInfer, Miao et al. 2023).
    """

    name = "speculative_sampling"
    title = "Speculative sampling"
    summary = "Keeps a drafted token with probability min(1, p/q) and otherwise draws from what the draft owed."
    source = "Leviathan et al., arXiv:2211.17192, section 2.3"
    lossless = True
