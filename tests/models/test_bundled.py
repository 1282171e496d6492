"""The bundled pair: what the first screen promises holds for it, offline."""

import json
import os

import pytest
import torch
import warm

from specviz import metrics, run
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from specviz.trace.file import Step
from specviz.ui.choices import make_offer
from specviz.zoo.__main__ import MODELS
from specviz.zoo.config import load_recipe, recipe_names
from specviz.zoo.training.export import Origin

MOST_BYTES = 48_000_000
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
    trace = run("Once upon a time, there was a little girl named Lily.", draft=draft, max_new_tokens=200)
    assert 0.4 < metrics(trace)["alpha"] < 0.9


def test_greedy_text_is_transformers_own_on_the_bundled_pair():
    library = Workbench().library
    target = library.load("fable-target")
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
    done = warm.run(program, cwd=tmp_path, env=environment)
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


def test_the_bundled_family_is_small_enough_to_carry():
    assert sum(path.stat().st_size for path in MODELS.rglob("*") if path.is_file()) < MOST_BYTES


def test_members_of_one_vocabulary_share_one_tokenizer():
    files = {}
    for name in recipe_names():
        path = MODELS / name / "tokenizer.json"
        if path.exists():
            files.setdefault(Origin.read(path.parent).recipe.tokenizer, set()).add(path.read_bytes())
    assert {vocabulary: len(found) for vocabulary, found in files.items()} == {"fable": 1, "fable-small": 1}
