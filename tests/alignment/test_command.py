"""The command `align`: what it prints, how it ends, what it refuses before any work is done."""

import argparse
import json
import re
from dataclasses import replace

import pytest

import specviz.session.workbench as session
from specviz.alignment import job as jobs
from specviz.alignment.job import Progress
from specviz.alignment.outputs import read_summary
from specviz.alignment.summary import AlphaDifference
from specviz.alignment.tables import compare as comparing
from specviz.alignment.tables.compare import BETTER, SAME, UNSURE, WORSE, Change
from specviz.analysis.costs import Measured
from specviz.bench import report as bench_report
from specviz.cli import align as command
from specviz.cli.output import output
from specviz.errors import CannotTell, SpecvizError
from specviz.session.workbench import Workbench
from tests.helpers.made_costs import made_costs
from tests.helpers.tiny_models import tiny_folder

ESCAPE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
ROWS = [{"prompt": f"Once upon a time {word}", "id": word} for word in ("ant", "bee", "cat")]


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, {"nothing": 1}]))
    return file


@pytest.fixture
def cli(named_models, monkeypatch, capsys, prompts, tmp_path):
    """Runs the command on tiny models: (exit status, standard output, standard error)."""
    monkeypatch.setattr(session, "_shared", [Workbench(named_models)])

    def run(*arguments, draft=("near",), out="out", costs=("--no-costs",)):
        names = [part for name in draft for part in ("--draft", name)]
        own = ["--prompts", prompts, "--out", tmp_path / out, "--target", "big", *names, "--max-new-tokens", 8, *costs]
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        status = command.run(parser.parse_args([str(part) for part in [*own, *arguments]]))
        return status, *capsys.readouterr()

    return run


def test_it_prints_a_table_and_where_the_report_lies(cli, tmp_path):
    status, out, err = cli(draft=("near", "far"))
    assert status == 0
    summary = read_summary(tmp_path / "out" / "summary.json")
    for draft in summary.drafts:
        low, high = draft.alpha_interval
        assert re.search(
            rf"^{draft.name} +{draft.alpha:.3f} \({low:.3f} to {high:.3f}\) .* not known +no costs$", out, re.MULTILINE
        )
    assert "near minus far: agreement +" in out
    assert "not called significant: fewer than 30 prompts" in out
    assert "1 row could not be used:\n  line 4: " in out
    assert out.endswith(f"report: {tmp_path / 'out' / 'report.html'}\n")
    assert f"{jobs.READING}: 0 of 3 prompts" in err


def test_rows_to_train_on_are_written_also_for_a_job_that_is_done(cli, tmp_path):
    for name in ("one.jsonl", "two.jsonl"):
        status, out, _ = cli("--export-rows", tmp_path / name)
        assert (status, f"saved {tmp_path / name}" in out) == (0, True)
    lines = (tmp_path / "one.jsonl").read_text()
    assert [json.loads(line)["id"] for line in lines.splitlines()] == ["ant", "bee", "cat"]
    assert (tmp_path / "two.jsonl").read_text() == lines


def test_a_pattern_names_checkpoints_in_the_order_of_their_numbers(cli, tmp_path, named_models):
    near = named_models.load("near")
    for number in (10, 2, 1):
        tiny_folder(tmp_path / "run" / f"step-{number}", near.model, near.tokenizer)
    assert cli(draft=(tmp_path / "run" / "step-*",))[0] == 0
    summary = read_summary(tmp_path / "out" / "summary.json")
    assert [draft.name for draft in summary.drafts] == ["step-1", "step-2", "step-10"]
    with pytest.raises(SpecvizError, match="no checkpoint fits the pattern"):
        cli(draft=(tmp_path / "run" / "epoch-*",), out="none")


def test_costs_of_a_file_give_speedups_also_below_one(cli, tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(made_costs("far", draft_ms=50.0).to_dict()))
    out = cli(draft=("far",), costs=("--costs", file))[1]
    summary = read_summary(tmp_path / "out" / "summary.json")
    best = max(summary.drafts[0].speedups)
    assert best < 1
    assert f" {best:.2f}x\n" in out


NEAR, FAR = (made_costs(name).to_dict() for name in ("near", "far"))


@pytest.mark.parametrize(
    ("values", "drafts"),
    [
        (NEAR, ["near"]),
        ([NEAR, FAR], ["near", "far"]),
        ({"near": NEAR, "far": FAR}, ["near", "far"]),
        ({"version": 1, "target": "big", "costs": {"far": FAR}, "drafts": []}, ["far"]),
    ],
)
def test_costs_are_read_in_every_form_that_they_are_written_in(tmp_path, values, drafts):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(values))
    assert command.read_costs(file) == {name: made_costs(name) for name in drafts}


