"""Heads judged on stored states: the numbers are those of the target's weights, of which three tensors are left."""

import argparse
import json
import re
import shutil

import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file

from specviz.alignment.job import align
from specviz.alignment.outputs import read_summary
from specviz.alignment.report.command import command_of
from specviz.alignment.report.overview import overview
from specviz.alignment.states.target import WithStates
from specviz.cli import align as command
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.session.workbench import workbench
from tests.helpers.eagle_heads import HIDDEN, eagle3
from tests.helpers.head_formats import IDS, folder_of
from tests.helpers.stored_states import bare_folder, states_of, store, write
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

STORIES = [
    "Tom has a red ball. Tom has a red hat. Mia has a red ball, and Tom has a cat.",
    "Once upon a time there was a little fox who lived in the wood with her friends.",
    "The king said that nobody should go into the wood, but the fox went.",
]
LAYERS = (2, 5, 8)


def same_numbers(one, other):
    """Whether two jobs have the same tokens, prompts and tokens per call, to 1e-5."""
    for table in ("tokens", "prompts"):
        left, right = (pandas.read_parquet(job.folder / f"{table}.parquet") for job in (one, other))
        pandas.testing.assert_frame_equal(left, right, rtol=1e-5, atol=1e-5)
    for mine, yours in zip(one.summary.drafts, other.summary.drafts, strict=True):
        assert mine.tokens_per_call == pytest.approx(yours.tokens_per_call, abs=1e-5)
        assert mine.by_argmax.tokens_per_call == pytest.approx(yours.by_argmax.tokens_per_call, abs=1e-5)
    return True


# ---- the bundled pair -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fable(tmp_path_factory):
    """(rows, the folder of their states, the target's bare folder); no state is stored behind a text's last token."""
    target = workbench().pool.load("fable-target")
    texts = [target.text.encode(story) for story in STORIES]
    place = tmp_path_factory.mktemp("fable")
    rows = [{"prompt": ids[:4], "completion": ids[4:], "id": str(number)} for number, ids in enumerate(texts)]
    states = store(place / "states", target.model, [ids[:-1] for ids in texts], (12,))
    return rows, states, bare_folder(place / "bare", target.model, target.tokenizer)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_stored_states_give_the_numbers_that_the_weights_give(fable, temperature, tmp_path):
    rows, states, bare = fable
    asked = {"draft": ["fable-eagle", "fable-medusa", "fable-draft", "prompt_lookup"], "temperature": temperature}
    whole = align(rows, target="fable-target", costs={}, out=tmp_path / "whole", **asked)
    stored = align(rows, target=WithStates(str(bare), states, (12,)), out=tmp_path / "stored", **asked)
    assert stored.summary.num_tokens == sum(len(row["completion"]) for row in rows)
    assert same_numbers(whole, stored)


def test_a_row_with_a_prompt_alone_gets_the_text_that_its_file_goes_on_with(fable, tmp_path):
    rows, states, bare = fable
    texts = [{**row, "completion": row["completion"][:-1]} for row in rows]
    prompts = [{"prompt": row["prompt"], "id": row["id"]} for row in rows]
    whole = align(texts, target="fable-target", draft="fable-eagle", costs={}, out=tmp_path / "whole")
    stored = align(prompts, target=WithStates(str(bare), states, (12,)), draft="fable-eagle", out=tmp_path / "stored")
    assert same_numbers(whole, stored)


def test_without_prompts_all_behind_the_first_token_is_text_and_the_report_says_what_was_not_done(fable, tmp_path):
    rows, states, bare = fable
    align(target=WithStates(str(bare), states, (12,)), draft="fable-medusa", out=tmp_path / "job")
    summary = read_summary(tmp_path / "job" / "summary.json")
    assert summary.num_tokens == sum(len(row["completion"]) + 2 for row in rows)
    weights, prompts = summary.warnings
    assert "no fault was looked for in the drafts' files" in weights
    assert "no costs were measured" in weights
    assert "everything behind a text's first token counts" in prompts
    (draft,) = summary.drafts
    assert (draft.verdict, summary.floors, summary.costs, summary.costs_from) == (None, None, {}, "states")
    assert command_of(summary).endswith("--states STATES --state-layers 12 --out DIR")
    told = str(overview(summary))
    assert "No speedup is given for fable-medusa: costs need the target's weights." in told
    assert "damaged layer" not in told


