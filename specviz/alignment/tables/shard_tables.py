"""Builds the tables of a shard from analysed texts: tokens, prompts, and sums per text and slice.

The sums add up over shards. The class of every token is found here too.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pandas

from specviz.alignment import types
from specviz.alignment.tables.columns import COLUMNS
from specviz.alignment.tables.reasons import NAMES, find_reasons
from specviz.alignment.tables.slices import Membership, find_slices
from specviz.alignment.types import (
    ACCEPTED,
    BY_K,
    DEPTHS,
    KS,
    Ahead,
    AnalysedText,
    Array,
    RefusedRow,
    Shard,
    ShardTables,
)
from specviz.analysis import whatif
from specviz.analysis.whatif import Chances

CLASSES = ("whitespace", "punctuation", "digit", "name", "code", "special", "rare", "word")
RARE_SHARE = 0.1
"""A token is rare if its id is among this last share of the vocabulary, or if it is half a character.

Byte-pair tokenizers number their pieces in the order of the merges, so late ids are seldom seen.
For other tokenizers it is only "a high id"."""
_HALF = re.compile("\ufffd|<[0-9A-F]{2}( [0-9A-F]{2})*>")
_NO_TOKEN = re.compile(r"(<id \d+>)?")
_CODE = re.compile(r"[{}\[\]<>=|&^~`_\\/*#@$+]|\(\)|[a-z][A-Z]")
_NO_LETTER = re.compile(r"[^\w]+|_+")
_SENTENCE_ENDS = ".!?:\n\u2026\u3002"
_QUOTES = "\"'\u201c\u201d\u2018\u2019()*# "
_FIRST_PERSON = re.compile(r"I(\W.*)?", re.DOTALL)


def classify(
    texts: Sequence[str], ids: Iterable[int], special_ids: Collection[int], num_ids: int
) -> Array:
    """The class of each token of a text [N]: the first class that fits in the order below.

    special: a special id, or an id without a text. whitespace: nothing but whitespace. rare: half a character.
    digit: digits and no letter. code: a bracket other than (), an operator, an underscore, or a capital inside a word.
    punctuation: no letter or digit. name: a capital at the start where no sentence begins, except "I".
    rare: a late id, see RARE_SHARE. word: anything else.
    texts: as `TokenText.label` gives them. num_ids: the vocabulary's size.
    """
    classes = []
    starts_sentence = True
    rare_from = num_ids - int(RARE_SHARE * num_ids)
    for text, token in zip(texts, ids, strict=True):
        if token in special_ids or _NO_TOKEN.fullmatch(text):
            classes.append("special")
        else:
            classes.append(_class_of(text, token >= rare_from, starts_sentence))
        rest = text.strip(_QUOTES)  # quotes and spaces do not change whether a sentence begins
        if rest:
            starts_sentence = rest[-1] in _SENTENCE_ENDS
    return np.array(classes, dtype=object)


def _class_of(text: str, is_rare: bool, starts_sentence: bool) -> str:
    word = text.strip()
    if not word:
        return "whitespace"
    if _HALF.search(word):
        return "rare"
    if any(char.isnumeric() for char in word) and not any(char.isalpha() for char in word):
        return "digit"
    if _CODE.search(word):
        return "code"
    if _NO_LETTER.fullmatch(word):
        return "punctuation"
    if word[0].isupper() and not starts_sentence and not _FIRST_PERSON.fullmatch(word):
        return "name"
    return "rare" if is_rare else "word"


def build_tables(
    texts: Sequence[AnalysedText],
    shard: Shard,
    refused: Iterable[RefusedRow] = (),
    warnings: Iterable[str] = (),
) -> ShardTables:
    """The tables of a shard, columns as in `columns`; a cell of a list column is an array [16], by K."""
    k = shard.request.num_speculative_tokens
    tokens = []
    prompts = []
    sums = []
    bounds = []
    confidence = {name: np.zeros((types.BINS, 3)) for name in shard.drafts}
    for text in texts:
        slices = find_slices(text)
        along = {name: ahead_of(text, name) for name in shard.drafts}
        shared_ahead = np.logical_and.reduce([_reads(ahead) for ahead in along.values()])
        shared = np.logical_and.reduce([draft["readable"] for draft in text.drafts.values()])
        for name, ahead in along.items():
            key = {"prompt": text.written.row.number, "draft": name}
            step_ms = np.array(shard.step_ms.get(name, [np.nan] * (KS[-1] + 1)), dtype=np.float64)
            drawn = _chances(text, ahead, ahead.acceptance, shard)
            most_likely = _chances(text, ahead, ahead.hit, shard)
            steps = _expect_steps(drawn, k, step_ms)
            for column, values in _expect_steps(most_likely, k, step_ms).items():
                steps[f"argmax_{column}"] = values
            tokens.append(key | _token_rows(text, name, drawn, k))
            prompts.append(key | _prompt_row(text, name, steps, k, step_ms[0]))
            sums.append(key | _sum_rows(text, name, steps, slices, shared))
            sums.append(key | _depth_rows(ahead, shared_ahead))
            if "bounds" in text.drafts[name]:
                bounds.append(key | _bounds_row(text, name, shard))
            confidence[name] += text.drafts[name]["confidence"]
    rows = {"tokens": tokens, "prompts": prompts, "sums": sums, "bounds": bounds}
    tables = {name: _frame(name, pieces) for name, pieces in rows.items()}
    return ShardTables(
        **tables, confidence=confidence, refused=tuple(refused), warnings=tuple(warnings)
    )


def draft_chances(
    acceptance: Array, readable: Array, most_tokens: int | None = None, *, waits: bool = False
) -> Chances:
    """The what-if's chances of a text, for every K of `KS`: a draft drafts up to the first place it cannot read.

    acceptance, readable: by place [N] if q depends on the text alone, else by start and depth [N, depths].
    most_tokens: the length the text was allowed, if it ended earlier. waits: the first step drafts nothing.
    """
    reads = _by_start(readable, 1.0) > 0  # [N, 16]
    num_readable = np.cumprod(reads, axis=1).sum(1)
    drafted = np.minimum(whatif.draft_room(len(acceptance), most_tokens), num_readable)
    drafted[:1] *= not waits
    return Chances(_by_start(acceptance, 0.0), drafted)


def _by_start(values: Array, beyond: float) -> Array:
    """Spreads values over the depths behind each start [N, 16].

    Values by place [N] get `beyond` behind the end of the text, values by start [N, depths] get 0 behind their depths.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 2:
        return np.pad(values, ((0, 0), (0, KS[-1] - values.shape[1])))
    padded = np.append(values, np.full(KS[-1] - 1, beyond))
    return np.lib.stride_tricks.sliding_window_view(padded, KS[-1])


