"""A proof at the library: kept for a model's files, told to the person, and what it refuses is refused by name."""

import pytest

import specviz
from specviz.decoding import cached_lm
from specviz.decoding.forward.proof import Proof
from specviz.errors import SpecvizError
from specviz.models import compiler, pool
from specviz.models.pool import ModelPool
from tests.helpers.own_cache import own_cache
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

MPT = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return own_cache(tmp_path, monkeypatch) / "proofs"


@pytest.fixture
def made(monkeypatch):
    """How often a model was proved."""
    proofs, really = [], cached_lm.prove_reading
    monkeypatch.setattr(cached_lm, "prove_reading", lambda *about: proofs.append(about) or really(*about))
    return proofs


@pytest.fixture(scope="module")
def chains_only(tmp_path_factory):
    """A folder with a model that counts its rows. All that is run with it is proved once."""
    tokenizer, place = tiny_tokenizer(), tmp_path_factory.mktemp("proved")
    with pytest.MonkeyPatch.context() as patch:
        own_cache(place, patch)
        yield str(tiny_folder(place / "by-rows", tiny("mpt", vocab_size=len(tokenizer), **MPT), tokenizer))


def test_what_was_proved_once_is_not_proved_again(folder, cache, made):
    first = ModelPool().load(str(folder))
    assert ModelPool().load(str(folder)).proof == first.proof
    assert len(made) == 1
    assert len(list(cache.iterdir())) == 1


def test_a_file_that_changed_is_proved_again(folder, cache, made):
    ModelPool().load(str(folder))
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    ModelPool().load(str(folder))
    assert len(made) == 2


def test_another_processor_proves_for_itself(folder, cache, made, monkeypatch, tmp_path):
    """Its compiled code is another one; the folder of the cache may be shared."""
    ModelPool().load(str(folder))
    monkeypatch.setattr(compiler, "_CPU_INFO", tmp_path / "cpuinfo")
    compiler._CPU_INFO.write_text("model name : other", "utf-8")
    ModelPool().load(str(folder))
    assert len(made) == 2


@pytest.mark.parametrize("damage", [b"", b"\xff{", b'{"trees": 3}'])
def test_a_kept_proof_that_is_damaged_is_made_again(folder, cache, made, damage):
    ModelPool().load(str(folder))
    (kept,) = cache.iterdir()
    kept.write_bytes(damage)
    assert ModelPool().load(str(folder)).proof.num_tokens > 0
    assert len(made) == 2


def test_what_came_in_the_way_of_cuda_graphs_is_told_and_tried_again_at_the_next_start(folder, cache, monkeypatch):
    told = []
    monkeypatch.setattr(pool, "prove_model", lambda *_: Proof(replays="RuntimeError: the stream was in use"))
    ModelPool().load(str(folder), lambda words, done: told.append(words))
    assert told[-1].endswith("; without CUDA graphs: RuntimeError: the stream was in use")
    assert not cache.exists()


def test_the_cost_and_the_reason_are_told(chains_only):
    told = []
    loaded = ModelPool().load(chains_only, lambda words, done: told.append(words))
    assert loaded.proof.ms > 0
    assert "it reads chains only, as its numbers in a token tree are not those of the same tokens in a row" in told[-1]


@pytest.mark.parametrize("method", ["tree", "lookahead"])
def test_a_method_with_branches_is_refused_for_a_model_that_reads_chains_only(chains_only, method):
    with pytest.raises(SpecvizError, match=r"drafts in branches, and by-rows.* reads chains only: .* drafts a chain"):
        specviz.run("The fox", target=chains_only, draft=chains_only, method=method, max_new_tokens=8)


def test_chains_of_that_model_write_the_text_of_generate_and_the_trace_says_what_it_reads(chains_only):
    loaded = ModelPool().load(chains_only)
    for method in ("none", "draft_model", "prompt_lookup"):
        trace = specviz.run(
            "The fox said", target=chains_only, draft=chains_only, method=method, temperature=0, max_new_tokens=40
        )
        ids = [token.id for token in trace.header.prompt.tokens]
        (expected,) = loaded.generate([ids], 40)
        assert [token.id for token in trace.tokens] == expected[: len(trace.tokens)]
        assert trace.header.environment["chains_only"] == loaded.proof.trees


def test_a_model_that_cannot_be_read_behind_a_cache_is_refused_by_name(folder, cache, monkeypatch):
    forward = cached_lm.TransformersForward
    monkeypatch.setattr(cached_lm, "refusal", lambda model: "not tried")
    monkeypatch.setattr(forward, "keep", lambda self, start, end, source: None)
    for _ in range(2):  # a kept proof refuses as well
        with pytest.raises(SpecvizError, match="my-model cannot be used: its numbers behind a cache are not those of"):
            ModelPool().load(str(folder))


def test_a_token_without_a_row_is_named_at_load_and_refused_in_a_text(tmp_path, cache):
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer))
    tokenizer.add_tokens(["<|late|>"])
    told, folder = [], str(tiny_folder(tmp_path / "grown", model, tokenizer))
    text = ModelPool().load(folder, lambda words, done: told.append(words)).text
    assert "1 of its tokens have no row in the embedding" in told[-1]
    assert f"'<|late|>' (id {len(tokenizer) - 1:,})" in told[-1]
    assert text.encode("The fox")
    with pytest.raises(SpecvizError, match=r"the text has the token '<\|late\|>' \(id 320\), which this model cannot"):
        specviz.run("The fox <|late|>", target=folder, method="none", max_new_tokens=4)


def test_layers_that_share_keys_and_values_run_with_the_text_of_generate(tmp_path, cache):
    tokenizer = tiny_tokenizer()
    sizes = {
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "sliding_window": 16,
    }
    sizes |= {"head_dim": 8, "altup_num_inputs": 2, "laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 6}
    sizes |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": len(tokenizer)}
    model = tiny("gemma3n_text", vocab_size=len(tokenizer), layers=6, **sizes)
    loaded = ModelPool().load(str(tiny_folder(tmp_path / "sharing", model, tokenizer)))
    assert (loaded.proof.chains, loaded.proof.trees) == ("", "")
    (expected,) = loaded.generate([loaded.text.encode("The fox said")], 40)
    pair = loaded.model, loaded.tokenizer
    for method in ("draft_model", "tree"):
        trace = specviz.run("The fox said", target=pair, draft=pair, method=method, temperature=0, max_new_tokens=40)
        assert [token.id for token in trace.tokens] == expected[: len(trace.tokens)]