def test_a_job_takes_the_costs_of_another_jobs_summary(cli, tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(NEAR))
    cli(costs=("--costs", file))
    cli(costs=("--costs", tmp_path / "out" / "summary.json"), out="new")
    assert read_summary(tmp_path / "new" / "summary.json").costs == {"near": NEAR}


def test_what_bench_writes_is_read(tmp_path, monkeypatch, named_models):
    monkeypatch.setattr(bench_report, "ModelPool", lambda: named_models)
    measured = [Measured(1, 1, "all", (made_costs("near"),))]
    monkeypatch.setattr(bench_report, "measure_costs", lambda *_, **__: measured)
    told = list(bench_report.cost_lines(target="big", draft="near", save=output(str(tmp_path / "costs.json")).write))
    assert told[-1].startswith("| ")
    assert command.read_costs(tmp_path / "costs.json") == {"near": made_costs("near")}


@pytest.mark.parametrize("text", ["", "[]", "3", "[3]", "{}", '{"costs": {}}', '{"near": {}}', '{"near": 3}'])
def test_a_file_without_costs_is_refused_by_its_name(tmp_path, text):
    file = tmp_path / "costs.json"
    file.write_text(text)
    with pytest.raises(SpecvizError, match=r"^costs\.json "):
        command.read_costs(file)


def test_costs_of_one_draft_twice_are_refused(tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps([made_costs("near").to_dict()] * 2))
    with pytest.raises(SpecvizError, match="of each only once"):
        command.read_costs(file)


# exit codes


def test_below_a_threshold_it_ends_with_1_and_says_why(cli):
    assert cli("--fail-under", "alpha=0.0", "--fail-under", "tokens_per_call=1")[0] == 0
    status, out, _ = cli("--fail-under", "alpha=1", "--overwrite")
    assert status == 1
    assert re.search(r"^near: alpha is 0\.\d+, below 1$", out, re.MULTILINE)


def test_with_few_prompts_in_common_it_cannot_tell(cli, tmp_path):
    cli()
    status, out, _ = cli("--compare", tmp_path / "out" / "summary.json", out="new")
    assert status == 3
    assert "near against the older job: cannot tell; agreement +0.000" in out
    assert "n = 3 prompts, not called significant: fewer than 30 prompts" in out


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [((), 0), ((SAME,), 0), ((BETTER, SAME), 0), ((UNSURE, BETTER), 3), ((WORSE, UNSURE), 1), ((WORSE,), 1)],
)
def test_the_exit_code_follows_the_worst_verdict(verdicts, code):
    found = AlphaDifference("all", "all", 40, 0.1, (0.0, 0.2), True)
    changes = [Change("near", "near", found, verdict) for verdict in verdicts]
    assert command.exit_code((), changes) == code
    assert command.exit_code(("below",), changes) == 1


def test_what_fails_is_said_first_and_drafts_in_common_are_compared(cli, tmp_path):
    cli(draft=("near",))
    old = tmp_path / "out" / "summary.json"
    status, out, _ = cli("--compare", old, "--fail-under", "alpha=1", draft=("far", "near"), out="new")
    assert status == 1
    told = [line for line in out.splitlines() if re.match(r"(far|near)( |: )(alpha|against)|note: far", line)]
    assert [line.split(" is ")[0].split(";")[0] for line in told] == [
        "far: alpha",
        "near: alpha",
        "near against the older job: cannot tell",
        "note: far",
    ]
    assert cli("--compare", old, draft=("far", "near"), out="newer")[0] == 3


def test_what_fails_is_told_also_where_nothing_can_be_compared(cli, tmp_path, monkeypatch):
    cli()

    def refuse(*_):
        raise SpecvizError("the two jobs share no prompt")

    monkeypatch.setattr(comparing, "compare_with_old", refuse)
    old = tmp_path / "out" / "summary.json"
    status, out, _ = cli("--compare", old, "--fail-under", "alpha=1", out="new")
    assert status == 1
    assert re.search(r"^near: alpha is 0\.\d+, below 1\nnote: the two jobs share no prompt$", out, re.MULTILINE)
    with pytest.raises(SpecvizError, match="share no prompt"):
        cli("--compare", old, out="newer")


def stopped(*_, **__):
    raise KeyboardInterrupt


def test_a_job_that_is_stopped_says_that_it_can_go_on(cli, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "analyse", stopped)
    with pytest.raises(KeyboardInterrupt):
        cli()
    assert capsys.readouterr().err.endswith(
        "\nspecviz: stopped; finished work is saved: run the same command again to go on\n"
    )