def ahead_of(text: AnalysedText, name: str) -> Ahead:
    """A draft at every depth behind every start, also for a draft model, whose numbers depend on the place alone."""
    draft = text.drafts[name]
    if "ahead" in draft:
        return draft["ahead"]
    return Ahead(
        acceptance=_by_start(draft["keep"], 0.0),
        hit=_by_start(text.tokens["token"] == draft["draft_most_likely"], 0.0),
        overlap=_by_start(draft["overlap"], 0.0),
        most_likely_p=_by_start(draft["draft_most_likely_p"], 0.0),
        readable=_by_start(draft["readable"], 1.0),
        waits=False,
    )


def _chances(text: AnalysedText, ahead: Ahead, acceptance: Array, shard: Shard) -> Chances:
    """The chances of a draft along the text.

    acceptance: as `draft_chances` takes it; for drawn tokens `ahead.acceptance`, for the most likely ones `ahead.hit`.
    """
    most_tokens = len(text.tokens["token"])
    if text.written.finish == "eos":  # the text ended by itself and had room behind it
        most_tokens = max(most_tokens, shard.request.max_new_tokens)
    return draft_chances(acceptance, ahead.readable, most_tokens, waits=ahead.waits)


def _expect_steps(chances: Chances, k: int, step_ms: Array) -> dict[str, Array]:
    """The expected steps of a draft along a text: columns of the sums, by K and first token [16, N].

    "kept" is for this k alone [17, N]: steps that draft, then steps that accept 1, 2, ... tokens or more.
    step_ms: of a step that drafts 0, 1, ... 16 tokens, nan where costs are not known.
    """
    begins = whatif.start_chances(chances, KS)  # [16, N]
    # a smaller K only shortens the same step, so the longest one holds the lengths for every K
    longest = _at_least(whatif.step_distributions(chances, KS[-1]))  # [N, 17]
    lengths = np.cumsum(longest, axis=1)[:, 1:].T  # [16, N]
    time_ms = np.array([step_ms[chances.depths(each_k)] for each_k in KS])
    accepted = np.zeros((KS[-1] + 1, len(chances)))
    accepted[: k + 1] = whatif.accepted_by_start(chances, k, begins[k - KS[0]])
    return {
        "calls": begins,
        "emitted": begins * lengths,
        "time_ms": begins * time_ms,
        "kept": accepted,
    }


