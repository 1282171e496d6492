"""Synthetic traces for tests: every number is computed, so that p, q, u, residuals and verdicts agree with each other.

A Builder scripts *what happens* (which nodes are kept) and draws laws and darts that make it happen. No model.
`ALL` maps a name to a function that returns a fresh Trace.
"""

from __future__ import annotations

import codecs
import json
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import replace

from specviz import trace
from specviz.trace import ROOT, round9
from specviz.trace.engines.dspark import read_run
from tests.helpers import dspark_dumps
from tests.helpers.trace_walk import Distribution, Walk, entropy, one_hot, overlap, residual

STORY = [
    piece.encode()
    for piece in (
        " the", " fox", " dog", ",", " saw", " a", ".", " ran", " to", " red", " house", " and", " was", " very",
        " happy", "\n", " she", " he", " it", " said", " big", " cat",
    )
]  # fmt: skip
HOSTILE = [
    piece.encode()
    for piece in (
        "<script>alert(1)</script>", "</textarea>", '"><img src=x onerror=alert(1)>', "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07", "\u202eabc", "\u200b", "\u2028", "\n", "\t", "   ", "\r\n", "\x00", "&amp;", "{{7*7}}",
        "${1}", "%s", "__proto__", "constructor", "x" * 300, "🦊", "e\u0301", "\x9b31m", "' onclick='",
    )
]  # fmt: skip
HALVES = [b" a", b"\xc3", b"\xa9", b"\xf0\x9f", b"\xa6\x8a", b" b", b"\xe2\x82", b"\xac", b".", b"\xa9!", b" c", b"d"]
CHAINS = ((4, 4), (4, 2), (4, 0), (4, 3), (4, 1), (4, 4), (4, 2))  # (drafted, kept) per step
TREE = (ROOT, ROOT, ROOT, 1, 1, 4)
NUM_TOP = 8
MODELS = trace.Models(
    0,
    trace.ModelInfo("fable-target", None, 26_000_000, "float32", "cpu", len(STORY), 1024, "0" * 64),
    trace.ModelInfo("fable-draft", None, 3_000_000, "float32", "cpu", len(STORY), 1024, "0" * 64),
)
SETTINGS = trace.Settings(
    k=4,
    k_policy=None,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    method="draft_model",
    params={},
    rule="speculative_sampling",
    lossless=True,
    draft_model="fable-draft",
    target="fable-target",
)
BASELINE = {"tokens_per_s": 150.0, "num_tokens": 64, "environment": {"device_name": "test"}, "rounds": 6}


