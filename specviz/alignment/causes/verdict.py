"""The verdict on a draft: sound, weak or broken, beside two floors that do not read the text; what to do next."""

from collections.abc import Mapping, Sequence
from typing import Literal

from specviz.alignment.summary import Finding, Floors
from specviz.views.words import percent

Verdict = Literal["sound", "weak", "broken"]
SOUND: Verdict = "sound"
WEAK: Verdict = "weak"
BROKEN: Verdict = "broken"
HURTS = "layer"
"""The kind of a finding that names a place, and no cause."""
TENSORS = "tensors"
"""The kind of a finding on files, whose cost is seldom known."""
SERVED = "served"
"""The kind of a finding on what an engine counts."""
LIMITS = (
    "vocabulary",
    "context",
    "reach",
    "domain",
    "long prompts",
    "template",
    "unlearned ids",
    "bits",
    "reference",
    "temperature",
    SERVED,
    HURTS,
)
"""Kinds of findings that do not make a draft broken: limits of it, of how it is asked, or against another one."""
LEAST_OVER_FLOOR = 0.2
"""Of what token pairs alone leave to gain, a draft that is not weak gains at least this share."""
SURELY_SOUND = 1 / 3
"""A draft that gains this share is not broken by a tensor of its files whose cost is not known."""
LEAST_GAIN = 0.005  # of agreement; a finding that explains less is not named
LEAST_SHARE = 0.1  # of the agreement that is lost; a finding that explains less is not named
_FILES = "how the draft's files were converted: its finding says what to take back"
LOOK_AT: Mapping[str, str] = {
    "feature": "config.json (eagle_aux_hidden_state_layer_ids: vLLM counts by the layer before the state, SGLang by "
    "the layer behind it), or the training data, which pairs the state of one token with the token behind it",
    "position": "the engine: the first drafted token follows the last one of the text without a gap",
    "ids of a head": "how d2t was written: it holds the difference to each token's number",
    "reference": "the tensors that the reference names: take them from it, or train this draft on",
    "setting": "config.json: the setting that its finding names",
    "rope": "config.json: rope_theta and rope_scaling must be those that the draft was trained with",
    "narrow window": "config.json: sliding_window must be the one that the draft was trained with",
    "temperature": "how the logits are scaled: in the draft's files, or by what serves it",
    "template": "how requests are rendered: ask both models in one chat format (--chat)",
    "start": "the tokenizer's files (bos_token, add_bos_token), or how requests are rendered",
    "tokenizer": "tokenizer.json: the draft must split text as the target does",
    "long prompts": "what the draft was trained on: its prompts were shorter",
    SERVED: "how the engine feeds the draft: padding, the start token, the template, positions, its cache",
}
"""What to look at first, by the kind of a finding; for others, how the files were made."""


def least_explained(agreement: float) -> float:
    """The smallest share of agreement that a finding must explain to be named."""
    return max(LEAST_GAIN, LEAST_SHARE * (1 - agreement))


def verdict_of(
    agreement: float | None, floors: Floors | None, findings: Sequence[Finding]
) -> Verdict | None:
    """The verdict; None where too few texts were read to tell.

    Broken: the draft agrees no more than token pairs alone, or a fault was found in it. Weak: it agrees little more.
    """
    if agreement is None or floors is None:
        return None
    gained = over_floor(agreement, floors)
    faults = {finding.kind for finding in findings} - set(LIMITS)
    if gained >= SURELY_SOUND:
        faults -= {finding.kind for finding in findings if "explained" not in finding.numbers}
    if gained <= 0 or faults:
        return BROKEN
    return WEAK if gained < LEAST_OVER_FLOOR else SOUND


def over_floor(agreement: float, floors: Floors) -> float:
    """The share that a draft gains of what token pairs alone leave to gain."""
    return (agreement - floors.pairs) / max(1 - floors.pairs, 1e-9)


def floor_words(floors: Floors) -> str:
    return (
        f"token frequencies alone agree {percent(floors.frequencies)}, token pairs (frequencies behind each token) "
        f"{percent(floors.pairs)}, counted and measured on {floors.num_texts} of the texts"
    )


def loss_words(agreement: float, findings: Sequence[Finding]) -> str:
    """How much agreement is lost, and whether a finding explains some of it."""
    lost = f"{100 * (1 - agreement):.1f} points are lost"
    if any("explained" in finding.numbers for finding in findings):
        return lost
    return f"{lost}, and no known fault explains them"


def next_step(verdict: Verdict | None, findings: Sequence[Finding]) -> str:
    """One thing to do next, with its command where there is one; empty where too few texts were read to tell."""
    if verdict is None:
        return ""
    kinds = [finding.kind for finding in findings]
    causes = [kind for kind in kinds if kind in LOOK_AT or kind not in LIMITS]
    if causes:
        return f"look at {LOOK_AT.get(causes[0], _FILES)}"
    if verdict == BROKEN or HURTS in kinds:
        return (
            "compare it with a sound ancestor: of a draft model, python -m specviz align with --reference names the "
            "tensors that differ"
        )
    if verdict == WEAK:
        return (
            "train it on: python -m specviz align with --export-rows ROWS.jsonl.gz writes what it loses, and "
            "python -m specviz.zoo.for_target learns from that"
        )
    return "python -m specviz bench costs measures which K pays"
