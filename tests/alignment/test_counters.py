"""What engines count, in every shape that they write, and what lies between that and what the files allow."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
import torch

from specviz.alignment.job import align
from specviz.alignment.report.sections import sections
from specviz.alignment.served.beside import beside
from specviz.alignment.served.counters import read_counters
from specviz.alignment.summary import Counters
from specviz.errors import SpecvizError
from tests.helpers.model_servers import bundled

HISTOGRAM = [40, 30, 20, 10]  # steps by how many tokens they accepted
BY_POSITION = (0.6, 0.3, 0.1)
MEAN = 2.0
REQUESTS = [[30, 20, 5, 5], [10, 10, 15, 5]]  # the same steps, in two requests


def by_request(make):
    """A line for each of the two requests."""
    return "\n".join(json.dumps(make(histogram)) for histogram in REQUESTS)


def accepted(histogram):
    return sum(place * count for place, count in enumerate(histogram))


def vllm(histogram):
    inside = {
        "mean_acceptance_length": 1 + accepted(histogram) / sum(histogram),
        "acceptance_histogram": histogram,
        "acceptance_histogram_by_draft_length": {"3": histogram},
        "num_spec_steps": sum(histogram),
        "num_spec_tokens": 3,
    }
    return {"id": "cmpl-1", "choices": [{"text": "a"}], "metrics": {"speculative_decoding": inside}}


def sglang(histogram):
    counted = {
        "spec_verify_ct": sum(histogram),
        "spec_accept_length": 1 + accepted(histogram) / sum(histogram),
        "spec_num_correct_drafts": accepted(histogram),
        "spec_num_proposed_drafts": 3 * sum(histogram),
        "spec_correct_drafts_histogram": histogram,
    }
    return {"text": "a", "meta_info": {"id": "1", **counted}}


def aiperf(histogram):
    counted = {str(place): count for place, count in enumerate(histogram)}
    inside = {"engine": "vllm", "acceptance_histogram": counted, "num_spec_tokens": 3}
    return {"metadata": {}, "metrics": {}, "spec_decode_acceptance": inside}


def llama(histogram):
    timings = {
        "predicted_n": 1 + sum(histogram) + accepted(histogram),  # the first comes with the prompt
        "draft_n": 3 * sum(histogram),
        "draft_n_accepted": accepted(histogram),
    }
    return {"content": "a", "timings": timings}


BENCH = {
    "request_throughput": 1.0,
    "spec_decode_acceptance_rate": 33.3,
    "spec_decode_acceptance_length": 2.0,
    "spec_decode_num_drafts": 100,
    "spec_decode_draft_tokens": 300,
    "spec_decode_accepted_tokens": 100,
    "spec_decode_per_position_acceptance_rates": list(BY_POSITION),
}
TENSORRT = {
    "max_draft_len": 3,
    "num_steps": 100,
    "accepted_draft_hist": HISTOGRAM,
    "per_request": {"1": {"steps": 60, "accepted_draft": 45}},
    "confidence_calibration": {"num_bins": 1, "attempts": [[1]], "accepted": [[1]]},
}
LOG = """INFO 11-01 10:00:00 [loggers.py:1] Engine 000: Avg generation throughput: 10.0 tokens/s
INFO 11-01 10:00:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 1.75, Accepted throughput: 4.50 \
tokens/s, Drafted throughput: 18.00 tokens/s, Accepted: 45 tokens, Drafted: 180 tokens, Per-position acceptance rate: \
0.500, 0.167, 0.083, Avg Draft acceptance rate: 25.0%
INFO 11-01 10:00:10 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.38, Accepted throughput: 5.50 \
tokens/s, Drafted throughput: 12.00 tokens/s, Accepted: 55 tokens, Drafted: 120 tokens, Per-position acceptance rate: \
0.750, 0.500, 0.125, Avg Draft acceptance rate: 45.8%
"""
LLAMA_LOG = (
    "slot print_timing: id  0 | draft acceptance = 0.33333 ( 100 accepted / 300 generated), mean acceptance length = "
    " 2.00, acceptance rate per position = (0.600, 0.300, 0.100)\n"
)
METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 60.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 40.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 1e1
"""
SHAPES = {
    "vLLM": by_request(vllm),
    "vLLM's log": LOG,
    "vLLM's metrics": METRICS,
    "vllm bench serve": json.dumps(BENCH, indent=1),
    "SGLang": json.dumps([sglang(histogram) for histogram in REQUESTS]),
    "TensorRT-LLM": json.dumps(TENSORRT),
    "AIPerf": by_request(aiperf),
    "llama.cpp's log": LLAMA_LOG,
}


