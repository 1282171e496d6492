"""A model that is not of the catalogue is tried in a process of its own before it is read, once, within limits."""

import itertools
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import transformers

from specviz.alignment.causes.doctor import examine
from specviz.cli.models import LocalModel
from specviz.errors import SpecvizError
from specviz.models.files import trial, trial_process
from specviz.models.files.small_files import small_files
from specviz.models.files.trial_process import MOST_CPU_S
from specviz.models.folder import ModelFolder
from specviz.models.pool import ModelPool
from tests.helpers.own_cache import own_cache
from tests.helpers.tiny_models import tiny, tiny_tokenizer

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
    own_cache(tmp_path, monkeypatch)


@pytest.fixture
def renew(monkeypatch):
    """Gives this process what one has that has tried nothing yet."""
    shared = trial._helpers
    yield lambda: monkeypatch.setattr(trial, "_helpers", trial._Helpers())
    for helper in trial._helpers.idle:
        if trial._helpers is not shared and helper.process is not None:
            helper.process.kill()
            helper.process.wait()


@pytest.fixture
def new_helper(renew):
    renew()


@pytest.fixture
def no_process(renew, monkeypatch):
    """From its call on, no helper can be started."""

    def deny():
        renew()
        monkeypatch.setattr(sys, "executable", "/nowhere/python")

    return deny


def last_process():
    """Of the helper that tried the last folder, and will try the next one."""
    return trial._helpers.idle[-1].process


def change(folder, file, **values):
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values))
    return folder


_lengths = itertools.count(1_000)


def untried(folder):
    """The folder with a setting that no other test gives one: whatever was tried here before, this was not."""
    return change(folder, "tokenizer_config.json", model_max_length=next(_lengths))


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
    "the library": lambda name: ModelPool(allow_any=True).load(name),
    "the comparison of tokenizers": lambda name: examine(name, "fable-draft"),
    "the command models": lambda name: LocalModel("my-model", Path(name)).text,
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


def test_a_model_of_the_catalogue_and_a_pair_in_memory_are_not_tried(pool, no_process):
    no_process()
    tokenizer = tiny_tokenizer()
    assert pool.load("fable-draft").name == "fable-draft"
    assert pool.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))


def test_a_refused_folder_is_not_tried_again_by_the_same_process(folder, new_helper, monkeypatch):
    damage, words = LIMITS["panic"]
    damage(folder)
    for python in (sys.executable, "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", python)
        trial._helpers.forget()
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


def test_a_helper_that_ended_is_started_again(folder):
    ModelFolder(untried(folder), "my-model")
    last_process().kill()
    ModelFolder(untried(folder), "my-model")
    assert last_process().poll() is None


@pytest.mark.slow
def test_a_helper_that_hangs_is_ended_and_another_tries(folder, new_helper, monkeypatch):
    ModelFolder(folder, "my-model")
    hanging = last_process()
    hanging.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(trial, "_PATIENCE_S", 20.0 - trial.MOST_S)
    change(folder, "tokenizer_config.json", model_max_length=77)
    ModelFolder(folder, "my-model")
    assert hanging.poll() is not None
    assert last_process() is not hanging


def test_threads_that_ask_at_once_are_all_answered(folder):
    said = []

    def ask():
        try:
            ModelFolder(folder, "my-model")
        except SpecvizError as error:
            said.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    change(untried(folder), "tokenizer.json", **PANIC)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(said) == 4
    assert len(set(said)) == 1


def test_no_name_of_a_file_stands_for_the_content_of_another(folder):
    (folder / "tokens.json").write_text("{}")
    (folder / "tokens2.json").write_text("{}")
    before = trial._state(folder)
    (folder / "tokens.json").unlink()
    (folder / "tokens2.json").rename(folder / "tokens.json 2 {}tokens2.json")
    assert trial._state(folder) != before


def test_settings_of_generation_are_tried_too(folder):
    (folder / "generation_config.json").write_text("{}")
    assert "reading its generation_config.json" in list(trial_process._steps(folder))


