"""The bundled pair: what the first screen promises holds for it, offline."""

import json
import os

import pytest
import torch

from specviz import metrics, run
from specviz.models import catalog
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from specviz.trace import Step
from specviz.ui.choices import make_offer
from specviz.zoo.__main__ import MODELS
from specviz.zoo.config import load_recipe, recipe_names
from specviz.zoo.training.export import Origin
from tests.helpers import warm_processes

MOST_BYTES = {"fable": 48_000_000, "smol": 40_000_000}
MOST_BYTES_PER_FILE = 10_000_000


@pytest.fixture(scope="module")
def first_steps():
    events = open_run(make_offer().first, bench=Workbench()).events(max_steps=3)
    return [event for event in events if isinstance(event, Step)]


def test_the_first_three_steps_show_every_kind(first_steps):
    fates = [[token.status for token in step.draft] for step in first_steps]
    kept = [statuses.count("accepted") for statuses in fates]
    assert all(len(statuses) == 4 for statuses in fates)
    assert sorted(kept)[0] == 0
    assert 0 < sorted(kept)[1] < 4
    assert sorted(kept)[2] == 4
    assert {step.emitted[-1].kind for step in first_steps} == {"resampled", "bonus"}


def test_the_first_rejection_can_be_read_from_its_bar(first_steps):
    rejected = next(token for step in first_steps for token in step.draft if token.status == "rejected")
    assert rejected.q > 0.2


@pytest.mark.parametrize("draft", ["fable-draft", "fable-draft-tiny"])
def test_the_drafts_agree_with_the_target_neither_too_little_nor_too_much(draft):
    trace = run("Once upon a time, there was a little girl named Lily.", draft=draft, max_new_tokens=100)
    assert 0.4 < metrics(trace)["alpha"] < 0.9


def test_greedy_text_is_transformers_own_on_the_bundled_pair():
    pool = Workbench().pool
    target = pool.load("fable-target")
    prompt = target.text.encode("One day, a boy and his dog went to")
    trace = run(prompt, temperature=0.0, max_new_tokens=48, draft="fable-draft-tiny")
    expected = target.model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False, pad_token_id=0)
    assert [token.id for token in trace.tokens] == expected[0, len(prompt) :].tolist()


def test_it_runs_with_the_network_forbidden(tmp_path):
    program = (
        "import socket\n"
        "def refuse(*args, **kwargs): raise AssertionError('the network was asked')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "import specviz\n"
        "print(len(specviz.run('The cat', max_new_tokens=8).tokens))\n"
    )
    online = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment = {**online, "PYTHONPATH": str(MODELS.parents[1])}
    done = warm_processes.run(program, cwd=tmp_path, env=environment)
    assert done.stdout.strip() == "8", done.stderr


@pytest.mark.parametrize("name", recipe_names())
def test_a_bundled_member_is_what_its_recipe_says(name):
    folder = MODELS / name
    origin = Origin.read(folder)
    recipe = load_recipe(origin.recipe.edition, name)
    assert origin == Origin(recipe, recipe.num_steps * recipe.schedule.tokens_per_step)
    if recipe.shape:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert (settings["hidden_size"], settings["num_hidden_layers"]) == (
            recipe.shape.hidden_size,
            recipe.shape.num_layers,
        )
    assert recipe.title.lower() in (folder / "MODEL_CARD.md").read_text(encoding="utf-8").lower()
    assert max(path.stat().st_size for path in folder.iterdir()) < MOST_BYTES_PER_FILE


@pytest.mark.parametrize("family", MOST_BYTES)
def test_a_bundled_family_is_small_enough_to_carry(family):
    files = [path for path in MODELS.glob(f"{family}-*/*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES[family]
    assert max(path.stat().st_size for path in files) < MOST_BYTES_PER_FILE


@pytest.mark.parametrize("name", ["smol-draft", "smol-eagle"])
def test_a_bundled_draft_of_smollm2_has_its_card_its_recipe_and_its_learning_curve(name):
    card, recipe = ((MODELS / name / file).read_text("utf-8") for file in ("MODEL_CARD.md", "recipe.json"))
    steps = [json.loads(line)["step"] for line in (MODELS / name / "curve.jsonl").read_text("utf-8").splitlines()]
    assert json.loads(recipe)["steps"] == steps[-1]
    assert f"| {steps[-1]:,} |" in card
    assert "`smollm2`" in card
    assert "Apache-2.0" in card


def test_the_drafts_of_smollm2_are_the_catalogues_first_for_it():
    assert catalog.bundled_draft("smollm2") == "smol-draft"
    assert catalog.bundled_draft("smollm2", foreign=True) == "fable-draft"
    assert catalog.names_for("smollm2", "eagle") == ("smol-eagle",)
    offer = make_offer("smollm2")
    assert (offer.first.draft, offer.first.chat) == ("smol-draft", True)
    assert offer.first.prompt in offer.prompts[offer.dialogues[0]].values()
    assert not make_offer().first.chat


def test_members_of_one_vocabulary_share_one_tokenizer():
    files = {}
    for name in recipe_names():
        path = MODELS / name / "tokenizer.json"
        if path.exists():
            files.setdefault(Origin.read(path.parent).recipe.tokenizer, set()).add(path.read_bytes())
    assert {vocabulary: len(found) for vocabulary, found in files.items()} == {"fable": 1, "fable-small": 1}
