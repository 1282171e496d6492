"""Every class of transformers that continues a text: specviz writes what `generate` writes, or says truly why not.

`python -m tests.helpers.class_sweep` prints the same as one table.
"""

import pytest

from tests.helpers.class_sweep import outcome_of
from tests.helpers.tiny_classes import names

QUICK = ("lfm2", "qwen3_5", "llama4_text", "gemma3n_text", "qwen3_vl")
"""A state of each kind, attention in chunks, shared keys and values, and a model that also reads images."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names()]
)
def test_every_class_writes_its_own_text_or_is_refused_in_true_words(name, tmp_path):
    outcome = outcome_of(name, tmp_path)
    print(f"{name}: {outcome.verdict}")
    assert outcome.wrong == []
    if outcome.verdict != "refused":
        assert min(outcome.accepted, outcome.rejected) > 0, "drafts that are all alike prove nothing"