def test_only_what_transformers_opens_is_tried_again_when_it_changes(folder, no_process):
    ModelFolder(folder, "my-model")
    no_process()
    for other in ("corpus.txt", "trainer_state.json", "README.md", "all_results.json"):
        (folder / other).write_text("{}")
    with (folder / "corpus.txt").open("wb") as corpus:
        corpus.truncate(1 << 30)
    ModelFolder(folder, "my-model")


def test_every_file_that_a_tokenizer_of_transformers_may_open_counts(folder):
    names = {"tokenizer.4.0.json", "tokenizer.model.v3", "special_tokens_map.json", "added_tokens.json"}
    names |= {"chat_template.json", "chat_template.jinja", "additional_chat_templates/tool.jinja", "qwen.tiktoken"}
    names |= {"preprocessor_config.json", "processor_config.json", "generation_config.json", "config.json"}
    for module in Path(transformers.__file__).parent.rglob("tokenization_*.py"):
        for listed in re.findall(r"VOCAB_FILES_NAMES = \{([^}]*)\}", module.read_text("utf-8")):
            names |= set(re.findall(r': *"([^"]+)"', listed))
    assert "source.spm" in names
    (folder / "additional_chat_templates").mkdir()
    for name in names:
        (folder / name).touch()
    assert names <= {str(file.relative_to(folder)) for file in small_files(folder)}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a file system may refuse such a name")
def test_a_name_that_is_no_text_counts_too(folder):
    before = trial._state(folder)
    with open(os.fsencode(folder) + b"/tokens\xff.json", "w") as odd:
        odd.write("{}")
    assert trial._state(folder) != before


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs an ordinary file that cannot be read")
def test_a_file_that_cannot_be_read_is_refused_in_words(folder):
    (folder / "spiece.model").symlink_to("/proc/self/mem")
    with pytest.raises(SpecvizError, match=r"^my-model could not be loaded: .*Input/output error"):
        ModelFolder(folder, "my-model")


def to_bytes(folder, file, size):
    with (folder / file).open("r+b" if (folder / file).exists() else "wb") as stream:
        stream.truncate(size)


