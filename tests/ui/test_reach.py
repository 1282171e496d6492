"""A page that others reach is safe by default, however it was started; whoever allows more is told what that is."""

from dataclasses import dataclass

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from specviz import ui
from specviz.cli.main import main
from specviz.models import catalog
from specviz.session import workbench
from specviz.ui import startup
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

OPEN = ("0.0.0.0", (), "")
PRIVATE = ("127.0.0.1", (), "")
PROXIED = ("127.0.0.1", ("class.example",), "")
UNDER_ADDRESS = ("127.0.0.1", (), "https://class.example/specviz")


@dataclass
class Started:
    page: startup.Page
    said: list[str]
    """The lines about others."""


@pytest.fixture
def start(monkeypatch, capsys):
    """Starts a page as the command does, on this machine alone."""
    pages = []
    monkeypatch.setattr(startup.Page, "warm_up", lambda page: None)
    monkeypatch.setattr(workbench, "_shared", [])
    launch = startup.Page.launch
    monkeypatch.setattr(startup.Page, "launch", lambda page, host, *more: launch(page, "127.0.0.1", *more))

    def start(host, names, root_path, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        pages.append(startup.start(host, 0, None, None, None, names, root_path))
        lines = capsys.readouterr().out.splitlines()
        return Started(pages[-1], [line for line in lines if line.startswith("specviz: others may ")])

    yield start
    for page in pages:
        page.demo.close(verbose=False)


def loads_any(started):
    return started.page.bench.pool.allow_any


@pytest.mark.parametrize(
    ("reach", "variables", "any_model", "words"),
    [
        (PRIVATE, {}, True, None),
        (OPEN, {}, False, "the listed models that this machine has, and download none"),
        (PROXIED, {}, False, "the listed models that this machine has, and download none"),
        (UNDER_ADDRESS, {}, False, "the listed models that this machine has, and download none"),
        (OPEN, {"SPECVIZ_ALLOW_ANY_MODEL": "1"}, True, "any model: of a folder of this machine, or of the hub"),
        (OPEN, {"SPECVIZ_ALLOW_GET": "1"}, False, "the listed models that this machine has, and fetch smollm2"),
        (OPEN, {"SPACE_ID": "ann/specviz"}, False, "the listed models that this machine has, and download none"),
        (PRIVATE, {"SPECVIZ_ALLOW_ANY_MODEL": "0"}, False, None),
    ],
)
def test_whoever_starts_a_page_reads_what_others_may_do_and_it_is_so(start, reach, variables, any_model, words):
    started = start(*reach, **variables)
    assert loads_any(started) is any_model
    assert len(started.said) == (words is not None)
    assert all(f"others may run {words}" in line for line in started.said)
    assert all(("--host 127.0.0.1" in line) is (reach is OPEN and "SPACE_ID" not in variables) for line in started.said)
    for name in ("SPECVIZ_ALLOW_ANY_MODEL", "SPECVIZ_ALLOW_GET"):
        assert all((f"{name}=0" in line) is (variables.get(name) == "1") for line in started.said), "what narrows it"


@pytest.mark.parametrize(
    ("variables", "arguments", "host"),
    [
        ({}, [], "127.0.0.1"),
        ({"GRADIO_SERVER_NAME": "0.0.0.0"}, [], "0.0.0.0"),
        ({"GRADIO_SERVER_NAME": "0.0.0.0"}, ["--host", "127.0.0.1"], "127.0.0.1"),
    ],
)
def test_the_variable_counts_as_the_flag_does_and_the_flag_comes_first(monkeypatch, variables, arguments, host):
    hosts = []

    def start(host, *more):
        hosts.append(host)
        raise SystemExit

    monkeypatch.setattr(ui, "start", start)
    monkeypatch.setattr(ui, "BoundedLog", lambda stream: stream)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(["page", *arguments])
    assert hosts == [host]


ON_HUB = "Qwen/Qwen2.5-7B-Instruct"


@pytest.fixture
def looked(monkeypatch):
    """Of each look for a hub's model, whether it was on this machine alone."""
    looked = []

    def snapshot_download(*_, local_files_only, **__):
        looked.append(local_files_only)
        raise OSError("it is not here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return looked


CALLS = [("/run", {"prompt": "The fox"}), ("/compare_tokenizers", {}), ("/prove", {}), ("/align", {"prompts": ["The"]})]


@pytest.mark.parametrize(("endpoint", "given"), CALLS)
def test_others_make_the_server_fetch_nothing_and_read_no_folder(start, looked, tmp_path, endpoint, given):
    assert catalog.is_known(ON_HUB)
    caller = Client(start(*PROXIED).page.demo.local_url, verbose=False)
    with pytest.raises(AppError, match="not on this server, which downloads nothing"):
        caller.predict(**given, target=ON_HUB, api_name=endpoint)
    assert looked
    assert all(looked)
    with pytest.raises(AppError, match="this server offers only the models that `models` lists"):
        caller.predict(**given, target=str(tmp_path), api_name=endpoint)


def test_a_page_that_was_told_to_allow_any_model_reads_a_folder_for_others(start, tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer), layers=1, hidden=16)
    folder = str(tiny_folder(tmp_path / "mine", model, tokenizer))
    caller = Client(start(*PROXIED, SPECVIZ_ALLOW_ANY_MODEL="1").page.demo.local_url, verbose=False)
    assert caller.predict(folder, folder, api_name="/compare_tokenizers")["direct"] is True
