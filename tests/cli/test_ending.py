"""`run --out` ended from outside: the real command, killed after some steps, leaves a trace that loads."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import contextmanager
from pathlib import Path

import pytest
import traces
import warm
from small_disk import small_disk

from specviz.trace.file import load_trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SUFFIXES = (".jsonl", ".jsonl.gz")
ENDING = (("SIGINT", ".jsonl"), ("SIGTERM", ".jsonl.gz"), ("SIGHUP", ".jsonl"))


def command(out, *more):
    return ["run", "--prompt", "Once upon a time", "--k", "1", "--max-new-tokens", "400", "--out", out, *more]


@contextmanager
def running(out, *more, before=""):
    """before: what the process does before it becomes the command."""
    process = warm.start(before + warm.COMMAND, *command(out, *more), cwd=ROOT)
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
    done = warm.run(warm.COMMAND, *command(out, "--max-new-tokens", "100000"), cwd=ROOT)
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
    done = warm.run(smaller + warm.COMMAND, *command(out), cwd=ROOT)
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
        done = warm.run(warm.COMMAND, *command(out), cwd=ROOT)
        kept = load_trace(out)
        assert done.returncode == 2
        told = f"(No space left on device); it holds the run up to step {len(kept.steps)}\n"
        assert done.stderr == f"specviz: {out} cannot be written {told}"
        assert kept.steps
        out.unlink()
        done = warm.run(warm.COMMAND, *command(out, "--max-new-tokens", "4"), cwd=ROOT)
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
