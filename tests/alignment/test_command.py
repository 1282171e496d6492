"""The command `align`: what it prints, how it ends, what it refuses before any work is done."""

import argparse
import json
import re
from dataclasses import replace

import pytest

import specviz.session.workbench as session
from specviz.alignment import job as jobs
from specviz.alignment.job import align
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


def write_prompts(folder):
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, {"nothing": 1}]))
    return file


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path)


@pytest.fixture(scope="module")
def old(named_models, tmp_path_factory):
    """The summary of a finished job over the same prompts with the draft near."""
    place = tmp_path_factory.mktemp("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_shared", [Workbench(named_models)])
        align(write_prompts(place), target="big", draft="near", max_new_tokens=8, costs={}, out=place)
    return place / "summary.json"


@pytest.fixture
def costs_file(tmp_path):
    """Writes these values as a file of costs."""

    def write(values):
        (tmp_path / "costs.json").write_text(values if isinstance(values, str) else json.dumps(values))
        return tmp_path / "costs.json"

    return write


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
    assert re.search(r"near minus far: .* \+\d.* fewer than 30 prompts", out, re.DOTALL)
    assert re.search(r"^1 row .*\n  line 4: ", out, re.MULTILINE)
    assert out.endswith(f": {tmp_path / 'out' / 'report.html'}\n")
    assert f"{jobs.READING}: 0 of 3 prompts" in err


def test_rows_to_train_on_are_written_also_for_a_job_that_is_done(cli, tmp_path):
    for name in ("one.jsonl", "two.jsonl"):
        status, out, _ = cli("--export-rows", tmp_path / name)
        assert (status, str(tmp_path / name) in out) == (0, True)
    lines = (tmp_path / "one.jsonl").read_text()
    assert [json.loads(line)["id"] for line in lines.splitlines()] == ["ant", "bee", "cat"]
    assert (tmp_path / "two.jsonl").read_text() == lines
    cli("--export-rows", tmp_path / "two.jsonl", "--export-probs", 2)
    assert {len(ids) for line in (tmp_path / "two.jsonl").open() for ids in json.loads(line)["top_ids"]} == {2}
    with pytest.raises(SpecvizError, match="--export-probs must be a whole number from 0"):
        cli("--export-probs", -1)


def test_a_pattern_names_checkpoints_in_the_order_of_their_numbers(cli, tmp_path, named_models):
    near = named_models.load("near")
    for number in (10, 2, 1):
        tiny_folder(tmp_path / "run" / f"step-{number}", near.model, near.tokenizer)
    assert cli(draft=(tmp_path / "run" / "step-*",))[0] == 0
    summary = read_summary(tmp_path / "out" / "summary.json")
    assert [draft.name for draft in summary.drafts] == ["step-1", "step-2", "step-10"]
    with pytest.raises(SpecvizError, match=r"epoch-\*"):
        cli(draft=(tmp_path / "run" / "epoch-*",), out="none")


def test_costs_of_a_file_give_speedups_also_below_one_and_another_job_takes_them_from_its_summary(
    cli, costs_file, tmp_path
):
    costs = made_costs("far", draft_ms=50.0).to_dict()
    out = cli(draft=("far",), costs=("--costs", costs_file(costs)))[1]
    summary = read_summary(tmp_path / "out" / "summary.json")
    best = max(summary.drafts[0].speedups)
    assert best < 1
    assert f" {best:.2f}x\n" in out
    cli(draft=("far",), costs=("--costs", tmp_path / "out" / "summary.json"), out="new")
    assert read_summary(tmp_path / "new" / "summary.json").costs == {"far": costs}


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
def test_costs_are_read_in_every_form_that_they_are_written_in(costs_file, values, drafts):
    assert command.read_costs(costs_file(values)) == {name: made_costs(name) for name in drafts}


def test_what_bench_writes_is_read(tmp_path, monkeypatch, named_models):
    monkeypatch.setattr(bench_report, "ModelPool", lambda: named_models)
    measured = [Measured(1, 1, "all", (made_costs("near"),))]
    monkeypatch.setattr(bench_report, "measure_costs", lambda *_, **__: measured)
    told = list(bench_report.cost_lines(target="big", draft="near", save=output(str(tmp_path / "costs.json")).write))
    assert told[-1].startswith("| ")
    assert command.read_costs(tmp_path / "costs.json") == {"near": made_costs("near")}


@pytest.mark.parametrize(
    "values", ["", "[]", "3", "[3]", "{}", '{"costs": {}}', '{"near": {}}', '{"near": 3}', [NEAR, NEAR]], ids=str
)
def test_a_file_without_costs_or_with_a_draft_twice_is_refused_by_its_name(costs_file, values):
    with pytest.raises(SpecvizError, match=r"^costs\.json "):
        command.read_costs(costs_file(values))


# exit codes


def test_below_a_threshold_it_ends_with_1_and_says_why(cli):
    assert cli("--fail-under", "alpha=0.0", "--fail-under", "tokens_per_call=1", "--overwrite")[0] == 0
    status, out, _ = cli("--fail-under", "alpha=1")
    assert status == 1
    assert re.search(r"^near: alpha is 0\.\d+, below 1$", out, re.MULTILINE)


def test_with_few_prompts_in_common_it_cannot_tell(cli, old):
    status, out, _ = cli("--compare", old)
    assert status == 3
    assert re.search(r"near against .*\+0\.000.* n = 3 prompts, .* 30 prompts", out)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [((), 0), ((SAME,), 0), ((BETTER, SAME), 0), ((UNSURE, BETTER), 3), ((WORSE, UNSURE), 1), ((WORSE,), 1)],
)
def test_the_exit_code_follows_the_worst_verdict(verdicts, code):
    found = AlphaDifference("all", "all", 40, 0.1, (0.0, 0.2), True)
    changes = [Change("near", "near", found, verdict) for verdict in verdicts]
    assert command.exit_code((), changes) == code
    assert command.exit_code(("below",), changes) == 1


