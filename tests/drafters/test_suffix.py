"""Suffix decoding: the automaton against counting by hand, drafts over texts that go on and go back, and their work."""

import random

import pytest

from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded
from specviz.decoding.sampling import Sampling
from specviz.drafters.method import Parts
from specviz.drafters.suffix import METHOD, MOST_MATCHED, SuffixDrafter
from specviz.drafters.suffix.automaton import SuffixAutomaton
from tests.helpers.printed_text import lines_during
from tests.helpers.toys import TableLM, plan_of, target_distribution, text_distribution, total_variation


def places(text, words):
    """Where `words` begin in the text."""
    return [place for place in range(len(text) - len(words) + 1) if text[place : place + len(words)] == words]


def followers(text, words):
    """How often each token came after the words; the one that came last for the first time comes first."""
    counts = {}
    for place in places(text, words):
        if place + len(words) < len(text):
            token = text[place + len(words)]
            counts[token] = counts.get(token, 0) + 1
    return dict(reversed(counts.items()))


def longest_match(text, most):
    """The longest end of the text that stands in it twice."""
    return next(size for size in range(most, -1, -1) if not size or len(places(text, text[-size:])) > 1)


def drafted(drafter, tokens, k=5):
    draft = drafter.draft(Context(tokens, Sampling(), Seeded(1), 4), k)
    assert draft.probs == (None,) * len(draft)
    return draft.tokens, dict(draft.evidence)


def counted(tokens, shortest, factor, least, k=5):
    """The draft by searching all of the text for every token; ids below 0 end earlier texts."""
    matched = longest_match(tokens, min(len(tokens), MOST_MATCHED))
    words, product = tokens[len(tokens) - matched :], 1.0
    while matched >= shortest and len(words) - matched < min(k, int(factor * matched)):
        counts = {token: count for token, count in followers(tokens, words).items() if token >= 0}
        if not counts:
            break
        token = max(counts, key=counts.get)  # the first of the most frequent ones
        product *= counts[token] / sum(counts.values())
        if product < least:
            break
        words = [*words, token]
    return tuple(words[matched:])


@pytest.mark.parametrize("seed", range(12))
def test_the_automaton_counts_what_stands_in_the_text_while_tokens_come_and_go(seed):
    choose = random.Random(seed)
    longest, num_ids = choose.choice([2, 3, 5, 9]), choose.choice([1, 2, 3])
    automaton, text = SuffixAutomaton(longest), []
    for _ in range(120):
        if text and choose.random() < 0.35:
            automaton.pop()
            text.pop()
        else:
            text.append(choose.randrange(num_ids))
            automaton.push(text[-1])
        most = choose.randrange(1, longest)
        state, matched = automaton.match(most)
        assert matched == longest_match(text, min(most, len(text)))
        words = text[len(text) - matched :]
        while matched and len(words) < longest:
            found = automaton.followers(state)
            assert [(each.token, each.count) for each in found] == list(followers(text, words).items())
            if not found:
                break
            token, _, state = choose.choice(found)
            words = [*words, token]
            assert automaton.first_end(state) == places(text, words)[0] + len(words)


@pytest.mark.parametrize(("shortest", "factor", "least"), [(1, 1.0, 0.1), (2, 3.0, 0.0), (1, 8.0, 0.6)])
def test_a_draft_is_what_counting_all_of_the_text_says_however_the_text_changes(shortest, factor, least):
    """Each text is a new list: the last one, up to some place, with other tokens behind it; some go on."""
    choose, kept = random.Random(5), SuffixDrafter(shortest, factor, least)
    tokens, num_found = [choose.randrange(3) for _ in range(30)], 0
    for _ in range(300):
        back = choose.choice([0, 0, 1, 2, 3, 6, 20])
        tokens = tokens[: max(1, len(tokens) - back)] + [choose.randrange(3) for _ in range(choose.randrange(5))]
        for _ in range(choose.choice([1, 1, 2])):
            found, evidence = drafted(kept, tokens)
            assert found == counted(tokens, shortest, factor, least)
            assert (found, evidence) == drafted(SuffixDrafter(shortest, factor, least), tokens)
            num_found += bool(found)
            tokens.append(choose.randrange(3))
    assert num_found > 100


