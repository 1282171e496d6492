"""Commands ended from outside: a killed run leaves a trace that loads, a job can go on, each says its signal."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from specviz.trace import load_trace
from tests.helpers import traces, warm_processes
from tests.helpers.small_disk import small_disk

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SUFFIXES = (".jsonl", ".jsonl.gz")
ENDING = (("SIGINT", ".jsonl"), ("SIGTERM", ".jsonl.gz"), ("SIGHUP", ".jsonl"))


def command(out, *more):
    return ["run", "--prompt", "Once upon a time", "--k", "1", "--max-new-tokens", "400", "--out", out, *more]


@contextmanager
def running(out, *more, before=""):
    """before: what the process does before it becomes the command."""
    process = warm_processes.start(before + warm_processes.COMMAND, *command(out, *more), cwd=ROOT)
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)  # a run that nobody reads waits: it can't end before that
    try:
        yield process
    finally:
        process.close()


def has_printed_step(process, number):
    return any(line.lstrip().startswith(f"{number} ") for line in process.stdout)


@pytest.mark.parametrize(("name", "suffix"), ENDING)
def test_a_signal_leaves_the_run_so_far_with_its_end(tmp_path, name, suffix):
    out = tmp_path / f"run{suffix}"
    with running(out) as process:
        assert has_printed_step(process, 3)
        process.send_signal(getattr(signal, name))
        printed, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (128 + getattr(signal, name), "")
    kept = load_trace(out)
    assert 3 <= len(kept.steps) < 100
    assert (kept.footer.reason, kept.footer.message) == ("stopped", "interrupted")
    assert printed.endswith(f"saved {out}\n")
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_killed_run_leaves_its_steps_and_is_named_cut(tmp_path, suffix):
    out = tmp_path / f"run{suffix}"
    with running(out) as process:
        assert has_printed_step(process, 3)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    kept = load_trace(out)
    assert len(kept.steps) >= 3
    assert kept.footer is None
    shown = subprocess.run([sys.executable, "-m", "specviz", "show", out], cwd=ROOT, capture_output=True, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, b"specviz: the recording stops before the end of the run\n")


def test_a_signal_before_the_first_step_leaves_the_older_file(tmp_path):
    out = tmp_path / "run.jsonl"
    traces.chain().save(out)
    with running(out) as process:
        assert process.stdout.readline().startswith("prompt ")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM
    kept = load_trace(out)
    assert kept == traces.chain() or kept.footer.message == "interrupted"


def test_a_run_that_fails_before_its_first_step_leaves_the_older_file(tmp_path):
    out = tmp_path / "run.jsonl"
    traces.chain().save(out)
    done = warm_processes.run(warm_processes.COMMAND, *command(out, "--max-new-tokens", "100000"), cwd=ROOT)
    assert done.returncode == 2
    assert "specviz: " in done.stderr
    assert load_trace(out) == traces.chain()


def test_what_is_told_to_ignore_a_hangup_ignores_it(tmp_path):
    out = tmp_path / "run.jsonl"
    with running(out, before="import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n") as process:
        assert has_printed_step(process, 2)
        process.send_signal(signal.SIGHUP)
        assert has_printed_step(process, 6)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM


def test_a_terminal_that_is_closed_leaves_the_run_so_far_with_its_end(tmp_path):
    out = tmp_path / "run.jsonl"
    ours, its = pty.openpty()

    def in_terminal():
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # whoever started the tests may ignore some
            signal.signal(each, signal.SIG_DFL)
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)

    started = [sys.executable, "-m", "specviz", *command(out)]
    streams = {"stdin": its, "stdout": its, "stderr": its, "start_new_session": True}
    with subprocess.Popen(started, cwd=ROOT, preexec_fn=in_terminal, **streams) as process:
        os.close(its)
        seen = b""
        while b"\n     3  " not in seen.replace(b"\r", b""):
            seen += os.read(ours, 4096)
        os.close(ours)
        assert process.wait(60) == 128 + signal.SIGHUP
    kept = load_trace(out)
    assert len(kept.steps) >= 3
    assert kept.footer.reason == "stopped"


def test_a_full_disk_is_said_and_what_was_written_is_kept(tmp_path):
    """A limit on the size of a file stands for the disk; the system's error is a real one."""
    out, limit = tmp_path / "run.jsonl", 60_000
    smaller = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    done = warm_processes.run(smaller + warm_processes.COMMAND, *command(out), cwd=ROOT)
    kept = load_trace(out)
    assert done.returncode == 2
    words = f"specviz: {out} cannot be written (File too large); it holds the run up to step {len(kept.steps)}\n"
    assert done.stderr == words
    assert len(kept.steps) >= 2
    assert kept.footer is None
    assert "saved" not in done.stdout


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_disk_that_is_full_keeps_what_was_written_and_takes_the_next_run(tmp_path, suffix):
    with small_disk(tmp_path / "disk", 40) as disk:
        out = disk / f"run{suffix}"
        done = warm_processes.run(warm_processes.COMMAND, *command(out), cwd=ROOT)
        kept = load_trace(out)
        assert done.returncode == 2
        told = f"(No space left on device); it holds the run up to step {len(kept.steps)}\n"
        assert done.stderr == f"specviz: {out} cannot be written {told}"
        assert kept.steps
        out.unlink()
        done = warm_processes.run(warm_processes.COMMAND, *command(out, "--max-new-tokens", "4"), cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, "")
        assert load_trace(out).footer.reason == "length"