def test_what_fails_is_said_first_and_drafts_in_common_are_compared(cli, old):
    status, out, _ = cli("--compare", old, "--fail-under", "alpha=1", draft=("far", "near"))
    assert status == 1
    told = [line for line in out.splitlines() if re.match(r"(far|near)( |: )(alpha|against)|note: far", line)]
    assert [line.split(" is ")[0].split(";")[0] for line in told] == [
        "far: alpha",
        "near: alpha",
        "near against the older job: cannot tell",
        "note: far",
    ]
    assert cli("--compare", old, draft=("far", "near"))[0] == 3


def test_what_fails_is_told_also_where_nothing_can_be_compared(cli, old, monkeypatch):
    def refuse(*_):
        raise SpecvizError("the two jobs share no prompt")

    monkeypatch.setattr(comparing, "compare_with_old", refuse)
    status, out, _ = cli("--compare", old, "--fail-under", "alpha=1")
    assert status == 1
    assert re.search(r"^near: alpha is 0\.\d+, below 1\nnote: the two jobs share no prompt$", out, re.MULTILINE)
    with pytest.raises(SpecvizError, match="share no prompt"):
        cli("--compare", old)


def stopped(*_, **__):
    raise KeyboardInterrupt


def test_a_job_that_is_stopped_says_that_it_can_go_on(cli, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "analyse", stopped)
    with pytest.raises(KeyboardInterrupt):
        cli()
    assert capsys.readouterr().err.splitlines()[-1].startswith("specviz: stopped; finished work is saved")


def test_a_command_that_is_stopped_before_it_began_keeps_nothing(cli, monkeypatch, capsys):
    monkeypatch.setattr("specviz.alignment.job.identify", stopped)
    with pytest.raises(KeyboardInterrupt):
        cli()
    assert capsys.readouterr().err.endswith("\nspecviz: stopped\n")


# refused


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--fail-under", "beauty=1"], "alpha, greedy_agreement, mean_acceptance, tokens_per_call, speedup"),
        (["--fail-under", "alpha"], r"NAME=NUMBER .*got 'alpha'"),
        (["--fail-under", "alpha=nan"], r"NAME=NUMBER .*got 'alpha=nan'"),
        (["--fail-under", "alpha=x"], r"NAME=NUMBER .*got 'alpha=x'"),
        (["--compare", "no-such-file.json"], r"no-such-file\.json"),
        (["--workers", "2"], "--workers need --executor ray"),
        (["--ray-address", "auto"], "--ray-address .* --executor ray"),
        (["--executor", "ray", "--workers", "0"], "--workers .* at least 1"),
        (["--k", "20"], "k .* 1 to 16 .got 20"),
        (["--fail-under", "speedup=1"], "speedup .* costs"),
        (["--prompts", "~nobody-is-called-so/x.jsonl"], r"x\.jsonl"),
    ],
    ids=" ".join,
)
def test_bad_arguments_are_refused_before_any_work(cli, tmp_path, arguments, told):
    with pytest.raises(SpecvizError, match=told):
        cli(*arguments)
    assert not (tmp_path / "out").exists()


def test_a_threshold_for_the_speedup_needs_steady_costs_of_every_draft(cli, costs_file, tmp_path):
    asked = ("--fail-under", "speedup=0")
    with pytest.raises(SpecvizError, match=r"speedup .* costs"):
        cli(*asked, draft=("near", "far"), costs=("--costs", costs_file(NEAR)))
    assert not (tmp_path / "out").exists()
    with pytest.raises(SpecvizError, match=r"speedup .* steadily"):
        cli(*asked, costs=("--costs", costs_file(NEAR | {"spread": 0.4})))
    assert cli(*asked, costs=("--costs", costs_file(NEAR)))[0] == 0


def test_a_threshold_for_the_speedup_ends_with_3_where_the_machine_was_too_busy(cli, monkeypatch):
    busy = replace(made_costs("near"), spread=0.4)
    monkeypatch.setattr(jobs, "measure_models", lambda names: [busy])
    with pytest.raises(CannotTell, match=r"speedup of near .* unsteady"):
        cli("--fail-under", "speedup=0", costs=())


@pytest.mark.parametrize(
    ("now", "draft", "told"),
    [
        (["--temperature", 0.5], ("near",), "sampling"),
        (["--max-new-tokens", 9], ("near",), "max_new_tokens, .* 8, .* 9"),
        (["--target", "near"], ("near",), "target"),
        ([], ("big", "far"), "drafts big, far; it has near"),
    ],
)
def test_an_older_summary_of_something_else_is_refused_before_any_work(cli, old, tmp_path, now, draft, told):
    with pytest.raises(SpecvizError, match=told):
        cli("--compare", old, *now, draft=draft)
    assert not (tmp_path / "out").exists()


def test_an_older_summary_of_other_prompts_is_refused_before_any_work(cli, old, prompts, tmp_path):
    prompts.write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(SpecvizError, match="prompt set"):
        cli("--compare", old)
    assert not (tmp_path / "out").exists()


# what reaches the terminal


def test_nothing_from_outside_commands_the_terminal(cli, prompts):
    with prompts.open("a") as stream:
        stream.write(json.dumps({"\x1b[31mred\x07": "x", "prompt": "a \x1b[2J", "id": "\x1b]0;t\x07"}) + "\n")
        stream.write('{"prompt": 3, "\\u001b[1m": 1}\n')
    for printed in cli()[1:]:
        assert ESCAPE.search(printed) is None
