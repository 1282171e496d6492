"""Every class of transformers that continues a text: specviz writes what `generate` writes, or says truly why not.

`python -m tests.helpers.class_sweep` prints the same as one table.
"""

import pytest

from tests.helpers.class_sweep import outcome_of
from tests.helpers.tiny_classes import names


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_class_writes_its_own_text_or_is_refused_in_true_words(name, tmp_path):
    outcome = outcome_of(name, tmp_path)
    print(f"{name}: {outcome.verdict}")
    assert outcome.wrong == []
    if outcome.verdict != "refused":
        assert min(outcome.accepted, outcome.rejected) > 0, "drafts that are all alike prove nothing"
