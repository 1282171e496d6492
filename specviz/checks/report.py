"""Report: what all checks came to, for a terminal, for a JSON file, and as an exit code for automatic tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specviz.checks.side_by_side import RuleResult

STATES = ("differs", "suspicious", "unsure", "consistent", "exact")
"""The verdict of a report is the first of these that one of its checks has."""
EXIT_CODES = {"exact": 0, "consistent": 0, "differs": 1, "unsure": 3, "suspicious": 4}
EXIT_WORDS = {
    0: "exact or no difference found",
    1: "differs",
    3: "cannot tell",
    4: "suspicious: draw more",
}
NAMES = {
    "consistent": "no difference found",
    "unsure": "cannot tell",
}  # others are named as they are
MARKS = {"exact": "=", "consistent": "~", "differs": "x", "unsure": "?", "suspicious": "!"}
RULE_NUMBERS = ("verdict", "acceptance", "tokens_per_call", "mean_distance")  # of the JSON file
OVERALL = {
    "exact": "every check is exact and agrees with the target",
    "consistent": "nothing contradicts the target; what each check would have detected stands beside it",
    "differs": "at least one check contradicts the target",
    "suspicious": "the evidence leans against the target; its own line says how many more tokens decide",
    "unsure": "nothing differs, but at least one check cannot tell; its own line says why",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check came to."""

    name: str
    verdict: str  # one of STATES
    words: str
    numbers: Mapping[str, Any] = field(default_factory=dict)  # what it rests on, JSON-safe


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks came to."""

    about: Mapping[str, Any]  # everything that is needed to run the checks again
    checks: tuple[CheckResult, ...]
    rules: tuple[RuleResult, ...] = ()  # every rule on the same drafts

    @property
    def verdict(self) -> str:
        found = {check.verdict for check in self.checks}
        return next((state for state in STATES if state in found), "unsure")

    @property
    def exit_code(self) -> int:
        """The exit code of a command; EXIT_WORDS says what it means."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        rules = []
        for row in self.rules:
            numbers = {name: getattr(row, name) for name in RULE_NUMBERS}
            rules.append({"title": row.rule.title, "lossless": row.rule.lossless, **numbers})
        return {
            "about": dict(self.about),
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "checks": [{**asdict(check), "numbers": dict(check.numbers)} for check in self.checks],
            "rules": rules,
        }

    def __str__(self) -> str:
        """The report as lines for a terminal."""
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        lines = ["Check: is the text the target's own?", about, ""]
        for check in self.checks:
            lines.append(f"{MARKS[check.verdict]} {check.name}\n    {check.words}")
        if self.rules:
            lines += ["", *_rule_lines(self.rules)]
        name = NAMES.get(self.verdict, self.verdict)
        overall = f"{OVERALL[self.verdict]} (exit {self.exit_code})"
        lines += ["", f"{MARKS[self.verdict]} {name}: {overall}"]
        return "\n".join(lines)


def _rule_lines(results: Sequence[RuleResult]) -> list[str]:
    width = max(24, *(len(row.rule.title) for row in results))
    head = f"  {'rules on the same drafts':<{width}}  accepted  tokens/call  distance to p"
    rows = []
    for row in results:
        accepted = _format(row.acceptance, ".1%")
        per_call = _format(row.tokens_per_call, ".3f")
        distance = _format(row.mean_distance, ".4f")
        name = f"{MARKS[row.verdict]} {row.rule.title:<{width}}"
        rows.append(f"{name}  {accepted:<8}  {per_call:<11}  {distance}")
    return [head, *rows, "  Acceptance alone cannot tell right from wrong: read the last column."]


def _format(value: float | None, spelling: str) -> str:
    return "n/a" if value is None else format(value, spelling)
