"""Where a command's results go: `-` is standard output on every command, and then nothing else is there."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specviz.analysis.costs import Measured
from specviz.bench import report as bench_report
from specviz.cli import main as cli
from specviz.cli.align import _folder
from specviz.cli.output import output
from specviz.trace import export as exports
from specviz.trace import read_trace
from specviz.trace.shipped import shipped_trace
from tests.helpers.made_costs import made_costs
from tests.helpers.runs import PROMPT
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    place, tokenizer = tmp_path_factory.mktemp("models"), tiny_tokenizer()
    names = [
        tiny_folder(place / name, tiny("llama", vocab_size=len(tokenizer), seed=seed), tokenizer)
        for seed, name in enumerate(("apart-target", "apart-draft"))
    ]
    return ["--target", str(names[0]), "--draft", str(names[1])]


@pytest.fixture
def main(capsysbinary, tmp_path, monkeypatch):
    """Runs one command in an empty folder: (exit status, bytes on standard output, text on standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        assert not Path("-").exists()
        out, err = capsysbinary.readouterr()
        return status, out, err.decode()

    return run


def test_a_run_goes_to_standard_output_and_its_words_to_standard_error(main, pair):
    status, out, err = main("run", "--prompt", PROMPT, *pair, "--max-new-tokens", 6, "--out", "-")
    assert status == 0
    assert read_trace(out).footer.reason == "length"
    assert err.startswith("prompt  ")
    assert "tokens per target call" in err


def test_a_report_goes_to_standard_output_alone(main, pair):
    options = ("--prompt", PROMPT, "--temperature", 0, "--tokens", 8)
    status, out, err = main("prove", *pair, *options, "--json", "-")
    assert json.loads(out)["exit_code"] == status
    assert "exact (enumerated)" in err


def test_costs_go_to_standard_output_alone(main, monkeypatch, named_models):
    monkeypatch.setattr(bench_report, "ModelPool", lambda: named_models)
    costs = made_costs("near")
    monkeypatch.setattr(bench_report, "measure_costs", lambda *_, **__: [Measured(1, 1, "all", (costs,))])
    status, out, err = main("bench", "costs", "--target", "big", "--draft", "near", "--json", "-")
    assert (status, json.loads(out)) == (0, costs.to_dict())
    assert "| memory bandwidth" in err


@pytest.mark.parametrize(("name", "made"), [("tokens", exports.tokens_csv), ("jsonl", exports.json_lines)])
def test_an_export_goes_to_standard_output_alone(main, name, made):
    assert main("export", "first-visit", f"--{name}", "-") == (0, made(shipped_trace("first-visit")).encode(), "")


def test_one_result_there_and_others_in_files(main, tmp_path):
    status, out, err = main("export", "tree", "--steps", "-", "--jsonl", tmp_path / "run.jsonl")
    assert (status, err) == (0, f"saved {tmp_path / 'run.jsonl'}\n")
    assert out.decode() == exports.steps_csv(shipped_trace("tree"))


def test_a_job_of_many_files_is_refused_there(main, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        main("align", "--prompts", tmp_path, "--out", "-")


def every_action(parser):
    """What a parser takes, and the parsers of its commands and subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from every_action(command)


def test_every_option_that_names_a_path_is_an_output_or_read():
    """So that no command comes to write a file called `-`."""
    read = {"--prompts", "--samples", "--costs", "--compare", "--open", "--report", "--states", "--served"}
    folders = {"--site", "--dry-run", "--live"}
    options = [option for option in every_action(cli._parser()) if option.option_strings]
    kinds = {each.option_strings[0]: getattr(each.type, "func", each.type) for each in options if each.type}
    assert {name for name, kind in kinds.items() if kind is Path} == read | folders
    assert {name for name, kind in kinds.items() if kind in (output, _folder)} >= {"--out", "--json", "--html"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_standard_output_that_is_full_is_said_once():
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "specviz", "export", "first-visit", "--jsonl", "-"]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"specviz: - could not be written: No space left on device\n")


def test_a_reader_that_has_seen_enough_of_a_result_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "specviz", "export", "first-visit", "--jsonl", "-"]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
