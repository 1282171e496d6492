"""Drafts for a target of one's own: its dialogues and laws are its own, training is repeatable and never reads what is
held out, and what it exports drafts in the product."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from specviz.decoding.drafter import Context
from specviz.decoding.draws import Draws, Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.eagle.drafter import EagleDrafter
from specviz.drafters.eagle.layouts import papers_layers
from specviz.drafters.heads import load_heads
from specviz.drafters.method import Part, Parts
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import read_tensors
from specviz.models.files.hub import weight_files
from specviz.models.pool import ModelPool, check_pair
from specviz.rules import RULES
from specviz.zoo.config import Shape
from specviz.zoo.for_target import dialogues, store
from specviz.zoo.for_target.__main__ import main
from specviz.zoo.for_target.dialogues import Size, Template, write_dialogues
from specviz.zoo.for_target.eagle3 import chosen_ids, fresh_head
from specviz.zoo.for_target.evaluate import evaluate
from specviz.zoo.for_target.learning import Goal, Learning, LearningPace, score_texts
from specviz.zoo.for_target.own import own_draft, own_head
from specviz.zoo.for_target.plain_text import write_plain_text
from specviz.zoo.for_target.ship import ship
from specviz.zoo.for_target.small_draft import small_draft
from specviz.zoo.for_target.store import make_batch, read_texts
from specviz.zoo.for_target.teacher import with_whole_distributions
from specviz.zoo.training.export import write_json
from tests.helpers.setups import CHARACTERS, tokenizer_of
from tests.helpers.small_zoo import write_corpus
from tests.helpers.tiny_models import tiny

pytestmark = pytest.mark.slow

SIZE = Size(shard=24, batch=7, longest_turn=40, longest_answer=20)
PACE = LearningPace(texts_per_step=4, learning_rate=1e-2, warmup_steps=4, average=0.9)
SHAPE = Shape(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24, context=256)
TEMPLATE = "{% for turn in messages %}aab{{ turn.content }}Z{% endfor %}{% if add_generation_prompt %}cc{% endif %}"


@pytest.fixture(autouse=True)
def more_held_out(monkeypatch):
    monkeypatch.setattr(store, "HELD_OUT_SHARE", 6)


@pytest.fixture(scope="module")
def target():
    tokenizer = tokenizer_of(CHARACTERS[:30])
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATE, "Z"
    model = tiny("llama", vocab_size=30, layers=8, hidden=32, seed=3, eos_token_id=tokenizer.eos_token_id)
    with torch.no_grad():
        model.get_output_embeddings().weight[tokenizer.eos_token_id].zero_()
        for layer in model.model.layers:  # the last token counts most, so that a few steps can learn something
            layer.self_attn.o_proj.weight.mul_(0.5)
            layer.mlp.down_proj.weight.mul_(0.5)
    model.name_or_path = "talker"
    return ModelPool(10**9, allow_any=True).load((model, tokenizer))


@pytest.fixture(scope="module")
def folder(target, tmp_path_factory):
    """Shards of dialogues, written without a break."""
    made = tmp_path_factory.mktemp("dialogues")
    write_dialogues(target, made, 1500, papers_layers(target), size=SIZE)
    return made


@pytest.fixture(scope="module")
def texts(folder):
    return list(read_texts([folder]))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Dialogues and their laws


def test_tokens_are_drawn_by_their_probability_and_never_without_one():
    torch.manual_seed(0)
    probs = torch.tensor([[0.0, 0.5, 0.3, 0.2, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    rows, samplings = probs.log().repeat(5000, 1), [Sampling()] * 10_000
    drawn = torch.tensor(dialogues._draw(rows, samplings)).view(-1, 2)
    assert set(drawn[:, 1].tolist()) == {2}
    counts = torch.bincount(drawn[:, 0], minlength=5) / 5000
    assert counts[0] == counts[4] == 0
    assert (counts - probs[0]).abs().max() < 0.03  # four standard deviations


def test_answers_written_side_by_side_are_those_that_the_target_gives_alone(target, monkeypatch, tmp_path):
    monkeypatch.setattr(dialogues, "_ANSWERS", (Sampling(temperature=0),))
    write_dialogues(target, tmp_path, 300, (), size=SIZE)
    (end,) = target.tokenizer("Z").input_ids
    made = list(read_texts([tmp_path]))
    assert len({len(text.prompt) for text in made}) > 3  # so they end at different steps
    target.model.set_attn_implementation("eager")
    for text in made:
        ids = torch.tensor([text.prompt])
        own = target.model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=end)
        assert tuple(own[0, len(text.prompt) :].tolist()) == text.answer


def test_the_same_dialogues_follow_after_a_kill(target, folder, tmp_path):
    layers = papers_layers(target)
    write_dialogues(target, tmp_path, 1, layers, size=SIZE)
    half = tmp_path / ".00001.partial"  # what a kill leaves
    half.mkdir()
    (half / "index.jsonl").write_text("half a li")
    write_dialogues(target, tmp_path, 1500, layers, size=SIZE)
    assert files_of(tmp_path) == files_of(folder)


def test_as_many_tokens_are_written_as_were_asked_for(target, tmp_path):
    """The last dialogue is whole; a shorter run's dialogues are the first of a longer one's."""
    written = []
    for tokens in (40, 130, 60):
        write_dialogues(target, tmp_path, tokens, (), size=SIZE)
        written.append([text.tokens for text in read_texts([tmp_path])])
        held = sum(len(text.answer) for text in read_texts([tmp_path]))
        assert max(40, tokens) <= held < 130 + SIZE.longest_answer
    assert written[1][: len(written[0])] == written[0] != written[1] == written[2]
    assert len(list(read_texts([tmp_path]))) < 24


def test_no_shard_repeats_another(texts):
    assert len({text.shard for text in texts}) > 1
    assert len({text.tokens for text in texts}) == len(texts)


def test_a_dialogue_is_a_turn_in_the_template_and_its_answer(target, texts):
    template = Template.of(target.tokenizer)
    (end,) = target.tokenizer("Z").input_ids
    for text in texts:
        words = text.prompt[len(template.before) : -len(template.after)]
        assert template.before + words + template.after == text.prompt
        assert 4 <= len(words) < SIZE.longest_turn
        assert end not in (*words, *text.answer[:-1])
        assert text.answer[-1] == end or len(text.answer) == SIZE.longest_answer


def test_the_stored_distributions_and_states_are_those_of_one_forward(target, texts):
    layers = papers_layers(target)
    for text in texts[:9]:
        with torch.inference_mode():
            done = target.model(torch.tensor([text.tokens]), output_hidden_states=True)
        batch = make_batch([text], with_states=True)
        states = torch.cat([done.hidden_states[layer][0, :-1] for layer in layers], dim=-1)
        torch.testing.assert_close(batch.states[0], states, rtol=1e-2, atol=1e-2)  # stored in bfloat16
        distribution = done.logits[0, text.first : -1].log_softmax(-1)
        count = distribution.shape[-1]
        ids, log_probs = batch.ids[0, text.first :, :count], batch.log_probs[0, text.first :, :count]
        torch.testing.assert_close(distribution.gather(-1, ids), log_probs, rtol=1e-3, atol=1e-2)
        assert (ids.sort().values == torch.arange(count)).all()


def test_the_whole_distributions_are_the_stored_ones_where_all_tokens_are_stored(target, texts):
    batch = make_batch(texts[:5], with_states=False)
    whole = with_whole_distributions(target, batch)
    kept = batch.weights > 0
    assert whole.ids.shape[-1] == target.info.vocab_size < batch.ids.shape[-1]
    assert torch.equal(whole.ids.sort(-1).values, torch.arange(30).expand(whole.ids.shape))
    assert torch.equal(whole.ids[kept][:, 0], batch.ids[kept][:, 0])
    stored = torch.zeros_like(whole.log_probs).scatter_(-1, batch.ids[..., :30], batch.log_probs[..., :30])
    torch.testing.assert_close(whole.log_probs[kept], stored.gather(-1, whole.ids)[kept], rtol=2e-3, atol=2e-3)


def test_plain_text_has_distributions_for_every_place(target, tmp_path):
    (tmp_path / "corpus").mkdir()
    write_plain_text(target, write_corpus(tmp_path / "corpus"), "*.txt.xz", tmp_path / "plain", 500)
    found = list(read_texts([tmp_path / "plain"]))
    assert 500 <= sum(len(text.answer) for text in found) < 500 + 256
    batch = make_batch(found[:3], with_states=False)
    assert [int(row.sum()) for row in batch.weights] == [len(text.answer) - 1 for text in found[:3]]


def test_a_target_without_a_chat_template_is_refused(target, tmp_path):
    tokenizer = tokenizer_of(CHARACTERS)
    with pytest.raises(SpecvizError, match="no chat template"):
        write_dialogues(replace(target, tokenizer=tokenizer), tmp_path, 1, ())


def test_a_folder_without_texts_is_refused(tmp_path):
    with pytest.raises(SpecvizError, match="holds no texts"):
        list(read_texts([tmp_path]))


# Training


def head_of(target, folder, texts, depth=4):
    ids = chosen_ids(folder / "ids.json", texts, target.info.vocab_size, 24)
    return fresh_head(target, ids, depth, 0)


def draft_of(target, folder, texts):
    return small_draft(target, SHAPE, 0)


MAKERS = pytest.mark.parametrize("make", [head_of, draft_of])


@MAKERS
def test_what_is_held_out_is_never_trained_on(target, texts, make, tmp_path, monkeypatch):
    read = []
    learner = make(target, tmp_path, texts)
    learning = Learning(learner, texts, PACE, tmp_path)
    loss = learner.loss
    monkeypatch.setattr(
        learner, "loss", lambda batch, weight: (read.extend(batch.tokens.tolist()), loss(batch, weight))[1]
    )
    learning.run(Goal(steps=len(texts) // 2), lambda: None)
    questions = {text.prompt for text in learning.held_out}
    assert questions
    assert len(read) >= len(learning.texts)
    assert not [row for row in read for prompt in questions if tuple(row[: len(prompt)]) == prompt]


@MAKERS
def test_a_training_that_was_ended_goes_on_as_if_it_had_not_been(target, texts, make, tmp_path):
    def ended():
        raise KeyboardInterrupt

    def trained(name, *exports):
        for export in exports:
            folder = tmp_path / name
            learning = Learning(make(target, folder, texts), texts, PACE, folder)
            try:
                learning.run(Goal(steps=6), export, every=3)
            except KeyboardInterrupt:
                continue
        return learning.average

    whole, broken = trained("whole", lambda: None), trained("broken", ended, lambda: None)
    assert all(torch.equal(value, broken[name]) for name, value in whole.items())


@MAKERS
def test_the_overlap_on_held_out_dialogues_rises(target, texts, make, tmp_path):
    learner = make(target, tmp_path, texts)
    learning = Learning(learner, texts, PACE, tmp_path)
    before = score_texts(learner, learning.held_out)
    learning.run(Goal(steps=120), lambda: None)
    learner.module.load_state_dict(learning.average)
    after = score_texts(learner, learning.held_out)
    assert [score.places for score in after] == [score.places for score in before]
    assert all(new.overlap > 1.05 * old.overlap for new, old in zip(after, before, strict=True))


OWN = {head_of: lambda target, folder: own_head(target, folder, 4), draft_of: own_draft}


@MAKERS
def test_a_training_goes_on_from_a_finished_draft(target, texts, make, tmp_path):
    first = make(target, tmp_path / "first", texts)
    learning = Learning(first, texts, PACE, tmp_path / "first")
    learning.run(Goal(steps=40), partial(first.export, tmp_path / "first/model"))
    shutil.copy(tmp_path / "first/recipe.json", tmp_path / "first/model")
    first.module.load_state_dict(learning.average)
    second = OWN[make](target, tmp_path / "first/model")
    after = Learning(second, texts, PACE, tmp_path / "second", tmp_path / "first/model")
    for reached, left in zip(score_texts(second, after.held_out), score_texts(first, after.held_out), strict=True):
        assert reached.overlap == pytest.approx(left.overlap, rel=1e-2)  # finished drafts are in float16
    after.run(Goal(steps=2), partial(second.export, tmp_path / "second/model"))
    assert json.loads((tmp_path / "second/recipe.json").read_text())["went_on_from"]["steps"] == 40
    before, now = (tensors_of(tmp_path / name / "model") for name in ("first", "second"))
    assert {name: (value.shape, value.dtype) for name, value in now.items()} == {
        name: (value.shape, value.dtype) for name, value in before.items()
    }
    assert any(not torch.equal(value, before[name]) for name, value in now.items())
    for file in ("config.json", "tokenizer.json"):
        assert files_of(tmp_path / "second/model").get(file) == files_of(tmp_path / "first/model").get(file)


def tensors_of(folder):
    return read_tensors(weight_files(folder, folder.name))


def trained_by_command(target, monkeypatch, *words):
    monkeypatch.setattr(ModelPool, "load", lambda *_: target)
    monkeypatch.setattr("sys.argv", ["for_target", *map(str, words)])
    main()


def test_a_training_that_is_taken_up_again_keeps_its_ids_and_its_past(target, folder, tmp_path, monkeypatch):
    pace = ("--texts-per-step", 4, "--draft-tokens", 24)
    first, second = tmp_path / "first", tmp_path / "second"
    trained_by_command(target, monkeypatch, "eagle", "it", first, folder, "--steps", 2, *pace)
    ids = sorted({*range(30)} - {*json.loads((first / "ids.json").read_text())[:6]})
    (first / "ids.json").write_text(json.dumps(ids))  # others than would be chosen
    shutil.rmtree(first / "model")
    (first / "training.pt").unlink()
    trained_by_command(target, monkeypatch, "eagle", "it", first, folder, "--steps", 2, *pace)
    shutil.copy(first / "recipe.json", first / "model")
    start = ("--start-from", first / "model")
    for steps in (1, 2):
        trained_by_command(target, monkeypatch, "eagle", "it", second, folder, "--steps", steps, *pace, *start)
    assert tensors_of(second / "model")["t2d"].nonzero()[:, 0].tolist() == ids
    assert json.loads((second / "recipe.json").read_text())["went_on_from"]["steps"] == 2


def test_a_training_without_an_end_is_refused_in_words(target, folder, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"specviz: say when the training ends: with --steps, --hours or both"):
        trained_by_command(target, monkeypatch, "draft", "it", tmp_path / "made", folder, "--hidden", 32)
    with pytest.raises(SystemExit, match=r"specviz: --hidden must be a multiple of 32 up to 32 \(got 96\)"):
        trained_by_command(target, monkeypatch, "draft", "it", tmp_path / "made", folder, "--steps", 1)
    assert not (tmp_path / "made").exists()


def test_the_learning_curve_has_a_step_once(target, texts, tmp_path):
    for _ in range(2):
        learning = Learning(draft_of(target, tmp_path, texts), texts, PACE, tmp_path)
        learning.run(Goal(steps=4), lambda: None, every=2)
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in curve] == [2, 4]


def test_plain_text_of_another_seed_is_another(target, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_corpus(corpus)
    for seed in (0, 0, 1):
        write_plain_text(target, corpus, "*.txt.xz", tmp_path / f"{len(list(tmp_path.iterdir()))}", 200, seed)
    first, again, other = ([text.tokens for text in read_texts([tmp_path / name])] for name in "123")
    assert first == again != other


def test_a_state_of_another_shape_is_refused(target, texts, tmp_path):
    Learning(small_draft(target, SHAPE, 0), texts, PACE, tmp_path).run(Goal(steps=1), lambda: None)
    other = small_draft(target, replace(SHAPE, intermediate_size=32), 0)
    with pytest.raises(SpecvizError, match="another shape"):
        Learning(other, texts, PACE, tmp_path)


# In the product


class Text(Draws):
    """Draws the tokens of a text at their places, whatever their odds."""

    def __init__(self, tokens):
        self._tokens = tokens

    def sample(self, probs, role, position, node):
        return torch.tensor(self._tokens[position])


def test_the_training_time_test_is_what_the_head_does_as_it_drafts(target, texts, tmp_path):
    learner = head_of(target, tmp_path, texts)
    text = max(texts, key=lambda text: len(text.answer))
    batch = make_batch([text], with_states=True)
    every_id = torch.arange(30).expand(*batch.is_answer.shape, 30)
    batch = replace(batch, ids=every_id, log_probs=torch.zeros(every_id.shape))
    distributions = list(learner._judged(batch, 4, torch.ones_like(batch.is_answer)))
    for start in (1, len(text.prompt), len(text.tokens) - 6):  # the last state that the target gives
        context = Context(text.tokens[: start + 2], Sampling(), Text(text.tokens), 30, batch.states[0, : start + 1])
        drafted = EagleDrafter(learner.module, 1, 4, draws=True).draft(context, 4)
        for depth, row in enumerate(drafted.logits):
            expected = row.log_softmax(-1)
            can = expected > -torch.inf
            assert can.sum() == 24
            ours = distributions[depth].log_q[start]
            torch.testing.assert_close(ours[can], expected[can], rtol=1e-3, atol=1e-3)


def greedy_text(target, drafter, prompt):
    plan = Plan(target.cached_lm(), drafter, RULES["speculative_sampling"], Sampling(0.0), 4)
    return [token for step in speculate(prompt, lambda: plan, Seeded(0), max_new_tokens=40) for token in step.tokens]


@MAKERS
def test_what_was_trained_drafts_in_the_product_and_keeps_the_greedy_text(target, texts, folder, make, tmp_path):
    learner = make(target, tmp_path, texts)
    learning = Learning(learner, texts, PACE, tmp_path)
    learning.run(Goal(steps=2), partial(learner.export, tmp_path / "model"))
    pool, own = ModelPool(10**9, allow_any=True), Part("target", target.cached_lm(), target.cached_lm)
    if make is head_of:
        heads = load_heads(pool, str(tmp_path / "model"), "eagle", target)
        assert heads.report.missing == heads.report.unused == ()
        parts, method = Parts(own, heads=heads.module), METHODS["eagle"]
    else:
        loaded = pool.load(str(tmp_path / "model"))
        check_pair(target, loaded)
        parts, method = Parts(own, draft=Part("draft", loaded.cached_lm(), loaded.cached_lm)), METHODS["draft_model"]
    for text in learning.held_out[:3]:
        alone = greedy_text(target, METHODS["none"].build(parts, {}), text.prompt)
        assert greedy_text(target, method.build(parts, method.validate({})), text.prompt) == alone
    card = evaluate(target, tmp_path, texts, 2)
    assert (tmp_path / "model" / "MODEL_CARD.md").read_text("utf-8") == card
    assert "2 of 2" in card
    assert "1 of 2" not in card
    stored = json.loads((tmp_path / "curve.jsonl").read_text().splitlines()[-1])["overlap"]  # of all its 30 tokens
    whole = card.split("the overlap of these weights is ")[1].split(".\n")[0].split(" / ")
    assert [float(value) for value in whole] == pytest.approx(stored, abs=0.01)  # the file is in float16


@MAKERS
def test_what_is_shipped_is_the_evaluated_folder_under_the_targets_name(target, texts, make, tmp_path, monkeypatch):
    """The bundled drafts of smollm2 are loaded from it as they were from the folder of their training."""
    learner = make(target, tmp_path, texts)
    learner.export(tmp_path / "model")
    monkeypatch.setenv("SPECVIZ_ASSETS", str(tmp_path / "assets"))
    (tmp_path / "assets" / "models").mkdir(parents=True)
    with pytest.raises(SpecvizError, match="has no card; run `evaluate` first"):
        ship("smollm2", tmp_path)
    (tmp_path / "model" / "MODEL_CARD.md").write_text("# A draft\n", "utf-8")
    write_json(tmp_path / "model" / "recipe.json", {"draft": learner.settings()})
    with pytest.raises(SpecvizError, match="no bundled draft of this kind for somebody/else"):
        ship("somebody/else", tmp_path)
    place = ship("smollm2", tmp_path)
    assert place == tmp_path / "assets" / "models" / ("smol-eagle" if make is head_of else "smol-draft")
    before, after = files_of(tmp_path / "model"), files_of(place)
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"MODEL_CARD.md", "recipe.json", "config.json"}
    assert b"talker" in before["recipe.json"]
    assert b"talker" not in b"".join(after[name] for name in changed)
    assert after["MODEL_CARD.md"].decode().endswith("Apache-2.0.\n")
    ship("smollm2", tmp_path)
    assert files_of(place) == after
