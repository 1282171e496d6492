"""A model that is not of the catalogue is tried in a process of its own before it is read, once, within limits."""

import json
import os
import signal
import sys
import threading

import pytest
from tiny_models import tiny, tiny_tokenizer

from specviz.alignment.causes.doctor import examine
from specviz.cli.models import LocalModel
from specviz.errors import SpecvizError
from specviz.models.files import trial
from specviz.models.folder import ModelFolder
from specviz.models.library import Library

PANIC = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}
ENDS = {"id": "E", "ids": [1] * 1_000, "tokens": ["x"] * 1_000}
MANY = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "E", "type_id": 0}}] * 1_000,
    "pair": [],
    "special_tokens": {"E": ENDS},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def new_helper(monkeypatch):
    """What a process that has tried nothing yet has; called again, another one's."""

    def renew():
        monkeypatch.setattr(trial, "_helper", trial._Helper())

    renew()
    yield renew
    if (process := trial._helper._process) is not None:
        process.kill()
        process.wait()


@pytest.fixture
def no_process(new_helper, monkeypatch):
    """From its call on, no helper can be started."""

    def deny():
        new_helper()
        monkeypatch.setattr(sys, "executable", "/nowhere/python")

    return deny


def change(folder, file, **values):
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values))
    return folder


def with_template(folder, template):
    return change(folder, "tokenizer_config.json", chat_template=template)


LIMITS = {
    "memory": (
        lambda folder: with_template(folder, "{{ 'x'|center(9999999999) }}"),
        "my-model was not loaded: rendering a question with its chat template needs more than 4 GB of memory",
    ),
    "tokens": (
        lambda folder: change(folder, "tokenizer.json", post_processor=MANY),
        r"splitting 2,000 characters \('aaaaaaaaaaaa'...\) with its tokenizer fails: they become 1,\d+,\d+ tokens",
    ),
    "panic": (
        lambda folder: change(folder, "tokenizer.json", **PANIC),
        "my-model was not loaded: reading its tokenizer fails: the tokenizers library broke off: Precompiled",
    ),
    "cpu": (
        lambda folder: with_template(folder, "{{ 9 ** (9 ** 9) }}"),
        "my-model was not loaded: rendering a question with its chat template needs more than 10 s of CPU",
    ),
}


@pytest.mark.parametrize("name", ["memory", "tokens", "panic", pytest.param("cpu", marks=pytest.mark.slow)])
def test_a_folder_that_breaks_a_limit_is_refused_with_the_step_and_the_limit(folder, name):
    damage, words = LIMITS[name]
    with pytest.raises(SpecvizError, match=words):
        ModelFolder(damage(folder), "my-model")


READERS = {
    "the library": lambda name: Library(allow_any=True).load(name),
    "the comparison of tokenizers": lambda name: examine(name, "fable-draft"),
    "the command models": lambda name: LocalModel("my-model", trial.Path(name)).text,
}


@pytest.mark.parametrize("reader", READERS)
def test_no_way_to_read_a_model_leads_round_its_trial(folder, reader):
    change(folder, "tokenizer.json", **PANIC)
    with pytest.raises(SpecvizError, match="my-model was not loaded: reading its tokenizer fails"):
        READERS[reader](str(folder))


def test_what_passed_is_not_tried_again_until_a_file_changes(folder, no_process):
    ModelFolder(folder, "my-model")
    no_process()
    ModelFolder(folder, "my-model")
    change(folder, "tokenizer_config.json", model_max_length=77)
    with pytest.raises(SpecvizError, match="no process in which to try a model could be started"):
        ModelFolder(folder, "my-model")


def test_a_model_of_the_catalogue_and_a_pair_in_memory_are_not_tried(library, no_process):
    no_process()
    tokenizer = tiny_tokenizer()
    assert library.load("fable-draft").name == "fable-draft"
    assert library.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))


def test_a_refused_folder_is_not_tried_again_by_the_same_process(folder, new_helper, monkeypatch):
    damage, words = LIMITS["panic"]
    damage(folder)
    for python in (sys.executable, "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", python)
        trial._helper.forget()
        with pytest.raises(SpecvizError, match=words):
            ModelFolder(folder, "my-model")


def test_program_files_in_the_current_folder_are_not_run(folder, tmp_path, new_helper, monkeypatch):
    place = tmp_path / "here"
    place.mkdir()
    for name in ("json.py", "transformers.py", "specviz.py", "tokenizers.py"):
        (place / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(place)
    ModelFolder(folder, "my-model")
    assert not (tmp_path / "ran").exists()


def test_a_helper_that_ended_is_started_again(folder, new_helper):
    ModelFolder(folder, "my-model")
    trial._helper._process.kill()
    change(folder, "tokenizer_config.json", model_max_length=77)
    ModelFolder(folder, "my-model")
    assert trial._helper._process.poll() is None


@pytest.mark.slow
def test_a_helper_that_hangs_is_ended_and_another_tries(folder, new_helper, monkeypatch):
    ModelFolder(folder, "my-model")
    hanging = trial._helper._process
    hanging.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(trial, "_PATIENCE_S", 20.0 - trial.MOST_S)
    change(folder, "tokenizer_config.json", model_max_length=77)
    ModelFolder(folder, "my-model")
    assert hanging.poll() is not None
    assert trial._helper._process is not hanging


def test_threads_that_ask_at_once_are_all_answered(folder, new_helper):
    said = []

    def ask():
        try:
            ModelFolder(folder, "my-model")
        except SpecvizError as error:
            said.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    change(folder, "tokenizer.json", **PANIC)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(said) == 4
    assert len(set(said)) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system copies no process")
def test_a_copied_process_tries_with_a_helper_of_its_own(folder, new_helper):
    ModelFolder(folder, "my-model")
    change(folder, "tokenizer_config.json", model_max_length=77)
    own = trial._helper._process.pid
    if (child := os.fork()) == 0:
        try:
            ModelFolder(folder, "my-model")
            os._exit(trial._helper._process.pid == own)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signals")
def test_a_trial_that_was_interrupted_leaves_no_answer_for_the_next_folder(folder, new_helper):
    ModelFolder(folder, "my-model")

    def interrupt(_signal, _frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with_template(folder, "{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            ModelFolder(folder, "my-model")
    finally:
        signal.signal(signal.SIGUSR1, before)
    change(folder, "tokenizer.json", **PANIC)
    with pytest.raises(SpecvizError, match="reading its tokenizer fails"):
        ModelFolder(folder, "my-model")
