"""Someone else's samples: drawn here by numpy from plain forwards, or spoilt in one way each; no file is trusted."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specviz.api import run
from specviz.checks.prove import bundled_prompts
from specviz.checks.samples import judge_samples, read_samples
from specviz.checks.scoring import plain_logits
from specviz.checks.statistics import SUSPICION, Evidence
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.session.workbench import workbench
from tests.helpers.pairs import pair_of

GREEDY, PLAIN = {"temperature": 0.0}, {"temperature": 0.5}


@pytest.fixture(scope="module")
def target(named_models):
    return named_models.load("quick")


@pytest.fixture(scope="module")
def bundled():
    return workbench().pool


def distribution(target, text, temperature):
    with torch.inference_mode():
        row = target.model(torch.tensor([text])).logits[0, -1].double().numpy() / temperature
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def drawn(target, temperature, num_texts=40, length=25, seed=0):
    """Texts by plain numpy sampling at this temperature."""
    generator = np.random.default_rng(seed)
    for number in range(num_texts):
        prompt, ids = [5 + number, 9, 30], []
        for _ in range(length):
            p = distribution(target, [*prompt, *ids], temperature)
            ids.append(int(generator.choice(len(p), p=p)))
        yield prompt, ids


@pytest.fixture(scope="module")
def honest(target):
    return list(drawn(target, 0.5))


def greedy_text(target, prompt=(5, 9, 30), length=12):
    ids = []
    for _ in range(length):
        ids.append(int(distribution(target, [*prompt, *ids], 1.0).argmax()))
    return list(prompt), ids


def write(path, texts, sampling):
    lines = [json.dumps({"prompt_ids": prompt, "ids": ids, "sampling": sampling}) for prompt, ids in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def judged(path, target, draft=None):
    *_, result = judge_samples(pair_of(target, draft), read_samples(path, target))
    return result


# ---- the judgement --------------------------------------------------------------------------------------------------


def test_honest_samples_are_consistent(tmp_path, target, honest):
    result = judged(write(tmp_path / "honest.jsonl", honest, PLAIN), target)
    assert result.drawn_outcome.state == "consistent"
    assert result.greedy_outcome is None
    assert (result.done, result.total, result.evidence.num_tokens) == (40, 40, 1000)


def test_samples_of_another_temperature_differ(tmp_path, target, honest):
    path = write(tmp_path / "hot.jsonl", honest, {"temperature": 0.7})
    assert judged(path, target).drawn_outcome.state == "differs"


def test_samples_of_a_temperature_close_by_are_suspicious_and_so_many_more_decide(tmp_path, target, honest):
    result = judged(write(tmp_path / "warm.jsonl", honest, {"temperature": 0.59}), target)
    assert result.drawn_outcome.state == "suspicious"
    more = result.evidence.tokens_to_go
    prompts = list(drawn(target, 0.5, num_texts=40 + 2 * more // 25, seed=0))  # the same, and twice as many as named
    path = write(tmp_path / "more.jsonl", prompts, {"temperature": 0.59})
    assert judged(path, target).drawn_outcome.state == "differs"


def chances_along(target, temperature):
    """The favourite's chance along texts of the bundled target, at temperature 1 and as if at another one."""
    rows = []
    for seed, prompt in enumerate(bundled_prompts(target)[:4]):
        ids = run(
            list(prompt), target=target.name, method="none", temperature=1.0, seed=seed, max_new_tokens=100
        ).tokens
        rows.append(plain_logits(target, [*prompt, *(token.id for token in ids[:-1])], len(ids)).double())
    logits = torch.cat(rows)
    most_likely = logits.argmax(-1, keepdim=True)
    return [(logits / t).softmax(-1).gather(1, most_likely).numpy() for t in (1.0, temperature)]


@pytest.mark.slow
def test_temperature_095_declared_as_1_is_suspicious_and_correct_samples_rarely_are(bundled):
    """500 streams of 8,000 favourites or others each, along real texts; correct ones are suspicious in 1 of 1,000."""
    distribution, cooler = (np.tile(chances, (20, 1)) for chances in chances_along(bundled.load("fable-target"), 0.95))
    generator = np.random.default_rng(1)

    def num_noticed(truth, num_streams):
        holds = (generator.random((8_000, 1)) < truth[:8_000] for _ in range(num_streams))
        return sum(
            Evidence.empty(("most_likely",)).add(each, distribution[:8_000]).differs(SUSPICION) for each in holds
        )

    assert num_noticed(distribution, 500) <= 500 * SUSPICION + 4.75 * math.sqrt(500 * SUSPICION)
    assert num_noticed(cooler, 50) > 40


