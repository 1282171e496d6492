"""What slow tests cover: `tests/slow.toml` lists the files that each depends on, and their hash at its last pass.

Only a pass of the slow test renews the hash; `tests/test_slow.py` fails where it is stale. As a program it prints which
tests are due.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "slow.toml"
COMMAND = "python -m pytest -n 2 -m slow"


def listed(path: Path = LIST) -> dict[str, dict]:
    """By test, a file's path or `path::function`: `covers`, patterns of files, and `sha256`. "@name" among the patterns
    stands for those of that name under [sets]."""
    entries = tomllib.loads(path.read_text("utf-8"))
    sets = {f"@{name}": patterns for name, patterns in entries.pop("sets", {}).items()}
    for entry in entries.values():
        entry["covers"] = [pattern for each in entry["covers"] for pattern in sets.get(each, [each])]
    return entries


def digest(covers: Sequence[str], root: Path = ROOT) -> str:
    """Of the names and bytes of all files that match; FileNotFoundError where a pattern matches none."""
    found = set()
    for pattern in covers:
        files = [path for path in root.glob(pattern) if path.is_file() and path.suffix != ".pyc"]
        if not files:
            raise FileNotFoundError(f"tests/slow.toml: no file matches {pattern}")
        found.update(files)
    whole = hashlib.sha256()
    for path in sorted(found):
        whole.update(f"{path.relative_to(root).as_posix()}\n".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def due() -> list[str]:
    """Tests that cover a file which has changed since they last passed."""
    return [name for name, entry in listed().items() if entry["sha256"] != digest(entry["covers"])]


def name_of(test: str, names: Collection[str]) -> str | None:
    """The entry that a test's id belongs to."""
    plain = test.partition("[")[0]
    return next((name for name in (plain, plain.partition("::")[0]) if name in names), None)


def asked_for(name: str, arguments: Collection[str]) -> bool:
    """Whether these arguments of pytest run all of an entry."""
    return any(name == each or name.startswith((f"{each.rstrip('/')}/", f"{each}::")) for each in arguments)


def renew(passed: Collection[str], path: Path = LIST, root: Path = ROOT) -> None:
    """Writes today's hash for these entries."""
    text = path.read_text("utf-8")
    for name, entry in listed(path).items():
        if name in passed:
            now = f'sha256 = "{digest(entry["covers"], root)}"'
            head, heading, rest = text.partition(f'["{name}"]\n')
            text = head + heading + re.sub(r'^sha256 = "\w*"', now, rest, count=1, flags=re.MULTILINE)
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    print(*due())
