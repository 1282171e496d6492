"""`run --out` ended from outside: the real command, killed after some steps, leaves a trace that loads."""

import fcntl
import os
import pty
import resource
import signal
import subprocess
import sys
import termios
from contextlib import contextmanager
from pathlib import Path

import pytest
import traces

from specviz.trace.file import load_trace

ROOT = Path(__file__).parents[2]
SUFFIXES = (".jsonl", ".jsonl.gz")
ENDING = (("SIGINT", ".jsonl"), ("SIGTERM", ".jsonl.gz"), ("SIGHUP", ".jsonl"))


def command(out, *more):
    arguments = ["--prompt", "Once upon a time", "--k", "1", "--max-new-tokens", "400", "--out", str(out), *more]
    return [sys.executable, "-m", "specviz", "run", *arguments]


def usual_signals():
    """Whoever started the tests may ignore some, and what is ignored is inherited."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)


@contextmanager
def running(out, **options):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {**streams, "preexec_fn": usual_signals, **options}
    process = subprocess.Popen(command(out), cwd=ROOT, **options)
    if process.stdout:  # a run that nobody reads waits, so that it can't end before it is ended
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


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
    assert (shown.returncode, shown.stderr) == (0, b"specviz: the recording ends before the run does\n")


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
    done = subprocess.run(command(out, "--max-new-tokens", "100000"), cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"specviz: " in done.stderr
    assert load_trace(out) == traces.chain()


def test_what_is_told_to_ignore_a_hangup_ignores_it(tmp_path):
    out = tmp_path / "run.jsonl"
    with running(out, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
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
        usual_signals()
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)

    closed = {"preexec_fn": in_terminal, "start_new_session": True}
    with running(out, stdin=its, stdout=its, stderr=its, **closed) as process:
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
    done = subprocess.run(
        command(out),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    kept = load_trace(out)
    assert done.returncode == 2
    words = f"specviz: {out} cannot be written (File too large); it holds the run up to step {len(kept.steps)}\n"
    assert done.stderr == words
    assert len(kept.steps) >= 2
    assert kept.footer is None
    assert "saved" not in done.stdout