def test_the_evidence_names_a_place_where_match_and_draft_stand_and_how_often_each_token_came_there():
    choose = random.Random(3)
    tokens = [choose.randrange(3) for _ in range(60)]
    for _ in range(100):
        found, evidence = drafted(SuffixDrafter(1, 4.0, 0.0), tokens)
        start, matched = evidence["start"], evidence["matched"]
        spelled = tokens[start : start + matched + len(found)]
        assert spelled == [*tokens[-matched:], *found]
        assert evidence["proposed"] == len(found) > 0
        for depth, token in enumerate(found):
            counts = followers(tokens, spelled[: matched + depth])
            assert evidence["counts"][depth] == counts[token]
            assert evidence["totals"][depth] == sum(counts.values())
        tokens.append(choose.randrange(3))


ANSWERS = ([0, 1, 2, 2, 1, 0], [], [2, 2, 0, 1], [1, 1])


def test_earlier_answers_count_as_if_they_stood_before_the_text_and_no_match_goes_from_one_to_the_next():
    choose, kept = random.Random(7), SuffixDrafter(1, 3.0, 0.2, answers=ANSWERS)
    before = [token for number, answer in enumerate(ANSWERS, 1) for token in (*answer, -number)]
    tokens, answers_back = [0, 1], set()
    for _ in range(200):
        tokens = [*tokens[: choose.randrange(1, len(tokens) + 1)], choose.randrange(3), choose.randrange(3)]
        found, evidence = drafted(kept, tokens)
        assert found == counted([*before, *tokens], 1, 3.0, 0.2)
        if not found:
            continue
        spelled = [*tokens[-evidence["matched"] :], *found]
        if "start" in evidence:
            assert tokens[evidence["start"] :][: len(spelled)] == spelled
        else:
            assert places(ANSWERS[-evidence["answers_back"]], spelled)
            answers_back.add(evidence["answers_back"])
    assert answers_back == {2, 4}


def test_the_text_has_the_targets_distribution_with_earlier_answers():
    drafter = SuffixDrafter(1, 2.0, 0.0, answers=ANSWERS)
    mine = text_distribution(plan_of(TableLM(1), drafter, 2), (0, 1), 3)
    assert total_variation(mine, target_distribution(TableLM(1), (0, 1), 3, Sampling())) < 1e-12


def test_earlier_answers_are_looked_at_only_if_a_person_asks_for_it():
    for pool, expected in (("off", ()), ("answers", (7,))):
        values = METHOD.validate({"pool": pool, "factor": 0.5})
        assert drafted(METHOD.build(Parts(answers=([5, 6, 7],)), values), [5, 6])[0] == expected
        method = METHOD.under(values)
        assert method.replays_from_text == method.reads_ahead == (pool == "off")


def test_with_a_smaller_k_a_draft_is_the_beginning_of_the_same_draft():
    tokens = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4]
    whole, _ = drafted(SuffixDrafter(1, 2.0, 0.0), tokens, 8)
    assert whole == (5, 6, 7, 0, 1, 2, 3, 4)
    for k in range(9):
        assert drafted(SuffixDrafter(1, 2.0, 0.0), tokens, k)[0] == whole[:k]


def varied(length):
    return [(7 * i * i) % 101 for i in range(length)]


TEXTS = {"varied": varied, "one token": lambda length: [5] * length, "a loop": lambda length: [1, 2, 3] * (length // 3)}


@pytest.mark.parametrize("make", TEXTS.values(), ids=list(TEXTS))
def test_a_step_costs_what_is_new_however_long_and_repetitive_the_text_is(make):
    def work(length):
        tokens, drafter = make(length), SuffixDrafter(1, 1.0, 0.1)
        drafted(drafter, tokens)
        grown = [*tokens[:-4], 1, 2, 3]

        def steps():
            drafted(drafter, grown)
            grown.extend([4, 5])
            drafted(drafter, grown)

        return lines_during(steps)

    assert work(3000) < work(600) + 300


def test_a_text_that_one_token_fills_is_indexed_in_linear_time():
    def work(length):
        return lines_during(lambda: drafted(SuffixDrafter(1, 1.0, 0.1), [5] * length))

    assert work(2000) < 2.5 * work(1000)


def test_the_parameters_bound_match_draft_and_probability():
    values = METHOD.validate({"min_match": 3, "factor": 0.5, "least_probability": 1.0})
    drafter = METHOD.build(Parts(), values)
    assert drafted(drafter, [1, 2, 9, 1, 2])[0] == ()
    assert drafted(drafter, [1, 2, 3, 4, 8, 9, 1, 2, 3, 4])[0] == (8, 9)
    assert drafted(drafter, [1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3])[0] == ()
