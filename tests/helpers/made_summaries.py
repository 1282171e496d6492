"""Summaries, texts and comparisons of the lab made up for tests."""

import random
from dataclasses import replace

from specviz.alignment.report.texts import TextView
from specviz.alignment.summary import (
    AlphaDifference,
    Bin,
    Calibration,
    DraftComparison,
    DraftSummary,
    Loss,
    Pattern,
    Reason,
    Slice,
    Summary,
    Win,
)

NAMES = ("fable-draft", "fable-draft-undistilled", "fable-draft-tiny")


HOSTILE = '</script><img src=x onerror="alert(1)">\u202e\n'


WORDS = ("Once", "␣upon", "␣a", "␣time", ",", "␣there", "␣was", "␣a", "␣little", "␣fox", ".", "⏎", "␣Rusty")


DEPTHS = ("0-15", "16-31", "32-63", "64-127", "128-255")


COSTS = {"draft_ms": 0.4, "verify_ms": [2.1, 2.3], "context_length": 128, "device": "cpu", "dtype": "float32"}


REASONS = (
    "target certain, draft picks another",
    "draft overconfident",
    "near-tie",
    "same first choice, different confidence",
    "different first choices, neither sure",
)


LOSSES = (
    Loss("class", "word", 60.5, 0.6),
    Loss("class", "name", 40.3, 0.4),
    Loss("reason", "near-tie", 70.0, 1.0),
)


LOOKED_FOR = ("a damaged layer", "a different chat format", "tokens out of reach")


def interval(value, reach):
    return max(0.0, value - reach), min(1.0, value + reach)


def pattern(place, **changes):
    found = Pattern(
        before="word", token="␣fox", draft_token="␣dog", num_places=7, num_prompts=6, saved=4.2 - place / 10,
        interval=(1.5, 6.9 - place / 10), prompt=place % 40, id=f"story-{place % 40}", place=place,
    )  # fmt: skip
    return replace(found, **changes)


def slices_of(name, alpha):
    found = [("all", "all", 0.0), *(("depth", value, -0.03 * at) for at, value in enumerate(DEPTHS))]
    found += [("context", value, -0.02 * at) for at, value in enumerate(("16-23", "24-31", "32-47", "48-63", "64-95"))]
    found += [("class", value, shift) for value, shift in (("word", 0.02), ("name", -0.2), ("whitespace", 0.25))]
    found += [("tag", value, shift) for value, shift in (("story", 0.05), ("code", -0.1))]
    return [
        Slice(name, kind, value, 900 - 100 * (at % 7), 40 if kind == "all" else 35 - 3 * at % 40, alpha + shift,
              interval(alpha + shift, 0.04), alpha - 0.05, 2.4, 4, 1.2 + shift, cliff=value == "128-255",
              share=0.33, loss_share=0.57, excess=(0.1, 0.3), stands_out=value == "name")
        for at, (kind, value, shift) in enumerate(found)
    ]  # fmt: skip


def draft(name, alpha, fastest=1.4, **changes):
    bins = tuple(
        Bin(at / 10, (at + 1) / 10, 0.1, at / 10 + 0.05, min(1.0, alpha * (0.4 + at / 10))) for at in range(10)
    )
    reasons = tuple(Reason(reason, 0.2, 120 + at, f"in words: {reason}") for at, reason in enumerate(REASONS))
    made = DraftSummary(
        name=name, num_tokens=2560, num_prompts=40, alpha=alpha, alpha_interval=interval(alpha, 0.03),
        greedy_agreement=alpha - 0.04, mean_acceptance=alpha + 0.01, calls=900.0,
        tokens_per_call=tuple((1 - alpha ** (k + 1)) / (1 - alpha) for k in range(1, 17)),
        speedups=tuple(fastest - 0.02 * abs(k - 4) for k in range(1, 17)), best_k=(3, 5), readable=1.0, ceiling=1.0,
        calibration=Calibration(bins, 0.11, "A confidence stop would help: 12 % is accepted too seldom."),
        reasons=reasons, losses=LOSSES, findings=(), patterns=tuple(pattern(place) for place in range(20)),
    )  # fmt: skip
    return replace(made, **changes)


def comparison(a, b, significant=True):
    whole = AlphaDifference("all", "all", 40, 0.052, (0.031, 0.074), significant)
    tag = AlphaDifference("tag", "code", 11, -0.02, (-0.05, 0.01), None)
    wins = tuple(Win(at, f"story-{at}", 0.2 - at / 100) for at in range(10))
    return DraftComparison(a, b, "", (whole, tag), wins, wins[:3])


def made_summary(**changes):
    """A job that looks real: three drafts, forty prompts."""
    drafts = (draft(NAMES[0], 0.71), draft(NAMES[1], 0.62), draft(NAMES[2], 0.48, fastest=0.83))
    made = Summary(
        specviz="0.1.0", created="2026-01-02T03:04:05Z", target="fable-target",
        sampling={"temperature": 1.0, "top_k": 0, "top_p": 1.0}, seed=0, max_new_tokens=64, prompts="f" * 16,
        chat=False, k=4, num_prompts=40, num_tokens=2560, num_cut=0, looked_for=LOOKED_FOR, num_refused=2,
        refused=((7, "prompt must be a text (got 3)"), (9, "no prompt")), exact=True,
        note="Texts sampled from the target at these settings.", warnings=(),
        costs=dict.fromkeys(NAMES, COSTS),
        drafts=drafts, slices=tuple(each for one in drafts for each in slices_of(one.name, one.alpha)),
        comparisons=(comparison(NAMES[0], NAMES[1]), comparison(NAMES[0], NAMES[2])), by_prompt={},
    )  # fmt: skip
    return replace(made, **changes)


def made_text(number=0, size=64, names=NAMES, columns=None, **changes):
    """A text of made-up tokens, the same for the same number."""
    dice = random.Random(number)
    shares = lambda: [dice.random() for _ in range(size)]  # noqa: E731
    words = [WORDS[place % len(WORDS)] for place in range(size)]
    drafts = {
        name: {
            **{column: shares() for column in ("q", "keep", "overlap", "draft_most_likely_q", "saved")},
            "draft_most_likely_text": words[::-1], "reason": ["near-tie"] * size, "readable": [True] * size,
        }
        for name in names
    }  # fmt: skip
    of_target = {"text": words, "p": shares(), "most_likely_text": words, "most_likely_p": shares()}
    prompt = "Tell me about Rusty the fox.\n"
    drafts = {name: rows | of_target | (columns or {}) for name, rows in drafts.items()}
    made = TextView(number, f"story-{number}", ["story"], prompt, drafts)
    return replace(made, **changes)