def test_the_verdict_of_a_difference_may_come_before_the_end(tmp_path, target, honest):
    path = write(tmp_path / "hot.jsonl", honest, {"temperature": 0.9})
    results = judge_samples(pair_of(target, None), read_samples(path, target))
    assert next(result.done for result in results if result.drawn_outcome is not None) < 40


def test_a_draft_model_asks_more(tmp_path, target, honest, named_models):
    result = judged(write(tmp_path / "honest.jsonl", honest, PLAIN), target, named_models.load("far"))
    assert len(result.evidence.features) > 1
    assert result.drawn_outcome.state != "differs"


def test_few_samples_cannot_tell(tmp_path, target, honest):
    assert judged(write(tmp_path / "few.jsonl", honest[:2], PLAIN), target).drawn_outcome.state == "unsure"


def test_a_token_that_the_filter_forbids_differs_at_once_and_is_named(tmp_path, target, honest):
    prompt, ids = honest[0]
    place = next(i for i in range(25) if distribution(target, [*prompt, *ids[:i]], 1.0).argmax() != ids[i])
    result = judged(write(tmp_path / "filter.jsonl", honest[:1], {"temperature": 0.5, "top_k": 1}), target)
    assert result.drawn_outcome.state == "differs"
    first = result.impossible.first
    assert (first.sample.line, first.token.place, first.token.token) == (1, place, ids[place])


def test_greedy_samples_are_exact(tmp_path, target):
    result = judged(write(tmp_path / "greedy.jsonl", [greedy_text(target)], GREEDY), target)
    assert result.greedy_outcome.state == "exact"
    assert result.num_greedy == 12
    assert result.drawn_outcome is None


def test_a_greedy_sample_with_another_token_differs_and_both_logits_are_named(tmp_path, target):
    prompt, ids = greedy_text(target)
    most_likely, ids[4] = ids[4], 77
    result = judged(write(tmp_path / "greedy.jsonl", [(prompt, ids)], GREEDY), target)
    assert result.greedy_outcome.state == "differs"
    first = result.wrong_greedy.first.token
    with torch.inference_mode():
        row = target.model(torch.tensor([[*prompt, *ids[:4]]])).logits[0, -1]
    assert (first.place, first.token, first.most_likely) == (4, 77, most_likely)
    assert first.logit == pytest.approx(float(row[77]), abs=1e-4)
    assert f"{first.most_likely_logit:.6f}" in result.greedy_outcome.words


# ---- number formats -------------------------------------------------------------------------------------------------


def in_halves(model):
    """The model as it is loaded in bf16."""
    return replace(model, model=AutoModelForCausalLM.from_pretrained(model.model.name_or_path, dtype=torch.bfloat16))


def written(model, prompt, length):
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": length, "eos_token_id": None, "pad_token_id": 0}
    return model.model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def in_bf16(bundled):
    """The bundled target, and a greedy text of it in bf16 with its prompt."""
    target = bundled.load("fable-target")
    prompt = list(bundled_prompts(target)[0])
    return target, prompt, written(in_halves(target), prompt, 12)


@pytest.fixture(scope="module")
def parting(bundled):
    """Greedy texts of the bundled target in bf16, until one has a token that float32 would not have written."""
    target = bundled.load("fable-target")
    halves, texts = in_halves(target), []
    for prompt in bundled_prompts(target):
        texts.append((list(prompt), written(halves, prompt, 200)))
        logits = plain_logits(target, [*prompt, *texts[-1][1][:-1]], 200)
        if logits.argmax(-1).tolist() != texts[-1][1]:
            return target, texts
    pytest.fail("bf16 and float32 write the same 200 tokens after every bundled prompt")


