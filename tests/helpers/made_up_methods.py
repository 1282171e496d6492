"""Made-up methods: their data alone, with parameters of every kind, for what builds itself from a method's data."""

from __future__ import annotations

from specviz.decoding.draft import EMPTY
from specviz.decoding.drafter import Drafter
from specviz.drafters.method import Method
from specviz.drafters.params import Choice, FloatParam, IntParam, ModelParam


class Silent(Drafter):
    """Drafts nothing."""

    def draft(self, context, k):
        return EMPTY


def made_up(name: str, **changes: object) -> Method:
    given = {"title": name.title(), "summary": f"It does {name}.", "source": "", "roles": (), "params": ()}
    given |= {"rules": ("speculative_sampling", "typical"), "build": lambda parts, params: Silent()}
    return Method(**{"name": name, **given, **changes})


EVERY_KIND = (
    IntParam("width", "width", 2, "How wide.", 1, 8),
    FloatParam("least", "least chance", 0.25, "How sure.", 0.0, 1.0),
    Choice("way", "way", "up", "Which way.", {"up": "Upwards", "down": "Downwards"}),
    ModelParam("stages", "stages", None, "Who drafts for it.", "draft", 3, ("prompt_lookup",)),
    ModelParam("heads", "heads", None, "Which heads.", "made-up", 1),
)
EVERYTHING = made_up("everything", params=EVERY_KIND, roles=("heads",), rules=("typical",))
DEEP = made_up("deep", params=(IntParam("longest", "longest guess", 8, "How far.", 1, 64),), depth="longest")
OTHER_WORDS = made_up("other_words", roles=("draft",), foreign=True)
MADE_UP = (EVERYTHING, DEEP, OTHER_WORDS)
