"""The making of the bundled models: reversible tokens, repeatable batches, resumable training, loadable exports."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specviz.errors import SpecvizError
from specviz.zoo.config import EDITIONS, Recipe, load_recipe, load_tokenizer_recipes, recipe_names
from specviz.zoo.data.corpus import END_OF_TEXT, Batches, TokenFile, documents, load_sources, prepare, valid_windows
from specviz.zoo.data.samples import SAMPLES
from specviz.zoo.data.tokenizer import head, train_tokenizer
from specviz.zoo.evaluation.evaluate import NUM_WINDOWS, draft_of, measure, texts_for
from specviz.zoo.training.export import Origin, export_model, load_model
from specviz.zoo.training.model import build_model
from specviz.zoo.training.objectives import NextToken
from specviz.zoo.training.train import Data, Trainer, TrainingPace, train
from tests.helpers.small_zoo import RECIPE, SOURCES, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return train_tokenizer(documents(corpus, "stories.txt"), 320)


@pytest.fixture(scope="module")
def work(corpus, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    prepare(corpus, folder, tokenizer, SOURCES.values())
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fresh(tokenizer, recipe=RECIPE):
    model = build_model(recipe.shape, recipe.seed, tokenizer.get_vocab_size(), 0, "eager")
    return Trainer.start(recipe, model, NextToken(model), torch.device("cpu"))


def data_of(work):
    train_files, valid = ({name: TokenFile.open(work, name, split) for name in SOURCES} for split in ("train", "valid"))
    return Data(Batches(train_files, RECIPE.mixture, RECIPE.seed), valid)


def trained(work, tokenizer, *stops):
    """A trainer that ran to each of `stops`, saved and started anew in between."""
    for stop_at in stops:
        trainer = fresh(tokenizer)
        checkpoint = work / f"{stops}.pt"
        if checkpoint.exists():
            trainer.load(checkpoint)
        pace = TrainingPace(stop_at=stop_at)
        train(trainer, data_of(work), pace, lambda trainer, path=checkpoint: trainer.save(path))
    return trainer


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time,  there was\ta cat. ",
        "def f(x):\n    if x:\n        return 12345\n\n\n\treturn 'don\\'t'\r\n  ",
        "na\u00efve \u4f60\u597d \U0001f600\u200d\U0001f525 e\u0301 \u05d0\u0628 \u0000\x07\ufeff\u2028",
        "   \n \n\n    ",
    ],
)
def test_every_text_round_trips(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_byte_has_a_token_of_its_own(tokenizer):
    alphabet = {tokenizer.id_to_token(index) for index in range(1, 257)}
    assert len(alphabet) == 256
    assert all(len(piece) == 1 for piece in alphabet)


def test_a_line_break_keeps_its_indentation_in_one_token(tokenizer):
    assert "\u010a\u0120\u0120\u0120\u0120" in tokenizer.encode("if x:\n    go").tokens


def test_end_of_text_is_one_token_and_never_added(tokenizer):
    assert tokenizer.encode(END_OF_TEXT).ids == [0]
    assert 0 not in tokenizer.encode("the cat").ids


def test_token_files_hold_every_document_after_its_mark(corpus, work, tokenizer):
    file = TokenFile.open(work, "stories", "train")
    assert (file.tokens[file.starts] == 0).all()
    assert tokenizer.decode(file.tokens.tolist(), skip_special_tokens=True) == "".join(documents(corpus, "stories.txt"))


def test_a_missing_text_is_named(tmp_path):
    with pytest.raises(SpecvizError, match=r"nothing\.txt"):
        documents(tmp_path, "nothing.txt")


def test_head_stops_once_it_has_enough():
    assert list(head(iter(["ab", "cd", "ef"]), 3)) == ["ab", "cd"]


def test_batches_depend_on_seed_and_step_alone(work):
    files = {name: TokenFile.open(work, name, "train") for name in SOURCES}
    first, again, other = (Batches(files, RECIPE.mixture, seed) for seed in (1, 1, 2))
    first.batch(0, 4, 17)
    assert (first.batch(3, 4, 17) == again.batch(3, 4, 17)).all()
    assert (first.batch(3, 4, 17) != first.batch(4, 4, 17)).any()
    assert (first.batch(3, 4, 17) != other.batch(3, 4, 17)).any()


def test_batches_follow_the_mixture():
    files = {name: TokenFile(np.full(50, mark, dtype=np.uint16), np.array([0])) for mark, name in enumerate(SOURCES)}
    drawn = Batches(files, RECIPE.mixture, 0).batch(0, 2000, 2)
    assert drawn.mean() == pytest.approx(0.25, abs=0.03)


def test_valid_windows_do_not_overlap():
    file = TokenFile(np.arange(100, dtype=np.uint16), np.array([0]))
    windows = valid_windows(file, 10, 4)
    assert windows.shape == (4, 10)
    assert len(np.unique(windows)) == 40


def test_learning_rate_rises_stays_and_falls():
    assert [round(RECIPE.learning_rate(step), 4) for step in range(6)] == [0.005, 0.01, 0.01, 0.01, 0.0067, 0.0033]


def test_windows_lengthen_at_a_constant_number_of_tokens():
    assert [RECIPE.window(step) for step in range(6)] == [(4, 16)] * 3 + [(2, 32)] * 3


def test_resumed_training_is_bit_equal(work, tokenizer):
    whole, resumed = trained(work, tokenizer, 6), trained(work, tokenizer, 3, 6)
    assert whole.tokens_seen == resumed.tokens_seen == RECIPE.schedule.tokens
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_a_checkpoint_of_another_recipe_is_refused(work, tokenizer):
    trainer = trained(work, tokenizer, 1)
    trainer.recipe = Recipe.from_dict({**RECIPE.to_dict(), "seed": 6})
    with pytest.raises(SpecvizError, match="another recipe"):
        trainer.load(work / "(1,).pt")


@pytest.fixture(scope="module")
def exported(work, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "fable-test"
    trainer = trained(work, tokenizer, 2)
    for _ in range(2):  # the second time replaces the first
        export_model(trainer.model, tokenizer, Origin(RECIPE, trainer.tokens_seen), folder)
    return trainer, folder


def test_an_export_loads_with_the_same_logits(exported):
    trainer, folder = exported
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokens = torch.arange(24)[None]
    with torch.inference_mode():
        assert torch.allclose(loaded(tokens).logits, trainer.model(tokens).logits, atol=2e-3)
    assert loaded.config.max_position_embeddings == RECIPE.shape.context
    assert loaded.generation_config.eos_token_id == 0


def test_an_exported_tokenizer_loads_and_adds_nothing(exported, tokenizer):
    loaded = AutoTokenizer.from_pretrained(exported[1], local_files_only=True)
    assert loaded("the cat\n    sat")["input_ids"] == tokenizer.encode("the cat\n    sat").ids
    assert loaded.decode(loaded("a  b .")["input_ids"]) == "a  b ."
    assert (loaded.eos_token, loaded.eos_token_id) == (END_OF_TEXT, 0)


def test_an_export_leaves_nothing_beside_itself(exported):
    assert [path.name for path in exported[1].parent.iterdir()] == ["fable-test"]


def held_out(folder, work):
    return texts_for(folder, {"stories": [TokenFile.open(work, "stories", "valid")]})


def test_a_model_agrees_with_itself(exported, work):
    model = load_model(exported[1])
    target, draft = measure(model, {"draft": lambda seen: draft_of(model, seen)}, held_out(exported[1], work))
    assert draft.overlap["stories"] == pytest.approx(1.0, abs=1e-4)
    assert draft.agreement["stories"] == 1.0
    assert draft.bits_per_byte == target.bits_per_byte
    assert not target.overlap


def test_bits_per_byte_of_a_uniform_model_is_exact(work, exported):
    """Zero weights make every token equally likely: log2(V) bits per token, over the bytes those tokens stand for."""
    tokenizer = AutoTokenizer.from_pretrained(exported[1]).backend_tokenizer
    model = load_model(exported[1])
    torch.nn.init.zeros_(model.get_input_embeddings().weight)
    window = valid_windows(TokenFile.open(work, "stories", "valid"), RECIPE.shape.context, NUM_WINDOWS)[:, 1:]
    text = "".join(tokenizer.decode(row.tolist()) for row in window)
    expected = np.log2(tokenizer.get_vocab_size()) * window.size / len(text.encode())
    (row,) = measure(model, {}, held_out(exported[1], work))
    assert row.bits_per_byte["stories"] == pytest.approx(expected)


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", recipe_names())
def test_the_recipes_fit_the_sources_and_each_other(edition, name):
    recipe = load_recipe(edition, name)
    vocabularies = load_tokenizer_recipes()
    assert set(recipe.mixture) <= set(load_sources()) | {SAMPLES}
    assert recipe.tokenizer in vocabularies
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    target = load_recipe(edition, "fable-target")
    if recipe.shape:
        assert recipe.shape.context == target.shape.context
    if recipe.distillation:
        start = load_recipe(edition, recipe.distillation.start)
        assert (start.shape, start.tokenizer, target.tokenizer) == (recipe.shape, recipe.tokenizer, recipe.tokenizer)


def test_an_unknown_recipe_or_edition_is_refused_with_the_known_ones():
    with pytest.raises(SpecvizError, match="fable-target"):
        load_recipe(EDITIONS[0], "fable-unknown")
    with pytest.raises(SpecvizError, match=EDITIONS[1]):
        load_recipe("three-cores", "fable-target")
