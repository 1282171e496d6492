"""The page's languages: a table of sentences for each, by their English words (core/language.js looks them up)."""

import json
from collections.abc import Mapping
from functools import cache

from specviz.settings import assets_dir
from specviz.views.blocks import pack


@cache
def languages() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Every language but English by its code, as "de": its tables by the room of the page.

    A table maps an English sentence to the other language's. "{name}" stands for what changes, "<>" for an element
    inside the sentence. What a table lacks stays English.
    """
    paths = sorted((assets_dir() / "words").glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in paths}


@cache
def packed_languages(room: str = "") -> Mapping[str, str]:
    """The tables as data of a page that asks no server, by id. room: the only one that it needs; "": all."""
    data = {}
    for language, tables in languages().items():
        needed = {room: tables[room]} if room else tables
        data[f"sv-words-{language}"] = pack(needed)
    return data
