"""The size of the house: lines per room, files per folder, lines per function. tests/budget.toml holds the numbers."""

import ast
import re
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
FOLDERS = sorted({path.parent for path in FILES})


def room_of(path: Path) -> str:
    """The folder under specviz/ that a file is in; "top" for files beside the folders."""
    inside = path.relative_to(PACKAGE).parts
    return inside[0] if len(inside) > 1 else "top"


def lines_by_room() -> dict[str, int]:
    lines: dict[str, int] = {}
    for path in FILES:
        lines[room_of(path)] = lines.get(room_of(path), 0) + len(path.read_text("utf-8").splitlines())
    lines.pop("zoo")
    return lines


@pytest.mark.parametrize("room", lines_by_room())
def test_a_room_keeps_to_its_lines(room):
    assert lines_by_room()[room] <= BUDGET["rooms"][room]


def test_the_package_grows_only_for_a_named_user():
    assert all(growth["for"].strip() and growth["lines"] > 0 for growth in BUDGET["growth"])
    assert sum(lines_by_room().values()) <= BUDGET["package"] + sum(growth["lines"] for growth in BUDGET["growth"])


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


def test_the_browsers_half_keeps_to_its_lines():
    assert sum(len(path.read_text("utf-8").splitlines()) for path in OWN_WEB) <= BUDGET["web"]["lines"]


def blocks_of(source: str) -> dict[str, int]:
    """Lines of each block of JavaScript that is no class, by its first line: it ends where its indent comes back."""
    lines, found = source.splitlines(), {}
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
