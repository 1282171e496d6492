"""llama.cpp as a contender: the file it is given is the model, its texts are compared, and without it one line says so.

What runs libllama needs llama-cpp-python and is skipped where it is missing.
"""

import time
from dataclasses import replace
from importlib.util import find_spec

import gguf
import pytest
import torch

from specviz.bench.contenders import BenchPrompt, BenchTask, TimedGeneration, run_bench, specviz_contender
from specviz.bench.libllama import FAMILIES, NAME, LlamaReader, compare, llama_contender, write_gguf
from specviz.bench.report import lines
from specviz.cli.main import main
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.gguf import read_header
from specviz.models.pool import ModelPool
from specviz.session.setup import gather
from tests.helpers.own_cache import own_cache
from tests.helpers.tiny_models import tiny, tiny_tokenizer

OURS = "specviz, draft_model"
PROMPTS = [BenchPrompt("story", name, ids) for name, ids in (("one", (5, 9, 2)), ("two", (40, 8, 8, 30, 7)))]
needs_llama_cpp = pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    own_cache(tmp_path, monkeypatch)


def written(place, model, tokenizer):
    write_gguf(gguf.GGUFWriter(place, model.config.model_type), model, tokenizer)
    return place


def loaded_pair(family="llama", num_unused=0):
    pool, tokenizer = ModelPool(10**9), tiny_tokenizer()
    made = [tiny(family, vocab_size=len(tokenizer) + num_unused, layers=layers, seed=layers) for layers in (2, 1)]
    return [pool.load((model, tokenizer)) for model in made]


def assert_read_again(file, model, pool):
    """The same weights as float16 holds them, which is what a converted model is stored in."""
    again = pool.load(str(file)).model
    assert again.config.vocab_size == model.config.vocab_size
    ours, wanted = dict(again.named_parameters()), dict(model.named_parameters())
    assert ours.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(ours[name], weight.detach().half().float()), name


@pytest.mark.parametrize(("family", "num_unused"), [("llama", 0), *((family, 5) for family in FAMILIES)])
def test_a_written_file_is_read_again_as_the_same_weights(family, num_unused, pool, tmp_path):
    tokenizer, wide = tiny_tokenizer(), {"head_dim": 128} if family == "qwen3" else {}
    model = tiny(family, vocab_size=len(tokenizer) + num_unused, **wide)
    assert_read_again(written(tmp_path / "tiny.gguf", model, tokenizer), model, pool)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fable-target", "fable-draft"])
def test_the_bundled_pair_is_written_and_read_again_bit_for_bit(name, pool, tmp_path):
    bundled = pool.load(name)
    file = written(tmp_path / "again.gguf", bundled.model, bundled.tokenizer)
    header = read_header(file, name)
    assert {tensor.tensor_type.name for tensor in header.tensors} == {"F32"}
    again = pool.load(str(file))
    assert_read_again(file, bundled.model, pool)
    ids = torch.tensor([PROMPTS[1].ids])
    assert torch.equal(again.model(ids).logits, bundled.model(ids).logits)


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_without_its_recorder_the_engine_writes_the_same_text_and_no_share_is_told():
    target, draft = loaded_pair()
    setup = gather(METHODS["draft_model"], {}, target, draft)
    for temperature in (0.0, 1.0):
        job = BenchTask(PROMPTS[0], Sampling(temperature), 3, 10)
        recorded, alone = (specviz_contender(setup, 3, is_recorded=each)(job) for each in (True, False))
        assert (alone.tokens, alone.target_calls, alone.num_first) == (
            recorded.tokens,
            recorded.target_calls,
            recorded.num_first,
        )
        assert (alone.record_share, alone.steps) == (None, None)


def test_cpu_time_counts_work_and_no_waiting():
    base = TimedGeneration(
        "", "story", "one", 0.0, num_tokens=1, seconds=1.0, num_first=1, first_seconds=1.0, target_calls=1
    )

    def works(job):
        begun = time.process_time()
        while time.process_time() < begun + 0.05:
            pass
        return replace(base, contender="works")

    def waits(job):
        time.sleep(0.05)
        return replace(base, contender="waits")

    for sample in run_bench([works, waits], PROMPTS[:1], temperatures=(0.0,), repeats=1):
        assert (sample.cpu_seconds >= 0.05) == (sample.contender == "works")


