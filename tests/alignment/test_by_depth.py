"""Agreement by depth in the draft: its numbers, who is asked for it on the page, and how drafts are named there."""

import argparse
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

from specviz.alignment.ahead import load_draft, measure_ahead, ways_to_ask
from specviz.alignment.report.charts import accepted_chart
from specviz.alignment.report.command import command_of
from specviz.alignment.report.sections import BY_DEPTH, compact, sections
from specviz.alignment.tables.shard_tables import build_tables
from specviz.cli.align import add_arguments
from specviz.decoding.sampling import Sampling
from specviz.drafters.heads import are_loaded, load_heads
from specviz.models import catalog
from specviz.models.pool import ModelPool
from specviz.models.score import TextIds
from specviz.session.workbench import workbench
from specviz.settings import assets_dir
from specviz.ui.choices import make_offer
from specviz.ui.page import reports
from specviz.ui.registry import Registry
from specviz.views.words import draft_label
from tests.helpers import analysed_texts
from tests.helpers.eagle_heads import HIDDEN
from tests.helpers.head_formats import dspark, folder_of, vllm_medusa
from tests.helpers.made_summaries import draft, made_summary
from tests.helpers.tiny_models import tiny, tiny_tokenizer

MODELS = assets_dir() / "models"
CHART = "Agreement by depth in the draft"
BIASED = ("fable-medusa", "medusa:fable-medusa,bias=off")


@pytest.fixture(scope="module")
def target():
    return workbench().pool.load("fable-target")


# ---- the numbers ----------------------------------------------------------------------------------------------------


def test_a_draft_model_agrees_at_every_depth_as_it_does_at_the_tokens_that_far_in_the_text():
    texts = [analysed_texts.text(number, size=20, limit=40) for number in range(3)]
    sums = build_tables(texts, analysed_texts.shard([text.written.row for text in texts])).sums
    for number, text in enumerate(texts):
        own = sums[(sums["kind"] == "ahead") & (sums["prompt"] == number)]
        overlap = text.drafts["one"]["overlap"] * text.drafts["one"]["readable"]
        expected = [overlap[depth:].sum() for depth in range(len(own))]
        assert len(own) == 8
        assert own["overlap"].to_numpy() == pytest.approx(expected)


def medusa_by_hand(state, bias, head, before):
    """The logits of one head from the paper's formula; with a bias also DSpark's: B[A[the token before]]."""
    held = load_file(MODELS / "fable-medusa" / "medusa_lm_head.safetensors")
    hidden = state + silu(held[f"{head}.0.linear.weight"].float() @ state + held[f"{head}.0.linear.bias"].float())
    logits = held[f"{head}.1.weight"].float() @ hidden
    if bias:
        table = load_file(MODELS / "fable-medusa" / "markov.safetensors")
        logits = logits + table[f"markov.{head}.weight"].float() @ table["markov.embed.weight"][before].float()
    return logits


@pytest.mark.parametrize("name", BIASED)
@torch.inference_mode()
def test_the_overlap_at_each_depth_is_that_of_probabilities_worked_out_by_hand(target, name):
    ids = target.text.encode("Tom has a red ball. Mia has a blue hat, and they like to play in the park.")
    num_prompt = 6
    drafter = load_draft(name, workbench().pool, target).drafter()
    (numbers,) = measure_ahead(target, [drafter], TextIds(ids[:num_prompt], ids[num_prompt:]), Sampling(), 4)
    model = AutoModelForCausalLM.from_pretrained(MODELS / "fable-target", dtype=torch.float32)
    read = model(torch.tensor([ids]), output_hidden_states=True)
    for start in range(num_prompt, len(ids) - 4, 3):
        state = read.hidden_states[-1][0, start - 2]  # the last token is not read yet when a draft begins
        for head in range(4):
            place = start + head
            q = medusa_by_hand(state, "off" not in name, head, ids[place - 1]).softmax(-1)
            p = read.logits[0, place - 1].softmax(-1)
            own = numbers["ahead"].overlap[start - num_prompt, head]
            assert own == pytest.approx(float(torch.minimum(p, q).sum()), abs=2e-5)


def test_acceptance_where_all_before_were_accepted_is_the_share_of_the_steps_that_came_so_far():
    (line,) = accepted_chart([draft("one", 0.6, by_position=(0.5, 0.3, 0.0, 0.0))])["data"]
    assert line["y"] == [0.5, 0.6, 0.0, None]


# ---- who is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [heads.name for heads in catalog.heads_for("fable-target")])
def test_heads_are_asked_without_their_bias_too_where_their_files_hold_one(target, heads):
    held = [name for file in (MODELS / heads).glob("*.safetensors") for name in load_file(file)]
    has_bias = any("markov" in name for name in held)
    kind = catalog.HEADS[heads].kind
    ways = [heads, f"{kind}:{heads},bias=off"]
    assert ways_to_ask(heads, workbench().pool, target) == ways[: 1 + has_bias]


