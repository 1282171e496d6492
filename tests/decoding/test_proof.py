"""The proof at load: right models pass, and each way to take a model at its word that failed is found and told."""

import pytest
import torch
from transformers import LlamaForCausalLM

from specviz.decoding import cached_lm
from specviz.decoding.cached_lm import CachedLM, prove_model
from specviz.decoding.draft import Draft
from specviz.errors import SpecvizError
from tests.helpers.tiny_models import FAMILIES, SLIDING_WINDOW, tiny

MPT = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256}
BLOOM = {"n_head": 4, "n_layer": 2}
NEO = {"num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 16}
LIMIT = 256
TREE = Draft((4, 6, 8, 10), (-1, -1, -1, 2), (None,) * 4)


class WithoutCache(LlamaForCausalLM):
    """Takes a cache and does not use it."""

    def forward(self, input_ids, past_key_values=None, cache=None, **options):
        return super().forward(input_ids, **options)


class OnePlaceOn(LlamaForCausalLM):
    """Counts its places from 1 where the caller names them."""

    def forward(self, input_ids, position_ids=None, **options):
        return super().forward(input_ids, position_ids=None if position_ids is None else position_ids + 1, **options)


class Damaged(LlamaForCausalLM):
    def forward(self, *_, **__):
        raise KeyError("a part that is not there")


def as_class(kind):
    model = tiny("llama")
    model.__class__ = kind
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_obeys_passes_beyond_its_window(family):
    proof = prove_model(tiny(family), LIMIT)
    assert (proof.chains, proof.trees, proof.unreached) == ("", "", ())
    assert proof.num_tokens > SLIDING_WINDOW
    assert proof.words().startswith("it reads chains and token trees right (tried on ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "config", "fault"),
    [("mpt", MPT, "is off by "), ("bloom", BLOOM, "ValueError: too many values"), ("gpt_neo", NEO, "is off by ")],
)
def test_a_model_that_counts_rows_instead_of_places_reads_chains_only(family, config, fault, dtype):
    model = tiny(family, **config).to(dtype)
    proof = prove_model(model, LIMIT)
    assert proof.chains == ""
    assert fault in proof.trees
    assert proof.words().startswith("it reads chains only, as its numbers in a token tree ")
    with pytest.raises(SpecvizError, match=r"reads chains only: its numbers .* choose a method that drafts a chain"):
        CachedLM(model, LIMIT).forward([3, 5, 7], TREE)


def test_the_fault_of_a_window_shows_only_beyond_it():
    """GPT-Neo, as in the TinyStories models: within its window trees are right."""
    within = prove_model(tiny("gpt_neo", **NEO | {"window_size": 300, "max_position_embeddings": 512}), LIMIT)
    assert (within.trees, within.unreached) == ("", ())


def test_a_window_out_of_reach_is_named(monkeypatch):
    monkeypatch.setattr("specviz.decoding.forward.proof._MOST_OPERATIONS", {"cpu": 3e6})
    model = tiny("mistral", sliding_window=200)
    proof = prove_model(model, LIMIT)
    assert proof.unreached == (200,)
    assert "its window of 200 takes too long to try" in proof.words()


def test_a_configuration_cannot_make_the_proof_long():
    model = tiny("mistral", sliding_window=10**9, max_position_embeddings=10**12)
    proof = prove_model(model, 10**12)
    assert proof.unreached == (10**9,)
    assert proof.num_tokens < 5_000


def test_a_model_without_a_cache_is_refused():
    with pytest.raises(SpecvizError, match="its numbers behind a cache are not those of the whole text read at once"):
        CachedLM(as_class(WithoutCache), LIMIT)


def test_wrong_places_are_found_in_trees():
    assert "is off by" in prove_model(as_class(OnePlaceOn), LIMIT).trees


def test_a_model_whose_own_forward_fails_is_refused_with_its_reason():
    with pytest.raises(SpecvizError, match=r"its own forward over 15 tokens at once fails .KeyError: 'a part"):
        CachedLM(as_class(Damaged), LIMIT)


def test_a_model_is_proved_once_and_again_when_it_changes(monkeypatch):
    model, made = tiny("llama"), []
    really = cached_lm.prove_reading
    monkeypatch.setattr(cached_lm, "prove_reading", lambda *about: made.append(1) or really(*about))
    first = prove_model(model, LIMIT)
    assert prove_model(model, LIMIT) is first
    assert len(made) == 1
    model.model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(model.model.layers[0].mlp.down_proj.weight * 2)
    CachedLM(model, LIMIT)
    assert len(made) == 2


def test_a_proof_that_was_made_earlier_counts(monkeypatch):
    known = prove_model(tiny("llama"), LIMIT)
    monkeypatch.setattr(cached_lm, "prove_reading", None)
    same = tiny("llama")
    assert prove_model(same, LIMIT, known=known) is known
    assert CachedLM(same, LIMIT).path == "compact (not compiled: none was built)"


class PadsLogits(LlamaForCausalLM):
    """Has a quarter of its vocabulary as padding, and adds noise to what it reads behind a cache."""

    noise = 0.0

    def forward(self, input_ids, past_key_values=None, cache=None, **options):
        kept = {"past_key_values": past_key_values} if past_key_values is not None else {}
        kept |= {"cache": cache} if cache is not None else {}
        out = super().forward(input_ids, **kept, **options)
        if kept:
            out.logits = out.logits + self.noise * torch.randn(out.logits.shape, generator=torch.manual_seed(1))
        out.logits[..., -16:] = torch.finfo(torch.float32).min
        return out


@pytest.mark.parametrize(("noise", "is_right"), [(0.0, True), (3.0, False)])
def test_padding_hides_no_fault(noise, is_right):
    model = as_class(PadsLogits)
    model.noise = noise
    assert (prove_model(model, LIMIT).chains == "") is is_right


def test_what_could_not_be_tried_is_not_called_right():
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    assert prove_model(model, LIMIT).words() == "how it reads could not be tried: some of its logits are not numbers"
    assert prove_model(tiny("llama"), 4).words() == "how it reads could not be tried: its context is too short"


def test_memory_that_runs_out_is_no_fault_of_the_model(monkeypatch):
    def forward(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(cached_lm.Compact, "__call__", forward)
    with pytest.raises(RuntimeError, match="t allocate memory"):
        prove_model(tiny("llama"), LIMIT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3_moe", "gemma2"])
def test_rounding_of_16_bits_is_no_fault(family, dtype):
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
    for seed in range(4):
        model = tiny(family, seed=seed, layers=4, **(sizes if family == "qwen3_moe" else {})).to(dtype)
        assert prove_model(model, LIMIT).trees == ""


def test_numbers_of_layers_are_no_windows_and_few_windows_are_tried():
    model = tiny("llama", max_window_layers=28, my_window=list(range(1, 200_000)))
    assert prove_model(model, LIMIT).num_tokens == LIMIT
    assert len(prove_model(tiny("llama", my_window=list(range(5_000, 9_000))), 10**6).unreached) == 3
