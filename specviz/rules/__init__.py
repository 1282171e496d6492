"""RULES: how drafted tokens are judged, by name. One file and one line here per rule."""

from __future__ import annotations

from specviz.decoding.draft import chain
from specviz.decoding.rule import Rule
from specviz.listing import Listing
from specviz.rules.block_verification import BlockVerification
from specviz.rules.ensemble import Ensemble
from specviz.rules.graded import Graded
from specviz.rules.lenience import Lenience
from specviz.rules.sample_and_match import SampleAndMatch
from specviz.rules.speculative_sampling import SpeculativeSampling
from specviz.rules.typical import Typical

RULES: Listing[Rule] = Listing(
    (
        SpeculativeSampling(),
        BlockVerification(),
        SampleAndMatch(),
        Typical(),
        Lenience(),
        Ensemble(),
        Graded(),
    ),
    {
        "title": lambda rule: rule.title,
        "lossless": lambda rule: "yes" if rule.lossless else "no",
        "what it does": lambda rule: rule.summary,
    },
)

ANY_CHAIN: dict[str, Rule] = {name: rule for name, rule in RULES.items() if rule.supports(chain([0]))}
"""Those that judge any draft without branches, whoever made it."""
