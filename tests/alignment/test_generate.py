"""Texts drawn many at a time are those that the engine writes one at a time from the same seed."""

import itertools

import pytest
import torch

from specviz.alignment import generate
from specviz.alignment.generate import sample
from specviz.decoding.draws import Seeded, seed_of
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.forward import transformers_forward as forward
from specviz.decoding.sampling import Sampling
from specviz.drafters.none import NoDraft
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel, ModelPool, bytes_per_token
from specviz.rules import RULES
from tests.helpers.tiny_models import FAMILIES, tiny, tiny_tokenizer

PROMPTS = [[5, 9, 12], [7], [3, 22, 41, 8, 30, 2, 17, 11, 4, 19, 33], [60, 61, 20, 20], [5, 9, 12]]
SEEDS = [seed_of(3, number) for number in range(len(PROMPTS))]


def loaded(family, **config):
    return ModelPool().load((tiny(family, vocab_size=320, **config), tiny_tokenizer()))


def one_by_one(target, prompt, seed, sampling, num_tokens):
    plan = Plan(target.cached_lm(), NoDraft(), RULES["speculative_sampling"], sampling, 1)
    steps = list(speculate(prompt, lambda: plan, Seeded(seed), max_new_tokens=num_tokens, eos_ids=target.text.eos_ids))
    return tuple(token for step in steps for token in step.tokens), steps[-1].finish


SAMPLINGS = {"plain": Sampling(), "greedy": Sampling(0.0), "cut": Sampling(0.7, 20, 0.9)}
WITH_STATES = {"lfm2": 2, "qwen3_next": 4}  # and their layers, one with attention among them
PIECES = {"at once": 1000, "in pieces": 10}


def ways():
    """Every family reads its prompts at once and in pieces, one draws with every sampling; all of them is slow."""
    for family, name, pieces in itertools.product((*FAMILIES, *WITH_STATES), SAMPLINGS, PIECES):
        quick = name == "plain" or (family, pieces) == ("llama", "in pieces")
        marks = [] if quick else pytest.mark.slow
        yield pytest.param(family, SAMPLINGS[name], PIECES[pieces], id=f"{family}-{name}-{pieces}", marks=marks)


@pytest.mark.parametrize(("family", "sampling", "at_once"), ways())
def test_a_batch_writes_what_the_engine_writes_one_by_one(family, sampling, at_once, monkeypatch):
    monkeypatch.setattr(forward, "FEWEST", at_once)
    monkeypatch.setattr(forward, "MOST", at_once)
    target = loaded(family, layers=WITH_STATES.get(family, 2))
    drawn = sample(target, PROMPTS, SEEDS, sampling, 12)
    expected = [one_by_one(target, *asked, sampling, 12) for asked in zip(PROMPTS, SEEDS, strict=True)]
    assert [(each.ids, each.finish) for each in drawn] == expected
    assert len({each.ids for each in drawn}) >= 4


def test_texts_that_would_fill_the_memory_are_written_in_smaller_batches_and_stay_the_same(monkeypatch):
    target, sizes = loaded("llama"), []
    together, write = sample(target, PROMPTS, SEEDS, Sampling(), 24), LoadedModel.generate
    monkeypatch.setattr(generate, "CACHE_BYTES", 2 * bytes_per_token(target.model) * (max(map(len, PROMPTS)) + 24))

    def counted(self, own, *asked, **options):
        sizes.append(len(own))
        return write(self, own, *asked, **options)

    monkeypatch.setattr(LoadedModel, "generate", counted)
    assert sample(target, PROMPTS, SEEDS, Sampling(), 24) == together
    assert sizes == [2, 2, 1]


def test_a_target_that_stores_nothing_of_what_it_has_read_writes_the_texts_that_it_writes_one_by_one(named_models):
    target = named_models.load("quick")
    assert bytes_per_token(target.model) == 0
    texts = sample(target, PROMPTS, SEEDS, Sampling(), 6)
    assert texts == [
        sample(target, [prompt], [seed], Sampling(), 6)[0] for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
    ]


def test_a_text_ends_with_the_end_token_and_at_the_context():
    target = loaded("llama", max_position_embeddings=24)
    with torch.no_grad():  # an end token that is likely enough to be drawn
        target.model.get_output_embeddings().weight[319] *= 3
    drawn = sample(target, PROMPTS * 8, list(range(40)), Sampling(), 18)
    expected = [one_by_one(target, *asked, Sampling(), 18) for asked in zip(PROMPTS * 8, range(40), strict=True)]
    assert [(each.ids, each.finish) for each in drawn] == expected
    assert {each.finish for each in drawn} == {"eos", "length", "context"}
    assert {len(each.ids) for each in drawn if each.finish == "context"} == {24 - 11}


def test_the_models_own_settings_for_generation_change_nothing():
    target = loaded("llama")
    plain = sample(target, PROMPTS, SEEDS, Sampling(), 12)
    target.model.generation_config.update(repetition_penalty=3.0, num_beams=2, max_length=5, suppress_tokens=[1, 2, 3])
    assert sample(target, PROMPTS, SEEDS, Sampling(), 12) == plain
    assert target.model.generation_config.repetition_penalty == 3.0


def test_weights_that_give_no_number_are_named():
    target = loaded("llama")
    with torch.no_grad():
        target.model.get_output_embeddings().weight[7] = float("nan")
    with pytest.raises(SpecvizError, match=r"target model .*not-a-number"):
        sample(target, PROMPTS, SEEDS, Sampling(), 4)


def test_a_prompt_without_room_is_refused():
    with pytest.raises(ValueError, match="must leave room for a token"):
        sample(loaded("llama", max_position_embeddings=11), PROMPTS, SEEDS, Sampling(), 4)
