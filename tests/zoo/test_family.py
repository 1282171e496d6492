"""The whole way of a family in miniature, from text to cards."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from specviz.errors import SpecvizError
from specviz.zoo import __main__ as program
from specviz.zoo import config
from specviz.zoo.config import EDITIONS
from specviz.zoo.data import corpus
from specviz.zoo.data.corpus import TokenFile
from specviz.zoo.evaluation import trials
from specviz.zoo.family import Workplace
from specviz.zoo.training.export import BIAS_FILE, HEAD_FILES, Origin
from tests.helpers.small_zoo import FAMILY, write_configs, write_corpus


class Zoo:
    """The command line on small recipes, in a folder of its own."""

    def __init__(self, folder: Path, texts: Path) -> None:
        self.folder, self.texts = folder, texts
        self.place = Workplace(folder / "work", EDITIONS[0], torch.device("cpu"))

    def __call__(self, command: str, *names: str) -> None:
        options = ["--work", str(self.place.work), "--edition", EDITIONS[0]]
        options += ["--models", str(self.folder)] if command in ("make", "export", "bias", "evaluate") else []
        options += ["--corpus", str(self.texts)] if command in ("make", "tokenizers") else []
        sys.argv = ["zoo", command, *names, *options]
        program.main()


@pytest.fixture(scope="module")
def patched():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def zoo(patched, tmp_path_factory):
    configs = write_configs(tmp_path_factory.mktemp("configs"))
    for module in (config, corpus):
        patched.setattr(module, "CONFIGS", configs)
    for name, value in (("NUM_SUMS", 2), ("NUM_SAMPLES", 2), ("SAMPLE_TOKENS", 8), ("MOST_ANSWER_TOKENS", 8)):
        patched.setattr(trials, name, value)
    patched.setattr(trials, "TIMED_TOKENS", 3)
    patched.setattr(sys, "argv", [])
    threads = torch.get_num_threads()
    zoo = Zoo(tmp_path_factory.mktemp("models"), write_corpus(tmp_path_factory.mktemp("texts")))
    with pytest.raises(SpecvizError, match=r"no fable\.json in the work folder"):
        zoo("train", "fable-target")
    zoo("tokenizers")
    with pytest.raises(SpecvizError, match=r"fable-target is needed first .*run `python -m specviz\.zoo train"):
        zoo("heads", "fable-medusa")
    zoo("make")
    yield zoo
    torch.set_num_threads(threads)


def test_every_member_is_exported_with_a_card(zoo):
    for recipe in FAMILY:
        folder = zoo.folder / recipe.name
        assert Origin.read(folder) == Origin(recipe, recipe.schedule.tokens)
        card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
        assert recipe.title.lower() in card.lower()
        assert "## Layout" in card or not recipe.heads
        assert ("## Samples" in card) == (recipe.name == "fable-target")


def test_the_readme_has_a_row_for_every_predictor(zoo):
    readme = (zoo.folder / "README.md").read_text(encoding="utf-8")
    heads = ("fable-medusa, head 2", "fable-medusa, head 2 with bias", "fable-eagle, depth 1")
    for label in ("fable-target, exit 1", "fable-target, exit 2", *heads):
        assert readme.count(f"| `{label}` |") == 2
    assert readme.count("| `fable-draft-othervocab` |") == 2  # members and bits: no overlap between vocabularies


def test_making_it_again_changes_nothing(zoo):
    checkpoints = {path: path.read_bytes() for path in zoo.place.own.glob("*.pt")}
    assert len(checkpoints) == len(FAMILY)
    zoo("make")
    assert all(path.read_bytes() == before for path, before in checkpoints.items())


def test_a_bias_is_fitted_again_the_same_and_changes_nothing_else(zoo):
    files = {path: path.read_bytes() for path in (zoo.folder / "fable-medusa").iterdir()}
    bias = zoo.folder / "fable-medusa" / BIAS_FILE
    bias.unlink()
    zoo("bias", "fable-medusa")
    assert {path: path.read_bytes() for path in (zoo.folder / "fable-medusa").iterdir()} == files
    with safe_open(bias, "pt") as file:
        assert sorted(file.keys()) == ["markov.0.weight", "markov.1.weight", "markov.embed.weight"]
        assert all(file.get_tensor(name).abs().max() > 0 for name in file.keys())  # noqa: SIM118


def test_a_bias_is_refused_where_it_cannot_be_fitted(zoo):
    with pytest.raises(SpecvizError, match=f"another edition: choose --edition {EDITIONS[0]} .got two-cores."):
        replace(zoo.place, edition="two-cores").fit_bias("fable-medusa", zoo.folder)
    with pytest.raises(SpecvizError, match="the recipe of fable-eagle has no bias"):
        zoo.place.fit_bias("fable-eagle", zoo.folder)


def test_the_samples_begin_as_documents_do(zoo):
    """Each sample follows its mark, begins like some document and is as long as the recipe says."""
    samples = TokenFile.open(zoo.place.own, "samples", "train")
    files = [TokenFile.open(zoo.place.tokens("fable"), name, "train") for name in ("stories", "code")]
    openings = {tuple(file.window(start + 1, 4).tolist()) for file in files for start in file.starts}
    assert np.diff(samples.starts).tolist() == [25] * (len(samples.starts) - 1)
    assert {tuple(samples.window(start + 1, 4).tolist()) for start in samples.starts} <= openings
    assert (samples.tokens[samples.starts] == 0).all()


def test_distillation_starts_from_the_trained_draft(zoo):
    model, _ = zoo.place.assemble(zoo.place.recipe("fable-draft"))
    started = model.state_dict()
    finished = zoo.place.load_finished("fable-draft-undistilled").state_dict()
    assert all(torch.equal(started[name], finished[name]) for name in finished)


def test_a_heads_file_holds_the_documented_names(zoo):
    with safe_open(zoo.folder / "fable-medusa" / HEAD_FILES["medusa"], "pt") as file:
        assert sorted(file.keys())[:3] == ["0.0.linear.bias", "0.0.linear.weight", "0.1.weight"]
    with safe_open(zoo.folder / "fable-eagle" / HEAD_FILES["eagle"], "pt") as file:
        names = set(file.keys())
    assert {"fc.weight", "fc.bias", "layers.0.self_attn.q_proj.weight", "layers.0.mlp.gate_proj.weight"} <= names
    assert "layers.0.post_attention_layernorm.weight" in names
    assert not any("input_layernorm" in name or "embed" in name for name in names)
