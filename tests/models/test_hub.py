"""Where a model comes from: names, folders, the hub and its errors; which device and how much memory."""

import io
import json
import re
import sys
from functools import partialmethod

import pytest
import torch
from tqdm import tqdm

import specviz
from specviz.cli.main import main
from specviz.errors import SpecvizError
from specviz.models import memory
from specviz.models.files import hub as fetch
from specviz.models.pool import ModelPool
from specviz.session import workbench as session
from specviz.session.workbench import Workbench
from tests.helpers.fake_hub import HUB_ID, Hub
from tests.helpers.hub_errors import hub_error
from tests.helpers.waits import until

GB = 10**9


def test_only_catalogue_models_where_others_are_forbidden(folder):
    pool = ModelPool(GB, allow_any=False)
    for name in (str(folder), "somebody/model", "../../etc"):
        with pytest.raises(SpecvizError, match=r"offers only its own models: fable-target"):
            pool.load(name)


def test_a_server_that_forbids_other_models_downloads_nothing(monkeypatch):
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **options: asked.append(options) or 1 / 0)
    with pytest.raises(SpecvizError, match="downloads nothing; choose a bundled model"):
        ModelPool(GB, allow_any=False).load("Qwen/Qwen3-0.6B")
    assert asked[0]["local_files_only"] is True


@pytest.mark.parametrize("name", ["/no/such/folder", "a/b/c", "a/..b", "~nobody/x", "-x", "x" * 400])
def test_what_is_neither_folder_nor_hub_id_is_refused(pool, name):
    with pytest.raises(SpecvizError, match=r"there is no folder .* and this is not a hub id"):
        pool.load(name)


def test_a_bundled_model_that_is_not_there_is_said_to_be_missing(pool, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECVIZ_ASSETS", str(tmp_path))
    with pytest.raises(SpecvizError, match="bundled model fable-draft is not in the assets folder"):
        pool.load("fable-draft")


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x00b"])
def test_what_is_no_name_is_refused(pool, name):
    with pytest.raises(SpecvizError, match="must be named by a catalogue name, a folder or a hub id"):
        pool.load(name)


def test_a_folder_without_a_model_says_what_it_lacks(pool, folder):
    cases = {
        "model.safetensors": "my-model has no weights: model.safetensors is missing",
        "tokenizer.json": "my-model has no tokenizer files",
        "config.json": "my-model has no config.json; this is not a model folder",
    }
    for file, words in cases.items():
        (folder / file).unlink()
        with pytest.raises(SpecvizError, match=words):
            pool.load(str(folder))
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(SpecvizError, match="it holds an adapter: merge it"):
        pool.load(str(folder))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (
            "pytorch_model.bin",
            "is PyTorch's pickles, which can run code .*: load it where you trust it",
        ),
        ("model.onnx", "is ONNX: choose"),
        ("tf_model.h5", "is TensorFlow's: choose"),
        ("flax_model.msgpack", "is Flax's: choose"),
    ],
)
def test_weights_of_another_format_are_named_with_the_way_out(pool, folder, file, words):
    (folder / "model.safetensors").rename(folder / file)
    (folder / "training_args.bin").touch()
    with pytest.raises(SpecvizError, match=f"my-model has no safetensors weights; '{re.escape(file)}' {words}"):
        pool.load(str(folder))


def test_a_repository_of_gguf_alone_says_how_to_name_one_of_its_files(pool, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda repository: ["README.md", "model-Q8_0.gguf"])
    words = "no safetensors weights; 'model-Q8_0.gguf' is GGUF, .*: add the file to the model's name"
    with pytest.raises(SpecvizError, match=f"owner/gguf has {words}"):
        pool.load("owner/gguf")


@pytest.mark.parametrize(("file", "kind"), [("quantize_config.json", "GPTQ"), ("quant_config.json", "AWQ")])
def test_an_old_layout_of_quantised_weights_is_named(pool, folder, file, kind):
    (folder / file).write_text("{}")
    with pytest.raises(SpecvizError, match=f"quantised by {kind} in an old layout .{file}.: choose one"):
        pool.load(str(folder))


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_beside_a_model_is_refused_by_its_name(pool, folder, file):
    (folder / file).write_text("{}")
    with pytest.raises(
        SpecvizError, match=f"my-model holds a LoRA adapter beside the model .{file}., whose weights would"
    ):
        pool.load(str(folder))


