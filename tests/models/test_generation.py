"""A model's generation settings: named in full, obeyed by no `generate` of ours, harmless whatever they hold."""

import json
import math

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import (
    GenerationMixin,
    MinPLogitsWarper,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specviz.bench.contenders import BenchPrompt, BenchTask, specviz_contender, transformers_contender
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.models.generation import asked_by, describe, settings_for, unlike, without_settings
from specviz.models.pool import ModelPool
from specviz.session.setup import gather
from specviz.trace.events import ModelInfo
from tests.helpers.tiny_models import tiny, tiny_tokenizer

ASKED = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.8,
    "min_p": 0.1,
    "top_h": 0.5,
    "typical_p": 0.9,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01,
    "repetition_penalty": 1.3,
    "encoder_repetition_penalty": 1.2,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 3,
    "bad_words_ids": [[7, 8]],
    "suppress_tokens": [5, 6],
    "begin_suppress_tokens": [9],
    "sequence_bias": [[[4], 2.0]],
    "forced_bos_token_id": 3,
    "forced_eos_token_id": 2,
    "exponential_decay_length_penalty": [3, 1.1],
    "guidance_scale": 1.5,
    "min_length": 30,
    "min_new_tokens": 20,
    "num_beams": 2,
    "stop_strings": ["the"],
    "token_healing": True,
}
CASE = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.3}
LAWS = [Sampling(0.0), Sampling(), Sampling(0.7), Sampling(1.3, 12, 0.9), Sampling(1.3, 12, 0.9, 0.2)]
PROMPT = BenchPrompt("story", "one", (5, 9, 30))


@pytest.fixture
def pair():
    """A target and a draft that both ask for all of it."""
    pool, tokenizer = ModelPool(10**9), tiny_tokenizer()
    made = [tiny("llama", vocab_size=len(tokenizer), layers=layers, seed=layers) for layers in (2, 1)]
    for model in made:
        model.generation_config.update(**ASKED)
    return [pool.load((model, tokenizer)) for model in made]


@pytest.fixture
def built(monkeypatch):
    """The logits processors of every `generate`, as they are built, those that were passed in last."""
    lists, build = [], GenerationMixin._get_logits_processor

    def watch(*args, **options):
        lists.append(list(build(*args, **options)))
        return build(*args, **options)

    monkeypatch.setattr(GenerationMixin, "_get_logits_processor", watch)
    return lists


def wanted(sampling):
    """The classes of processors that make this law."""
    if not sampling.temperature:
        return []
    has = {TemperatureLogitsWarper: sampling.temperature != 1, TopKLogitsWarper: sampling.top_k}
    has |= {TopPLogitsWarper: sampling.top_p < 1, MinPLogitsWarper: sampling.min_p}
    return [kind for kind, is_needed in has.items() if is_needed]


@pytest.mark.parametrize("sampling", LAWS, ids=str)
def test_a_contender_of_transformers_samples_by_the_distribution_of_the_job_alone(pair, built, sampling):
    transformers_contender(pair[0], None, 3)(BenchTask(PROMPT, sampling, 0, 6))
    (processors,) = built
    assert [type(each) for each in processors] == wanted(sampling)
    logits = torch.randn(4, 320, generator=torch.Generator().manual_seed(1))
    made = logits
    for each in processors:
        made = each(torch.zeros(4, 1, dtype=torch.long), made)
    if sampling.temperature:
        torch.testing.assert_close(made.softmax(-1), sampling.probs(logits))


@pytest.mark.parametrize("sampling", LAWS, ids=str)
def test_its_assistant_obeys_no_file_either(pair, built, sampling):
    transformers_contender(*pair, 3)(BenchTask(PROMPT, sampling, 0, 8))
    assert len(built) > 1
    assert {type(each) for processors in built for each in processors} == set(wanted(sampling))


def test_greedy_text_of_generate_is_that_of_specviz_whatever_the_files_ask_for(pair):
    job = BenchTask(PROMPT, Sampling(0.0), 0, 40)
    contenders = [specviz_contender(gather(METHODS["none"], {}, pair[0], None), 3)]
    contenders += [transformers_contender(pair[0], draft, 3) for draft in (None, pair[1])]
    assert len({contender(job).tokens for contender in contenders}) == 1


