"""The dependency audit of a release: its bill of materials, and what CHANGELOG.md says was found.

`.ci/release` runs this; `test_dependency_audit.py` reads what stands written. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"
HEADING = "### Dependency audit\n"
SOURCES = {"pypi": "PyPI", "osv": "OSV", "esms": "ecosyste.ms"}
"""Whom pip-audit asks, by the name that it takes."""
LONGEST_REASON = 200
_SECTION = re.compile(rf"^{HEADING}(?:- .*\n(?:  .*\n)*)*", re.MULTILINE)
_RELEASE = re.compile(r"^## ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Package:
    """A package that a fresh install brings. version: the public one, without the name of a build such as +cpu."""

    name: str
    version: str

    @property
    def key(self) -> tuple[str, str]:
        """The same for every spelling of the name."""
        return re.sub(r"[-_.]+", "-", self.name).lower(), self.version

    def __str__(self) -> str:
        return f"`{self.name}` {self.version}"


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of the packages that were asked about. vulnerabilities: a sentence for each; reason: the words of
    pip-audit where it got no answer."""

    asked: tuple[Package, ...]
    unanswered: tuple[Package, ...]
    vulnerabilities: tuple[str, ...]
    reason: str

    @property
    def is_clean(self) -> bool:
        return not self.unanswered and not self.vulnerabilities

    def told(self, audited: str) -> list[str]:
        """In words: whether there was an audit and what it says, then each vulnerability. audited: who asked whom."""
        attempt = f"{audited} about {len(self.asked)} packages"
        if len(self.unanswered) == len(self.asked):
            return [f'Not audited: {attempt} and got no answer about any of them. Its words: "{self.reason}".']
        missing = f" No answer came about {', '.join(map(str, self.unanswered))}." if self.unanswered else ""
        others = "the others" if self.unanswered else "any of them"
        num_known = len(self.vulnerabilities)
        verdict = f"Known vulnerabilities: {num_known}." if num_known else f"No vulnerability is known in {others}."
        return [f"Audited: {attempt}.{missing} {verdict}", *self.vulnerabilities]


@dataclass(frozen=True, slots=True)
class Standing:
    """The newest audit that stands in a changelog. outcome: its first sentence and on; release: specviz's version."""

    outcome: str
    release: str
    requirements: tuple[str, ...]

    @property
    def was_made(self) -> bool:
        return self.outcome.startswith("Audited: ")


def requirements() -> tuple[str, ...]:
    """The lines of requirements.txt: what a release asks for."""
    return tuple((ROOT / "requirements.txt").read_text("utf-8").splitlines())


def settle(bill: dict[str, Any], wheel: Path) -> dict[str, Any]:
    """The bill about the wheel: the wheel is what it describes, with its hash and without this machine's folders; the
    other packages are its parts."""
    (own,) = [part for part in bill["components"] if part["name"] == "specviz-explorer"]
    hashes = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    elsewhere = [each for each in own["externalReferences"] if each["type"] != "distribution"]
    own |= {"type": "application", "hashes": hashes, "externalReferences": elsewhere}
    others = [part for part in bill["components"] if part is not own]
    return {**bill, "metadata": {**bill["metadata"], "component": own}, "components": others}


def packages_of(bill: dict[str, Any]) -> list[Package]:
    """What the bill lists beside specviz itself."""
    return [Package(part["name"], part["version"].partition("+")[0]) for part in bill["components"]]


def findings(asked: Sequence[Package], report: dict[str, Any], said: str) -> Findings:
    """What came of asking about these packages. report: pip-audit's, {} where it wrote none; said: what it printed."""
    entries = report.get("dependencies", [])
    answers = {Package(entry["name"], entry["version"]).key: entry["vulns"] for entry in entries if "vulns" in entry}
    unanswered = tuple(package for package in asked if package.key not in answers)
    known = tuple(_told(package, each) for package in asked for each in answers.get(package.key, ()))
    reasons = [entry["skip_reason"] for entry in entries if "skip_reason" in entry] or said.splitlines()[-1:]
    return Findings(tuple(asked), unanswered, known, _one_line(*reasons[:1]))


def _told(package: Package, known: dict[str, Any]) -> str:
    names = " ".join(f"`{_one_line(name)}`" for name in (known["id"], *known["aliases"]))
    fixed = ", ".join(map(_one_line, known["fix_versions"]))
    return f"{package}: {names}, {f'fixed in {fixed}' if fixed else 'not fixed yet'}."