def write(tmp_path, text):
    path = tmp_path / "counted.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("source", SHAPES)
def test_every_shape_gives_the_same_counters(tmp_path, source):
    found = read_counters(write(tmp_path, SHAPES[source]))
    assert found.source == source
    assert found.num_steps == pytest.approx(100, rel=0.01)
    assert found.tokens_per_step == pytest.approx(MEAN, rel=0.01)
    assert found.by_position == pytest.approx(BY_POSITION, abs=0.003)
    assert found.k == 3
    assert not found.is_forged
    steps = np.repeat([0, 1, 2, 3], HISTOGRAM)
    assert found.deviation == pytest.approx(steps.std() / 10, rel=0.02)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (by_request(llama), "llama.cpp"),
        (
            json.dumps({"sglext": {"spec_tokens_details": {"spec_verify_ct": 100, "spec_num_correct_drafts": 100}}}),
            "SGLang",
        ),
    ],
)
def test_counters_without_positions_give_the_mean_alone(tmp_path, text, source):
    found = read_counters(write(tmp_path, text))
    assert (found.source, found.num_steps, found.tokens_per_step) == (source, 100, MEAN)
    assert (found.by_position, found.deviation, found.k) == ((), None, None)


@pytest.mark.parametrize(
    "words",
    [
        '{"speculative_config": {"rejection_sample_method": "synthetic"}}',
        "rejection_sample_method='synthetic'",
        "--spec-decode-acceptance-length 3",
        "SGLANG_SIMULATE_ACC_LEN=3",
    ],
)
def test_forged_acceptance_is_named(tmp_path, words):
    assert read_counters(write(tmp_path, f"{SHAPES['vLLM']}\n{words}\n")).is_forged


REFUSED = {
    "holds no counters of speculative decoding": '{"choices": []}\n',
    "holds no counters of speculative decoding; read are": "",
    "holds counters of vLLM and of SGLang": f"{SHAPES['vLLM']}\n{json.dumps(sglang(HISTOGRAM))}",
    'needs "acceptance_histogram" as a list of at most 1,000 numbers': json.dumps({"acceptance_histogram": "many"}),
    'needs "acceptance_histogram" as a number that is not negative': json.dumps({"acceptance_histogram": [1, -2]}),
    'needs "spec_verify_ct" as a number that is not negative': json.dumps({"spec_verify_ct": "7"}),
    "counts drafts of 20 tokens: at most 16": json.dumps({"acceptance_histogram": [1] * 21}),
    "no step that drafted": json.dumps({"acceptance_histogram": [0, 0]}),
    "counters that cannot be": json.dumps(
        {"spec_verify_ct": 10, "spec_num_correct_drafts": 900, "spec_correct_drafts_histogram": []}
    ),
    "counts more accepted tokens than written ones": json.dumps(
        {"draft_n": 9, "draft_n_accepted": 8, "predicted_n": 4}
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_counters_is_refused_in_words(tmp_path, words):
    with pytest.raises(SpecvizError) as caught:
        read_counters(write(tmp_path, REFUSED[words]))
    assert words in str(caught.value)
    assert str(caught.value).startswith("counted.jsonl ")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SpecvizError, match="cannot be opened"):
        read_counters(tmp_path / "none.jsonl")
    (tmp_path / "packed.gz").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(SpecvizError, match="is packed"):
        read_counters(tmp_path / "packed.gz")
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(SpecvizError, match="is not a file"):
            read_counters(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        METRICS.replace("\n", "\r\n"),
        f"\ufeff{METRICS}",
        METRICS.replace("60.0\n", "60.0 1700000000\n", 1),
        f"{LOG}caf\u00e9",
        f"{METRICS}vllm:other ...\nType e\nvllm:other 1e.e+\n",
    ],
)
def test_how_a_file_is_written_does_not_matter(tmp_path, text):
    path = tmp_path / "counted"
    path.write_bytes(text.encode("latin-1" if "caf" in text else "utf-8"))
    assert read_counters(path).tokens_per_step == pytest.approx(MEAN, rel=0.01)


