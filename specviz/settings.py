"""The environment variables that specviz reads, all in this place, and its folders. Standard library only.

`settings()` reads the environment again at each call. A value that cannot be used is a SpecvizError with its name.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError

_GIB = 2**30


def _text(form: str, words: str) -> Callable[[str], str]:
    """A function that checks a text. form: a regular expression for the whole text; words: what it allows."""

    def convert(text: str) -> str:
        if not re.fullmatch(form, text, re.ASCII):
            raise ValueError(words)
        return text

    return convert


def _whole(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return convert


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError("a number above 0")
    return value


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise ValueError("1 or 0")
    return text.lower() in ("1", "true", "yes", "on")


def root_path(text: str) -> str:
    """The path or the whole address of the page, without the last slash. Raises ValueError: what is allowed."""
    if not re.fullmatch(r"(https?://[\w.:\[\]-]+)?(/[\w.~%@+=,-]+)*/?", text, re.ASCII):
        raise ValueError("a path such as /user/ann/proxy/7860, or a whole address")
    return text.rstrip("/")


_device = _text(r"auto|cpu|mps|cuda(:\d{1,2})?", "auto, cpu, mps, cuda or cuda:<number>")
_dtype = _text("auto|float32|bfloat16|float16", "auto, float32, bfloat16 or float16")


def _variable(default: object, name: str, read: Callable[[str], object]) -> Any:
    """A setting. name: its environment variable; read: makes a value of its text, or raises ValueError with words."""
    return field(default=default, metadata={"name": name, "read": read})


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """The settings that the person who starts specviz decides once. None: no limit, or found out where it is needed."""

    device: str = _variable("auto", "SPECVIZ_DEVICE", _device)
    dtype: str = _variable("auto", "SPECVIZ_DTYPE", _dtype)
    model_memory_bytes: int | None = _variable(
        None, "SPECVIZ_MODEL_MEMORY_GB", lambda text: int(_positive(text) * _GIB)
    )
    draft_device: str = _variable("auto", "SPECVIZ_DRAFT_DEVICE", _device)
    max_new_tokens: int = _variable(4096, "SPECVIZ_MAX_NEW_TOKENS", _whole(1, 1_000_000))
    max_seconds: float | None = _variable(None, "SPECVIZ_MAX_SECONDS", _positive)
    max_runs: int = _variable(64, "SPECVIZ_MAX_RUNS", _whole(1, 1_000))
    allow_any_model: bool | None = _variable(None, "SPECVIZ_ALLOW_ANY_MODEL", _yes_or_no)
    """Whether models outside the catalogue may be named; None: by commands, and on a page where only this machine
    reaches it."""
    allow_get: bool | None = _variable(None, "SPECVIZ_ALLOW_GET", _yes_or_no)
    """Whether the page has a button that fetches a model; None: where only this machine reaches it."""
    server_name: str = _variable("127.0.0.1", "GRADIO_SERVER_NAME", str)
    server_port: int = _variable(7860, "GRADIO_SERVER_PORT", _whole(0, 65_535))
    root_path: str = _variable("", "GRADIO_ROOT_PATH", root_path)
    """The path, or the whole address, at which a proxy serves the page; "" is the root of its host."""
    space: str | None = _variable(None, "SPACE_ID", _text(r"[\w.-]+/[\w.-]+", "owner/name"))
    """The Hugging Face Space that this is, as owner/name."""
    zero_gpu: bool = _variable(False, "SPACES_ZERO_GPU", _yes_or_no)
    """Whether this Space gives a GPU only to worker processes, each for a while."""
    space_host: str | None = _variable(None, "SPACE_HOST", _text(r"[\w.-]{1,253}", "a host name"))
    mcp: bool = _variable(False, "SPECVIZ_MCP", _yes_or_no)
    """Whether the API's endpoints are MCP tools, too."""
    target: str | None = _variable(None, "SPECVIZ_TARGET", str)
    draft: str | None = _variable(None, "SPECVIZ_DRAFT", str)
    """The pair that the page begins with, loaded when it starts; None: the bundled one, or a real one that is here."""

    @property
    def commands_take_any_model(self) -> bool:
        return self.allow_any_model is not False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ProgramSettings:
        """The defaults, changed by the environment; a Hugging Face Space allows catalogue models only by default."""
        on_space = {"allow_any_model": False, "allow_get": False}
        chosen: dict[str, object] = on_space if environment.get("SPACE_ID") else {}
        for item in fields(cls):
            name = item.metadata["name"]
            read = item.metadata["read"]
            if text := environment.get(name, "").strip():
                try:
                    chosen[item.name] = read(text)
                except ValueError as error:
                    raise SpecvizError(
                        f"the environment variable {name} must be {error} (got {text!r})"
                    ) from None
        return cls(**chosen)


def settings() -> ProgramSettings:
    return ProgramSettings.from_environment(os.environ)


def assets_dir() -> Path:
    """The folder with models, web files, prompts and traces: SPECVIZ_ASSETS, the installed one, or the repository's."""
    package = Path(__file__).resolve().parent
    named = os.environ.get("SPECVIZ_ASSETS", "").strip()
    places = [Path(named)] if named else [package / "assets", package.parent / "assets"]
    for place in places:
        if place.is_dir():
            return place
    if named:
        raise SpecvizError(
            f"the environment variable SPECVIZ_ASSETS must name a folder (got {named!r})"
        )
    raise SpecvizError(
        "the assets folder is missing: set SPECVIZ_ASSETS to the folder 'assets' of the repository"
    )


def cache_dir() -> Path:
    """The folder for fetched and converted models and what is measured once: SPECVIZ_CACHE, or the user's cache."""
    named = os.environ.get("SPECVIZ_CACHE", "").strip()
    if named:
        return Path(named).expanduser()
    users = os.environ.get("XDG_CACHE_HOME", "").strip()
    return Path(users or Path.home() / ".cache") / "specviz"


def cached_model(file: str, sha256: str) -> Path:
    """The folder in the cache for the model in a GGUF file of this name and hash."""
    safe_name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(file).stem)
    return cache_dir() / f"{safe_name:.80}-{sha256[:12]}"