def test_shards_must_be_there_and_inside_the_folder(pool, folder):
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model.safetensors"}}))
    with pytest.raises(SpecvizError, match="incomplete: 1 of 2 weight files are missing"):
        pool.load(str(folder))
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(SpecvizError, match="outside its own folder"):
        pool.load(str(folder))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", "grants access on request"),
        ("RepositoryNotFoundError", "no such model, or it is private"),
        ("not cached", "hub cannot be reached; connect once and run `hf download owner/model`"),
        ("disk full", "the disk is full"),
    ],
)
def test_the_hubs_errors_say_what_to_do(pool, monkeypatch, error, words):
    def fail(*_, **__):
        raise hub_error(error)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(SpecvizError, match=f"owner/model could not be fetched: .*{words}"):
        pool.load("owner/model")


def test_a_hub_model_is_named_by_its_id_and_revision(pool, folder, monkeypatch):
    snapshot = folder.rename(folder.with_name("0123abcd"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    info = pool.load("owner/model").info
    assert (info.name, info.revision) == ("owner/model", "0123abcd")


def test_a_download_reports_its_bytes(capsys):
    seen = []
    bar = fetch.progress_bar("downloading x", lambda *news: seen.append(news))(total=10, unit="B", name="hub")
    bar.update(4)
    bar.update(6)
    bar.close()
    assert seen == [("downloading x", 0.4), ("downloading x", 1.0)]
    assert capsys.readouterr().err == ""


PARTS = (25, 50, 75, 100)


@pytest.fixture
def patient_hub(folder, monkeypatch):
    """A hub that sends owner/model in four parts, each after the bar has shown the one before."""
    snapshot = folder.rename(folder.with_name("0123abcd"))

    def download(*_, tqdm_class, **__):
        with tqdm_class(total=100, unit="B", name="huggingface_hub.snapshot_download") as written:
            for percent in PARTS:
                written.update(25)
                until(lambda percent=percent: f"{percent}%" in sys.stderr.getvalue())
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(tqdm, "__init__", partialmethod(tqdm.__init__, mininterval=0))  # else ten times a second


@pytest.mark.parametrize("way", ["the library", "a run", "the shell"])
def test_a_download_shows_a_bar_on_standard_error(patient_hub, monkeypatch, capsys, way):
    others = [tqdm(file=io.StringIO()) for _ in range(30)]  # bars of others take no room from it
    monkeypatch.setattr(session, "_shared", [Workbench(ModelPool(GB, allow_any=True))])
    if way == "the library":
        ModelPool(GB, allow_any=True).load("owner/model")
    elif way == "a run":
        specviz.run("Once", target="owner/model", method="none", max_new_tokens=2)
    else:
        assert main(["run", "--prompt", "Once", "--target", "owner/model", "--method", "none"]) == 0
    out, err = capsys.readouterr()
    shown = [int(part) for part in re.findall(r"downloading owner/model: +(\d+)%", err)]
    assert shown == sorted(shown)
    assert {*PARTS} <= {*shown}
    assert "downloading" not in out
    for other in others:
        other.close()


def test_where_somebody_watches_a_download_no_bar_is_drawn(folder, monkeypatch, capsys):
    hub, seen = Hub(folder.rename(folder.with_name("0123abcd"))), []
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    hub.go_on()
    ModelPool(GB, allow_any=True).load(HUB_ID, lambda *news: seen.append(news))
    told = [fraction for message, fraction in seen if message == f"downloading {HUB_ID}"]
    assert told == [percent / 100 for percent in PARTS]
    assert capsys.readouterr().err == ""


def test_bytes_that_the_hub_counts_twice_are_told_once():
    seen = []
    bar = fetch.progress_bar("downloading x", lambda *news: seen.append(news))
    for name in ("huggingface_hub.snapshot_download.transfer", "huggingface_hub.snapshot_download"):
        bar(total=10, unit="B", name=name).update(5)
    assert seen == [("downloading x", 0.5)]


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("SPECVIZ_DEVICE", "cuda:9")
    with pytest.raises(SpecvizError, match="SPECVIZ_DEVICE is cuda:9, but torch sees"):
        ModelPool()


def test_the_share_of_this_machine_is_known_or_said_not_to_be():
    share = memory.device_share(torch.device("cpu"))
    assert share is None or share > 0


@pytest.mark.slow
def test_weights_stay_where_only_the_tokenizer_is_needed(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *_, **options: asked.append(options) or str(tmp_path)
    )
    for weights in (True, False):
        fetch.fetch(fetch.ModelSource("a/b", "a/b"), may_download=True, on_progress=lambda *_: None, weights=weights)
    assert ["*.safetensors" in options["ignore_patterns"] for options in asked] == [False, True]
