"""Finds why p and q differ at each place: one of seven reasons, and how much overlap each reason costs.

Takes rows of the token table. The thresholds below decide; they are a reading aid, not a diagnosis.
"""

import numpy as np

from specviz.alignment.types import Array, Columns

CERTAIN = 0.5  # the least p of the target's most likely token
OVERCONFIDENT = 0.25  # the least q - p of the draft's most likely token
NEAR = 0.1  # the most difference between the target's p of the two most likely tokens
NEAR_RATIO = 0.5  # the least ratio of the smaller p to the larger: small ones all lie within NEAR
EQUAL = 1e-6  # lost overlap below this is rounding


REASONS = {  # name -> words
    "beyond the draft's reach": "the draft drafts nothing here: beyond its context, after an id it lacks, or no match",
    "outside the draft's vocabulary": "the target's probability of tokens that the draft has no id for",
    "target certain, draft picks another": f"the target gives {CERTAIN:g} or more to another token than the draft's",
    "draft overconfident": f"the draft gives its first choice at least {OVERCONFIDENT:g} more than the target does",
    "near-tie": f"different first choices; the target finds the draft's at least half as likely, within {NEAR:g}",
    "same first choice, different confidence": "both have the same first choice; only the probabilities differ",
    "different first choices, neither sure": "different first choices, without a near-tie, certainty or overconfidence",
}
BEYOND, OUTSIDE, OTHER_TOKEN, TOO_SURE, TIE, SAME, UNSURE = range(len(REASONS))
NO_REASON = len(REASONS)  # p and q are equal here
NAMES = np.array([*REASONS, ""], dtype=object)


def find_reasons(tokens: Columns) -> Array:
    """The reason of each row as its number in REASONS, or NO_REASON [N]; the first reason that fits counts.

    OUTSIDE: more than half of the lost overlap is the target's probability outside the draft's vocabulary.
    """
    lost = 1 - tokens["overlap"]
    is_missing = tokens["readable"] & (lost > EQUAL) & (tokens["outside"] > lost / 2)
    return np.where(is_missing, OUTSIDE, _reasons_inside(tokens))


def _reasons_inside(tokens: Columns) -> Array:
    """The reason of each row, without OUTSIDE [N]."""
    most_likely_p = tokens["most_likely_p"]
    draft_q = tokens["draft_most_likely_q"]
    draft_p = tokens["draft_most_likely_p"]
    differs = tokens["most_likely"] != tokens["draft_most_likely"]
    tests = {
        BEYOND: ~tokens["readable"],
        NO_REASON: np.abs(1 - tokens["overlap"]) <= EQUAL,
        OTHER_TOKEN: differs & (most_likely_p >= CERTAIN),
        TOO_SURE: draft_q - draft_p >= OVERCONFIDENT,
        TIE: differs & (most_likely_p - draft_p <= NEAR) & (draft_p >= NEAR_RATIO * most_likely_p),
        SAME: ~differs,
    }
    return np.select(list(tests.values()), list(tests), UNSURE)


def lost_by_reason(tokens: Columns) -> Array:
    """The lost overlap by reason, summed over rows [len(REASONS)].

    The overlap of a place that servers told of may exceed 1; then less than nothing is lost there. The target's
    probability outside the draft's vocabulary counts as OUTSIDE wherever the draft can read. The rest of a row counts
    for its own reason.
    """
    lost = 1 - np.asarray(tokens["overlap"], dtype=np.float64)
    outside = np.where(
        tokens["readable"], np.clip(tokens["outside"], 0.0, np.maximum(lost, 0.0)), 0.0
    )
    sums = np.bincount(_reasons_inside(tokens), lost - outside, minlength=len(REASONS) + 1)
    sums = sums[: len(REASONS)]
    sums[OUTSIDE] += outside.sum()
    return sums
