"""Titles of methods and rules as the page's lists show them, for views, which load neither; a test keeps them equal."""

from __future__ import annotations

METHOD_TITLES = {
    "draft_model": "Draft model",
    "prompt_lookup": "Prompt lookup",
    "early_exit": "Early exit",
    "tree": "Token tree",
    "medusa": "Medusa",
    "eagle": "EAGLE",
    "mtp": "Multi-token prediction",
    "staged": "Staged",
    "lookahead": "Lookahead",
    "cross_vocabulary": "Different vocabularies",
    "reasoning": "Reasoning steps",
    "none": "No draft",
}
RULE_TITLES = {
    "speculative_sampling": "Speculative sampling",
    "block_verification": "Block verification",
    "sample_and_match": "Sample and match",
    "typical": "Typical acceptance",
    "lenience": "Lenience",
    "ensemble": "Ensemble",
    "graded": "Graded reasoning steps",
}
