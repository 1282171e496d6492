"""RULES: how drafted tokens are judged, by name. One file and one line here per rule."""

from __future__ import annotations

from ..accept import Rule
from ..draft import chain
from ..listing import Listing
from .block_verification import BlockVerification
from .ensemble import Ensemble
from .graded import Graded
from .lenience import Lenience
from .sample_and_match import SampleAndMatch
from .speculative_sampling import SpeculativeSampling
from .typical import Typical

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