class Builder:
    """Makes a trace step by step; `trace` is the result so far."""

    def __init__(self, pieces: Sequence[bytes] = STORY, seed: int = 0, created: str = "2025-01-01T00:00:00Z") -> None:
        self._pieces, self._chance = list(pieces), random.Random(seed)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._settings, self._at_ms, self._context = SETTINGS, 0.0, 3
        self._scored: list[tuple[float, float, float]] = []
        prompt = trace.Prompt(
            "Once upon a", tuple(trace.Token(i, text) for i, text in enumerate(("Once", " upon", " a")))
        )
        request = {"prompt": prompt.text, "target": "fable-target", "draft": "fable-draft", "k": 4, "seed": seed}
        environment = {"python": "3.11", "torch": "2.0", "transformers": "5.0", "device_name": "test", "threads": 1}
        self.trace = trace.Trace([trace.Header(1, "0.1.0", created, request, environment, prompt), MODELS])

    def chain(self, drafted: int = 4, kept: int = 2, **options: object) -> Builder:
        """A chain of `drafted` tokens of which the first `kept` pass; none drafted is a plain step."""
        return self.step(tuple(range(-1, drafted - 1)), set(range(kept)), **options)

    def step(
        self,
        parents: Sequence[int],
        accept: Collection[int],
        *,
        num_scratch: int = 0,
        point_mass: bool = False,
        truncated: int = 0,
        wait_ms: float = 0.0,
        changed: dict[str, object] | None = None,
        evidence: dict[str, object] | None = None,
    ) -> Builder:
        """Any token tree; `accept` names the nodes that pass when judged. `changed`: settings in force from here on."""
        previous, self._settings = self._settings, replace(self._settings, **(changed or {}))
        names = tuple(name for name in changed or {} if getattr(previous, name) != getattr(self._settings, name))
        walk = Walk(self._chance, len(self._pieces), parents, accept, num_scratch, point_mass)
        tokens = [*(walk.tokens[node] for node in walk.path), walk.final]
        emitted = self._emitted(walk, tokens[: len(tokens) - truncated])
        timing = _timing(len(parents), wait_ms)
        self.trace.append(
            trace.Step(
                index=len(self.trace.steps),
                at_ms=round9(self._at_ms),
                context_length=self._context,
                truncated=truncated,
                settings=self._settings,
                changed=names,
                calls={"target": 1, "draft": max([0, *walk.depths])},
                fed={"target": 1 + len(parents), "draft": len(parents)},
                draft=tuple(self._drafted(walk, node) for node in range(len(parents))),
                emitted=emitted,
                positions=tuple(self._position(walk, *row) for row in walk.rows),
                timing=timing,
                evidence=evidence or {},
            )
        )
        self._scored += walk.scores[: len(emitted)]
        self._context += len(emitted)
        self._at_ms += timing.total_ms
        return self

    def score(self) -> Builder:
        columns = [tuple(map(round9, column)) for column in zip(*self._scored, strict=True)] or [(), (), ()]
        sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        self.trace.append(trace.Scores("fable-draft", sampling, *columns))
        return self

    def finish(self, reason: str = "length", baseline: dict | None = BASELINE) -> trace.Trace:
        self.trace.append(trace.Footer(reason, None, baseline))
        return self.trace

    def _piece(self, token: int) -> tuple[str, str | None]:
        raw = self._pieces[token]
        try:
            return raw.decode("utf-8"), None
        except UnicodeDecodeError:
            return raw.decode("utf-8", "replace"), raw.hex()

    def _drafted(self, walk: Walk, node: int) -> trace.DraftToken:
        place = {"parent": walk.parents[node], "depth": walk.depths[node], "status": walk.statuses[node]}
        p, q, judged = walk.node_numbers(node)
        numbers = dict(zip(("p", "q", "p_judged", "accept_prob", "u"), (p, q, *judged), strict=True))
        return trace.DraftToken(walk.tokens[node], *self._piece(walk.tokens[node]), **place, **numbers)

    def _emitted(self, walk: Walk, tokens: Sequence[int]) -> tuple[trace.EmittedToken, ...]:
        emitted = []
        for index, token in enumerate(tokens):
            text, half = self._decoder.decode(self._pieces[token]), self._piece(token)[1]
            if index < len(walk.path):
                node = walk.path[index]
                p, q, _ = walk.node_numbers(node)
                emitted.append(trace.EmittedToken(token, text, half, node=node, kind="accepted", p=p, q=q))
            else:
                p, q, _ = walk.scores[-1]
                shown_q = round9(q) if walk.kind == "resampled" and not walk.point_mass else None
                emitted.append(trace.EmittedToken(token, text, half, node=None, kind=walk.kind, p=round9(p), q=shown_q))
        return tuple(emitted)

    def _position(
        self, walk: Walk, node: int, child: int | None, p: Distribution, q: Distribution | None
    ) -> trace.Position:
        raw = walk.p[node], (None if q is None else walk.q[node])
        columns = (p, q, None if child is None else residual(p, q or one_hot(walk.tokens[child], len(p))), *raw)
        shown = [walk.final if child is None else walk.tokens[child]]
        shown += sorted(range(len(p)), key=lambda i: -p[i])[:NUM_TOP]
        shown += [] if q is None else sorted(range(len(q)), key=lambda i: -q[i])[:NUM_TOP]
        ids = list(dict.fromkeys(shown))
        top = [
            (i, self._piece(i)[0], *(None if column is None else round9(column[i]) for column in columns)) for i in ids
        ]
        sums = [None if column is None else sum(x for i, x in enumerate(column) if i not in ids) for column in columns]
        names = ("p", "q", "residual", "p_raw", "q_raw")
        rest = {name: round9(total) for name, total in zip(names, sums, strict=True)}
        alone = q is not None and walk.parents.count(node) == 1
        return trace.Position(
            node,
            child,
            tuple(top),
            rest,
            round9(overlap(p, q)) if alone else None,
            None if q is None else round9(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)),
            round9(entropy(p)),
            None if q is None else round9(entropy(q)),
        )


