"""FACTS: the names, words and promises of every rule. Loads no torch.

`judge` names the file and class with the rule's algorithm.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """The facts of one rule."""

    name: str
    title: str = ""
    summary: str = ""
    lossless: bool = False
    """Whether the text is distributed exactly as if the target had written it alone."""
    judge: str = ""
    """The rule's place in rules/, as "module:class"."""
    judges_trees: bool = False
    """Whether it judges token trees and not only chains."""
    judges_graded: bool = False
    """Whether it judges only drafts that were graded as a whole."""
    judges_block: bool = False
    """Whether it judges the draft as a whole, so that a later token can save an earlier one."""
    writes_most_likely: bool = False
    """Whether the target alone decides, without a random draw, and writes its most likely token."""
    acceptance: tuple[str, str] | None = None
    """The words before and behind a token in a sentence on its probability of acceptance; None: the rule's name."""
    replaces: str = (
        " was resampled from the shortfall: what the draft left out. It makes up {share} of that."
    )
    """The words behind a replacement that say where it was drawn from."""
    residual_column: str = ""
    """The column of a trace that replacements are drawn from: "residual" or "p"; empty where none is recorded."""

    @property
    def is_plain(self) -> bool:
        """Whether it is speculative sampling itself: min(1, p/q), else the residual."""
        return self.lossless and self.residual_column == "residual"

    @property
    def uses_draw(self) -> bool:
        """Whether a random draw decides on a drafted token."""
        return not (self.writes_most_likely or self.judges_graded)


_ALL = (
    RuleFacts(
        name="speculative_sampling",
        title="Speculative sampling",
        summary="Accepts a draft token with probability min(1, p/q), otherwise resamples from the shortfall.",
        lossless=True,
        judge="speculative_sampling:SpeculativeSampling",
        judges_trees=True,
        residual_column="residual",
    ),
    RuleFacts(
        name="block_verification",
        title="Block verification",
        summary="Judges the draft as a whole: a token counts if it or a later one passes, so on average more are "
        "accepted.",
        lossless=True,
        judge="lossless:BlockVerification",
        judges_block=True,
        acceptance=(
            "The stopping test at ",
            " passes {chance} of the time. The token is accepted {own} of the time, as a later test may pass.",
        ),
    ),
    RuleFacts(
        name="sample_and_match",
        title="Sample and match",
        summary="Accepts a draft token if the target draws the same one; how it was drafted does not matter.",
        lossless=True,
        judge="lossless:SampleAndMatch",
        judges_trees=True,
        acceptance=("The target draws ", " itself {chance} of the time."),
        replaces=" was drawn from the target's probabilities of all other tokens, where it has {share}.",
    ),
    RuleFacts(
        name="typical",
        title="Typical acceptance",
        summary="Accepts every draft token that the target finds likely enough; the target's own token is its most "
        "likely one.",
        judge="typical:Typical",
        judges_trees=True,
        writes_most_likely=True,
        replaces=" was written, the target's most likely token here.",
    ),
    RuleFacts(
        name="lenience",
        title="Lenience",
        summary="Judges as if the draft had given its token half the probability: more is accepted, but the text "
        "changes.",
        judge="lossy:Lenience",
        acceptance=(
            "This rule counts only part of the draft's probability. It accepts ",
            " {chance} of the time.",
        ),
    ),
    RuleFacts(
        name="ensemble",
        title="Ensemble",
        summary="Judges against the average of both models' probabilities: the text is distributed like that average.",
        judge="lossy:Ensemble",
        acceptance=(
            "Against the average of both models' probabilities, the rule accepts ",
            " {chance} of the time.",
        ),
        replaces=" was resampled from what the draft left out of both models' average. It makes up {share} of that.",
    ),
    RuleFacts(
        name="graded",
        title="Graded reasoning steps",
        summary="Accepts a whole reasoning step, word for word, if the target grades it well enough.",
        judge="lossy:Graded",
        judges_graded=True,
    ),
)
FACTS: dict[str, RuleFacts] = {facts.name: facts for facts in _ALL}


RESAMPLE_P = RuleFacts(
    name="resample_p",
    title="Resample from p",
    summary="After a rejection the new token is drawn from all of p instead of the shortfall.",
    acceptance=("Like the exact rule, this broken one accepts ", " {chance} of the time."),
    replaces=" was drawn from all of the target's probabilities, where it has {share}. That is this rule's mistake.",
    residual_column="p",
)
"""The one broken rule that traces and lessons show."""


def facts_of(name: str | None) -> RuleFacts:
    """The facts of the rule that a trace names: None is speculative sampling, an unknown name promises nothing."""
    if name is None:
        return FACTS["speculative_sampling"]
    if name == RESAMPLE_P.name:
        return RESAMPLE_P
    return FACTS[name] if name in FACTS else RuleFacts(name=name)
