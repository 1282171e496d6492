"""What the Explore page gets about a run, as typed records: its increments, every other K, and the opening's beats.

Every number, width, label and sentence is computed in Python; the browser lays out what it gets. `assets/web` has these
types, too: see `views/message_types.py`. Texts are harmless already (see `words.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from specviz.trace.events import Kind, Reason, Status
from specviz.views.blocks import PageRecord
from specviz.views.words import Sentence

TokenStatus = Literal[Status, Kind]  # of a drafted token, or of one that was written
PieceStatus = Literal[Kind, "rejected"]
Filled = Literal["together", "in turn"]  # how one pass filled a draft; in turn: by a bias
Chart = dict[str, Any]  # a figure, or the points that a step adds to it, in Plotly's own format
# a token as it is shown, the status or role that marks it, and a short note
Chip = tuple[str, str, str]
ChipLine = tuple[str, Sequence[Chip], str]  # a name, tokens, and how many more there are
# ref, text, status, the target's probability, the one judged against, the draft's
Sibling = tuple[str, str, str, str, str, str]
Piece = tuple[str, PieceStatus, str]  # a text, its status, and the ref of its token
PromptPart = tuple[
    str, str
]  # a text, and the role that it names if it is marks of a chat template, else ""


class TokenPlace(PageRecord):
    """A token of the run on the stage."""

    step: int
    ref: str  # the number of its node in the draft, or "last"


class ProgressBar(PageRecord):
    """How far work has come."""

    width: float  # percent
    words: str


class RunState(PageRecord, kw_only=True):
    """What a run does at this moment."""

    name: Literal["queued", "loading", "running", "paused", "finished"]
    message: str | None
    ahead: int  # others who have the engine before it
    fraction: float | None  # of the models that has been loaded
    words: str
    progress: ProgressBar | None


class HiddenText(PageRecord):
    """The text before the shown end of a long prompt, shown on demand."""

    words: str  # how long it is
    text: str


class RunHead(PageRecord, kw_only=True):
    """What a stage is told once, before the first step."""

    prompt: Sequence[PromptPart]
    hidden: HiddenText | UnsetType = UNSET
    is_code: bool  # the prompt is program code
    recorded: bool
    legend: Sequence[tuple[str, str, str]]  # statuses, each with its word and its meaning
    figures: Mapping[str, Chart]  # the empty charts by name
    metrics: Sequence[tuple[str, str, str]]  # label, formula, and what other tools call it
    look_numbers: Sequence[tuple[str, str]]  # of `TokenLook.numbers`: label and formula
    log_ticks: Sequence[tuple[float, str]]  # places in percent on the log axis, and their labels


class SpeedWords(PageRecord):
    """The speed of a run against its target alone; without a ratio, value is "" and words says why."""

    value: str
    words: str
    note: str
    can_measure: bool = False
    progress: ProgressBar | None = None


class AnswerEnd(PageRecord):
    """The place where the answer ends, inside the text that was generated."""

    length: int  # characters
    step: int
    place: int  # in the step's pieces
    text: str  # the part of that piece that belongs to the answer


class PictureWords(PageRecord):
    """What a picture of a run has beside its tokens."""

    question: str  # "" where the run goes on with a text
    start: str  # the end of that text, else ""


class NextStep(PageRecord, kw_only=True):
    """A button under a run that is over. It pins a token, makes another run or saves a picture."""

    does: Literal["pin", "run", "picture"]
    words: Sentence
    note: str | UnsetType = UNSET
    at: TokenPlace | UnsetType = UNSET  # pin
    asks: Mapping[str, int | str] | UnsetType = UNSET  # run: the values that differ
    shows: PictureWords | UnsetType = UNSET  # picture


class RunEnd(PageRecord):
    """Why a run ended."""

    reason: Literal[Reason, "cut"]  # cut: the recording has no end
    words: str
    answer: AnswerEnd | UnsetType = UNSET
    next: Sequence[NextStep] = ()  # what a person may do now


class LaneCell(PageRecord, kw_only=True):
    """A token in the lane of its step."""

    ref: str  # the number of its node in the draft, or "last"
    status: TokenStatus
    text: str
    behind_end: bool | UnsetType = UNSET  # the text ended before it
    fill: float | UnsetType = UNSET  # its chance to be accepted, in percent
    tick: float | UnsetType = UNSET  # where the random draw fell, in percent
    label: str | UnsetType = UNSET  # the chance in words
    say: str  # for a screen reader


class RefusedStep(PageRecord):
    """The mark in a lane for a whole reasoning step that the target rejected."""

    text: Sentence
    say: str


class StepBar(PageRecord):
    """How many drafted tokens of a step have each status."""

    accepted: int
    rejected: int
    ignored: int
    refused: int  # tokens of a whole reasoning step that was rejected


class StepTotals(PageRecord):
    """The numbers of the run after a step."""

    tokens_per_call: str
    accepted: str
    accepted_words: str
    accepted_share: float | None  # percent
    counts: Mapping[str, int]  # tokens by status


class LookRows(PageRecord):
    """The tokens of a look, column by column: labels, widths in percent of the axis, places on the log axis."""

    text: Sequence[str]
    role: Sequence[str]
    p: Sequence[str]
    p_dot: Sequence[float | None]
    q: Sequence[str] | UnsetType = UNSET
    q_dot: Sequence[float | None] | UnsetType = UNSET
    both: Sequence[float] | UnsetType = UNSET
    excess: Sequence[float] | UnsetType = UNSET
    shortfall: Sequence[float] | UnsetType = UNSET
    distribution: Sequence[float] | UnsetType = UNSET
    # before the sampling filters, at temperature 1
    p_raw: Sequence[float | None] | UnsetType = UNSET
    q_raw: Sequence[float | None] | UnsetType = UNSET


class DrawOnBar(PageRecord):
    """A random draw on the bar of a token. Places and widths are percent of the axis."""

    x: float  # where the draw fell
    bar: float
    fill: float  # the part that accepts the token
    u: str
    accepted: bool
    words: str | UnsetType = UNSET  # what the bar is, where it is not the token's own


class TokenLook(PageRecord, kw_only=True):
    """What the inspector shows of a token."""

    status: Literal[TokenStatus, "undecided"]  # undecided: before a guess
    view: Literal["overlay", "threshold", "draw", "words"]
    title: Sentence
    note: Sentence | UnsetType = UNSET
    heading: Literal["judged", "target", "share"] | UnsetType = UNSET  # of the column p
    # its ticks: places in percent, and labels
    axis: Sequence[tuple[float, str]] | UnsetType = UNSET
    rows: LookRows | UnsetType = UNSET
    # the values of `RunHead.look_numbers`; "" where there is none
    numbers: Sequence[str] | UnsetType = UNSET
    siblings: Sequence[Sibling] | UnsetType = UNSET  # the tokens at the same place
    draw: DrawOnBar | UnsetType = UNSET
    zoom: DrawOnBar | UnsetType = UNSET  # the same draw on the bar enlarged
    # agreement in percent and in words, and the shortfall
    foot: tuple[float, str, str] | UnsetType = UNSET


class DraftPart(PageRecord, tag_field="kind"):
    """A part of the panel that tells how a draft was made."""


class TreeNode(PageRecord, array_like=True):
    """A node in the drawing of a token tree."""

    ref: str
    text: str
    status: Status
    depth: int
    row: int
    parent_row: int
    score: str
    place: int  # among its siblings, from 1
    num_siblings: int
    p: str  # the target's probability


class TreePart(DraftPart, tag="tree"):
    """The drawing of a token tree; a column is a depth."""

    title: str
    note: str
    rows: int
    heads: Sequence[str]  # of the columns
    whose: str  # who gave the scores
    nodes: Sequence[TreeNode]


class LinesPart(DraftPart, tag="lines"):
    """Lines of tokens."""

    title: str
    lead: str
    note: str
    lines: Sequence[ChipLine]
    aligned: bool  # tokens are as wide as their texts


class FactsPart(DraftPart, tag="facts"):
    """Names, each with its value in words."""

    title: str
    items: Sequence[tuple[str, str]]


class PassagePart(DraftPart, tag="passage"):
    """A text of several lines."""

    title: str
    text: str
    mark: str  # the status that colours it
    note: str


class MadeDraft(PageRecord):
    """How the draft of a step was made."""

    lead: Sentence
    parts: Sequence[TreePart | LinesPart | FactsPart | PassagePart]


class ShownStep(PageRecord, kw_only=True):
    """One step: its lane, its text, its bar, the totals after it, and what the inspector shows."""

    index: int
    k: int
    filled: Filled | UnsetType = UNSET  # left out: the draft was written token by token
    cells: Sequence[LaneCell]
    more: int  # drafted tokens that the lane leaves out
    more_words: Sentence
    refused: RefusedStep | None
    last: LaneCell | None  # the step's own last token
    cut_off: int  # tokens of the step behind the end of the text
    pieces: Sequence[Piece]
    looks: Mapping[str, TokenLook]  # by ref
    focus: str  # the ref of the token that says most
    has_rejected: bool
    drawless: bool  # no random draw is used, or none recorded
    whole: bool  # the rule judges the draft as a whole
    bar: StepBar
    totals: StepTotals
    say: str  # for a screen reader
    made: MadeDraft | UnsetType = UNSET
    changes: Sequence[str] = ()  # of the settings, in words
    sentence: Sentence | UnsetType = UNSET  # what happens from this step on; left out: as before
    # roles and the parts at work; left out: as before
    context: Sequence[tuple[str, str]] | UnsetType = UNSET
    points: Mapping[str, Chart] | UnsetType = UNSET  # by chart; left out in a file without charts
    written: str = ""  # exactly the text, for the clipboard alone


class RunMessage(PageRecord, kw_only=True):
    """An increment of a run: what the stage does not have yet."""

    run: str
    start: int = field(name="from")  # the number of the first step in `steps`
    total: int  # steps so far
    head: RunHead | UnsetType = UNSET
    speed: SpeedWords
    numbers: Sequence[str]  # the values of `RunHead.metrics`
    end: RunEnd | UnsetType = UNSET
    done: int | UnsetType = UNSET  # the number of steps of a run that is over
    state: RunState | UnsetType = UNSET  # left out for a recording
    play: bool | UnsetType = UNSET  # the page begins to replay the run
    opening: bool | UnsetType = UNSET  # the page begins to explain a step
    back: bool | UnsetType = UNSET  # the run comes back, because the one after it was refused
    steps: Sequence[ShownStep] | UnsetType = UNSET


class KTotals(PageRecord):
    """The numbers of a run with another K."""

    tokens_per_call: str
    accepted: str
    accepted_words: str


class OtherK(PageRecord, kw_only=True):
    """What a text is with another K: the steps of a real run, or each token's chance."""

    k: int
    sentence: Sentence
    totals: KTotals
    # tokens accepted, tokens drafted, place in `kinds`
    steps: Sequence[tuple[int, int, int]] | UnsetType = UNSET
    # of each token to be drafted and accepted: places in `labels`
    chances: Sequence[int] | UnsetType = UNSET


