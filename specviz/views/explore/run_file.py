"""One run's stage in one HTML file: text, lanes, inspector, player, numbers and charts, with the trace itself inside.

It opens from disk and asks no network and no server. The file holds the run as the increments that a page pulls from
the server, each packed. No text from outside is ever markup (see views.document).
"""

import base64
import gzip
import html
from collections.abc import Sequence

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from specviz import __version__
from specviz.trace import Trace
from specviz.trace import export as exports
from specviz.views.blocks import PageRecord, pack
from specviz.views.document import document, quiet_json, stage_template
from specviz.views.explore.every_k import every_k
from specviz.views.explore.feed import INCOMPLETE, MOST_SENT, Feed
from specviz.views.explore.message import RunMessage, TokenPlace
from specviz.views.languages import packed_languages
from specviz.views.words import reveal

RUN = "file"
MOST_TITLE = 90  # characters of the prompt in the title
MOST_WORD = 40  # characters of the trace's own date and version
BODY = """<header class="sv-report sv-file-head"><div class="sv-file-words"><h1 translate="no">{title}</h1>
<p>{words}</p></div>
<button type="button" class="sv-button" id="sv-save" title="the recorded run, as JSON lines">Save trace</button>
<button type="button" class="sv-button" id="sv-present" aria-pressed="false">Present</button>
<button type="button" class="sv-button" id="sv-theme">Dark</button></header>
<main id="sv-file"></main>{template}"""


class RunFileIndex(PageRecord):
    """What a run's file tells about its parts."""

    starts: Sequence[int]  # the first step of each part
    selection: TokenPlace | None  # the token that is pinned when the page opens
    file: str  # the name under which the trace is saved


def stage_page(
    trace: Trace,
    *,
    charts: bool = True,
    selection: tuple[int, str] | None = None,
    feed: Feed | None = None,
    unended: str = INCOMPLETE,
) -> str:
    """A whole HTML page of this run.

    selection: (step, ref of a token in it), pinned when the page opens. feed: a whole feed of this very trace, if there
    is one. unended: the words for a trace that has no end. Raises ValueError for a trace without its header, and for a
    selection that is not in it.
    """
    if trace.header is None:
        raise ValueError("trace must have its header (got one that holds nothing yet)")
    feed = feed or Feed.from_trace(trace, RUN, unended=unended)
    packed, parts = packed_run(feed, RUN, charts=charts)
    title = _title(trace)
    words = html.escape(_words(trace, unended))
    body = BODY.format(title=html.escape(title), words=words, template=stage_template())
    index = RunFileIndex(
        [part.start for part in parts],
        None if selection is None else _find_selection(selection, parts),
        exports.file_name(trace, ".jsonl"),
    )
    zipped = gzip.compress(exports.json_lines(trace).encode(), 6, mtime=0)
    data = {
        "sv-about": quiet_json(to_builtins(index)),
        "sv-run": packed,
        "sv-trace": base64.b64encode(zipped).decode("ascii"),
        **packed_languages("stage"),
    }
    if trace.footer is not None:
        data["sv-every-k"] = pack(every_k(trace))
    return document(title, body, entry="run_file.js", data=data, has_charts=charts)


def packed_run(feed: Feed, view_id: str, *, charts: bool) -> tuple[str, list[RunMessage]]:
    """A whole run in one text, for a page without a server; and its parts as a stage takes them."""
    parts = list(feed.recorded_parts(view_id))
    if not charts:
        parts = [_without_charts(part) for part in parts]
    return "\n".join(pack(part) for part in parts), parts


def _without_charts(part: RunMessage) -> RunMessage:
    steps = [replace(step, points=UNSET) for step in part.steps]
    head = replace(part.head, figures={}) if part.head else UNSET
    return replace(part, steps=steps, head=head)


def _find_selection(selection: tuple[int, str], parts: list[RunMessage]) -> TokenPlace:
    index, ref = selection
    num_steps = parts[0].total
    if not 0 <= index < num_steps:
        raise ValueError(f"selection must name one of {num_steps:,} steps (got {index})")
    step = parts[index // MOST_SENT].steps[index % MOST_SENT]
    if ref not in step.looks:
        raise ValueError(
            f"selection must name one of {', '.join(step.looks)} in step {index} (got {ref!r:.40})"
        )
    return TokenPlace(index, ref)


def _title(trace: Trace) -> str:
    words = " ".join(trace.header.prompt.text[: 4 * MOST_TITLE].split())
    if len(words) > MOST_TITLE:
        words = f"{words[:MOST_TITLE].rpartition(' ')[0] or words[:MOST_TITLE]} …"
    return f"specviz: {reveal(words) or 'a recorded run'}"


def _words(trace: Trace, unended: str) -> str:
    header = trace.header
    if record := header.environment.get("record"):
        origin = f"read from another engine's record ({reveal(str(record)[:MOST_WORD])})"
    else:
        version = reveal(header.specviz[:MOST_WORD])
        origin = f"recorded by specviz {version} ({reveal(header.created[:MOST_WORD])})"
    lead = f"{unended.capitalize()}. " if trace.footer is None else ""
    return (
        f"{lead}A run of speculative decoding, {origin}, "
        f"written by specviz {__version__}. Everything is in this file: it needs no network."
    )
