"""Programs that npm brings, and keeps after the first time."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 120  # for npm, which may have to bring the program


def npm_program(folder: Path, package: str, program: str) -> Callable[..., subprocess.CompletedProcess]:
    """A function that runs a program of this package, at the version in the folder's package.json, in the folder.

    Skips the test where there is no such program to run.
    """
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip(f"npx is not installed: {program} needs it (Debian: apt-get install npm)")
    version = json.loads((folder / "package.json").read_text("utf-8"))["devDependencies"][package]
    environment = {**os.environ, "npm_config_fetch_retries": "1", "npm_config_fetch_retry_mintimeout": "1000"}

    def run(*options):
        command = [npx, "--yes", f"--package={package}@{version}", "--", program, *options]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    try:
        started = run("--version")
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not bring {program} within {PATIENCE_S} seconds")
    if started.returncode:
        pytest.skip(f"npm could not bring {program}: {started.stderr.strip() or started.stdout.strip()}")
    return run
