"""The browser's half as one script and one style sheet per page: `bundle` follows `import` from an entry in assets/web.

A module imports names from files, by paths that begin with a dot. It exports functions, classes and constants. A style
sheet of the same name may lie beside it. Only the modules say what a page loads; no list repeats it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specviz.settings import assets_dir

IMPORT = re.compile(r"^import \{([^{}]*)\} from '(\.[^']*)';\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function\*?)\s+(\w+))", re.MULTILINE)
EXPORTS_AT_THE_END = re.compile(r"\bexport\s*\{([^{}]*)\};?\s*\Z")  # as minified code has them
COMMENT = re.compile(r"^ *(?:// .*|/\*\*(?:(?!\*/)[\s\S])*\*/)\n", re.MULTILINE)
"""A comment on lines of its own: it is for a reader or for the types' checker, and no page needs it."""
NOT_UNDERSTOOD = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bundle:
    """All code and all styles of one page."""

    script: str
    sheet: str


def web_file(name: str) -> Path:
    """A file of the browser's half, by its path in assets/web."""
    return assets_dir() / "web" / name


@cache
def bundle(entry: Path) -> Bundle:
    """All modules that the entry needs, as one classic script, and their sheets. A module follows those it imports.

    Raises ValueError for a circle, a file or name that does not exist, and any other form of import or export.
    """
    exports: dict[Path, set[str]] = {}
    code = "".join(_modules(entry.resolve(), (), exports))
    sheets = [path.with_suffix(".css") for path in exports]
    sheet = "".join(path.read_text("utf-8") for path in sheets if path.is_file())
    return Bundle(f"(() => {{\n'use strict';\nconst modules = {{}};\n{code}}})();\n", sheet)


def _modules(path: Path, above: tuple[Path, ...], exports: dict[Path, set[str]]) -> Iterator[str]:
    """Yields the code of every module that this one needs, and of this one last.

    above: the modules that import this one, from the entry on. exports: each finished module's names; it is extended.
    """
    if path in above:
        circle = [*above[above.index(path) :], path]
        names = " -> ".join(module.name for module in circle)
        raise ValueError(f"modules must not import each other in a circle (got {names})")
    if path in exports:
        return
    if not path.is_file():
        raise ValueError(
            f"a module must be a file that exists (got {path.name}, imported by {above[-1].name})"
        )
    source = COMMENT.sub("", path.read_text("utf-8"))
    imports = ""
    for names, place in IMPORT.findall(source):
        imported = (path.parent / place).resolve()
        yield from _modules(imported, (*above, path), exports)
        pairs = _pairs(names)
        if missing := {name for name, _ in pairs} - exports[imported]:
            raise ValueError(
                f"{path.name} imports {sorted(missing)} from {place}, which exports no such name"
            )
        number = list(exports).index(imported)
        imports += f"const {_braced(pairs)} = modules[{number}];\n"
    exported = []  # (name outside, name inside)
    if listed := EXPORTS_AT_THE_END.search(source):
        exported += [(outer, inner) for inner, outer in _pairs(listed[1])]
    exported += [(name, name) for name in EXPORT.findall(source)]
    source = EXPORT.sub("", IMPORT.sub("", EXPORTS_AT_THE_END.sub("", source)))
    if strange := NOT_UNDERSTOOD.search(source):
        raise ValueError(
            f"{path.name}: only named imports and exports of one line are understood (got {strange[0]!r})"
        )
    module = f"{imports}{source}\nreturn {_braced(exported)};\n"
    yield f"modules[{len(exports)}] = (() => {{\n{module}}})();\n"
    exports[path] = {name for name, _ in exported}


def _pairs(listed: str) -> list[tuple[str, str]]:
    """Every (name, its other name) in a list such as "a, b as c"; a name without another one stands twice."""
    pairs = []
    for entry in listed.split(","):
        if entry.strip():
            names = entry.strip().split(" as ")
            pairs.append((names[0], names[-1]))
    return pairs


def _braced(pairs: Sequence[tuple[str, str]]) -> str:
    """The pairs as JavaScript writes them in an object: "{ a: a, b: c }"."""
    entries = [f"{name}: {other}" for name, other in pairs]
    return f"{{ {', '.join(entries)} }}"
