"""Prompt lookup over texts that go on, go back and begin anew: the same drafts as a fresh one, for little work."""

import random

import pytest

from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded
from specviz.decoding.sampling import Sampling
from specviz.drafters import prompt_lookup
from specviz.drafters.method import Parts
from specviz.drafters.prompt_lookup import METHOD, PromptLookup
from specviz.errors import SpecvizError
from tests.helpers.printed_text import lines_during


def drafted(drafter, tokens):
    draft = drafter.draft(Context(tokens, Sampling(), Seeded(1), 4), 5)
    return draft.tokens, dict(draft.evidence)


@pytest.mark.parametrize("most", [4, 512])
@pytest.mark.parametrize("sizes", [(3, 1), (4, 2), (2, 2)])
def test_a_text_that_begins_as_the_last_one_gives_what_a_fresh_drafter_gives(monkeypatch, sizes, most):
    """Each text is a new list: the last one, up to some place, with other tokens behind it."""
    monkeypatch.setattr(prompt_lookup, "MOST_TAKEN_BACK", most)
    choose, kept = random.Random(5), PromptLookup(*sizes)
    tokens, num_found = [choose.randrange(3) for _ in range(30)], 0
    for _ in range(400):
        back = choose.choice([0, 0, 1, 2, 3, 6, 20])
        tokens = tokens[: max(1, len(tokens) - back)] + [choose.randrange(3) for _ in range(choose.randrange(5))]
        found = drafted(kept, tokens)
        assert found == drafted(PromptLookup(*sizes), tokens)
        num_found += bool(found[0])
        if choose.random() < 0.3:
            tokens.append(choose.randrange(3))
            assert drafted(kept, tokens) == drafted(PromptLookup(*sizes), tokens)
    assert num_found > 100


def test_another_list_with_the_same_beginning_costs_what_is_new():
    def work(length):
        tokens, drafter = [(7 * i * i) % 101 for i in range(length)], PromptLookup(3, 1)
        drafted(drafter, tokens)
        return lines_during(lambda: drafted(drafter, [*tokens[:-4], 1, 2, 3]))

    assert work(4000) < work(500) + 40


@pytest.mark.parametrize(("longest", "shortest"), [(2, 8), (1, 2)])
def test_a_shortest_match_above_the_longest_is_refused(longest, shortest):
    values = METHOD.validate({"max_ngram": longest, "min_ngram": shortest})
    with pytest.raises(SpecvizError, match=f"min_ngram must not exceed max_ngram .got {shortest} and {longest}."):
        METHOD.build(Parts(), values)
