"""`specviz.show(trace)` shows a run's stage in a notebook (Jupyter, Colab, VS Code), without network and server.

The last expression of a cell displays what `show` returns; anywhere else in a cell, IPython's `display(...)` does.
The stage lies in a sandboxed frame: it cannot reach the notebook, and nothing in a trace is ever markup.
"""

import html
from dataclasses import dataclass, field
from pathlib import Path

from specviz.trace import Trace
from specviz.trace.export import find_trace
from specviz.views.explore.run_file import stage_page

LEAST_HEIGHT = 200  # pixels
MOST_HEIGHT = 5_000
FRAME = (
    '<iframe title="specviz: one run, step by step" srcdoc="{page}" sandbox="allow-scripts allow-downloads" '
    'width="100%" height="{height}" style="width: 100%; border: 0; color-scheme: normal"></iframe>'
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A page that a notebook displays."""

    page: str = field(repr=False)  # the whole HTML page, as `stage_page` makes it
    height: int  # in pixels

    def _repr_html_(self) -> str:
        return FRAME.format(page=html.escape(self.page), height=self.height)


def show(trace: Trace | str | Path, *, height: int = 820, charts: bool = False) -> Shown:
    """The stage of a trace, of the trace in a file, or of a recorded run that comes with specviz, by its name.

    height: of the frame in pixels; charts: about 2 MB more. Raises SpecvizError for a file that is no trace and a name
    that is not known, ValueError for anything else and for a height out of range.
    """
    if not LEAST_HEIGHT <= height <= MOST_HEIGHT:
        raise ValueError(f"height must be {LEAST_HEIGHT} to {MOST_HEIGHT} pixels (got {height})")
    return Shown(stage_page(find_trace(trace), charts=charts), int(height))