def _bounds_row(text: AnalysedText, name: str, shard: Shard) -> types.Columns:
    """The sums of a text's bounds over the places that the draft can read, and its calls for every K.

    Fewer calls are made the likelier any token is accepted: a step then ends no earlier.
    """
    draft = text.drafts[name]
    bounds = draft["bounds"]
    readable = draft["readable"]
    sums: dict[str, object] = {"num_readable": readable.sum()}
    for column in ("keep", "overlap", "argmax"):
        known = getattr(bounds, column)
        sums[f"{column}_low"] = known.low @ readable
        sums[f"{column}_high"] = known.high @ readable
    ahead = ahead_of(text, name)
    for column, keep in (("calls_low", bounds.keep.high), ("calls_high", bounds.keep.low)):
        chances = _chances(text, ahead, keep, shard)
        sums[column] = whatif.start_chances(chances, KS).sum(1)
    return {column: [value] for column, value in sums.items()}


def _at_least(distributions: Array) -> Array:
    """The probability of at least 1, 2, ... tokens, from that of exactly 1, 2, ... tokens [N, k + 1]."""
    return np.cumsum(distributions[:, ::-1], axis=1)[:, ::-1]


def _frame(table: str, pieces: Sequence[Mapping[str, object]]) -> pandas.DataFrame:
    """Joins the pieces to one table, with the table's columns in their order and types."""
    dtypes = {}
    for name, column in COLUMNS[table].items():
        is_object = column.type.startswith(("string", "list"))
        dtypes[name] = "object" if is_object else column.type
    frames = [pandas.DataFrame({name: piece[name] for name in dtypes}) for piece in pieces]
    if not frames:
        frames = [pandas.DataFrame(columns=[*dtypes])]
    return pandas.concat(frames, ignore_index=True).astype(dtypes)


def _token_rows(text: AnalysedText, name: str, chances: Chances, k: int) -> types.Columns:
    rows = {**text.tokens, **text.drafts[name]}
    reasons = NAMES[find_reasons(rows)]
    return rows | {
        "saved": whatif.saved_along_text(chances, k),
        "lost": whatif.lost_along_text(chances, k),
        "reason": reasons,
    }