class EveryK(PageRecord):
    """A finished run under every K from 1 on."""

    own: int | None  # the K with the run's own lanes
    at: int  # the K to begin with
    sure: bool  # nothing is left to chance: the lanes are those of real runs
    by_k: Sequence[OtherK]
    tokens: Sequence[tuple[str, int, str]]  # each with its step and its ref
    # place in the text -> the texts that the run drafted from there on
    drafted: Mapping[str, Sequence[str]]
    kinds: Sequence[str]  # of a step's last token
    labels: Sequence[tuple[str, float]]  # chances in words, and their widths in percent
    # tokens per target call, for each K: places from the left and from the top of a drawing of 96 by 24
    curve: Sequence[tuple[float, float]]
    curve_words: str


class NoOtherK(PageRecord):
    """Why no other K can be told of a run."""

    refusal: str
    why: str  # the whole reason


class GuessedToken(PageRecord, kw_only=True):
    """A drafted token in the opening. Widths and places are percent of an axis that its two bars share."""

    text: str
    status: Status
    draft: str  # its probability, "" where the draft gives none
    target: str  # its probability under the target, or its chance to be accepted; "" where none is known
    q: float  # width of the outlined bar
    p: float | UnsetType = UNSET  # width of the solid bar
    draw: float | UnsetType = UNSET  # where the random draw fell
    fell: str | UnsetType = UNSET  # a sentence on that
    longer: bool | UnsetType = UNSET  # the axis is longer than 100 %, as both are small


