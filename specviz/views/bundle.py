"""The browser's half as one script and one style sheet per page: `bundle` follows `import` from an entry in assets/web.

A module imports names from files whose paths begin with a dot, exports functions, classes and constants, and has a
style sheet if one of its name lies beside it. What a page loads stands in its modules alone, so no list repeats it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specviz.settings import assets_dir

IMPORT = re.compile(r"^import \{([^{}]*)\} from '(\.[^']*)';\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function)\s+(\w+))", re.MULTILINE)
EXPORTS_AT_THE_END = re.compile(r"\bexport\s*\{([^{}]*)\};?\s*\Z")  # as minified code has them
NOT_UNDERSTOOD = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bundle:
    script: str
    sheet: str


def web_file(name: str) -> Path:
    """A file of the browser's half, by its path in assets/web."""
    return assets_dir() / "web" / name


@cache
def bundle(entry: Path) -> Bundle:
    """All modules that the entry needs, each after those that it imports, as one classic script, and their sheets.
    Raises ValueError for a circle, a file or name that does not exist, and any other form of import or export."""
    exports: dict[Path, set[str]] = {}
    code = "".join(_modules(entry.resolve(), (), exports))
    sheets = (path.with_suffix(".css") for path in exports)
    sheet = "".join(path.read_text("utf-8") for path in sheets if path.is_file())
    return Bundle(f"(() => {{\n'use strict';\nconst modules = {{}};\n{code}}})();\n", sheet)


def _modules(path: Path, above: tuple[Path, ...], exports: dict[Path, set[str]]) -> Iterator[str]:
    """The code of a module, after that of those it imports. exports: of the modules that came before; it is added."""
    if path in above:
        circle = " -> ".join(each.name for each in (*above[above.index(path) :], path))
        raise ValueError(f"modules must not import each other in a circle (got {circle})")
    if path in exports:
        return
    if not path.is_file():
        raise ValueError(
            f"a module must be a file that exists (got {path.name}, imported by {above[-1].name})"
        )
    source = path.read_text("utf-8")
    bound = []
    for names, place in IMPORT.findall(source):
        other = (path.parent / place).resolve()
        yield from _modules(other, (*above, path), exports)
        wanted = _pairs(names)
        if missing := {name for name, _ in wanted} - exports[other]:
            raise ValueError(
                f"{path.name} imports {sorted(missing)} from {place}, which exports no such name"
            )
        bound.append(f"const {_braced(wanted)} = modules[{list(exports).index(other)}];\n")
    listed = EXPORTS_AT_THE_END.search(source)
    given = [(outer, inner) for inner, outer in _pairs(listed[1])] if listed else []
    given += [(name, name) for name in EXPORT.findall(source)]
    source = EXPORT.sub("", IMPORT.sub("", EXPORTS_AT_THE_END.sub("", source)))
    if strange := NOT_UNDERSTOOD.search(source):
        raise ValueError(
            f"{path.name}: only named imports and exports of one line are understood (got {strange[0]!r})"
        )
    yield f"modules[{len(exports)}] = (() => {{\n{''.join(bound)}{source}\nreturn {_braced(given)};\n}})();\n"
    exports[path] = {name for name, _ in given}


def _pairs(listed: str) -> list[tuple[str, str]]:
    """(name, its other name) of each that stands between the braces."""
    names = (each.strip().split(" as ") for each in listed.split(",") if each.strip())
    return [(name[0], name[-1]) for name in names]


def _braced(pairs: Sequence[tuple[str, str]]) -> str:
    return f"{{ {', '.join(': '.join(pair) for pair in pairs)} }}"
