"""The size of the house: tokens per room, files per folder, lines per function. tests/budget.toml holds the numbers."""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "specviz"
BUDGET = tomllib.loads((ROOT / "tests" / "budget.toml").read_text("utf-8"))
FILES = sorted(PACKAGE.rglob("*.py"))
WEB = [path for path in sorted((ROOT / "assets/web").rglob("*.[jc]s*")) if path.suffix in (".js", ".css")]
OWN_WEB = [path for path in WEB if path.parent.name != "vendor"]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
TRAILING = {(",", ")"), (",", "]"), (",", "}")}
FOLDERS = sorted({path.parent for path in FILES})


def room_of(path: Path) -> str:
    """The folder under specviz/ that a file is in; "top" for files beside the folders."""
    inside = path.relative_to(PACKAGE).parts
    return inside[0] if len(inside) > 1 else "top"


@cache
def tokens_of(source: str) -> list[tokenize.TokenInfo]:
    """The tokens of Python in a file, without comments, docstrings and layout, as a comma before a bracket closes."""
    texts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr) and is_text(node.value)]
    documented = {line for text in texts for line in range(text.lineno, text.end_lineno + 1)}
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT or token.start[0] in documented:
            continue
        if found and (found[-1].string, token.string) in TRAILING:
            found.pop()
        found.append(token)
    return found


def num_tokens(source: str) -> int:
    return len(tokens_of(source))


def num_lines(source: str) -> int:
    """The lines on which any of these tokens stands."""
    return len({line for token in tokens_of(source) for line in range(token.start[0], token.end[0] + 1)})


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@cache
def tokens_by_room() -> dict[str, int]:
    tokens: dict[str, int] = {}
    for path in FILES:
        tokens[room_of(path)] = tokens.get(room_of(path), 0) + num_tokens(path.read_text("utf-8"))
    tokens.pop("zoo")
    return tokens


@pytest.mark.parametrize("room", BUDGET["rooms"])
def test_a_room_keeps_to_its_tokens(room):
    assert tokens_by_room()[room] <= BUDGET["rooms"][room]


def test_every_room_has_a_budget():
    assert tokens_by_room().keys() == BUDGET["rooms"].keys()


def test_the_package_grows_only_for_a_named_user():
    assert all(growth["for"].strip() and growth["tokens"] > 0 for growth in BUDGET["growth"])
    assert sum(tokens_by_room().values()) <= BUDGET["package"] + sum(growth["tokens"] for growth in BUDGET["growth"])


def test_lines_comments_and_docstrings_cost_nothing():
    short = "def f(x):\n    return x + 1\n"
    long = 'def f(\n    x,\n):  # one\n    """It adds\n    one."""\n\n    return (\n        x + 1\n    )\n'
    assert num_tokens(short) == 10
    assert num_tokens(long) == 12  # and two brackets


def test_a_line_holds_few_tokens():
    sources = {path: path.read_text("utf-8") for path in FILES if room_of(path) != "zoo"}
    lines = {path: num_lines(source) for path, source in sources.items()}
    tokens = {path: num_tokens(source) for path, source in sources.items()}
    assert sum(tokens.values()) <= BUDGET["tokens_per_line"] * sum(lines.values())
    dense = {
        path.relative_to(PACKAGE).as_posix(): round(tokens[path] / lines[path], 1)
        for path in sources
        if tokens[path] > BUDGET["tokens_per_line_of_a_file"] * lines[path]
    }
    assert dense == {}


def test_the_lines_of_a_folded_call_are_all_counted():
    assert num_lines("f(\n    1,\n    2,\n)\n\n# one\nx = 1\n") == 5
    assert num_tokens("f(\n    1,\n    2,\n)\n\n# one\nx = 1\n") == 9


def test_few_files_lie_side_by_side():
    most = {folder: BUDGET["files_at_the_top" if folder == PACKAGE else "files_in_a_folder"] for folder in FOLDERS}
    counts = {folder: len(list(folder.glob("*.py"))) for folder in FOLDERS}
    crowded = {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > most[folder]}
    assert crowded == {}


def test_no_function_is_long():
    functions = (
        (path, node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    long = {
        f"{path.relative_to(ROOT)}: {node.name}": length
        for path, node in functions
        if (length := node.end_lineno - node.lineno + 1) > BUDGET["lines_of_a_function"]
    }
    assert long == {}


def code_lines(source: str) -> list[str]:
    """The lines of JavaScript or of a style sheet that are neither empty nor comments."""
    without_blocks = re.sub(r"^ */\*.*?\*/ *$", "", source, flags=re.DOTALL | re.MULTILINE)
    return [line for line in without_blocks.splitlines() if line.strip() and not line.lstrip().startswith("//")]


def test_the_browsers_half_keeps_to_its_lines():
    assert sum(len(code_lines(path.read_text("utf-8"))) for path in OWN_WEB) <= BUDGET["web"]["lines"]


def test_comments_of_the_browsers_half_cost_nothing():
    comments = "// one\n/** @type {Host} */\n/**\n * three\n */\n\n  /* four */\n"
    source = f"{comments}let a = 1; // two\n{comments}let b = /** @type {{A}} */ (a);\n"
    assert code_lines(source) == ["let a = 1; // two", "let b = /** @type {A} */ (a);"]


def blocks_of(source: str) -> dict[str, int]:
    """Lines of each block of JavaScript that is no class, by its first line: it ends where its indent comes back."""
    lines, found = code_lines(source), {}
    for start, line in enumerate(lines):
        if line.endswith("{") and not re.match(r"\s*(export )?class\b", line):
            indent = re.match(r"\s*", line)[0]
            end = next(row for row in range(start + 1, len(lines)) if lines[row].startswith(f"{indent}}}"))
            found[line.strip()] = end - start + 1
    return found


def test_no_function_of_the_browsers_half_is_long():
    scripts = {path.name: blocks_of(path.read_text("utf-8")) for path in OWN_WEB if path.suffix == ".js"}
    found = {f"{name}: {line}": length for name, blocks in scripts.items() for line, length in blocks.items()}
    assert {name: length for name, length in found.items() if length > BUDGET["web"]["lines_of_a_function"]} == {}


def test_a_long_function_would_be_found():
    source = "class A {\n  run() {\n    a;\n  }\n}\nconst b = () => {\n  c;\n};"
    assert blocks_of(source) == {"run() {": 3, "const b = () => {": 3}
