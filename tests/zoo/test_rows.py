"""Training on rows of the lab: what they say is what is learned, and a draft of one's own keeps its form."""

import copy
import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

import specviz.session.workbench as session
from specviz.alignment.executors import local
from specviz.alignment.job import align
from specviz.alignment.prompts import from_values
from specviz.alignment.training_rows import training_lines
from specviz.drafters.eagle.heads import read
from specviz.drafters.heads import load_heads
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import read_tensors
from specviz.models.files.hub import weight_files
from specviz.models.pool import ModelPool, check_pair
from specviz.session.workbench import Workbench
from specviz.trace.lines import write_lines
from specviz.zoo.for_target import __main__ as command
from specviz.zoo.for_target import small_draft, store
from specviz.zoo.for_target.learning import Judged, score_texts
from specviz.zoo.for_target.own import own_draft, own_head
from specviz.zoo.for_target.rows import stored_rows
from specviz.zoo.for_target.store import make_batch, read_texts
from specviz.zoo.for_target.teacher import with_whole_distributions
from tests.helpers.eagle_heads import eagle, target_of
from tests.helpers.head_formats import (
    EAGLE3_NORMS,
    folder_of,
    speculators_eagle3,
    speculators_mtp,
    speculators_peagle,
    wrapped_eagle,
)
from tests.helpers.tiny_models import tiny, tiny_folder

PROMPTS = [{"prompt": f"Once upon a time there were {count} foxes"} for count in range(40)]
PACE = ("--texts-per-step", 4, "--learning-rate", 5e-3, "--warmup-steps", 2, "--average", 0.8)


@pytest.fixture
def big(named_models, monkeypatch):
    bench = Workbench(named_models)
    monkeypatch.setattr(session, "_shared", [bench])
    return bench.pool.load("big")


def export(file, prompts=PROMPTS, drafts="near", num_probs=32, **settings):
    done = align(prompts, target="big", draft=drafts, max_new_tokens=12, costs={}, **settings)
    with local() as run_each:
        lines = list(training_lines(done, from_values(prompts).rows(), run_each, num_probs=num_probs))
    write_lines(file, lines)
    return [json.loads(line) for line in lines]


def forward(model, row, temperature=1.0):
    """The target's distributions [N, V] along the completion."""
    with torch.inference_mode():
        logits = model(torch.tensor([row["prompt"] + row["completion"]])).logits[0]
    return (logits[len(row["prompt"]) - 1 : -1] / temperature).softmax(-1)


# Rows


@pytest.mark.parametrize(("name", "num_probs"), [("rows.jsonl", 8), ("rows.jsonl.gz", 32), ("rows.jsonl", 0)])
def test_a_stored_row_says_what_the_target_says(big, tmp_path, name, num_probs):
    """With 0 the file holds no probabilities, and the target reads the texts."""
    rows = export(tmp_path / name, PROMPTS[:3], num_probs=num_probs)
    texts = list(read_texts([stored_rows(big, tmp_path / name, tmp_path)]))
    batch = make_batch(texts, with_states=False)
    for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
        assert [*text.prompt, *text.answer] == row["prompt"] + row["completion"]
        p = forward(big.model, row)
        there = batch.is_answer[place]
        assert there.sum() == len(row["completion"])
        own = batch.log_probs[place, there].exp()
        torch.testing.assert_close(own, p.gather(-1, batch.ids[place, there]) * (own > 0), rtol=2e-3, atol=2e-6)
        count = num_probs or store.TOP
        torch.testing.assert_close(own.sum(-1), p.topk(count).values.sum(-1), rtol=2e-3, atol=2e-3)


def test_rows_are_stored_once_and_again_where_the_file_is_another(big, tmp_path, monkeypatch):
    export(tmp_path / "rows.jsonl", PROMPTS[:3])
    first = stored_rows(big, tmp_path / "rows.jsonl", tmp_path)
    monkeypatch.setattr("specviz.zoo.for_target.rows.write_shard", None)
    assert stored_rows(big, tmp_path / "rows.jsonl", tmp_path) == first
    monkeypatch.undo()
    (tmp_path / "rows.jsonl").write_text('{"prompt": [1, 2], "completion": [3, 4, 5]}\n')
    (text,) = read_texts([stored_rows(big, tmp_path / "rows.jsonl", tmp_path)])
    assert text.tokens == (1, 2, 3, 4, 5)