def test_where_a_text_parts_and_how_near_a_tie_it_was_is_said():
    target, _ = loaded_pair()
    logits = target.cached_lm().forward([*PROMPTS[0].ids, 7])[0]
    far, *_, near, best = logits.argsort().tolist()
    texts = {OURS: (7, best), NAME: (7, near), "other": (7, far)}
    base = TimedGeneration(
        "", "story", "", 0.0, num_tokens=2, seconds=1.0, num_first=1, first_seconds=0.5, target_calls=2
    )
    samples = [
        replace(base, contender=contender, prompt=prompt.name, round=number, tokens=tokens if number == 1 else (7, 7))
        for number, prompt in enumerate(PROMPTS, 1)
        for contender, tokens in texts.items()
    ]

    def words():
        return list(compare(OURS, target, PROMPTS, samples))

    gap = float(logits[best] - logits[near])
    assert gap > 0.01
    assert words()[0] == f"\n{OURS} / {NAME}: 1.00x (1.00-1.00), too few to tell"
    assert words()[1] == f"one: {NAME} parts at token 2, where logits lie {gap:.2g} apart: more than rounding"
    assert words()[2].startswith("one: other parts at token 2, where logits lie")
    assert words()[3:] == ["all contenders write the same text on 1 of 2 prompts"]
    output = target.model.get_output_embeddings().weight
    with torch.no_grad():
        output[near] = output[best]
    assert words()[1] == f"one: {NAME} parts at token 2, where logits lie 0 apart: a near-tie"


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("llama_cpp") is not None, reason="llama-cpp-python is installed")
def test_without_the_package_one_line_says_how_to_install_it(capsys):
    assert main(["bench", "llama.cpp"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.endswith("pip install llama-cpp-python\n")


def test_it_takes_one_k(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "llama.cpp", "--k", "2", "3"])
    assert capsys.readouterr().err.endswith("error: unrecognized arguments: 3\n")


# ---- libllama itself -------------------------------------------------------------------------------------------------


@needs_llama_cpp
@pytest.mark.parametrize("family", FAMILIES)
def test_libllama_reads_the_written_file_as_the_same_model(family):
    target, _ = loaded_pair(family, num_unused=5)
    reader, ids, other = LlamaReader(target, 64), [5, 9, 2, 40, 8], [5, 9, 2, 11, 8]
    wanted, wanted_other = target.model(torch.tensor([ids, other])).logits.argmax(-1).tolist()
    assert reader.likeliest(ids, len(ids)) == wanted
    assert reader.likeliest(ids[:4], 2) == wanted[2:4]  # behind rows that are kept
    assert reader.likeliest(other, 2) == wanted_other[-2:]
    assert reader.likeliest(ids, 2) == wanted[-2:]


@needs_llama_cpp
def test_its_text_and_its_steps_are_those_of_our_engine():
    pair = loaded_pair()
    loop, ours = llama_contender(*pair, 3, 64), specviz_contender(gather(METHODS["draft_model"], {}, *pair), 3)
    for prompt in (*PROMPTS, PROMPTS[0]):
        job = BenchTask(prompt, Sampling(0.0), 0, 30)
        one, other = loop(job), ours(job)
        assert (one.tokens, one.target_calls, one.num_first) == (other.tokens, other.target_calls, other.num_first)
    pair[0].text.eos_ids = frozenset(other.tokens[9:10])
    ended = replace(job, ends=True)
    one, other = loop(ended), ours(ended)
    assert (one.tokens, one.target_calls) == (other.tokens, other.target_calls)
    assert one.tokens[-1] in pair[0].text.eos_ids
    assert one.num_tokens <= 10


@needs_llama_cpp
def test_a_model_that_it_cannot_be_given_is_refused():
    with pytest.raises(SpecvizError, match=r"llama, qwen2, qwen3 .*\('gemma2', 'default'\)"):
        LlamaReader(loaded_pair("gemma2")[0], 64)


@needs_llama_cpp
def test_the_command_prints_all_contenders_and_compares_their_texts():
    settings = {"target": "fable-target", "draft": "fable-draft-tiny", "k": [2], "num_tokens": 8, "repeats": 1}
    said = list(lines(**settings, has_llama=True))
    names = {line.split(" | ")[1] for line in said if line.startswith("| 0 ")}
    assert names == {f"specviz, {each}" for each in ("none", "draft_model", "draft_model, not recorded")} | {
        "generate",
        "generate, assistant_model",
        NAME,
    }
    assert said[-1].startswith("all contenders write the same text on ")
