"""The section of the Compare page on what a draft costs first: the waits and the memory (see specviz.bench.waits)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import Props

if TYPE_CHECKING:
    from specviz.bench.waits import Price

ABOUT = (
    "waits",
    "First token, whole answer, memory",
    "Before a draft saves time, it must read the prompt too. So the first token comes later with a draft; the whole "
    "answer may come sooner. The draft also takes memory: introductions often promise less than 10 % of the target's.",
)
EMPTY = "Nothing measured yet. “Measure the waits” runs a short and a long prompt, with and without the draft."


def waits(price: Price | None, *, has_run: bool = True) -> Props:
    """price: as far as it is measured; None: nothing yet."""
    is_done = price is not None and price.done == price.total
    controls = [blocks.button("measure", "Measure the waits", primary=not is_done)] if has_run else []
    if is_done:
        captions = ("Medians; “as fast”: above 1 the draft saves time.", "Weights and cache, once the context is read.")
        shown = [blocks.table(*table, caption=caption) for table, caption in zip(price.tables(), captions, strict=True)]
    elif price is not None:
        words = f"{price.done} of {price.total} short runs, alternating with and without the draft"
        shown = [blocks.progress(price.done, price.total, words)]
    else:
        shown = [blocks.words(EMPTY)]
    return blocks.section(*ABOUT, controls, shown)