LARGE = {
    "config.json": (["config.json"], 1 << 20, "'config.json' must have at most 1,048,576 bytes (got 1,048,577)"),
    "generation": (["generation_config.json"], 1 << 20, "'generation_config.json' must have at most 1,048,576 bytes"),
    "index": (["model.safetensors.index.json"], 32 << 20, "index.json' must have at most 33,554,432 bytes"),
    "tokenizer": (["tokenizer.json"], 256 << 20, "'tokenizer.json' must have at most 268,435,456 bytes"),
    "all": (
        ["vocab.json", "vocab.txt", "a.model"],
        180 << 20,
        "beside its weights must have at most 536,870,912 bytes in",
    ),
}


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize("name", ["my-model", "fable-draft"])
def test_files_that_are_too_large_are_refused_before_one_is_opened(folder, monkeypatch, case, name):
    files, size, words = LARGE[case]
    for file in files:
        to_bytes(folder, file, size + 1)
    monkeypatch.setattr(Path, "open", None)
    with pytest.raises(SpecvizError, match=re.escape(words)):
        ModelFolder(folder, name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "a.json", "tokenizer_config.json", "vocab.txt"]
)
def test_a_pipe_among_the_files_keeps_nobody_waiting(folder, file):
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    (folder / "tokenizer.json").write_text("{ damaged")
    said = []

    def load():
        try:
            ModelPool(allow_any=True).load(str(folder))
        except SpecvizError as error:
            said.append(str(error))

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(30)
    assert len(said) == 1
    assert re.match("my-model has a tokenizer that cannot be read|my-model .* is no ordinary file", said[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system copies no process")
def test_a_copied_process_tries_with_a_helper_of_its_own(folder):
    ModelFolder(untried(folder), "my-model")
    own = last_process().pid
    untried(folder)
    if (child := os.fork()) == 0:
        try:
            ModelFolder(folder, "my-model")
            os._exit(last_process().pid == own)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signals")
def test_a_trial_that_was_interrupted_leaves_no_answer_for_the_next_folder(folder):
    ModelFolder(untried(folder), "my-model")

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


@contextmanager
def stopped(process):
    """Within it, the process makes no step."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def load_aside(folders):
    """Threads that load these folders, and what they were told."""
    said = []

    def load(folder):
        try:
            ModelFolder(folder, folder.name)
            said.append("passed")
        except SpecvizError as error:
            said.append(str(error))

    threads = [threading.Thread(target=load, args=(each,), daemon=True) for each in folders]
    for thread in threads:
        thread.start()
    return threads, said


def copies(folder, count):
    made = [Path(shutil.copytree(folder, folder.with_name(f"copy-{number}"))) for number in range(count)]
    return [untried(copy) for copy in made]


def wait_until(is_so):
    for _ in range(500):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it never was so")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no process")
def test_a_slow_folder_keeps_no_other_waiting(folder):
    ModelFolder(untried(folder), "my-model")
    slow, other = copies(folder, 2)
    with stopped(last_process()):
        threads, said = load_aside([slow])
        wait_until(lambda: len(trial._helpers.idle) < trial.MOST_AT_ONCE)
        ModelFolder(other, "other")
        assert not said
    threads[0].join(60)
    assert said == ["passed"]


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no process")
def test_no_more_than_a_few_wait_and_each_of_them_is_answered(folder, monkeypatch, renew):
    monkeypatch.setattr(trial, "MOST_AT_ONCE", 1)
    renew()
    ModelFolder(folder, "my-model")
    first, *waiting, further = copies(folder, trial.MOST_WAITING + 2)
    with stopped(last_process()):
        threads, said = load_aside([first, *waiting])
        wait_until(lambda: trial._helpers._num_waiting == trial.MOST_WAITING)
        with pytest.raises(SpecvizError, match="too many models are being tried just now: try again in a minute"):
            ModelFolder(further, "further")
        ModelFolder(folder, "my-model")
    for thread in threads:
        thread.join(60)
    assert said == ["passed"] * (1 + trial.MOST_WAITING)


def test_a_refusal_that_a_busy_machine_may_have_caused_counts_for_some_minutes(folder, new_helper, monkeypatch):
    ModelFolder(folder, "my-model")
    with_template(folder, "{{ 9 ** (9 ** 9) }}")
    monkeypatch.setattr(trial, "_PATIENCE_S", 2.0 - trial.MOST_S)
    words = "rendering a question with its chat template was not done when its trial had taken 40 s; try again in 5 min"
    start = time.monotonic()
    with pytest.raises(SpecvizError, match=words):
        ModelFolder(folder, "my-model")
    assert time.monotonic() - start < MOST_CPU_S - 1, "the child went on to its own limit"
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(SpecvizError, match=words):
        ModelFolder(folder, "my-model")
    now = time.monotonic()
    monkeypatch.setattr(trial, "monotonic", lambda: now + trial.FORGOTTEN_S + 60)
    with pytest.raises(SpecvizError, match="no process in which to try a model could be started"):
        ModelFolder(folder, "my-model")


@pytest.mark.parametrize("python", [None, ""])
def test_a_python_that_does_not_know_its_program_is_told_in_words(folder, new_helper, monkeypatch, python):
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(SpecvizError, match="could be started: this Python does not know where its own program is"):
        ModelFolder(folder, "my-model")


def test_a_helper_that_is_not_ready_in_time_is_told_from_one_that_ended(folder, new_helper, monkeypatch):
    monkeypatch.setattr(trial, "_PATIENCE_S", 0.05 - trial.MOST_S)
    with pytest.raises(SpecvizError, match=r"could be started: it was not ready after 0\.05 s"):
        ModelFolder(folder, "my-model")


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs the states of processes")
def test_an_idle_helper_that_ended_leaves_no_zombie(folder):
    ModelFolder(untried(folder), "my-model")
    process = last_process()
    process.send_signal(signal.SIGALRM)
    wait_until(lambda: not os.path.exists(f"/proc/{process.pid}"))