@pytest.mark.parametrize(
    "values",
    [
        {"acceptance_histogram": [10**400, 1]},
        {"acceptance_histogram": {"1" * 5000: 1}},
        {"acceptance_histogram": [1] * 100_000},
        {"acceptance_histogram": [1, 2], "num_spec_tokens": 1e308},
        {"spec_verify_ct": 1e-300, "spec_num_proposed_drafts": 1e300, "spec_correct_drafts_histogram": [1, 2]},
        {"acceptance_histogram": [[1]]},
    ],
    ids=lambda values: next(iter(values)),
)
def test_numbers_that_nobody_counts_are_refused_in_words(tmp_path, values):
    with pytest.raises(SpecvizError) as caught:
        read_counters(write(tmp_path, json.dumps(values)))
    assert len(str(caught.value)) < 400


def test_positions_that_rise_cannot_be(tmp_path):
    bench = {**BENCH, "spec_decode_per_position_acceptance_rates": [0.1, 0.8, 0.1]}
    with pytest.raises(SpecvizError, match="counters that cannot be"):
        read_counters(write(tmp_path, json.dumps(bench)))


# ---- beside what the files allow -------------------------------------------------------------------------------------

K = 3
PADDING = 64
PROMPTS = [
    f"{who} {what}"
    for who in ("Once upon a time", "The cat", "Tom and Mia", "One morning", "The old man", "A bird")
    for what in ("was", "had a", "saw the", "and the dog", "in the")
]


@pytest.fixture(scope="module")
def models():
    return [bundled(name) for name in ("fable-target", "fable-draft")]


@torch.inference_mode()
def serve(models, pads, is_drawn, num_steps=300):
    """Counts as an engine would: drafts, verifies, writes on; by hand, with a forward for each token."""
    (target, tokenizer), (draft, _) = models
    generator = torch.Generator().manual_seed(1)

    def law(model, ids):
        return torch.softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1)

    def draw(weights):
        return int(torch.multinomial(weights, 1, generator=generator))

    histogram = [0] * (K + 1)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    while sum(histogram) < num_steps:
        ids = list(prompts[sum(histogram) % len(prompts)])
        for _ in range(12):
            drafted, laws = [], []
            for _ in range(K):
                q = law(draft, [*pads, *ids, *drafted])
                if not is_drawn:
                    q = torch.zeros_like(q).scatter_(0, q.argmax()[None], 1.0)
                drafted.append(draw(q))
                laws.append(q)
            rows = torch.softmax(target(torch.tensor([[*ids, *drafted]])).logits[0, len(ids) - 1 :].double(), -1)
            count = 0
            for token, q, p in zip(drafted, laws, rows, strict=False):
                if torch.rand((), generator=generator) >= p[token] / q[token]:
                    ids.append(draw((p - q).clamp_min(0)))
                    break
                ids.append(token)
                count += 1
            else:
                ids.append(draw(rows[-1]))
            histogram[count] += 1
    return histogram


def job(tmp_path, histogram, **options):
    path = write(tmp_path, json.dumps(vllm(histogram)))
    options = {"k": K, "costs": {}, "max_new_tokens": 32, "seed": 3, **options}
    return align([{"prompt": prompt} for prompt in PROMPTS], draft="fable-draft", served=path, **options).summary


@pytest.mark.parametrize("is_drawn", [True, False], ids=["drawn", "most likely"])
def test_a_sound_engine_fits_one_way_of_drafting(models, tmp_path, is_drawn):
    summary = job(tmp_path, serve(models, [], is_drawn))
    found = summary.as_served
    fits = {way.by_argmax: way.fits for way in found.allowed}
    assert fits == {False: is_drawn, True: not is_drawn}
    assert not summary.drafts[0].findings
    assert not found.faults
    for way in found.allowed:
        mode = summary.drafts[0].by_argmax if way.by_argmax else summary.drafts[0]
        assert way.by_position == pytest.approx(mode.by_position, abs=1e-6)
        assert way.interval[0] < way.tokens_per_step < way.interval[1]


