"""A pair for the checks: a method with its models, of which nothing is checked or loaded."""

from specviz.drafters import METHODS
from specviz.session.setup import Setup


def pair_of(target, draft, method="draft_model", params=None):
    return Setup(METHODS[method], METHODS[method].validate(params or {}), target, draft)