def test_the_files_tell_which_method_draws_heads_without_their_bias(tmp_path):
    pool = ModelPool(allow_any=True)
    small = pool.load((tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN), tiny_tokenizer(320)))
    folder = str(folder_of(tmp_path / "head", *dspark(small)))
    assert ways_to_ask(folder, pool, small) == [folder, f"block:{folder},bias=off"]


def test_heads_count_as_loaded_once_their_target_has_them(tmp_path):
    pool = ModelPool(allow_any=True)
    small = pool.load((tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN), tiny_tokenizer(320)))
    folder = str(folder_of(tmp_path / "head", *vllm_medusa(small)))
    assert not are_loaded(pool, folder, "medusa", small)
    load_heads(pool, folder, "medusa", small)
    assert are_loaded(pool, folder, "medusa", small)


AWAY = catalog.CatalogHeads("nobody/fable-away", "Heads on the hub", "eagle", "fable-target")


@pytest.fixture(scope="module")
def asked():
    """What the section shows in the end, by the choice of drafts. Heads on the hub are known; none may be fetched."""

    def refuse(*_, **__):
        raise AssertionError("a click must download nothing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "HEADS", {**catalog.HEADS, AWAY.name: AWAY})
        patch.setattr("huggingface_hub.snapshot_download", refuse)
        page = reports(Registry(), workbench(), make_offer())["compare"]
        shown = {}
        for choice in ("models", "heads", "both"):
            values = {"drafts": choice, "prompts": "own", "own": "One day\nTom has", "tokens": "12"}
            data = {"section": "many-prompts", "do": "analyse", "values": values, "place": {"run": None}}
            *_, last = page.act("one", data)
            (shown[choice],) = [each for each in json.loads(last)["sections"] if each["id"] == "many-prompts"]
        return shown


def drafts_of(section):
    (saved,) = [block for block in section["blocks"] if block["kind"] == "download"]
    return [each["name"] for each in json.loads(saved["text"])["drafts"]]


def test_the_page_asks_the_draft_models_the_heads_or_both(asked, target):
    pool = workbench().pool
    bundled = [heads.name for heads in catalog.heads_for("fable-target") if heads.is_bundled]
    heads = [way for name in bundled for way in ways_to_ask(name, pool, target)]
    models = [*catalog.drafts_for("fable-target")]
    assert {*BIASED} <= {*heads}
    assert {choice: drafts_of(section) for choice, section in asked.items()} == {
        "models": models,
        "heads": heads,
        "both": [*models, *heads],
    }


def test_heads_that_are_not_here_are_named_and_the_others_are_asked(asked):
    said = json.dumps(asked["heads"]["blocks"])
    assert f"{AWAY.name} is not asked: not loaded here, run it on Explore first." in said
    assert AWAY.name not in json.dumps(asked["models"]["blocks"])


def test_the_chart_stands_in_sight_where_heads_were_asked(asked):
    in_sight = {}
    for choice, section in asked.items():
        in_sight[choice] = [
            block["figure"]["layout"]["meta"]["title"] for block in section["blocks"] if block["kind"] == "chart"
        ]
    assert in_sight["models"] == []
    assert in_sight["heads"][0] == in_sight["both"][0] == CHART


def test_the_report_of_the_command_has_the_chart_of_the_page():
    names = ("fable-draft", *BIASED)
    summary = made_summary(drafts=tuple(draft(name, 0.6, by_position=(0.6, 0.4)) for name in names))
    part = replace(summary.slices[0], kind="ahead", value="1")
    summary = replace(summary, slices=tuple(replace(part, draft=name) for name in names))
    (report,) = [section for section in sections(summary) if section.id == BY_DEPTH]
    page = compact(summary, opened=[BY_DEPTH])
    assert len(report.blocks) > 2
    assert all(block in page for block in report.blocks)


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fable-draft", "fable-draft"),
        ("fable-target:int8", "fable-target:int8"),
        ("medusa:fable-medusa,bias=off", "fable-medusa, bias off"),
        ("prompt_lookup:max_ngram=4", "Prompt lookup, max ngram 4"),
        ("http://host:8000", "http://host:8000"),
        ("medusa:\u202e,bias=off", "⟨202E⟩, bias off"),
    ],
)
def test_a_draft_is_named_in_words(name, words):
    assert draft_label(name) == words


def test_the_command_names_the_drafts_as_it_takes_them():
    names = ["fable-draft", *BIASED, "prompt_lookup"]
    summary = made_summary(
        target="fable-target", drafts=tuple(draft(name, 0.5) for name in (*names, "medusa:my,bias=off"))
    )
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(command_of(summary).split()[4:])
    assert options.draft == [*names, "medusa:FOLDER,bias=off"]


def test_nine_drafts_in_a_chart_look_different():
    lines = accepted_chart([draft(f"draft {place}", 0.5, by_position=(0.5, 0.2)) for place in range(9)])["data"]
    looks = {(line["meta"]["status"], line["line"]["dash"], line["marker"]["symbol"]) for line in lines}
    assert len(looks) == 9
