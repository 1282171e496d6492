"""A cache that belongs to one test, on a machine that is measured once and not for every test."""

import shutil
from pathlib import Path

import pytest

from specviz.models.memory import products
from specviz.settings import cache_dir


def own_cache(place: Path, patch: pytest.MonkeyPatch) -> Path:
    """A cache below this place, in force with the patch. It begins with how the machine multiplies few rows."""
    products()
    folder = place / "cache"
    folder.mkdir(parents=True, exist_ok=True)
    for measured in cache_dir().glob("forms-of-products-*"):
        shutil.copy(measured, folder)
    patch.setenv("SPECVIZ_CACHE", str(folder))
    return folder
