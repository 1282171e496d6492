"""Synthetic traces with every shape of evidence, on the numbers of tests/traces.py. `ALL`: name -> a fresh Trace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from specviz import trace
from specviz.trace import ROOT
from tests.helpers import traces

BRANCHY = (ROOT, ROOT, ROOT, 0, 0, 1, 3, 3, 4, 6)
BINARY = tuple(ROOT if node < 2 else (node - 2) // 2 for node in range(60))
WORDS = [f" word{number}".encode() for number in range(100)]


def token(id_: int, **more: Any) -> dict[str, Any]:
    return {"id": id_, "text": traces.STORY[id_].decode(), **more}


def row(*ids: int) -> list[dict[str, Any]]:
    return [token(id_) for id_ in ids]


def one(
    method: str,
    parents: Sequence[int],
    accept: set[int],
    evidence: dict[str, Any],
    draft: str | None = None,
    **options: Any,
) -> trace.Trace:
    """A run whose first step has this evidence, and one more step without."""
    made = traces.Builder(options.pop("pieces", traces.STORY), seed=options.pop("seed", 3))
    changed = {"method": method, "draft_model": draft, **options.pop("changed", {})}
    made.step(parents, accept, changed=changed, evidence=evidence, **options)
    return made.chain(2, 1, point_mass=True).finish()


def chain(size: int) -> tuple[int, ...]:
    return tuple(range(ROOT, size - 1))


def shares(size: int, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [round(chance.random(), 4) for _ in range(size)]


def tree() -> trace.Trace:
    evidence = {"children": "independent", "scores": shares(10), "grown": 14, "kept": 10}
    return one("tree", BRANCHY, {0, 3, 6}, evidence, "fable-draft")


def wide_tree() -> trace.Trace:
    """60 nodes, five deep."""
    evidence = {"scores": shares(60), "grown": 90, "kept": 60, "levels": 5}
    return one("eagle", BINARY, {1, 4, 10}, evidence, point_mass=True, pieces=WORDS)


def medusa() -> trace.Trace:
    evidence = {"heads": 3, "ranks": [0, 1, 2, 0, 1, 0, 0, 1, 0, 0], "scores": shares(10)}
    return one("medusa", BRANCHY, {0, 3}, evidence, point_mass=True)


def eagle() -> trace.Trace:
    evidence = {"scores": shares(10), "grown": 24, "kept": 10, "levels": 4}
    return one("eagle", BRANCHY, {1, 5}, evidence, point_mass=True)


def lookup() -> trace.Trace:
    """The text is long enough for its last two tokens to have stood before."""
    made = traces.Builder(seed=3).chain(4, 4, changed={"method": "prompt_lookup", "draft_model": None}, point_mass=True)
    made.chain(4, 4, point_mass=True)
    evidence = {"start": 4, "matched": 2, "proposed": 3, "k": 3, "policy": "heuristic"}
    return made.step(chain(3), {0, 1}, point_mass=True, evidence=evidence).finish()


def suffix() -> trace.Trace:
    """The same text as for `lookup`."""
    made = traces.Builder(seed=3).chain(4, 4, changed={"method": "suffix", "draft_model": None}, point_mass=True)
    made.chain(4, 4, point_mass=True)
    evidence = {"start": 4, "matched": 2, "proposed": 3, "counts": [3, 2, 2], "totals": [4, 3, 2]}
    return made.step(chain(3), {0, 1}, point_mass=True, evidence=evidence).finish()


def hybrid() -> trace.Trace:
    """The text proposes in the last step, the draft model before it."""
    by_model = {"by": "fable-draft", "k": 4, "policy": "heuristic"}
    made = traces.Builder(seed=3).chain(4, 4, changed={"method": "hybrid"}, evidence=by_model)
    made.chain(4, 4, evidence=by_model)
    evidence = {"start": 4, "matched": 2, "proposed": 3, "counts": [3, 2, 2], "totals": [4, 3, 2], "by": "suffix"}
    return made.step(chain(3), {0, 1}, point_mass=True, evidence=evidence).finish()


def early_exit() -> trace.Trace:
    return one("early_exit", chain(4), {0, 1}, {"layers": [0, 1, 2, 3, 12, 13, 14, 15], "of": 16})


def staged() -> trace.Trace:
    first = [token(1, status="accepted"), token(2, status="rejected"), token(3, status="ignored")]
    told = {
        "rounds": [
            {
                "by": "prompt_lookup",
                "for": "fable-draft-tiny",
                "tokens": first,
                "last": token(4),
                "kind": "resampled",
            },
            {"by": "fable-draft-tiny", "for": "fable-draft", "tokens": first[:1], "last": token(5), "kind": "bonus"},
            {"by": "fable-draft-tiny", "for": "fable-draft", "tokens": [], "last": token(6), "kind": "plain"},
        ],
        "calls": {"fable-draft": 2, "fable-draft-tiny": 5},
    }
    return one("staged", chain(4), {0, 1, 2, 3}, told, "fable-draft")


def lookahead() -> trace.Trace:
    told = {
        "window": [row(1, 2, 3, 4, 5), row(6, 7, 8, 9, 10)],
        "guesses": [row(1, 2), row(3, 4)],
        "pool": {"keys": 12, "ngrams": 31},
        "found": [row(1, 2, 3), row(4, 5, 6)],
    }
    parents = (ROOT, 0, ROOT, 2, ROOT, 4, ROOT, 6, 7)
    return one("lookahead", parents, {2, 3}, told, point_mass=True, num_scratch=5)


def cross_vocabulary() -> trace.Trace:
    made = one("cross_vocabulary", chain(3), {0, 1}, {"way": "reencode"}, "fable-draft-othervocab", point_mass=True)
    events = traces.events_of(made)
    step = next(event for event in events if event["event"] == "step")
    text = "".join(token["text"] for token in step["draft"])
    step["evidence"] = {
        "way": "reencode",
        "draft_tokens": [{"text": text[place : place + 2]} for place in range(0, len(text), 2)],
        "target_tokens": [{"id": token["id"], "text": token["text"]} for token in step["draft"]],
        "boundary": {"backed": 1, "text": " the"},
    }
    return traces.read_events(events)


def reasoning() -> trace.Trace:
    told = {
        "step": {"text": "Three foxes and two foxes are five foxes.\nSo there are 5."},
        "grade": -0.412345,
        "threshold": -1.0,
        "judged_by": "mean_logprob",
        "verdict": "kept",
        "tokens": 4,
    }
    changed = {"rule": "graded", "lossless": False}
    return one("reasoning", chain(4), {0, 1, 2, 3}, told, "fable-draft", changed=changed, point_mass=True)


def refused() -> trace.Trace:
    """A reasoning step that was refused, one step of the target's own, and a reasoning step that was kept."""
    graded = {"threshold": -0.1, "judged_by": "mean_logprob"}
    first = {**graded, "verdict": "refused", "grade": -1.078, "tokens": 13, "step": {"text": "Two foxes are three."}}
    waiting = {**graded, "verdict": "waiting", "grade": None, "tokens": 0, "step": {"text": ""}}
    last = {**first, "verdict": "kept", "grade": -5.436e-05, "tokens": 4}
    made = traces.Builder(seed=3)
    changed = {"method": "reasoning", "rule": "graded", "lossless": False, "k": 48}
    made.chain(0, 0, changed=changed, evidence=first).chain(0, 0, evidence=waiting)
    return made.chain(4, 4, evidence=last, point_mass=True).finish()


def mtp() -> trace.Trace:
    return one("mtp", chain(2), {0}, {"modules": 2, "k": 2, "policy": "confidence"})


def block() -> trace.Trace:
    """A head with eight slots, of which K uses four."""
    return one("block", chain(4), {0, 1}, {"block": 8, "masks": 8, "filled": "together"})


def block_in_turn() -> trace.Trace:
    """A head whose first guess comes from the last token's own place, with a Markov bias."""
    return one("block", chain(4), {0, 1}, {"block": 4, "masks": 3, "filled": "in turn"})


ALL = {
    make.__name__: make
    for make in (
        tree, wide_tree, medusa, eagle, lookup, suffix, hybrid, early_exit, staged, lookahead, cross_vocabulary,
        reasoning, refused, mtp, block, block_in_turn,
    )
}  # fmt: skip