def _prompt_row(
    text: AnalysedText, name: str, steps: types.Columns, k: int, plain_ms: float
) -> types.Columns:
    draft = text.drafts[name]
    written = text.written
    row = written.row
    readable = np.flatnonzero(draft["readable"])
    best_k = 0
    speedup = np.nan
    speedups = steps["emitted"].sum(1) * plain_ms / steps["time_ms"].sum(1)  # [16]
    if np.isfinite(speedups).any():
        best = int(np.nanargmax(speedups))
        best_k = KS[best]
        speedup = speedups[best]
    values = {
        "id": row.id,
        "tags": "|".join(row.tags),
        "line": row.line,
        "source": types.GIVEN if written.finish == types.GIVEN else types.SAMPLED,
        "exact": written.exact,
        "finish": written.finish,
        "prompt_text": written.prompt,
        "num_prompt_tokens": len(written.prompt_ids),
        "prompt_ids": np.array(written.prompt_ids, dtype=np.int32),
        "text": written.text,
        "num_tokens": len(written.ids),
        "num_readable": len(readable),
        "alpha": _mean(draft["overlap"], readable),
        "greedy_agreement": _mean(_agreement(text, name), readable),
        "mean_acceptance": _mean(draft["keep"], readable),
        "tokens_per_call": len(written.ids) / steps["calls"][k - KS[0]].sum(),
        "best_k": best_k,
        "speedup": speedup,
    }
    return {column: [value] for column, value in values.items()}


def _mean(values: Array, places: Array) -> float:
    """The mean over these places; nan where there are none."""
    return values[places].mean() if len(places) else np.nan


def _agreement(text: AnalysedText, name: str) -> Array:
    return text.tokens["most_likely"] == text.drafts[name]["draft_most_likely"]


def _sum_rows(
    text: AnalysedText, name: str, steps: types.Columns, slices: Membership, shared: Array
) -> types.Columns:
    """The sums of a text by slice. shared: the places that every draft can read [N]."""
    draft = text.drafts[name]
    inside = slices.inside  # [S, N]
    over_readable = inside * draft["readable"]
    over_shared = inside * shared
    sums = {
        "kind": slices.kinds,
        "value": slices.values,
        "num_tokens": inside.sum(1),
        "num_readable": over_readable.sum(1),
        "overlap": over_readable @ draft["overlap"],
        "keep": over_readable @ draft["keep"],
        "agreement": over_readable @ _agreement(text, name),
        "outside": over_readable @ draft["outside"],
        "argmax": over_readable @ draft["draft_most_likely_p"],
        "num_shared": over_shared.sum(1),
        "shared_overlap": over_shared @ draft["overlap"],
    }
    for column, values in steps.items():
        sums[column] = list((inside @ values.T).astype(np.float32))  # S arrays [16] or [17]
    return sums


def _reads(ahead: Ahead) -> Array:
    """Whether something is drafted at each depth behind each start, within the text [N, DEPTHS]."""
    reads = _by_start(ahead.readable, 0.0)[:, :DEPTHS] > 0
    places = np.arange(len(reads))[:, None] + np.arange(DEPTHS)
    return reads & (places < len(reads))


def _depth_rows(ahead: Ahead, shared: Array) -> types.Columns:
    """A row for each depth of a draft, with sums over all starts that have that much text behind them.

    Earlier depths may have been rejected. shared: where every draft drafts [N, DEPTHS].
    """
    reads = _reads(ahead)
    depths = np.flatnonzero(reads.any(0))
    reads = reads[:, depths]
    shared = shared[:, depths]
    overlap = ahead.overlap[:, depths]
    rows = {
        "kind": "ahead",
        "value": np.array([str(depth + 1) for depth in depths], dtype=object),
        "num_tokens": len(reads) - depths,
        "num_readable": reads.sum(0),
        "overlap": (reads * overlap).sum(0),
        "keep": (reads * ahead.acceptance[:, depths]).sum(0),
        "agreement": 0.0,
        "outside": 0.0,
        "argmax": (reads * ahead.most_likely_p[:, depths]).sum(0),
        "num_shared": shared.sum(0),
        "shared_overlap": (shared * overlap).sum(0),
    }
    for name in BY_K:
        rows[name] = [np.zeros(len(KS), np.float32)] * len(depths)
    for name in ACCEPTED:
        rows[name] = [np.zeros(len(KS) + 1, np.float32)] * len(depths)
    return rows
