"""The section of the Compare page on what a draft costs first: the waits and the memory (see specviz.bench.waits)."""

from collections.abc import Sequence

from specviz.views import blocks
from specviz.views.blocks import Props

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
ABOUT = (
    "waits",
    "First token, whole answer, memory",
    "Before a draft saves time, it must read the prompt too. So the first token comes later with a draft; the whole "
    "answer may come sooner. The draft also takes memory: introductions often promise less than 10 % of the target's.",
)
EMPTY = "Nothing measured yet. “Measure the waits” runs a short and a long prompt, with and without the draft."


def waits(
    tables: tuple[Table, Table] | None, *, has_run: bool = False, running: tuple[int, int] | None = None
) -> Props:
    """tables: of the waits and of the memory. running: runs made, and all."""
    controls = [blocks.button("measure", "Measure the waits", primary=tables is None)] if has_run else []
    if running is not None:
        words = f"{running[0]} of {running[1]} short runs, alternating with and without the draft"
        return blocks.section(*ABOUT, controls, [blocks.progress(*running, words)])
    if tables is None:
        return blocks.section(*ABOUT, controls, [blocks.words(EMPTY)])
    captions = ("Medians; “as fast”: above 1 the draft saves time.", "Weights and cache, once the context is read.")
    shown = [blocks.table(*table, caption=caption) for table, caption in zip(tables, captions, strict=True)]
    return blocks.section(*ABOUT, controls, shown)
