"""The command `space push NAME`: makes your own Hugging Face Space from this package. Loads no torch."""

import argparse
import json
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import requires, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import specviz
from specviz.cli.output import write_texts
from specviz.errors import SpecvizError
from specviz.models.catalog import is_known, without_format
from specviz.models.files.hub import find
from specviz.settings import assets_dir
from specviz.views.terminal import escape

if TYPE_CHECKING:
    from huggingface_hub import HfApi

DISTRIBUTION = "specviz-explorer"
"""The name on the package index, where the name specviz belongs to a tool for astronomers."""
TORCH = "torch==2.11.0"  # the newest that ZeroGPU runs; CPU basic runs it as well
HARDWARE = ("cpu-basic", "zero-a10g")
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
LARGE = ("*.safetensors", "*.gz", "*.png")
LFS = "filter=lfs diff=lfs merge=lfs -text\n"
FRONT = {
    "title": "specviz",
    "emoji": "🎯",
    "colorFrom": "blue",
    "colorTo": "yellow",
    "short_description": "See, check and debug speculative decoding",
    "license": "apache-2.0",
}
"""The settings of every Space, which the hub reads."""
APP = '''"""Serves the page with the pair that the owner of this Space has chosen; its own variables come first."""

import os

for name, value in {settings}.items():
    os.environ.setdefault(name, value)

from specviz.cli.main import console

if __name__ == "__main__":
    raise SystemExit(console(["page"]))
'''
README = """---
{front}
---

# specviz

See, check and debug **speculative decoding** while it runs. Pushed with `specviz space push`, specviz {version}.
"""
NOT_THERE = "a Space has the bundled models and those of the hub: {role} must not be a folder here (got {name!r:.200})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("push",), help="make the Space, or bring it up to date")
    parser.add_argument("name", metavar="NAME", help="owner/name of the Space")
    words = "what it begins with, loaded at its start: smollm2, a bundled name or a hub id (default: the bundled pair)"
    parser.add_argument("--target", help=words)
    parser.add_argument("--draft", help="the draft model or draft head, likewise")
    words = f"what the Space will run on, which its owner sets on the hub (default: {HARDWARE[0]})"
    parser.add_argument("--hardware", choices=HARDWARE, help=words)
    words = "a Static Space, free for everybody: a site whose first page generates in the visitor's browser"
    parser.add_argument("--static", action="store_true", help=words)
    words = "write what would be pushed into this new folder, and push nothing"
    parser.add_argument("--dry-run", type=Path, metavar="FOLDER", help=words)


def run(options: argparse.Namespace) -> int:
    """Writes the folder and pushes it. Raises SpecvizError in words for the person."""
    if not NAME.fullmatch(options.name):
        raise SpecvizError(f"NAME must be owner/name (got {options.name!r:.200})")
    if options.dry_run is not None and options.dry_run.exists():
        raise SpecvizError(
            f"--dry-run must name a folder that is not there (got {str(options.dry_run)!r:.200})"
        )
    with TemporaryDirectory() as place:
        folder = options.dry_run or Path(place, "space")
        if options.static:
            write_static(folder, options)
        else:
            write(folder, options)
        if options.dry_run is not None:
            print(f"saved {escape(str(folder))}; nothing was pushed")
        else:
            from huggingface_hub import HfApi

            sdk = "static" if options.static else "gradio"
            print(f"pushed: {push(HfApi(), folder, options.name, sdk)}")
    return 0


def write(folder: Path, options: argparse.Namespace) -> None:
    """Writes everything that the Space is built of. Raises SpecvizError for a model that it could not load."""
    roles = {"target": options.target, "draft": options.draft}
    chosen = {role: name for role, name in roles.items() if name}
    for role, name in chosen.items():
        if not is_known(name) and find(name, allow_any=True).folder is not None:
            raise SpecvizError(NOT_THERE.format(role=role, name=name))
    leftovers = shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyi", "assets")
    shutil.copytree(Path(specviz.__file__).parent, folder / "specviz", ignore=leftovers)
    shutil.copytree(
        assets_dir(), folder / "assets", ignore=shutil.ignore_patterns("__pycache__", "screenshots")
    )
    large = "".join(f"{pattern} {LFS}" for pattern in LARGE)
    variables = {f"SPECVIZ_{role.upper()}": name for role, name in chosen.items()}
    texts = {
        ".gitattributes": large,  # the hub takes no binary file, however small, without it
        "app.py": APP.format(settings=json.dumps(variables)),
        "requirements.txt": "\n".join(_requirements()) + "\n",
        "README.md": README.format(front=_front(options), version=specviz.__version__),
    }
    write_texts(folder, texts)


def write_static(folder: Path, options: argparse.Namespace) -> None:
    """Writes the site that a Static Space hands out. Raises SpecvizError for options that need a server."""
    from specviz.views.site import site_files  # it reads all of the page's code

    chosen = [f"--{name}" for name in ("target", "draft", "hardware") if getattr(options, name)]
    if chosen:
        raise SpecvizError(
            f"--static has no server: its models are the bundled ones (got {', '.join(chosen)})"
        )
    settings = {**FRONT, "sdk": "static", "app_file": "index.html"}
    texts = site_files({})
    texts[".gitattributes"] = f"data/sv-weights-* {LFS}"
    texts["README.md"] = README.format(front=_yaml(settings), version=specviz.__version__)
    write_texts(folder, texts)


def push(api: "HfApi", folder: Path, name: str, sdk: str) -> str:
    """Makes the Space hold the folder and nothing else; returns its address. Raises SpecvizError."""
    space = {"repo_id": name, "repo_type": "space"}
    try:
        address = api.create_repo(**space, space_sdk=sdk, exist_ok=True)
        words = f"specviz {specviz.__version__}"
        api.upload_folder(**space, folder_path=folder, commit_message=words, delete_patterns=["*"])
    except Exception as error:  # the errors of several HTTP libraries: no login, no right, offline
        raise SpecvizError(f"{name} was not pushed: {error}; `hf auth login` logs in") from None
    return str(address)


def _requirements() -> list[str]:
    """The package's requirements, with the torch that a Space needs."""
    beside = Path(specviz.__file__).parent.parent / "requirements.txt"  # of a checkout or a Space
    needed = beside.read_text("utf-8").splitlines() if beside.is_file() else requires(DISTRIBUTION)
    lines = [TORCH]
    for line in needed:
        if "extra ==" not in line and not re.match(r"torch\b", line):
            lines.append(line)
    return sorted(lines)


def _front(options: argparse.Namespace) -> str:
    """The settings of a Space with a server, as YAML."""
    named = [without_format(name) for name in (options.target, options.draft) if name]
    on_hub = [name for name in named if "/" in name and name.count("/") == 1]
    settings = {
        **FRONT,
        "sdk": "gradio",
        "sdk_version": version("gradio"),
        "python_version": "3.12",
        "app_file": "app.py",
        "suggested_hardware": options.hardware or HARDWARE[0],
        "startup_duration_timeout": "1h",
        "models": on_hub,
        "preload_from_hub": on_hub,
    }
    return _yaml(settings)


def _yaml(settings: Mapping[str, Any]) -> str:
    """Settings as YAML; every value is written as JSON, which YAML includes."""
    lines = []
    for name, value in settings.items():
        if value:
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)
