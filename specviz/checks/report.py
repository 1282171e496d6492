"""Report: what all checks came to, for a terminal, for a JSON file, and as an exit code for automatic tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

STATES = ("differs", "suspicious", "unsure", "consistent", "exact")  # the first that occurs is the report's own
EXIT_CODES = {"exact": 0, "consistent": 0, "differs": 1, "unsure": 3, "suspicious": 4}
EXIT_WORDS = {0: "exact or consistent", 1: "differs", 3: "cannot tell", 4: "suspicious: draw more"}
MARKS = {"exact": "=", "consistent": "~", "differs": "x", "unsure": "?", "suspicious": "!"}
NAMES = {name: name for name in STATES} | {"unsure": "cannot tell"}
OVERALL = {
    "exact": "every check is exact, and all of them agree with the target",
    "consistent": "nothing speaks against the target's law; what would have been seen stands beside each check",
    "differs": "at least one check contradicts the target's law",
    "suspicious": "the evidence leans against the target's law; its own line says how much more it takes to decide",
    "unsure": "nothing differs, but at least one check could not tell; its own line says why",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check. verdict: one of STATES; numbers: what it rests on, JSON-safe."""

    name: str
    verdict: str
    words: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleLine:
    """A rule of the table of rules on the same drafts."""

    title: str
    lossless: bool
    verdict: str
    acceptance: float | None
    tokens_per_call: float | None
    mean_distance: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """about: everything needed to run the checks again."""

    about: Mapping[str, Any]
    checks: tuple[CheckResult, ...]
    rules: tuple[RuleLine, ...] = ()

    @property
    def verdict(self) -> str:
        found = {check.verdict for check in self.checks}
        return next((state for state in STATES if state in found), "unsure")

    @property
    def exit_code(self) -> int:
        """See EXIT_WORDS."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "about": dict(self.about),
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "checks": [{**asdict(check), "numbers": dict(check.numbers)} for check in self.checks],
            "rules": [asdict(line) for line in self.rules],
        }

    def text(self) -> str:
        """For a terminal."""
        lines = ["Check: is the text the target's own?", ", ".join(f"{name} {self.about[name]}" for name in self.about)]
        lines += ["", *(line for check in self.checks for line in _check_lines(check))]
        if self.rules:
            lines += ["", *_rule_lines(self.rules)]
        lines += ["", f"{MARKS[self.verdict]} {NAMES[self.verdict]}: {OVERALL[self.verdict]} (exit {self.exit_code})"]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def _check_lines(check: CheckResult) -> list[str]:
    return [f"{MARKS[check.verdict]} {check.name}", f"    {check.words}"]


def _rule_lines(rules: tuple[RuleLine, ...]) -> list[str]:
    width = max(len(line.title) for line in rules)
    head = f"  {'rules on the same drafts':<{max(width, 24)}}  kept    tokens/call  distance to p"
    rows = [
        f"{MARKS[line.verdict]} {line.title:<{max(width, 24)}}  {_number(line.acceptance, '.1%'):<6}  "
        f"{_number(line.tokens_per_call, '.3f'):<11}  {_number(line.mean_distance, '.4f')}"
        for line in rules
    ]
    return [head, *rows, "  Acceptance alone cannot tell right from wrong: read the last column."]


def _number(value: float | None, spelling: str) -> str:
    return "n/a" if value is None else format(value, spelling)
