"""Every environment variable that specviz reads, in this one place, and where its assets lie. Standard library only.

`settings()` reads the environment anew at each call; a value that cannot be used is a SpecvizError with its name.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SpecvizError

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Settings:
    """What the person who starts specviz decides once. None means: no limit, or found out where it is needed."""

    device: str = "auto"
    dtype: str = "auto"
    model_memory_bytes: int | None = None
    draft_device: str = "auto"
    max_new_tokens: int = 4096
    max_seconds: float | None = None
    max_runs: int = 48
    allow_any_model: bool = True
    allow_get: bool | None = None
    """Whether the page has a button that fetches a model; None: where only this machine reaches it."""
    server_name: str = "127.0.0.1"
    server_port: int = 7860
    space: str | None = None
    """The Hugging Face Space that this is, as owner/name."""
    zero_gpu: bool = False
    """Whether it is one whose GPU only worker processes have, each for a while."""
    space_host: str | None = None
    mcp: bool = False
    """Whether the API's endpoints are MCP tools, too."""
    target: str | None = None
    draft: str | None = None
    """The pair that the page begins with, loaded when it starts; None: the bundled one, or a real one that is here."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """The defaults, or on a Hugging Face Space catalogue models only, with what the environment says instead."""
        on_space = {"allow_any_model": False, "allow_get": False}
        chosen: dict[str, object] = on_space if environment.get("SPACE_ID") else {}
        for field, (name, convert) in _VARIABLES.items():
            if text := environment.get(name, "").strip():
                chosen[field] = _convert(name, convert, text)
        return cls(**chosen)


def settings() -> Settings:
    return Settings.from_environment(os.environ)


def assets_dir() -> Path:
    """The folder with models, web files, prompts and traces: SPECVIZ_ASSETS, the installed one, or the repository's."""
    package = Path(__file__).resolve().parent
    given = os.environ.get("SPECVIZ_ASSETS", "").strip()
    places = [Path(given)] if given else [package / "assets", package.parent / "assets"]
    for place in places:
        if place.is_dir():
            return place
    if given:
        raise SpecvizError(f"the environment variable SPECVIZ_ASSETS must name a folder (got {given!r})")
    raise SpecvizError("the assets folder is missing: set SPECVIZ_ASSETS to the folder 'assets' of the repository")


def cache_dir() -> Path:
    """The folder for fetched and converted models and what is measured once: SPECVIZ_CACHE, or the user's cache."""
    given, own = (os.environ.get(name, "").strip() for name in ("SPECVIZ_CACHE", "XDG_CACHE_HOME"))
    return Path(given).expanduser() if given else Path(own or Path.home() / ".cache") / "specviz"


def cached_model(file: str, sha256: str) -> Path:
    """The folder in the cache of the model that a GGUF file of this name and hash holds."""
    return cache_dir() / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', Path(file).stem):.80}-{sha256[:12]}"


def _convert(name: str, convert: Callable[[str], object], text: str) -> object:
    try:
        return convert(text)
    except ValueError as error:
        raise SpecvizError(f"the environment variable {name} must be {error} (got {text!r})") from None


def _text(form: str, words: str) -> Callable[[str], str]:
    """form: a regular expression for the whole text; words: what it allows."""

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


_device = _text(r"auto|cpu|mps|cuda(:\d{1,2})?", "auto, cpu, mps, cuda or cuda:<number>")
_dtype = _text("auto|float32|bfloat16|float16", "auto, float32, bfloat16 or float16")
_VARIABLES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "device": ("SPECVIZ_DEVICE", _device),
    "draft_device": ("SPECVIZ_DRAFT_DEVICE", _device),
    "dtype": ("SPECVIZ_DTYPE", _dtype),
    "model_memory_bytes": ("SPECVIZ_MODEL_MEMORY_GB", lambda text: int(_positive(text) * _GIB)),
    "max_new_tokens": ("SPECVIZ_MAX_NEW_TOKENS", _whole(1, 1_000_000)),
    "max_seconds": ("SPECVIZ_MAX_SECONDS", _positive),
    "max_runs": ("SPECVIZ_MAX_RUNS", _whole(1, 1_000)),
    "allow_any_model": ("SPECVIZ_ALLOW_ANY_MODEL", _yes_or_no),
    "allow_get": ("SPECVIZ_ALLOW_GET", _yes_or_no),
    "server_name": ("GRADIO_SERVER_NAME", str),
    "server_port": ("GRADIO_SERVER_PORT", _whole(0, 65_535)),
    "zero_gpu": ("SPACES_ZERO_GPU", _yes_or_no),
    "space_host": ("SPACE_HOST", _text(r"[\w.-]{1,253}", "a host name")),
    "space": ("SPACE_ID", _text(r"[\w.-]+/[\w.-]+", "owner/name")),
    "mcp": ("SPECVIZ_MCP", _yes_or_no),
    "target": ("SPECVIZ_TARGET", str),
    "draft": ("SPECVIZ_DRAFT", str),
}