@pytest.mark.slow
def test_greedy_text_of_a_declared_format_is_consistent_and_its_near_ties_are_counted(tmp_path, parting):
    target, texts = parting
    path = write(tmp_path / "halves.jsonl", texts, GREEDY)
    undeclared = judged(path, target).greedy_outcome
    assert undeclared.state == "differs"
    *_, result = judge_samples(pair_of(target, None), read_samples(path, target, "bf16"))
    assert result.greedy_outcome.state == "consistent"
    assert set(result.tied_greedy.by_format) == {"bf16"}
    *_, finer = judge_samples(pair_of(target, None), read_samples(path, target, "fp32"))
    assert finer.greedy_outcome.state == "differs"
    lines = [json.loads(line) | {"made_in": "bf16"} for line in path.read_text("utf-8").splitlines()]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert judged(path, target).greedy_outcome == result.greedy_outcome


def test_a_wrong_token_differs_in_a_declared_format_too(tmp_path, in_bf16):
    target, prompt, ids = in_bf16
    logits = plain_logits(target, [*prompt, *ids[:5]], 6)
    place = int((logits.topk(2).values @ torch.tensor([1.0, -1.0])).argmax())  # the surest of the first tokens
    wrong = [*ids[:place], int(logits[place].topk(2).indices[1])]
    path = write(tmp_path / "wrong.jsonl", [(prompt, wrong)], GREEDY)
    *_, result = judge_samples(pair_of(target, None), read_samples(path, target, "bf16"))
    assert result.greedy_outcome.state == "differs"
    first = result.wrong_greedy.first
    assert (first.sample.line, first.token.place, first.token.token) == (1, place, wrong[-1])


def test_another_model_in_a_declared_format_differs(tmp_path, bundled, in_bf16):
    target, prompt, _ = in_bf16
    other = in_halves(bundled.load("fable-draft", as_draft=True))
    path = write(tmp_path / "other.jsonl", [(prompt, written(other, prompt, 40))], GREEDY)
    *_, result = judge_samples(pair_of(target, None), read_samples(path, target, "bf16"))
    assert result.greedy_outcome.state == "differs"


# ---- the file -------------------------------------------------------------------------------------------------------

GOOD = {"prompt_ids": [5, 9], "ids": [3], "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0}}


def without(name):
    return {key: value for key, value in GOOD.items() if key != name}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON in UTF-8"),
        ("[1, 2]", "must be a JSON object (got list)"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"ids": ' + "9" * 5000 + "}", "holds a whole number of 5,000 digits"),
        (GOOD | {"ids": "some text"}, "text can be split into tokens in several ways"),
        ({"prompt": "once", "completion": "upon", "sampling": GOOD["sampling"]}, "holds text instead of token ids"),
        (without("ids"), "must have the field 'ids'"),
        (without("prompt_ids"), "must have the field 'prompt_ids'"),
        (without("sampling"), "must have the field 'sampling'"),
        (GOOD | {"ids": []}, "ids must be a list of 1 to 1,000,000 values (got [])"),
        (GOOD | {"ids": [3, 320]}, "has the id 320: ids are whole numbers from 0 to 319"),
        (GOOD | {"ids": [-1]}, "ids[0] must be a whole number from 0"),
        (GOOD | {"ids": [True]}, "(got True)"),
        (GOOD | {"ids": [1.0]}, "(got 1.0)"),
        (GOOD | {"prompt_ids": [None]}, "prompt_ids[0] must be a whole number"),
        (GOOD | {"made_in": "int8"}, "made_in must be one of bf16, fp16, fp32 (got 'int8')"),
        (GOOD | {"made_in": 16}, "made_in must be one of"),
        (GOOD | {"ids": [3] * 300}, "is longer than the 256 tokens"),
        (GOOD | {"sampling": {"temperature": -1}}, "sampling.temperature must be a number from 0 to 100 (got -1)"),
        (GOOD | {"sampling": {"temperature": float("nan")}}, "holds NaN"),
        (GOOD | {"sampling": {"temperature": True}}, "(got True)"),
        (GOOD | {"sampling": {}}, "sampling must have the field 'temperature'"),
        (GOOD | {"sampling": {"temperature": 1, "top_k": 1.5}}, "sampling.top_k must be a whole number"),
        (GOOD | {"sampling": {"temperature": 1, "top_k": 10**400}}, "sampling.top_k must be a whole number"),
        (
            GOOD | {"sampling": {"temperature": 1, "top_p": 0}},
            "sampling.top_p must be a number above 0 and at most 1 (got 0)",
        ),
        (
            GOOD | {"sampling": {"temperature": 1, "min_p": 1.5}},
            "sampling.min_p must be a number from 0 to 1 (got 1.5)",
        ),
        (
            GOOD | {"sampling": {"temperature": 1, "typical_p": 0.1}},
            "sampling has no field 'typical_p'; it may have temperature, top_k, top_p, min_p",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, target, line, words):
    path = tmp_path / "samples.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line if isinstance(line, str) else json.dumps(line)}\n{json.dumps(GOOD)}")
    with pytest.raises(SpecvizError, match=r"^samples\.jsonl cannot be judged: line 2 ") as refused:
        read_samples(path, target)
    assert words in str(refused.value)
    assert "line 3" not in str(refused.value)


def test_every_bad_line_is_named_until_there_are_many(tmp_path, target):
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(["x"] * 12))
    with pytest.raises(SpecvizError) as refused:
        read_samples(path, target)
    assert all(f"line {number} " in str(refused.value) for number in range(1, 11))
    assert "2 more lines" in str(refused.value)


