"""The page writes the text that `specviz.run` writes: step by step at temperature 0, and draw by draw with a seed."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import specviz
from specviz.decoding.draws import DRAFT, FINAL, Seeded
from specviz.models.chat import ready_text
from specviz.prompts import prompts_file
from specviz.trace.file import read_trace
from tests.live.engine import DRAFTS, TARGET, asked_run, folder_of, runs

NEAR_TIE = 1e-4  # probability
MOST_TIES = 2  # of the twenty texts with a seed
MORE = ("Once upon a time", "def is_even(n):", "The old king said to his daughter:")
PROMPTS = [*(ready_text(prompt) for kind in prompts_file()["kinds"] for prompt in kind["prompts"]), *MORE]
KS = (1, 4, 8, 0)


def texts_of_page(asked):
    return [read_trace(each["file"].encode()) for each in runs(asked)]


def reference(prompt, *, k, draft, **options):
    how = {"k": k, "draft": draft} if k else {"method": "none"}
    return specviz.run(prompt, target=TARGET, **how, **options)


def steps_of(trace):
    return [[token.id for token in step.emitted] for step in trace.steps]


def check_greedy(cases, max_new_tokens):
    """cases: (prompt, K, draft)."""
    same = {"temperature": 0.0, "max_new_tokens": max_new_tokens}
    made = texts_of_page([asked_run(prompt, k=k, draft=draft, **same) for prompt, k, draft in cases])
    for (prompt, k, draft), mine in zip(cases, made, strict=True):
        right = reference(prompt, k=k, draft=draft, **same)
        assert [token.id for token in mine.header.prompt.tokens] == [token.id for token in right.header.prompt.tokens]
        assert steps_of(mine) == steps_of(right), (prompt, k, draft)
        assert mine.footer.reason == right.footer.reason


def test_there_are_twenty_prompts():
    assert len(set(PROMPTS)) == 20


def test_a_greedy_run_makes_the_steps_of_python():
    cases = [(prompt, KS[at % len(KS)], DRAFTS[at // 4 % len(DRAFTS)]) for at, prompt in enumerate(PROMPTS)]
    check_greedy(cases, max_new_tokens=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "draft"), [(0, DRAFTS[0]), (1, DRAFTS[0]), (8, DRAFTS[0]), *((4, each) for each in DRAFTS)]
)
def test_every_greedy_run_makes_the_steps_of_python(k, draft):
    check_greedy([(prompt, k, draft) for prompt in PROMPTS], max_new_tokens=64)


def row_behind(name, ids):
    """A model's probabilities behind a text, by transformers: [V] in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder_of(name), dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1).numpy()


def distance(row, u, *tokens):
    """How far, in probability, u lies at most from the borders between these two tokens, which both were drawn."""
    sums = np.cumsum(row)
    return float(np.abs(sums[min(tokens) : max(tokens)] - u * sums[-1]).max())


def first_difference(mine, right, seed):
    """The first draw that came out differently, and how far it was from doing so in both: (its name, a probability)."""
    draws = Seeded(seed)
    text = [token.id for token in mine.header.prompt.tokens]
    for step, other in zip(mine.steps, right.steps, strict=False):
        place, ids = len(text), list(text)
        for node, (one, two) in enumerate(zip(step.draft, other.draft, strict=True)):
            if one.id != two.id:
                row = row_behind(step.settings.draft_model, ids)
                return f"draft {node} of step {step.index}", distance(
                    row, draws.uniform(DRAFT, place + node, node), one.id, two.id
                )
            ids.append(one.id)
        for node, (one, two) in enumerate(zip(step.draft, other.draft, strict=True)):
            if one.status != two.status:
                return f"judgement {node} of step {step.index}", max(
                    abs(each.u - each.accept_prob) for each in (one, two)
                )
        *accepted, one = step.emitted
        *_, two = other.emitted
        text += [token.id for token in accepted]
        if one.id != two.id:
            row = row_behind(TARGET, text)
            if one.kind == "resampled":
                row = np.maximum(0.0, row - row_behind(step.settings.draft_model, text))
            return f"last token of step {step.index}", distance(row, draws.uniform(FINAL, place, -1), one.id, two.id)
        text.append(one.id)
    raise AssertionError("the texts are equal")


def check_seeded(seeds, max_new_tokens):
    """One seed for each prompt. Where two texts part, u fell between sums of floats that differ by rounding."""
    asked = [
        asked_run(prompt, seed=seed, max_new_tokens=max_new_tokens) for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    ties = {}
    for prompt, seed, mine in zip(PROMPTS, seeds, texts_of_page(asked), strict=True):
        right = reference(prompt, k=4, draft=DRAFTS[0], seed=seed, max_new_tokens=max_new_tokens)
        if steps_of(mine) != steps_of(right):
            ties[prompt] = first_difference(mine, right, seed)
    assert all(apart < NEAR_TIE for _, apart in ties.values()), ties
    assert len(ties) <= MOST_TIES, ties


def test_a_seed_gives_the_text_of_python():
    check_seeded(range(1, 21), max_new_tokens=32)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 100, 2**32 - 10, 2**53 - 20])
def test_many_seeds_give_the_text_of_python(start):
    check_seeded(range(start, start + 20), max_new_tokens=64)


def test_a_draw_that_is_no_near_tie_is_told_from_one():
    """What the tests above take for a near-tie: of two tokens drawn from a row, both borders have to lie beside u."""
    row = np.array([0.25, 0.0, 0.25, 0.5])
    assert distance(row, 0.25, 0, 2) == 0.0
    assert distance(row, 0.5, 2, 3) == 0.0
    assert distance(row, 0.25, 0, 3) == 0.25
    assert distance(row, 0.4, 0, 2) == pytest.approx(0.15)