def test_two_runs_into_one_file_leave_one_of_them_whole(tmp_path):
    out = tmp_path / "run.jsonl"
    with running(out, "--seed", "1") as first, running(out, "--seed", "2") as second:
        assert has_printed_step(first, 2)
        assert has_printed_step(second, 2)
        for process in (first, second):
            process.communicate(timeout=120)
            assert process.returncode == 0
    kept = load_trace(out)
    assert kept.footer.reason in ("length", "eos")
    assert kept.header.request["seed"] in (1, 2)
    assert [*tmp_path.iterdir()] == [out]


# ---- other commands --------------------------------------------------------------------------------------------------

KEPT = "\nspecviz: stopped; finished work is saved: run the same command again to go on\n"
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def wait_for(holds, patience_s=60):
    latest = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < latest
        time.sleep(0.005)


def is_a_command(process):
    """Whether the process has begun its command: it has a handler for the last of the signals."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) >> (signal.SIGHUP - 1) & 1)


def align_command(folder, *more):
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "Once there were {number} of them"}}\n' for number in range(200)))
    size = ["--shard-size", "2", "--max-new-tokens", "8", "--no-costs"]
    return ["align", "--prompts", prompts, "--out", folder / "job", *size, *more]


@contextmanager
def started(*arguments):
    process = warm_processes.start(warm_processes.COMMAND, *arguments, cwd=ROOT)
    try:
        yield process
    finally:
        process.close()


def ended(process, name):
    """What the process says on standard error once it has got this signal, whose exit code it must have."""
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + getattr(signal, name)
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("name", SIGNALS)
def test_a_job_that_is_ended_says_that_it_can_go_on(tmp_path, name):
    with started(*align_command(tmp_path)) as process:
        wait_for(lambda: [*tmp_path.glob("job/parts/part-*")])
        assert ended(process, name).endswith(KEPT)
    done = [*tmp_path.glob("job/parts/part-*")]
    assert done
    written = {part: part.stat().st_mtime_ns for part in done}
    with started(*align_command(tmp_path)) as process:
        wait_for(lambda: len([*tmp_path.glob("job/parts/part-*")]) > len(done))
        assert ended(process, name).endswith(KEPT)
    assert {part: part.stat().st_mtime_ns for part in done} == written, "finished work was not done again"


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_job_that_is_ended_while_it_loads_says_what_there_is(tmp_path, name, has_begun):
    if has_begun:
        (tmp_path / "job").mkdir()
        (tmp_path / "job" / "job.json").write_text("{}")
    with started(*align_command(tmp_path)) as process:
        wait_for(lambda: is_a_command(process))
        assert ended(process, name) == (KEPT if has_begun else "\nspecviz: stopped\n")


@pytest.mark.parametrize("arguments", [["prove", "--tokens", "20000"], ["bench"]], ids=["prove", "bench"])
def test_every_command_ends_with_the_code_of_its_signal(arguments):
    with started(*arguments) as process:
        wait_for(lambda: is_a_command(process))
        ended(process, "SIGTERM")


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_that_comes_while_an_object_is_deleted_is_not_lost(name):
    """Such a signal comes now and then; here every one does, until the object has gone."""
    program = """
import os, signal, sys, time
from specviz.cli import ending

class Deleted:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(0.01)

try:
    with ending.signals_raised():
        Deleted()
        time.sleep(30)
except KeyboardInterrupt as end:
    sys.exit(ending.exit_code(end))
"""
    number = getattr(signal, name)
    done = warm_processes.run(program, str(number), cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (128 + number, "")


@pytest.mark.parametrize("name", SIGNALS)
def test_a_page_that_is_ended_while_it_warms_up_says_so(name):
    with started("page", "--port", "0") as process:
        assert process.stdout.readline().startswith("specviz: open ")
        assert ended(process, name) == "\nspecviz: stopped\n"