def test_lines_that_hold_nothing_are_passed_over_and_counted(tmp_path, target):
    path = tmp_path / "samples.jsonl"
    path.write_text(f"\n  \n{json.dumps(GOOD)}\n\n")
    assert [sample.line for sample in read_samples(path, target)] == [3]


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path, target):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b"\xff\xfe\n" + json.dumps(GOOD).encode())
    with pytest.raises(SpecvizError, match="line 1 "):
        read_samples(path, target)


def test_an_empty_or_missing_file_is_refused_without_its_folder(tmp_path, target):
    (tmp_path / "empty.jsonl").write_text("")
    for name in ("empty.jsonl", "missing.jsonl"):
        with pytest.raises(SpecvizError, match=name) as refused:
            read_samples(tmp_path / name, target)
        assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [5, 9], "completion": [30, 31], "sampled": {"target": "quick", "temperature": 0.5}},
        {"prompt_ids": [5, 9], "completion": [30, 31], "sampled": {"target": "other", "temperature": 0.5}, "id": "a"},
        {"prompt_token_ids": [5, 9], "token_ids": [30, 31], "sampling": {"temperature": 0.5}},
    ],
)
def test_rows_of_the_alignment_lab_and_of_engines_are_read(tmp_path, target, row):
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (sample,) = read_samples(path, target)
    assert (sample.prompt, sample.ids, sample.sampling) == ((5, 9), (30, 31), Sampling(0.5))


def test_a_good_file_is_read_as_it_stands(tmp_path, target):
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    (sample,) = read_samples(path, target)
    assert (sample.line, sample.prompt, sample.ids, sample.sampling) == (1, (5, 9), (3,), Sampling())


# ---- the model's own generation settings ----------------------------------------------------------------------------


@pytest.fixture
def asking(target):
    """The target as it is where its file asks for a cut and a penalty."""
    asked = {"temperature": 0.5, "top_k": 9, "repetition_penalty": 1.3}
    return replace(target, info=replace(target.info, generation_config=asked))


def test_greedy_text_that_differs_is_first_explained_by_what_the_models_file_asks_for(tmp_path, asking):
    prompt, ids = greedy_text(asking)
    ids[3] = (ids[3] + 1) % 300
    words = judged(write(tmp_path / "other.jsonl", [(prompt, ids)], GREEDY), asking).greedy_outcome.words
    assert (
        "generation_config.json asks for repetition_penalty 1.3, which the engine that wrote it may have applied"
        in words
    )
    assert "--made-in" not in words.partition("generation_config.json")[0]


def test_so_is_drawn_text_by_what_its_line_does_not_say(tmp_path, asking, honest):
    words = judged(write(tmp_path / "other.jsonl", honest, {"temperature": 1.0}), asking).drawn_outcome.words
    assert "asks for temperature 0.5, top_k 9 and repetition_penalty 1.3, which the engine that wrote it may" in words


def test_text_that_is_the_targets_own_is_not_explained(tmp_path, asking, honest):
    result = judged(write(tmp_path / "own.jsonl", [greedy_text(asking)], GREEDY), asking)
    assert "generation_config" not in result.greedy_outcome.words
    result = judged(write(tmp_path / "drawn.jsonl", honest, PLAIN), asking)
    assert "generation_config" not in result.drawn_outcome.words