# ---- other targets --------------------------------------------------------------------------------------------------

FAMILIES = {
    "llama": {},
    "gemma2": {},  # soft caps, sliding windows, tied
    "cohere": {"logit_scale": 0.3},
    "granite": {"logits_scaling": 4.0},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "qwen3_next": {},  # a hybrid, whose cache could not be shortened
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bare_targets_logits_and_states_are_the_models_own(family, tmp_path):
    """In pieces behind a cache, too. Soft caps and scales are the class's own."""
    tokenizer = tiny_tokenizer()
    model = tiny(family, vocab_size=len(tokenizer), layers=3, **FAMILIES[family])
    ids = [*range(3, 43)]
    states = store(tmp_path / "states", model, [ids[:7], ids], (1, 3))
    bare = bare_folder(tmp_path / "bare", model, tokenizer)
    target = WithStates(str(bare), states, (1, 3)).load(ModelPool(10**9, True))
    expected = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    lm = target.cached_lm()
    lm.capture((1, 3, -1))
    rows = [lm.forward(ids[:end])[0] for end in (5, 6, 20, 40)]
    assert torch.allclose(torch.stack(rows), expected.logits[0, [4, 5, 19, 39]], atol=1e-5)
    own = torch.cat([states_of(model, ids, (1, 3)).flatten(1), expected.hidden_states[-1][0]], dim=1)
    assert torch.allclose(lm.hidden([*ids, 0]), own, atol=1e-5)
    shared = target.model.get_output_embeddings().weight is target.model.get_input_embeddings().weight
    assert shared is bool(model.config.tie_word_embeddings)


def test_it_does_not_matter_how_the_layers_of_a_bare_target_are_quantised(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny("qwen3", vocab_size=len(tokenizer), layers=3)
    states = store(tmp_path / "states", model, [ids := [*range(3, 20)]], (3,))
    bare = bare_folder(tmp_path / "bare", model, tokenizer)
    config = json.loads((bare / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (bare / "config.json").write_text(json.dumps(config))
    target = WithStates(str(bare), states, (3,)).load(ModelPool(10**9, True))
    assert torch.allclose(target.cached_lm().forward(ids), model(torch.tensor([ids])).logits[0, -1:], atol=1e-5)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """(model, ids of two texts, the states' folder, the bare folder, an EAGLE-3 head's folder)."""
    place, tokenizer = tmp_path_factory.mktemp("eight"), tiny_tokenizer(320)
    model = tiny("gemma2", vocab_size=320, layers=8, hidden=HIDDEN, tie_word_embeddings=False)
    target = ModelPool(10**9, True).load((model, tokenizer))
    texts = [[*range(5, 45)], [*range(90, 50, -1)]]
    head = folder_of(place / "head", *eagle3(target, IDS))
    tiny_folder(place / "whole", model, tokenizer)
    states = store(place / "states", model, texts, (2, 4, 5, 8))
    return model, texts, states, bare_folder(place / "bare", model, tokenizer), head


def test_a_head_that_reads_several_layers_gets_each_one(eight, tmp_path):
    _, texts, states, bare, head = eight
    rows = [{"prompt": ids[:9], "completion": ids[9:]} for ids in texts]
    whole = align(rows, target=str(bare.parent / "whole"), draft=head, costs={}, out=tmp_path / "whole")
    stored = align(rows, target=WithStates(str(bare), states, (2, 4, 5, 8)), draft=head, out=tmp_path / "stored")
    assert same_numbers(whole, stored)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def refusal(eight, tmp_path):
    """The error of a job that differs from a sound one in what is given."""
    _, _, states, bare, head = eight

    def say(rows=None, *, states=states, layers=(2, 4, 5, 8), target=bare, draft=head):
        with pytest.raises(SpecvizError) as refused:
            align(rows, target=WithStates(str(target), states, layers), draft=draft, out=tmp_path / "out")
        return str(refused.value)

    return say


SIX = torch.arange(6)
GOOD = torch.ones(6, 4, HIDDEN)
FILES = [
    ({"other": GOOD}, r"must have the tensors hidden_states and token_ids"),
    ({"hidden_states": GOOD, "token_ids": torch.arange(7)}, r"must hold token_ids \[tokens\]"),
    ({"hidden_states": GOOD[:, 0].clone(), "token_ids": SIX}, r"hidden_states \[tokens, layers, width\]"),
    ({"hidden_states": GOOD, "token_ids": SIX.float()}, r"as whole numbers"),
    ({"hidden_states": GOOD.to(torch.int8), "token_ids": SIX}, r"must be BF16, F16, F32 \(got I8\)"),
    ({"hidden_states": GOOD[:, 1:].clone(), "token_ids": SIX}, r"holds 3 states a token, and --state-layers names 4"),
    ({"hidden_states": GOOD[..., 1:].clone(), "token_ids": SIX}, r"are 15 wide, those of bare 16"),
    ({"hidden_states": GOOD, "token_ids": SIX + 315}, r"has ids that bare does not know \(got 320\)"),
    ({"hidden_states": GOOD, "token_ids": SIX - 1}, r"has ids that bare does not know \(got -1\)"),
    ({"hidden_states": GOOD * torch.nan, "token_ids": SIX}, r"hold nan or infinite numbers"),
]


@pytest.mark.parametrize(("tensors", "words"), FILES)
def test_a_file_that_does_not_fit_is_refused_by_name(tensors, words, refusal, tmp_path):
    (tmp_path / "states").mkdir()
    save_file(tensors, tmp_path / "states" / "one.safetensors")
    said = refusal([{"prompt": [0], "completion": [1, 2, 3, 4, 5]}], states=tmp_path / "states")
    assert "one.safetensors" in said
    assert re.search(words, said)


def test_only_whole_safetensors_are_opened(eight, refusal, tmp_path):
    _, _, states, _, _ = eight
    (tmp_path / "pickles").mkdir()
    torch.save({"hidden_states": GOOD, "token_ids": SIX}, tmp_path / "pickles" / "one.pt")
    assert "holds no states: --states must name a folder of safetensors" in refusal(states=tmp_path / "pickles")
    assert "holds no states" in refusal(states=tmp_path / "nowhere")
    (tmp_path / "cut").mkdir()
    whole = (states / "request-0.safetensors").read_bytes()
    (tmp_path / "cut" / "one.safetensors").write_bytes(whole[:-9])
    assert "one.safetensors is damaged, or not written to its end" in refusal(states=tmp_path / "cut")


@pytest.mark.parametrize("layers", [(), (2, 4, 5, 7), (4, 2, 5, 8), (2, 2, 5, 8), (-1, 4, 5, 8), (2, 4, 8, 9)])
def test_the_layers_must_rise_to_the_last_one(layers, refusal):
    assert "--state-layers must rise from 0 on and end with 8" in refusal(layers=layers)


def test_a_draft_that_needs_more_than_the_stored_states_is_refused(refusal):
    assert "head reads the states of the layers 2, 4, 5; the files lack 4" in refusal(layers=(2, 3, 5, 8))
    for draft in ("early_exit:layers=2", "mtp"):
        assert f"{draft} drafts with layers of bare, and only its states are here" in refusal(draft=draft)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": [5, 6], "completion": [7, 9, 8]}, "no file of states holds its text"),
        ({"prompt": [6, 7]}, "no file of states begins with its prompt of 2 tokens"),
        ({"prompt": [*range(5, 45)]}, "ends where the prompt does: ask vLLM for the output's states"),
        ({"prompt": [*range(5, 45)], "completion": [3, 3]}, "no file of states holds its text"),
    ],
)
def test_a_row_without_states_is_refused(row, words, refusal):
    assert words in refusal([row])


def test_a_prompt_that_several_texts_begin_with_needs_its_text(eight, refusal, tmp_path):
    model, _, _, bare, head = eight
    states = store(tmp_path / "states", model, [[5, 6, 7, 8, 9], [5, 6, 9, 8, 7], [5, 6, 9, 8, 7]], (2, 4, 5, 8))
    said = refusal([{"prompt": [5, 6]}], states=states)
    assert "2 files of states begin with the prompt: give the text's token_ids" in said
    target = WithStates(str(bare), states, (2, 4, 5, 8))
    done = align([{"prompt": [5, 6], "completion": [9, 8, 7]}], target=target, draft=head, out=tmp_path / "job")
    assert done.summary.num_tokens == 3


def test_a_target_without_its_three_tensors_is_refused(eight, refusal, tmp_path):
    _, _, _, bare, _ = eight
    index = json.loads((bare / "model.safetensors.index.json").read_text())
    lacking = shutil.copytree(bare, tmp_path / "lacking")
    (lacking / index["weight_map"]["lm_head.weight"]).unlink()
    assert re.search("lacking lacks the file 'model-.*', which holds lm_head.weight", refusal(target=lacking))
    shutil.copytree(bare, tmp_path / "unnamed")
    del index["weight_map"]["model.norm.weight"]
    (tmp_path / "unnamed" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "unnamed lacks 1 of its weights, model.norm.weight among them" in refusal(target=tmp_path / "unnamed")
    coarse = shutil.copytree(bare, tmp_path / "coarse")
    file = coarse / index["weight_map"]["lm_head.weight"]
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"].to(torch.float8_e4m3fn)}, file)
    assert "lm_head.weight" in (said := refusal(target=coarse))
    assert "is quantised" in said


def test_a_target_of_another_build_is_refused(refusal, tmp_path):
    tokenizer = tiny_tokenizer(320)
    model = tiny("gpt2", vocab_size=320, layers=8, hidden=HIDDEN)
    folder = tiny_folder(tmp_path / "other", model, tokenizer)
    assert "other (GPT2LMHeadModel) cannot be read by its states" in refusal(target=folder)
    assert "name other without :int8" in refusal(target=f"{folder}:int8")


def test_files_that_change_between_two_jobs_are_read_again(eight, tmp_path):
    model, texts, _, bare, head = eight
    states = store(tmp_path / "states", model, texts[:1], (2, 4, 5, 8))
    target = WithStates(str(bare), states, (2, 4, 5, 8))
    assert align(target=target, draft=head).summary.num_prompts == 1
    write(states / "more.safetensors", texts[1], states_of(model, texts[1], (2, 4, 5, 8)))
    assert align(target=target, draft=head).summary.num_prompts == 2


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(eight, capsys, tmp_path):
    """Runs the command on the states: (exit status, standard output)."""
    _, _, states, bare, head = eight

    def run(*arguments, own=("--states", states, "--state-layers", "2,4,5,8")):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        words = ["--out", tmp_path / "out", "--target", bare, "--draft", head, *own, *arguments]
        status = command.run(parser.parse_args(list(map(str, words))))
        return status, capsys.readouterr().out

    return run


def test_the_command_needs_no_prompts(cli):
    status, out = cli()
    assert status == 0
    assert "2 prompts, 78 tokens" in out
    assert "note: The target's weights were not here" in out


@pytest.mark.parametrize("option", ["--fail-on=broken", "--export-rows=rows.jsonl", "--reference=other"])
def test_what_needs_the_weights_is_refused(option, cli):
    with pytest.raises(SpecvizError, match=f"{option.partition('=')[0]} needs the target's weights"):
        cli(option)


def test_states_come_with_their_layers_and_layers_with_states(cli, eight, capsys):
    with pytest.raises(SpecvizError, match="--state-layers must name them"):
        cli(own=("--states", eight[2]))
    with pytest.raises(SpecvizError, match="it needs --states"):
        cli("--prompts", "prompts.jsonl", own=("--state-layers", "8"))
    with pytest.raises(SpecvizError, match="name the prompts"):
        cli(own=())
    with pytest.raises(SystemExit):
        cli("--state-layers", "two")
    assert "must be numbers such as 2,18,33,36 (got 'two')" in capsys.readouterr().err