def test_an_engine_that_attends_to_padding_is_found_out(models, tmp_path):
    summary = job(tmp_path, serve(models, [0] * PADDING, is_drawn=True))
    (finding,) = summary.drafts[0].findings
    assert finding.kind == "served"
    assert "Look at padding" in finding.words
    words = [fault.words for fault in summary.as_served.faults]
    assert any(f"{PADDING} padding tokens" in each for each in words), words
    assert f"{PADDING} padding tokens" in finding.words
    assert summary.drafts[0].verdict == "sound"
    assert "engine" in summary.drafts[0].next_step


def test_more_than_the_files_allow_is_said(tmp_path):
    summary = job(tmp_path, [0, 0, 10, 990])
    assert not summary.drafts[0].findings
    assert any("more than these files allow" in words for words in summary.warnings)
    (part,) = (part for part in sections(summary) if part.title == "As served")
    assert "more than these files allow" in str(part.blocks[1])
    assert "so few" not in str(part)


@pytest.mark.parametrize(
    ("text", "prompts", "words"),
    [
        (f"{SHAPES['vLLM']}\nrejection_sample_method='synthetic'\n", 10, "drew? acceptance at random|draw acceptance"),
        (SHAPES["vLLM"], 3, "fewer than 8 texts"),
    ],
    ids=["forged", "few"],
)
def test_counters_that_say_nothing_get_no_verdict(tmp_path, text, prompts, words):
    summary = align(PROMPTS[:prompts], k=K, costs={}, max_new_tokens=8, served=write(tmp_path, text)).summary
    assert summary.as_served is None
    assert not [finding for finding in summary.drafts[0].findings if finding.kind == "served"]
    assert any(re.search(words, warning) for warning in summary.warnings)


def test_an_engine_with_other_texts_fits_as_often_as_said():
    """The texts' own chance counts, unless the engine wrote these very texts."""
    chance = np.random.default_rng(2)

    def steps_of(num_texts):
        rates = chance.beta(4, 3, (num_texts, 1))
        accepted = np.cumprod(chance.random((num_texts, 20, K)) < rates[:, :, None], axis=2).sum(1)
        return np.concatenate([np.full((num_texts, 1), 20.0), accepted], axis=1)

    def fits():
        mine, theirs = steps_of(20), steps_of(20)
        mean = theirs[:, 1:].sum() / theirs[:, 0].sum()
        counted = Counters("x", 400.0, 1 + mean, 0.05, (), K, False, "")
        found = beside("d", counted, {False: mine}, (), are_same_texts=False)
        return found.allowed[0].fits

    assert sum(fits() for _ in range(200)) >= 150


def test_another_k_and_several_drafts_are_refused(tmp_path):
    with pytest.raises(SpecvizError, match="of up to 3 tokens, and the job has K=5: give --k 3"):
        job(tmp_path, HISTOGRAM, k=5)
    path = write(tmp_path, SHAPES["vLLM"])
    with pytest.raises(SpecvizError, match=r"of one draft: name that one .got 2"):
        align(["a"], target="fable-target", draft=["fable-draft", "fable-draft-tiny"], k=3, served=path)
    with pytest.raises(SpecvizError, match="served must be the name of a file"):
        align(["a"], served=7)


def test_counters_are_part_of_the_job(tmp_path):
    out = tmp_path / "job"
    summary = job(tmp_path, HISTOGRAM, out=out, max_new_tokens=8)
    (part,) = (part for part in sections(summary) if part.title == "As served")
    counted = [str(cell) for cell in part.blocks[0].rows[0]]
    assert counted[:2] == ["tokens per step", "2.00"]
    assert len(part.blocks[0].rows) == 1 + K
    assert "(" in counted[2]
    with pytest.raises(SpecvizError, match=r"holds another job .served was"):
        job(tmp_path, [1, 2, 3, 4], out=out, max_new_tokens=8)