def test_a_command_that_is_stopped_before_it_began_keeps_nothing(cli, monkeypatch, capsys):
    monkeypatch.setattr("specviz.alignment.job.identify", stopped)
    with pytest.raises(KeyboardInterrupt):
        cli()
    assert capsys.readouterr().err.endswith("\nspecviz: stopped\n")


# refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--fail-under", "beauty=1"],
            "with a name of alpha, greedy_agreement, mean_acceptance, tokens_per_call, speedup",
        ),
        (["--fail-under", "alpha"], r"takes NAME=NUMBER .got 'alpha'."),
        (["--fail-under", "alpha=nan"], "takes NAME=NUMBER"),
        (["--fail-under", "alpha=x"], "takes NAME=NUMBER"),
        (["--compare", "no-such-file.json"], "no-such-file.json cannot be opened"),
        (["--workers", "2"], "--ray-address and --workers need --executor ray"),
        (["--ray-address", "auto"], "need --executor ray"),
        (["--executor", "ray", "--workers", "0"], "--workers must be at least 1"),
        (["--k", "20"], "k must be a whole number from 1 to 16"),
        (["--fail-under", "speedup=1"], "a threshold for the speedup needs costs"),
        (["--prompts", "~nobody-is-called-so/x.jsonl"], "x.jsonl cannot be read"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(cli, tmp_path, arguments, words):
    with pytest.raises(SpecvizError, match=words):
        cli(*arguments)
    assert not (tmp_path / "out").exists()


def test_a_threshold_for_the_speedup_needs_the_costs_of_every_draft(cli, tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(NEAR))
    with pytest.raises(SpecvizError, match="a threshold for the speedup needs costs"):
        cli("--fail-under", "speedup=0", draft=("near", "far"), costs=("--costs", file))
    assert not (tmp_path / "out").exists()
    assert cli("--fail-under", "speedup=0", costs=("--costs", file))[0] == 0
    file.write_text(json.dumps(NEAR | {"spread": 0.4}))
    with pytest.raises(SpecvizError, match="none are given or measured steadily"):
        cli("--fail-under", "speedup=0", out="new", costs=("--costs", file))


def test_a_threshold_for_the_speedup_ends_with_3_where_the_machine_was_too_busy(cli, monkeypatch):
    busy = replace(made_costs("near"), spread=0.4)
    monkeypatch.setattr(jobs, "measure_models", lambda names: [busy])
    with pytest.raises(CannotTell, match="speedup of near is not known: its costs are missing or unsteady"):
        cli("--fail-under", "speedup=0", costs=())


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (["--temperature", 0.5], [], "another sampling"),
        (["--max-new-tokens", 9], [], "another max_new_tokens"),
        ([], ["--target", "near"], "another target"),
    ],
)
def test_an_older_summary_of_something_else_is_refused_before_any_work(cli, tmp_path, before, now, words):
    cli(*before)
    with pytest.raises(SpecvizError, match=words):
        cli("--compare", tmp_path / "out" / "summary.json", *now, out="new")
    assert not (tmp_path / "new").exists()


def test_an_older_summary_of_other_prompts_is_refused_before_any_work(cli, prompts, tmp_path):
    cli()
    prompts.write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(SpecvizError, match="another prompt set"):
        cli("--compare", tmp_path / "out" / "summary.json", out="new")
    assert not (tmp_path / "new").exists()


def test_an_older_summary_without_any_of_the_drafts_is_refused_before_any_work(cli, tmp_path):
    cli(draft=("near", "far"))
    with pytest.raises(SpecvizError, match="has none of the drafts big"):
        cli("--compare", tmp_path / "out" / "summary.json", draft=("big",), out="new")
    assert not (tmp_path / "new").exists()


# what reaches the terminal


def test_nothing_from_outside_commands_the_terminal(cli, prompts):
    with prompts.open("a") as stream:
        stream.write(json.dumps({"\x1b[31mred\x07": "x", "prompt": "a \x1b[2J", "id": "\x1b]0;t\x07"}) + "\n")
        stream.write('{"prompt": 3, "\\u001b[1m": 1}\n')
    for printed in cli()[1:]:
        assert ESCAPE.search(printed) is None


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (Progress("reading", 0, 1200), "reading: 0 of 1,200 prompts"),
        (Progress("reading", 4, 9, 80, 1234.4, 0.0), "reading: 4 of 9 prompts, 1,234 tokens/s, 0 s left"),
        (Progress("reading", 4, 9, 80, 3.0, 125.2), "reading: 4 of 9 prompts, 3 tokens/s, 2 min 5 s left"),
        (Progress("reading", 4, 9, 80, 3.0, 7262.0), "reading: 4 of 9 prompts, 3 tokens/s, 2 h 1 min left"),
    ],
)
def test_progress_in_one_line(progress, line):
    assert command.progress_line(progress) == line