def test_places_weigh_what_the_rows_say_as_far_as_they_are_asked_to(big, tmp_path):
    rows = export(tmp_path / "rows.jsonl", PROMPTS[:3])
    texts = list(read_texts([stored_rows(big, tmp_path / "rows.jsonl", tmp_path)]))
    for share in (0.0, 0.25, 1.0):
        batch = make_batch(texts, with_states=False, place_weight=share)
        for weights, there, row in zip(batch.weights, batch.is_answer, rows, strict=True):
            expected = [1 - share + share * weight for weight in row["place_weights"]]
            assert weights[there].tolist() == pytest.approx(expected, abs=1e-6)
            assert weights[~there].sum() == 0  # rows say nothing of their prompts


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"completion": "text"}, r"line 1 of 'rows.jsonl' is no row of `align --export-rows`: it needs token ids"),
        ({"prompt": []}, "needs token ids"),
        ({"prompt": [9999]}, "has ids that big does not know"),
        ({"top_ids": [[9999]] * 2}, "has ids that big does not know"),
        ({"top_probs": [[1.0]]}, "must have probabilities for each id"),
        ({"place_weights": [0.5]}, "must have a weight for each id"),
        ({"sampling": {"target": "another"}}, "is of the target another, not big"),
    ],
)
def test_a_row_of_another_kind_is_refused_by_its_line(big, tmp_path, change, words):
    row = {"prompt": [1], "completion": [2, 3], "top_ids": [[2], [3]], "top_probs": [[0.5], [1.0]]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | change))
    with pytest.raises(SpecvizError, match=words):
        stored_rows(big, tmp_path / "rows.jsonl", tmp_path)
    assert not list(tmp_path.rglob("*.u16"))


def test_rows_of_several_drafts_are_refused(big, tmp_path):
    export(tmp_path / "rows.jsonl", PROMPTS[:3], ["near", "far"])
    with pytest.raises(SpecvizError, match="rows of several drafts: export with one"):
        stored_rows(big, tmp_path / "rows.jsonl", tmp_path)


# The loss


def test_the_loss_counts_all_other_tokens_as_one():
    generator = torch.Generator().manual_seed(0)
    p, logits = torch.rand(5, 9, generator=generator).softmax(-1), torch.randn(5, 9, generator=generator)
    top = p.topk(3)
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0])
    judged = Judged.of(top.values.log(), top.indices, logits, torch.full((5, 1), 2.0), weights)
    total = 0.0
    for place in range(5):
        q = (logits[place] / 2).softmax(-1)
        own = [(float(p[place, token]), float(q[token])) for token in top.indices[place]]
        left = [1 - sum(each) for each in zip(*own, strict=True)]
        entropy = -sum(one * math.log(other) for one, other in [*own, left])
        total += float(weights[place]) * (3.0 * (1 - sum(map(min, own))) + entropy)
    assert float(judged.loss(3.0)) == pytest.approx(total, rel=1e-5)


