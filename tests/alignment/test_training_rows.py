"""Training rows: what they hold is what was measured, and the lab reads it again as it was."""

import json

import numpy as np
import pytest

import specviz.session.workbench as session
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


def exported(path, drafts):
    done = align(ASKED, draft=drafts, **SETTINGS)
    write_lines(path, training_lines(done, from_values(ASKED).rows()))
    return done, [json.loads(line) for line in path.read_text("utf-8").splitlines()]


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


def test_switches_of_the_chat_template_stay_beside_the_conversation(big):
    asked = [{"prompt": "Once", "chat_template_kwargs": {"brief": True}}, {"prompt": "Once"}]
    done = align(asked, draft="near", **SETTINGS)
    rows = [json.loads(line) for line in training_lines(done, from_values(asked).rows())]
    assert [row.get("chat_template_kwargs") for row in rows] == [{"brief": True}, None]


def test_a_job_over_the_rows_finds_what_the_first_one_found(big, tmp_path):
    done, _ = exported(tmp_path / "rows.jsonl", "near")
    again = align(tmp_path / "rows.jsonl", draft="near", **SETTINGS)
    assert again.prompts["exact"].tolist() == done.prompts["exact"].tolist() == [True, True, False, False]
    assert again.tokens["token"].tolist() == done.tokens["token"].tolist()
    np.testing.assert_allclose(again.tokens["overlap"], done.tokens["overlap"], atol=1e-5)


def test_the_weights_of_each_draft_add_up_to_what_its_rejections_lose(big, tmp_path):
    done, rows = exported(tmp_path / "rows.jsonl", ["near", "far"])
    assert [row["draft"] for row in rows] == ["near", "far"] * 4
    for draft in done.summary.drafts:
        own = [row for row in rows if row["draft"] == draft.name]
        assert all(len(row["weights"]) == len(row["completion"]) for row in own)
        lost = sum(each.lost for each in draft.losses if each.kind == "class")
        assert sum(sum(row["weights"]) for row in own) == pytest.approx(lost, abs=1e-3)
        table = done.tokens[done.tokens["draft"] == draft.name]
        assert own[0]["weights"] == pytest.approx(table[table["prompt"] == 0]["lost"].tolist(), abs=1e-6)
