"""Training rows: what they hold is what was measured, and the lab reads it again as it was."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

import specviz.session.workbench as session
from specviz.alignment import training_rows
from specviz.alignment.executors import local
from specviz.alignment.job import align
from specviz.alignment.prompts import from_values, open_prompts
from specviz.alignment.training_rows import training_lines
from specviz.session.workbench import Workbench
from specviz.trace.lines import write_lines

ASKED = [
    {"prompt": "Once upon a time", "id": "told", "tags": ["a", "b"]},
    {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]},
    {"prompt": [5, 9, 12], "completion": [3, 4, 8, 2]},
    {"prompt": "an old fox", "completion": " ran away from here"},
]
SETTINGS = {"target": "big", "max_new_tokens": 12, "seed": 3, "costs": {}}


@pytest.fixture
def big(named_models, monkeypatch):
    bench = Workbench(named_models)
    monkeypatch.setattr(session, "_shared", [bench])
    return bench.pool.load("big")


def exported(path, drafts, asked=ASKED, num_probs=32, **settings):
    done = align(asked, draft=drafts, **SETTINGS | settings)
    with local() as run_each:
        write_lines(path, training_lines(done, from_values(asked).rows(), run_each, num_probs=num_probs))
    return done, [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def forward(model, row):
    """The target's logits [N, V] for the completion, by transformers' own forward over the row's ids."""
    with torch.inference_mode():
        logits = model(torch.tensor([row["prompt"] + row["completion"]])).logits[0]
    return logits[len(row["prompt"]) - 1 : -1].double()


def test_the_lab_reads_the_rows_as_the_ids_that_the_target_makes_of_the_prompts(big, tmp_path):
    _, rows = exported(tmp_path / "rows.jsonl", "near")
    back = list(open_prompts(tmp_path / "rows.jsonl").rows())
    told, chat, ids, given = back
    assert (told.id, told.tags) == ("told", ("a", "b"))
    assert list(told.prompt) == big.text.encode("Once upon a time")
    assert list(given.prompt) == big.text.encode("an old fox")
    assert list(given.completion) == big.text.encode(" ran away from here", special=False)
    assert (ids.prompt, ids.completion) == ((5, 9, 12), (3, 4, 8, 2))
    assert list(chat.prompt) == big.text.encode(align(ASKED[1:2], draft="near", **SETTINGS).prompts["prompt_text"][0])
    assert [row["conversations"][-1]["content"] for row in rows][3] == " ran away from here"
    assert rows[1]["conversations"][:-1] == ASKED[1]["messages"]


def test_switches_of_the_chat_template_stay_beside_the_conversation(big, tmp_path):
    asked = [{"prompt": "Once", "chat_template_kwargs": {"brief": True}}, {"prompt": "Once"}]
    _, rows = exported(tmp_path / "rows.jsonl", "near", asked)
    assert [row.get("chat_template_kwargs") for row in rows] == [{"brief": True}, None]


def test_a_job_over_the_rows_finds_what_the_first_one_found(big, tmp_path):
    done, _ = exported(tmp_path / "rows.jsonl", "near")
    again = align(tmp_path / "rows.jsonl", draft="near", **SETTINGS)
    assert again.prompts["exact"].tolist() == done.prompts["exact"].tolist() == [True, True, False, False]
    assert again.tokens["token"].tolist() == done.tokens["token"].tolist()
    np.testing.assert_allclose(again.tokens["overlap"], done.tokens["overlap"], atol=1e-5)


def test_the_weight_of_a_place_is_the_probability_of_a_rejection_there_whatever_token_was_drawn(
    big, tmp_path, named_models
):
    _, rows = exported(tmp_path / "rows.jsonl", ["near", "far"])
    assert [row["draft"] for row in rows] == ["near", "far"] * 4
    for row in rows:
        p = forward(big.model, row).softmax(-1)
        q = forward(named_models.load(row["draft"]).model, row).softmax(-1)
        assert row["place_weights"] == pytest.approx((1 - torch.minimum(p, q).sum(-1)).tolist(), abs=1e-5)


def test_a_place_that_the_draft_cannot_read_has_no_weight(big, tmp_path):
    done, rows = exported(tmp_path / "rows.jsonl", "prompt_lookup")
    assert not done.tokens["readable"].all()
    places = iter(done.tokens.itertuples())
    for weight in (weight for row in rows for weight in row["place_weights"]):
        place = next(places)
        assert weight == pytest.approx((1 - place.overlap) * place.readable, abs=1e-6)


@pytest.mark.parametrize(
    ("sampling", "law"),
    [
        ({}, lambda logits: logits.softmax(-1)),
        ({"temperature": 0.6}, lambda logits: (logits / 0.6).softmax(-1)),
        (
            {"top_k": 3},
            lambda logits: logits.masked_fill(logits < logits.topk(3).values[:, -1:], -torch.inf).softmax(-1),
        ),
        (
            {"temperature": 0.0},
            lambda logits: torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double(),
        ),
    ],
)
def test_the_probabilities_are_those_of_transformers_own_forward_at_the_jobs_sampling(big, tmp_path, sampling, law):
    _, rows = exported(tmp_path / "rows.jsonl", "near", num_probs=8, **sampling)
    for row in rows:
        p = law(forward(big.model, row))
        top = p.topk(8, dim=-1)
        usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        assert row["sampling"] == {"target": "big"} | usual | sampling
        assert len(row["top_ids"]) == len(row["top_probs"]) == len(row["rest"]) == len(row["completion"])
        for place, (ids, probs, rest) in enumerate(zip(row["top_ids"], row["top_probs"], row["rest"], strict=True)):
            assert probs == pytest.approx(p[place, ids].tolist(), abs=2e-6)
            assert probs == pytest.approx(top.values[place][: len(probs)].tolist(), abs=2e-6)
            assert (top.values[place][len(probs) :] < 1e-6).all()  # what is left out has next to no probability
            assert all(first >= second > 0 for first, second in pairwise([*probs, 1e-9]))
            assert sum(probs) + rest == pytest.approx(1, abs=1e-5)


def test_rows_of_many_pieces_are_those_of_one_in_the_jobs_order(big, tmp_path, monkeypatch):
    """Pieces come back in any order from workers."""

    def backwards(function, items):
        yield from reversed([(place, function(item)) for place, item in enumerate(items)])

    done, rows = exported(tmp_path / "rows.jsonl", ["near", "far"])
    monkeypatch.setattr(training_rows, "AT_ONCE", 3)
    lines = training_lines(done, from_values(ASKED).rows(), backwards, batch=2)
    for line, row in zip(map(json.loads, lines), rows, strict=True):
        for name, values in row.items():
            if name in ("top_probs", "rest"):
                np.testing.assert_allclose(line[name], values, atol=2e-6)
            else:
                assert line[name] == values


def test_without_probabilities_the_target_reads_nothing(big, tmp_path, monkeypatch):
    monkeypatch.setattr(training_rows, "read_probs", None)
    _, rows = exported(tmp_path / "rows.jsonl", "near", num_probs=0)
    assert all(row["place_weights"] and "top_ids" not in row and "rest" not in row for row in rows)
