"""Docstrings can be read alone: the first sentence names what it speaks of, and is not the end of another one."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "specviz"
FILES = sorted(PACKAGE.rglob("*.py"))
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
POINTS_ELSEWHERE = re.compile(
    r"(?:Those|These|The same|Of|As|Its|Both|None|Which|Who|Where|While|Per|From|For|With|At|By|On|Under|Over|In"
    r"|All (?:that|of|those)|One (?:that|of|with|more|per|for)|What (?:it|they|he))\b"
)
A_FIELD = re.compile(r"[a-z_]+(?:, [a-z_]+)*:")
NAMES_OF_PROGRAMS = ("specviz", "python -m specviz")


def docstrings(path):
    """Name in the file -> first sentence of each docstring."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        name = getattr(node, "name", "module")
        says_arguments = name == "__init__"  # the class says what it is
        if isinstance(node, DOCUMENTED) and not says_arguments and (text := ast.get_docstring(node)):
            yield name, " ".join(text.partition("\n\n")[0].split())


def is_whole(sentence):
    """Whether a reader who sees only this docstring can know what it speaks of."""
    begins_small = sentence[0].islower() and not sentence.startswith(NAMES_OF_PROGRAMS)
    return not (begins_small or POINTS_ELSEWHERE.match(sentence) or A_FIELD.match(sentence))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_docstring_begins_with_a_sentence_that_stands_alone(path):
    assert {name: sentence for name, sentence in docstrings(path) if not is_whole(sentence)} == {}


@pytest.mark.parametrize(
    "sentence",
    [
        "Those that a step has.",
        "The same of a draft.",
        "One that runs some layers.",
        "done, total: steps.",
        "of a run.",
    ],
)
def test_a_sentence_that_points_elsewhere_would_be_found(sentence):
    assert not is_whole(sentence)


@pytest.mark.parametrize("sentence", ["Writes a file.", "One token of a step.", "The rows.", "Whether it is exact."])
def test_a_whole_sentence_passes(sentence):
    assert is_whole(sentence)