def _timing(drafted: int, wait_ms: float) -> trace.Timing:
    phases = (1.5 * drafted, 8.0 + 0.1 * drafted, 0.4, 0.3)
    return trace.Timing(*map(round9, (*phases, wait_ms, sum(phases) + wait_ms)))


def chain() -> trace.Trace:
    """Seven steps of K = 4: a full accept with its bonus, a cut in the middle, a cut at once, and more; scored."""
    made = Builder()
    for drafted, kept in CHAINS:
        made.chain(drafted, kept)
    return made.score().finish()


def tree() -> trace.Trace:
    """Siblings: several rejected in a step, several never judged, a deep path, and a chain in between."""
    made = Builder(seed=1)
    made.step(TREE, {1, 4, 5}).step(TREE, {0}).step(TREE, ()).chain(3, 1).step(TREE, {1, 3})
    return made.finish(baseline=None)


def changed_k() -> trace.Trace:
    """K goes 4, 2, 8 live; then a step without a draft."""
    made = Builder(seed=2).chain(4, 2).chain(4, 4)
    made.chain(2, 2, changed={"k": 2}).chain(2, 0).chain(8, 5, changed={"k": 8}).chain(0, 0)
    return made.finish("eos")


def lookup() -> trace.Trace:
    """Point-mass drafts of changing length; two steps find nothing."""
    made, changed = Builder(seed=3), {"method": "prompt_lookup", "draft_model": None}
    made.chain(0, 0, changed=changed).chain(3, 2, point_mass=True).chain(1, 1, point_mass=True)
    return made.chain(0, 0).chain(4, 0, point_mass=True).finish("stopped")


def scratch() -> trace.Trace:
    """Nodes that ride the forward and cannot be accepted."""
    made = Builder(seed=4)
    return made.step((ROOT, 0, ROOT, 2), {0}, num_scratch=2).step((ROOT, 0), (), num_scratch=2).finish()


def plain() -> trace.Trace:
    """One token per step: no draft at all."""
    made = Builder(seed=5)
    for _ in range(4):
        made.chain(0, 0)
    return made.finish()


def truncated() -> trace.Trace:
    """The last step is cut inside its accepted tokens; paced, so there is waiting in it."""
    made = Builder(seed=6).chain(4, 1, wait_ms=250.0)
    return made.chain(4, 3, truncated=2, wait_ms=250.0).finish("eos")


def hostile() -> trace.Trace:
    """Token texts that attack pages, terminals and parsers."""
    made = Builder(HOSTILE, seed=7)
    for drafted, kept in CHAINS * 2:
        made.chain(drafted, kept)
    return made.finish()


def halves() -> trace.Trace:
    """Tokens that are parts of characters; the pieces join to the text."""
    made = Builder(HALVES, seed=8)
    for drafted, kept in CHAINS:
        made.chain(drafted, kept)
    return made.finish()


def resampling_changed() -> trace.Trace:
    """The temperature changes live, so that no speedup can be told."""
    return Builder(seed=9).chain().chain(changed={"temperature": 0.5}).finish()


def empty() -> trace.Trace:
    """A header and models, nothing else: a crash before the first step."""
    return Builder().trace


def long(num_steps: int = 200) -> trace.Trace:
    made = Builder(seed=10)
    for index in range(num_steps):
        made.chain(4, index % 5)
    return made.score().finish()


def foreign() -> trace.Trace:
    """Another engine's record, without probabilities and without the sampling."""
    return read_run(dspark_dumps.log())


ALL = {
    make.__name__: make
    for make in (chain, tree, changed_k, lookup, scratch, plain, truncated, hostile, halves, resampling_changed, empty)
}


def lines_of(made: trace.Trace) -> list[str]:
    """The lines of its file."""
    return [trace.dump_event(event) for event in made.events()]


def as_bytes(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def events_of(made: trace.Trace) -> list[dict]:
    return [json.loads(line) for line in lines_of(made)]


def read_events(events: list[dict]) -> trace.Trace:
    return trace.read_trace(as_bytes([json.dumps(event) for event in events]))
