"""Why p and q part at a place: rows of the token table -> one of seven reasons, and what each takes of the agreement.

The thresholds below decide; they are a reading aid, not a diagnosis. numpy alone.
"""

import numpy as np

from specviz.alignment.types import Array, Columns

CERTAIN = 0.5  # of the target's favourite
OVERCONFIDENT = 0.25  # q - p of the draft's favourite
NEAR = 0.1  # at most, between the target's probabilities of the two favourites
NEAR_RATIO = (
    0.5  # at least, of the smaller to the larger: among many small ones all lie within NEAR
)
EQUAL = 1e-6  # lost overlap below this is rounding


REASONS = {  # name -> words
    "beyond the draft's reach": "the draft drafts nothing here: beyond its context, after an id it lacks, or no match",
    "outside the draft's vocabulary": "the target's probability of tokens that the draft has no id for",
    "target certain, draft picks another": f"the target gives {CERTAIN:g} or more to another token than the draft's",
    "draft overconfident": f"the draft gives its top token at least {OVERCONFIDENT:g} more than the target does",
    "near-tie": f"different top tokens; the target finds the draft's at least half as likely, within {NEAR:g}",
    "same top token, other confidence": "both have the same top token; only the probabilities differ",
    "other top token, neither sure": "different top tokens, without a near-tie, certainty or overconfidence",
}
BEYOND, OUTSIDE, OTHER_TOKEN, TOO_SURE, TIE, SAME, UNSURE = range(len(REASONS))
NO_REASON = len(REASONS)  # p and q are equal here
NAMES = np.array([*REASONS, ""], dtype=object)


def find_reasons(tokens: Columns) -> Array:
    """The reason of each row, by its place in REASONS, or NO_REASON [N]: the first that fits, in their order.

    "outside" where more than half of what is lost, 1 - overlap, is the target's mass outside the draft's vocabulary.
    """
    lost = 1 - tokens["overlap"]
    is_missing = tokens["readable"] & (lost > EQUAL) & (tokens["outside"] > lost / 2)
    return np.where(is_missing, OUTSIDE, _reasons_inside(tokens))


def _reasons_inside(tokens: Columns) -> Array:
    """The reason apart from what is outside the draft's vocabulary."""
    most_likely_p, its_q, its_p = (
        tokens[name] for name in ("most_likely_p", "draft_most_likely_q", "draft_most_likely_p")
    )
    differs = tokens["most_likely"] != tokens["draft_most_likely"]
    tests = {
        BEYOND: ~tokens["readable"],
        NO_REASON: 1 - tokens["overlap"] <= EQUAL,
        OTHER_TOKEN: differs & (most_likely_p >= CERTAIN),
        TOO_SURE: its_q - its_p >= OVERCONFIDENT,
        TIE: differs & (most_likely_p - its_p <= NEAR) & (its_p >= NEAR_RATIO * most_likely_p),
        SAME: ~differs,
    }
    return np.select(list(tests.values()), list(tests), UNSURE)


def lost_by_reason(tokens: Columns) -> Array:
    """What each reason takes of the lost overlap, summed over rows: [len(REASONS)]. The target's mass outside the
    draft's vocabulary is counted there at every place it reads; the rest falls to the reason apart from that."""
    lost = 1 - np.asarray(tokens["overlap"], dtype=np.float64)
    missing = np.where(tokens["readable"], np.clip(tokens["outside"], 0.0, lost), 0.0)
    sums = np.bincount(_reasons_inside(tokens), lost - missing, minlength=len(REASONS) + 1)[
        : len(REASONS)
    ]
    sums[OUTSIDE] += missing.sum()
    return sums
