"""A cache that belongs to one test, on a machine that is measured, and compiled for, once and not for every test."""

import shutil
from pathlib import Path

import pytest

from specviz.models.compiler import build
from specviz.models.memory import products
from specviz.settings import cache_dir


def own_cache(place: Path, patch: pytest.MonkeyPatch) -> Path:
    """A cache below this place, in force with the patch. It begins with what is made once for a machine."""
    products()
    build().wait()
    folder = place / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    for made in [*cache_dir().glob("columns-*"), *cache_dir().glob("quick-*")]:
        shutil.copy(made, folder)
    patch.setenv("SPECVIZ_CACHE", str(folder))
    return folder