def test_the_loss_is_least_where_the_draft_says_what_the_target_says():
    p = torch.tensor([[0.5, 0.2, 0.1, 0.15, 0.05]])
    logits = torch.zeros(1, 5, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(600):
        judged = Judged.of(p[:, :2].log(), torch.tensor([[0, 1]]), logits, torch.ones(1, 1), torch.tensor([0.3]))
        judged.loss(0.0).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert logits.softmax(-1)[0, :2].tolist() == pytest.approx([0.5, 0.2], abs=1e-3)


def test_a_draft_learns_at_the_temperature_of_the_rows(big, tmp_path):
    """The target itself would be the best draft there: nothing is left to learn."""
    rows = export(tmp_path / "rows.jsonl", PROMPTS[:4], temperature=0.5)
    texts = list(read_texts([stored_rows(big, tmp_path / "rows.jsonl", tmp_path)]))
    itself = small_draft.DraftLearner(big, copy.deepcopy(big.model), {}, None)
    (score,) = score_texts(itself, texts)
    top = [forward(big.model, row, 0.5).topk(32).values.sum(-1).sum() for row in rows]
    assert score.places == sum(len(row["completion"]) for row in rows)
    assert score.overlap == pytest.approx(float(sum(top)), rel=1e-3)
    (whole,) = score_texts(itself, texts, change=partial(with_whole_distributions, big))
    assert whole.overlap == pytest.approx(whole.places, rel=1e-5)


def test_a_batch_in_pieces_has_the_loss_of_the_whole(big, tmp_path, monkeypatch):
    export(tmp_path / "rows.jsonl", PROMPTS[:5])
    texts = list(read_texts([stored_rows(big, tmp_path / "rows.jsonl", tmp_path)]))
    found = []
    for most in (1, small_draft._LOGITS):
        monkeypatch.setattr(small_draft, "_LOGITS", most)
        learner = small_draft.DraftLearner(big, copy.deepcopy(big.model), {}, None)
        loss = learner.loss(make_batch(texts, with_states=False, place_weight=0.5), 15.0)
        loss.backward()
        found.append((loss.detach(), learner.module.get_input_embeddings().weight.grad))
    torch.testing.assert_close(*found)


# Drafts and heads of one's own


def tensors_of(folder):
    return read_tensors(weight_files(folder, folder.name))


def run_command(monkeypatch, target, *words):
    """Runs the command; the target is a model in memory, everything else is loaded as it is."""
    load = ModelPool.load
    monkeypatch.setattr(ModelPool, "load", lambda pool, name: target if name == "big" else load(pool, name))
    monkeypatch.setattr("sys.argv", ["for_target", *map(str, words)])
    command.main()


@pytest.mark.parametrize(
    ("family", "dtype"), [("gpt2", torch.float32), ("qwen3", torch.bfloat16), ("gemma2", torch.float16)]
)
def test_a_draft_of_any_architecture_learns_and_keeps_its_form(big, tmp_path, monkeypatch, family, dtype):
    """Through the command, from rows of a target without a chat template; its table has rows without a token."""
    monkeypatch.setattr(store, "HELD_OUT_SHARE", 5)
    export(tmp_path / "rows.jsonl.gz")
    whole = partial(with_whole_distributions, big)
    size = big.info.vocab_size + 8
    own = tiny(family, vocab_size=size, layers=1, hidden=16, seed=4, eos_token_id=None).to(dtype)
    draft = tiny_folder(tmp_path / "own", own, big.tokenizer)
    (draft / "recipe.json").write_text("{}")
    words = ("big", tmp_path / "made", tmp_path / "rows.jsonl.gz", "--start-from", draft, "--place-weight", 0.5)
    run_command(monkeypatch, big, "draft", *words, "--steps", 60, *PACE)
    made = tmp_path / "made" / "model"
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (made / file).read_bytes() == (draft / file).read_bytes()
    assert not (made / "recipe.json").exists()  # it told of the earlier weights
    before, after = tensors_of(draft), tensors_of(made)
    assert {name: (each.shape, each.dtype) for name, each in after.items()} == {
        name: (each.shape, each.dtype) for name, each in before.items()
    }
    loaded = ModelPool(10**9, allow_any=True).load(str(made))
    check_pair(big, loaded)
    assert type(loaded.model) is type(own)
    texts = list(read_texts([tmp_path / "made" / "rows"]))
    learned = [text for text in texts if not text.is_held_out]
    (first,), (second,) = (score_texts(own_draft(big, folder), learned, 8, whole) for folder in (draft, made))
    assert second.agreement > first.agreement + 20
    recipe = json.loads((tmp_path / "made" / "recipe.json").read_text())
    assert recipe["went_on_from"] == {"folder": "own"}


def test_a_draft_that_cannot_draft_for_the_target_is_not_trained(big, named_models, tmp_path):
    stranger = named_models.load("stranger")
    folder = tiny_folder(tmp_path / "stranger", stranger.model, stranger.tokenizer)
    with pytest.raises(SpecvizError, match="their vocabularies differ"):
        own_draft(big, folder)


HEADS = {
    "EAGLE": eagle,
    "EAGLE, biases": lambda target: eagle(target, qkv_bias=True),
    "EAGLE, wrapped": lambda target: wrapped_eagle(target, norms=True),
    "speculators": speculators_eagle3,
    "speculators, two layers": lambda target: speculators_eagle3(target, layers=2),
    "speculators, five states": lambda target: speculators_eagle3(target, aux=(0, 1, 3, 6, 7)),
    "EAGLE-3.1": lambda target: speculators_eagle3(target, layers=3, aux=(1, 2, 3, 4), **EAGLE3_NORMS),
    "MTP": speculators_mtp,
}
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


@pytest.fixture(scope="module")
def small():
    return target_of(layers=8, dtype=torch.float32)


def own_of(small, tmp_path, name):
    folder_of(tmp_path / "head", *HEADS[name](small))
    return own_head(small, tmp_path / "head", 4)


def batch_of(small, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": IDS[:n], "completion": IDS[n:]}) for n in (2, 3, 5, 7)))
    return make_batch(list(read_texts([stored_rows(small, rows, tmp_path)])), with_states=True)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_in_training_says_at_every_depth_what_it_says_as_it_drafts(small, tmp_path, name):
    learner = own_of(small, tmp_path, name)
    batch = batch_of(small, tmp_path)
    assert batch.states is None  # no row has them: the target computes them
    every_id = torch.arange(12).expand(*batch.is_answer.shape, 12)
    batch = replace(batch, ids=every_id, log_probs=torch.zeros(every_id.shape))
    told = list(learner._judged(batch, 3, torch.ones_like(batch.is_answer)))
    head, _ = read(*_files(tmp_path / "head"), small)
    with torch.inference_mode():
        out = small.model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    states = torch.cat([out[layer][0] for layer in head.hidden_layers], dim=-1)
    for start in (0, 4, 9):  # the last state that is the target's own
        rows, features = head.rows(), head.fuse(states[: start + 1])
        ids, places = torch.tensor(IDS[1 : start + 2]), torch.arange(1, start + 2)
        for depth in range(3):
            features = head(features, ids, places, rows, None)[-1:]
            expected = head.logits(features)[0].log_softmax(-1)
            can = expected > -math.inf
            torch.testing.assert_close(told[depth].log_q[start][can], expected[can], rtol=1e-4, atol=1e-4)
            ids, places = torch.tensor([IDS[start + 2 + depth]]), torch.tensor([start + 2 + depth])


def _files(folder):
    return json.loads((folder / "config.json").read_text()), tensors_of(folder)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_ones_own_learns_and_keeps_its_form(small, tmp_path, name):
    learner, batch = own_of(small, tmp_path, name), batch_of(small, tmp_path)
    optimizer = torch.optim.Adam(learner.module.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = learner.loss(batch, 0.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    assert all(weight.grad is None for weight in small.model.parameters())
    learner.export(tmp_path / "made")
    (before, old), (after, new) = _files(tmp_path / "head"), _files(tmp_path / "made")
    assert after == before
    assert {key: (each.shape, each.dtype) for key, each in new.items()} == {
        key: (each.shape, each.dtype) for key, each in old.items()
    }
    assert load_heads(ModelPool(allow_any=True), str(tmp_path / "made"), "eagle", small).report.missing == ()
    again = own_head(small, tmp_path / "made", 4)
    assert again.loss(batch, 0.0).item() == pytest.approx(learner.loss(batch, 0.0).item(), rel=1e-4)


def test_a_head_that_drafts_all_at_once_is_not_trained(small, tmp_path):
    folder_of(tmp_path / "head", *speculators_peagle(small))
    with pytest.raises(SpecvizError, match="'head' drafts all its tokens at once: such heads are not trained here"):
        own_head(small, tmp_path / "head", 4)
