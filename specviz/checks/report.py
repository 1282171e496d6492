"""Report: what all checks came to, for a terminal, for a JSON file, and as an exit code for automatic tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specviz.checks.side_by_side import RuleResult

STATES = (
    "differs",
    "suspicious",
    "unsure",
    "consistent",
    "exact",
)  # the first that occurs is the report's own
EXIT_CODES = {"exact": 0, "consistent": 0, "differs": 1, "unsure": 3, "suspicious": 4}
EXIT_WORDS = {0: "exact or consistent", 1: "differs", 3: "cannot tell", 4: "suspicious: draw more"}
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
    """One check. verdict: one of STATES; numbers: what it rests on, JSON-safe."""

    name: str
    verdict: str
    words: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """about: everything needed to run the checks again. rules: every rule on the same drafts."""

    about: Mapping[str, Any]
    checks: tuple[CheckResult, ...]
    rules: tuple[RuleResult, ...] = ()

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
            "rules": [
                {"title": row.rule.title, "lossless": row.rule.lossless}
                | {name: getattr(row, name) for name in RULE_NUMBERS}
                for row in self.rules
            ],
        }

    def __str__(self) -> str:
        """For a terminal."""
        lines = [
            "Check: is the text the target's own?",
            ", ".join(f"{name} {self.about[name]}" for name in self.about),
        ]
        lines += [
            "",
            *(f"{MARKS[check.verdict]} {check.name}\n    {check.words}" for check in self.checks),
        ]
        if self.rules:
            lines += ["", *_rule_lines(self.rules)]
        name = "cannot tell" if self.verdict == "unsure" else self.verdict
        lines += [
            "",
            f"{MARKS[self.verdict]} {name}: {OVERALL[self.verdict]} (exit {self.exit_code})",
        ]
        return "\n".join(lines)


def _rule_lines(results: Sequence[RuleResult]) -> list[str]:
    width = max(24, *(len(row.rule.title) for row in results))
    head = f"  {'rules on the same drafts':<{width}}  accepted  tokens/call  distance to p"
    rows = [
        f"{MARKS[row.verdict]} {row.rule.title:<{width}}  {_format(row.acceptance, '.1%'):<8}  "
        f"{_format(row.tokens_per_call, '.3f'):<11}  {_format(row.mean_distance, '.4f')}"
        for row in results
    ]
    return [head, *rows, "  Acceptance alone cannot tell right from wrong: read the last column."]


def _format(value: float | None, spelling: str) -> str:
    return "n/a" if value is None else format(value, spelling)
