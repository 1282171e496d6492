"""What the panels beside the stage get, as typed records: the library, the share drawer, the bar, a method's help.

Texts are harmless already (see `words.py`). `specviz/ui` makes most of these records.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from specviz.views.blocks import PageRecord
from specviz.views.explore.message import ProgressBar, TokenPlace


class PanelRefusal(PageRecord):
    """Why a panel does not get what it asked for."""

    refusal: str


class PageCode(PageRecord):
    """A QR code by which others open a page of this server."""

    words: str  # what it leads to
    address: str  # that it leads to
    picture: str  # an address that holds the whole picture


# ---- the library drawer ---------------------------------------------------------------------------------------------


class LibraryLimits(PageRecord):
    """How much one browser stores."""

    most_runs: int
    most_bytes: int  # of all packed runs
    most_opened: int  # bytes of a file
    let_go: str  # said when the oldest run is deleted to make room


class RunEntry(PageRecord):
    """A run that is over, in words."""

    title: str  # how it was made
    words: str  # the beginning of its prompt
    facts: str  # its numbers
    date: str  # in UTC; "" where it has none


class ShippedEntry(PageRecord):
    """A recorded run that comes with specviz, in words."""

    name: str
    title: str
    words: str
    facts: str


class KeptRun(PageRecord):
    """A run for the browser to store, with its entry in the drawer."""

    key: str  # a hash of its trace
    title: str
    words: str
    facts: str
    date: str
    size: int  # bytes of its file
    packed: str  # the file in base64


class StoredRun(PageRecord):
    """A run that the browser has stored already."""

    key: str


class BroughtRun(PageRecord):
    """A run that the browser has brought back."""

    run: str


# ---- the share drawer, and the line over the stage for a link that came ---------------------------------------------


class ShareOffer(PageRecord):
    """The ways to share a run."""

    link: str | None  # its letters; None where no link leads to the run
    page: str | None  # the public address that a link begins with; None: this page's own
    words: Sequence[str]  # sentences about the link
    files: Sequence[tuple[str, str, str, str]]  # name, title, description, address


class GoneRun(PageRecord):
    """A run that is not on the server any more."""

    gone: Literal[True] = True


class SharedRunLine(PageRecord):
    """The line over the stage for a link that came."""

    state: Literal["ready", "refused", "waiting", "same", "differs", "other", "unknown"]
    words: Sequence[str]  # every second one is set off
    at: TokenPlace | None = None  # the token to select


# ---- the bar --------------------------------------------------------------------------------------------------------


class FieldFacts(PageRecord):
    """Facts about the fields, for the browser to find out whether they say how a run was made."""

    counting: Mapping[str, Sequence[str]]  # by method: the fields that have a meaning under it
    titles: Mapping[str, str]  # of fields
    whole: Mapping[str, str]  # words for fields with values that are too long to name
    values: Mapping[str, str]  # titles of methods and rules
    live: Sequence[str]  # the fields that a run in progress follows
    otherwise: str  # what Run says when several fields are changed


class RunButton(PageRecord):
    """What the button Run says while nothing is changed."""

    words: str = "Run"
    missing: str = ""  # why this run cannot be made here
    needs: Sequence[str] = ()  # the fields that must change until it can


class StandingRun(RunButton, kw_only=True):
    """What the bar says of the run that stands on the stage."""

    about: FieldFacts
    # fields that were changed too late for any step, with the values of the last step
    made: Mapping[str, str | float | None] | UnsetType = UNSET


# ---- the help -------------------------------------------------------------------------------------------------------


class RuleHelp(PageRecord):
    """What an acceptance rule means."""

    title: str
    badge: Literal["exact", "lossy"]
    meaning: str
    summary: str


class GetCard(PageRecord, kw_only=True):
    """The card of a model that can be fetched."""

    words: str
    about: str  # size, source and licence
    progress: ProgressBar | None = None  # while it is fetched
    is_here: bool = False


class MethodShowcase(PageRecord):
    """The run that shows a method at its best, in words, and what it is asked for by."""

    words: str
    method: str
    target: str


class MethodHelp(PageRecord):
    """What a method does, when it pays, and how its drafts are judged."""

    title: str
    summary: str
    caution: str
    sources: Sequence[tuple[str, str | None]]  # pieces of text, each with its address on arXiv
    lacks: str  # why the method cannot run on the chosen target
    rule: RuleHelp | None  # None where there is nothing to judge
    notes: Sequence[str]