def test_a_folder_with_such_a_file_is_raced_on_one_text(tmp_path):
    """A copy of the bundled target that asks for a penalty: without it, its own `generate` writes something else."""
    pool = ModelPool(10**9, allow_any=True)
    bundled = pool.load("fable-target")
    bundled.model.save_pretrained(tmp_path / "asking")
    bundled.tokenizer.save_pretrained(tmp_path / "asking")
    (tmp_path / "asking" / "generation_config.json").write_text(json.dumps(CASE | {"eos_token_id": [0]}))
    target = pool.load(str(tmp_path / "asking"))
    ids = tuple(target.text.encode("Once upon a time"))
    job = BenchTask(BenchPrompt("story", "one", ids), Sampling(0.0), 0, 48)
    ours = specviz_contender(gather(METHODS["none"], {}, target, None), 4)(job).tokens
    assert transformers_contender(target, None, 4)(job).tokens == ours
    obeying = target.model.generate(torch.tensor([ids]), max_new_tokens=48, do_sample=False, pad_token_id=0)
    assert tuple(obeying[0].tolist()[len(ids) :]) != ours


def test_the_models_own_settings_stay(pair):
    model = pair[0].model
    before = model.generation_config.to_dict()
    assert without_settings(model).get_input_embeddings().weight is model.get_input_embeddings().weight
    assert without_settings(model).generation_config is not model.generation_config
    assert model.generation_config.to_dict() == before


def test_everything_that_changes_the_text_is_named_and_nothing_else():
    """ASKED lists what transformers' own processors, searches and stops read."""
    assert set(asked_by(GenerationConfig(**ASKED, eos_token_id=3, max_new_tokens=9, use_cache=False))) == set(ASKED)
    assert asked_by(settings_for(Sampling(), 8, [1, 2])) == asked_by(GenerationConfig()) == asked_by(None) == {}
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0, "num_beams": 1}
    assert asked_by(GenerationConfig(**neutral, suppress_tokens=[])) == {}


def test_a_sentence_says_what_is_asked_what_is_used_and_what_is_not():
    asked = asked_by(GenerationConfig(**CASE, suppress_tokens=[4, 5, 6]))
    assert describe(asked) == (
        "its generation_config.json asks for temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.3 and "
        "suppress_tokens (3 values): not applied, only its end tokens are used"
    )
    assert describe({}) == describe(None) == ""


def test_a_loaded_models_record_holds_it(pair):
    assert set(pair[0].info.generation_config) == set(ASKED)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        10**400,
        -5.0,
        SequenceBiasLogitsProcessor({(1,): 2.0}),
        "x" * 10_000,
        [0] * 10_000,
        {"a": [1]},
        False,
    ],
)
def test_whatever_a_file_holds_the_record_is_one_that_a_trace_can_hold(value):
    generation = GenerationConfig()
    generation.repetition_penalty = value
    asked = asked_by(generation)
    info = {**dict.fromkeys(ModelInfo.__dataclass_fields__), "name": "x", "generation_config": asked}
    info.pop("extra")
    made = ModelInfo.from_dict(json.loads(json.dumps(info, allow_nan=False)))
    assert made.generation_config == asked
    assert 0 < len(describe(asked)) < 400


def test_a_record_without_such_settings_is_written_as_it_was_before_they_were_recorded(pair):
    info = pair[0].info.to_dict()
    del info["generation_config"]
    assert ModelInfo.from_dict(info).to_dict() == info


def test_a_strangers_trace_shows_only_settings_that_exist():
    assert describe({"\x1b[31m": "no", "top_k": 5}).startswith("its generation_config.json asks for top_k 5: ")


@pytest.mark.parametrize(
    ("sampling", "names"),
    [
        (Sampling(0.0), {"repetition_penalty"}),
        (Sampling(0.7, 20, 0.8), {"repetition_penalty"}),
        (Sampling(0.7), {"top_k", "top_p", "repetition_penalty"}),
    ],
)
def test_what_cannot_have_changed_a_text_of_this_sampling_is_left_out(sampling, names):
    assert set(unlike(asked_by(GenerationConfig(**CASE)), sampling)) == names


def test_a_file_that_asks_for_this_min_p_asks_for_nothing_else():
    asked = asked_by(GenerationConfig(min_p=0.1))
    assert [set(unlike(asked, Sampling(min_p=min_p))) for min_p in (0.0, 0.1, 0.2)] == [{"min_p"}, set(), {"min_p"}]