def _one_line(words: str = "") -> str:
    """Another's words: one line of them, and no mark-up."""
    return re.sub(r"[`<>\[\]\"]", "", " ".join(words.split()))[:LONGEST_REASON]


def section(found: Findings, audited: str, bill: dict[str, Any], bill_name: str) -> str:
    """The section of the changelog. audited: who asked whom, and when; bill: of materials, in the file bill_name."""
    machine = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    release = bill["metadata"]["component"]["version"]
    (lister,) = [tool for tool in bill["metadata"]["tools"]["components"] if tool["name"] == "cyclonedx-py"]
    items = [
        *found.told(audited),
        f"Packages: what a fresh install of specviz {release} brings with {machine}, listed by cyclonedx-py "
        f"{lister['version']} in `{bill_name}`.",
        f"Requirements: {', '.join(f'`{each}`' for each in requirements())}.",
    ]
    return HEADING + "".join(f"{_wrapped(item)}\n" for item in items)


def _wrapped(item: str) -> str:
    lines = {"initial_indent": "- ", "subsequent_indent": "  "}
    return textwrap.fill(item, 120, **lines, break_long_words=False, break_on_hyphens=False)


def with_section(changelog: str, new: str) -> str:
    """The changelog whose newest release has this section, in place of the one that it had, or at its end."""
    start, end, *_ = [*(match.start() for match in _RELEASE.finditer(changelog)), len(changelog)]
    before, newest, after = changelog[:start], changelog[start:end], changelog[end:]
    if _SECTION.search(newest):
        newest = _SECTION.sub(lambda _: new, newest, count=1)
    else:
        newest = f"{newest.rstrip()}\n\n{new}" + ("\n" if after else "")
    return f"{before}{newest}{after}"


def standing(changelog: str) -> Standing | None:
    """The newest audit that the changelog tells of; None where there is none."""
    if (found := _SECTION.search(changelog)) is None:
        return None
    _, outcome, *_, packages, listed = (
        " ".join(item.split()) for item in re.split("^- ", found[0], flags=re.MULTILINE)
    )
    release = re.search(r"install of specviz (\S+) ", packages)
    return Standing(outcome, release[1] if release else "", tuple(re.findall(r"`([^`]+)`", listed)))


def differences(asked: Iterable[str], written: Iterable[str]) -> str:
    """How the requirements differ from those that an audit was written for, in words; "" where they do not."""
    asked, written = set(asked), set(written)
    new = [f"new: {', '.join(sorted(asked - written))}"] if asked - written else []
    old = [f"gone: {', '.join(sorted(written - asked))}"] if written - asked else []
    return "; ".join(new + old)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dependency_audit", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    settling = steps.add_parser("settle", help="make a bill of materials that of the wheel; print its packages")
    noting = steps.add_parser("note", help="write into CHANGELOG.md what was found")
    for step in (settling, noting):
        step.add_argument("bill", type=Path)
    settling.add_argument("wheel", type=Path)
    noting.add_argument("service", choices=SOURCES)
    noting.add_argument("said", type=Path, help="a folder with report.json, said.txt and tool.txt of pip-audit")
    given = parser.parse_args(arguments)
    return _settle(given.bill, given.wheel) if given.step == "settle" else _note(given.bill, given.service, given.said)


def _settle(place: Path, wheel: Path) -> int:
    bill = settle(json.loads(place.read_text("utf-8")), wheel)
    place.write_text(f"{json.dumps(bill, indent=2, sort_keys=True)}\n", "utf-8")
    print(*(f"{package.name}=={package.version}" for package in packages_of(bill)), sep="\n")
    return 0


def _note(place: Path, service: str, said: Path) -> int:
    bill, report = json.loads(place.read_text("utf-8")), said / "report.json"
    found = findings(
        packages_of(bill),
        json.loads(report.read_text("utf-8")) if report.is_file() else {},
        (said / "said.txt").read_text("utf-8"),
    )
    tool, today = (said / "tool.txt").read_text("utf-8").strip(), datetime.now(timezone.utc).date()
    new = section(found, f"on {today} {tool} asked {SOURCES[service]}", bill, place.name)
    CHANGELOG.write_text(with_section(CHANGELOG.read_text("utf-8"), new), "utf-8")
    print(new, end="")
    return 0 if found.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
