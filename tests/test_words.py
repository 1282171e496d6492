"""One vocabulary in what a person reads. Words without a space are keys of traces, tables and classes: these stay."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "specviz"
ROOMS = ("views/compare", "views/check", "alignment", "analysis", "bench", "checks", "cli", "decoding", "models")
OLD = re.compile(r"\b(kept|cuts?|dart|owed|odds|favourites?|befell|anew|told|replaced|large model)\b")


def sentences(path):
    """The strings with a space in a file, without docstrings and the words under a constant."""
    tree = ast.parse(path.read_text("utf-8"))
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [node.value for node in strings if id(node) not in notes and " " in node.value]


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_has_a_word_that_another_one_stands_for(room):
    found = {path: sentences(path) for path in (PACKAGE / room).rglob("*.py")}
    assert any(found.values())
    assert [(path.name, words) for path, all_words in found.items() for words in all_words if OLD.search(words)] == []
