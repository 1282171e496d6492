"""The command `bench --costs`: measures one pair at one context length and writes it as Markdown tables, or as JSON.

Costs of a machine that was too busy are written with their spread; the command then ends with an exit code of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from specviz.analysis.costs import CONTEXT, Costs, measure_costs
from specviz.errors import CannotTell
from specviz.models.library import Library

SHOWN = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)


def lines(
    *, target: str, draft: str | None, context_length: int = CONTEXT, save: Callable[[str], None] | None = None
) -> Iterator[str]:
    """Says what is measured, then measures, then gives the tables; save: and writes JSON.

    Raises SpecvizError, and in the end CannotTell where the machine was too busy.
    """
    library = Library()
    loaded, drafts = library.load(target), [] if draft is None else [library.load(draft, as_draft=True)]
    pair = f"{loaded.name} + {drafts[0].name if drafts else 'no draft'}"
    yield f"{pair}, {context_length} tokens of context; nothing else should be running"
    *_, last = measure_costs(loaded, drafts, context_length=context_length)
    (costs,) = last.costs
    yield from tables(costs)
    if save is not None:
        save(json.dumps(costs.to_dict(), indent=1, ensure_ascii=False))
    if costs.doubt:
        raise CannotTell(costs.doubt)


def tables(costs: Costs) -> Iterator[str]:
    yield f"{costs.device}, threads {costs.threads}, {costs.dtype}; medians, the middle half spans {costs.spread:.0%}\n"
    yield from _of_tokens(costs)
    yield ""
    yield from _single(costs)
    yield ""
    yield from _of_batches(costs)


def _of_tokens(costs: Costs) -> Iterator[str]:
    yield "| new tokens in one target forward | ms | between | times one token |"
    yield "|---|---|---|---|"
    for n in SHOWN:
        if n <= len(costs.verify_ms):
            ms = costs.verify_ms[n - 1]
            between = "-".join(f"{end:.2f}" for end in (costs.verify_between_ms or [()] * n)[n - 1]) or "not known"
            yield f"| {n} | {ms:.2f} | {between} | {ms / costs.verify_ms[0]:.2f} |"


def _single(costs: Costs) -> Iterator[str]:
    yield "| what | measured |"
    yield "|---|---|"
    if costs.draft is not None:
        yield f"| one drafted token | {costs.draft_ms:.2f} ms |"
        yield f"| cost ratio c (drafted token / target forward) | {costs.draft_ms / costs.verify_ms[0]:.2f} |"
    yield f"| rest of a step, outside both models | {costs.overhead_ms:.2f} ms |"
    yield f"| the same of a step that drafts nothing | {costs.plain_overhead_ms:.2f} ms |"
    read = f"read of {costs.bandwidth_bytes / 1e6:.0f} MB"
    yield f"| memory bandwidth ({read}) | {costs.bandwidth_gb_s:.1f} GB/s |"
    yield f"| floor: {costs.weight_bytes / 1e6:.1f} MB of weights at that bandwidth | {costs.floor_ms:.2f} ms |"
    yield f"| share of a one-token forward that the floor explains | {costs.floor_share:.0%} |"


def _of_batches(costs: Costs) -> Iterator[str]:
    """Plain forwards of the model over a batch, the contexts cached."""
    tokens = sorted({cost.tokens for cost in costs.batch})
    yield f"| texts at once, milliseconds | {' | '.join(f'new tokens each: {n}' for n in tokens)} |"
    yield f"|---|{'---|' * len(tokens)}"
    for batch in sorted({cost.batch for cost in costs.batch}):
        cells = [f"{cost.ms:.2f}" for cost in costs.batch if cost.batch == batch]
        yield f"| {batch} | {' | '.join(cells)} |"
