"""Environments of their own, for slow tests: a Python, its packages, and nothing of the repository on the path."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
TORCH = f"torch=={torch.__version__.partition('+')[0]}"  # what runs these tests; other builds have gigabytes of CUDA


def python_of(version: str) -> str | None:
    """The command of that Python, "3.10": on the path or among pyenv's; None where there is none."""
    kept = os.path.expanduser(os.environ.get("PYENV_ROOT") or "~/.pyenv")
    found = [shutil.which(f"python{version}"), *glob.glob(f"{kept}/versions/{version}.*/bin/python")]
    says = "import sys; print('%d.%d' % sys.version_info[:2])"
    for command in filter(None, found):
        if subprocess.run([command, "-c", says], capture_output=True, text=True).stdout.strip() == version:
            return command
    return None


def make(folder: Path, *packages: str, python: str = sys.executable) -> Path:
    """An environment with these packages; returns its Python."""
    run(python, "-m", "venv", "--without-pip", folder)
    install(here(folder), *packages)
    return here(folder)


def make_borrowing(folder: Path) -> Path:
    """An environment that also finds what this one has; returns its Python."""
    venv.create(folder)
    own = run(here(folder), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(own, "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return here(folder)


def here(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(python: Path, *arguments: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *arguments)


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """What the command prints; fails with all of it where it ends with another status than 0."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPECVIZ_ASSETS")}
    settled = {"cwd": cwd, "env": {**clean, **(env or {})}}
    done = subprocess.run([*map(str, command)], **settled, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def newest(file: Path, names: Collection[str] = ()) -> list[str]:
    """The lines of a file of requirements; names: of these packages only."""
    lines = file.read_text("utf-8").split()
    return [line for line in lines if not names or line.partition(">=")[0] in names]


def lowest(file: Path, names: Collection[str] = ()) -> list[str]:
    """Likewise, each package at the lowest version that is allowed."""
    return [line.partition(",")[0].replace(">=", "==") for line in newest(file, names)]