class Beat(PageRecord):
    """One moment of a step."""

    name: Literal["draft", "check", "judge", "verdict", "last", "point"]
    sentence: str
    settled: int = 0  # tokens whose verdict is known
    asked: int | UnsetType = UNSET  # the token whose verdict may be guessed
    # the distribution of a replacement: text, percent of the longest, words, and whether it was drawn
    shares: Sequence[tuple[str, float, str, bool]] | UnsetType = UNSET
    numbers: Sequence[tuple[str, str]] | UnsetType = UNSET  # of the whole run: value and words
    clocks: Sequence[tuple[str, str]] = ()  # whose time, and the time of the step so far


class RaceToAlone(PageRecord):
    """The text as it grew here, and as it grows with the target alone at its measured pace."""

    tokens: Sequence[tuple[str, Kind, float, float]]  # text, kind, milliseconds here and alone
    here: str
    alone: str
    words: str  # what is compared, and how much of the text


class Opening(PageRecord, kw_only=True):
    """One step, explained beat by beat."""

    step: int  # from 1
    title: str
    question: str
    before: str  # the end of the text so far
    drafter: tuple[str, str]  # role and name
    target: tuple[str, str]
    tokens: Sequence[GuessedToken]
    filled: Filled | UnsetType = UNSET
    last: tuple[str, Kind] | UnsetType = UNSET  # the step's own token
    beats: Sequence[Beat]
    race: RaceToAlone | UnsetType = UNSET
    run: str  # the words of the button that makes such a run
    note: str  # what is to be known before it is pressed
