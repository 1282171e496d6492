"""Analysed texts -> the tables of a shard: tokens, prompts, and sums per text and slice that add up over shards.

Also the class of every token.
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
    BY_K,
    DEPTHS,
    KEPT,
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
"""Rare: an id among the last tenth of the vocabulary. Tokenizers by byte pairs number their pieces by how early they
were merged, so late ids are seldom seen; for other tokenizers it is only "a high id". Half a character is rare too."""
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
    """The class of each token of a text [N]: the first of CLASSES that fits, in this order.

    texts: as `TokenText.label` gives them. special: a special id, or one without a text. whitespace: nothing but it.
    rare: half a character, or see RARE_SHARE (num_ids: the vocabulary's size). digit: digits, no letter. code: a
    bracket other than (), an operator, an underscore, or a capital inside a word. punctuation: no letter or digit.
    name: begins with a capital where no sentence does, "I" apart. word: anything else.
    """
    found, starts_sentence = [], True
    rare_from = num_ids - int(RARE_SHARE * num_ids)
    for text, token in zip(texts, ids, strict=True):
        is_special = token in special_ids or _NO_TOKEN.fullmatch(text)
        found.append(
            "special" if is_special else _class_of(text, token >= rare_from, starts_sentence)
        )
        rest = text.strip(_QUOTES)  # quotes and spaces do not change whether a sentence begins
        starts_sentence = rest[-1] in _SENTENCE_ENDS if rest else starts_sentence
    return np.array(found, dtype=object)


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
    tokens, prompts, sums, k = [], [], [], shard.request.num_speculative_tokens
    confidence = {name: np.zeros((types.BINS, 3)) for name in shard.drafts}
    for text in texts:
        slices = find_slices(text)
        read_ahead = np.logical_and.reduce([_reads(ahead_of(text, name)) for name in shard.drafts])
        shared = np.logical_and.reduce([draft["readable"] for draft in text.drafts.values()])
        for name in shard.drafts:
            own = {"prompt": text.written.row.number, "draft": name}
            step_ms = np.array(shard.step_ms.get(name, [np.nan] * (KS[-1] + 1)), dtype=np.float64)
            drawn, likeliest = (_chances(text, name, shard, way) for way in ("keep", "hit"))
            by_argmax = _expect_steps(likeliest, k, step_ms).items()
            steps = _expect_steps(drawn, k, step_ms) | {
                f"argmax_{column}": values for column, values in by_argmax
            }
            tokens.append(own | _token_rows(text, name, drawn, k))
            prompts.append(own | _prompt_row(text, name, steps, k, step_ms[0]))
            sums.append(own | _sum_rows(text, name, steps, slices, shared))
            sums.append(own | _depth_rows(text, name, read_ahead))
            confidence[name] += text.drafts[name]["confidence"]
    rows = {"tokens": tokens, "prompts": prompts, "sums": sums}
    tables = {name: _frame(name, pieces) for name, pieces in rows.items()}
    return ShardTables(
        **tables, confidence=confidence, refused=tuple(refused), warnings=tuple(warnings)
    )


def draft_chances(
    keep: Array, readable: Array, most_tokens: int | None = None, *, waits: bool = False
) -> Chances:
    """The what-if's chances of a text, for every K of `KS`: a draft drafts up to the first place it cannot read.

    keep, readable: by place [N] for a draft whose q hangs on the text alone, else by start and depth [N, depths].
    most_tokens: the length the text was allowed, if it ended before it. waits: the first step drafts nothing.
    """
    reads = _by_start(readable, 1.0) > 0
    drafted = np.minimum(
        whatif.draft_room(len(keep), most_tokens), np.cumprod(reads, axis=1).sum(1)
    )
    drafted[:1] *= not waits
    return Chances(_by_start(keep, 0.0), drafted)


def _by_start(values: Array, beyond: float) -> Array:
    """[N, 16]: for a start and every K the value there; of what hangs on the text alone, `beyond` behind it."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 2:
        return np.pad(values, ((0, 0), (0, KS[-1] - values.shape[1])))
    padded = np.append(values, np.full(KS[-1] - 1, beyond))
    return np.lib.stride_tricks.sliding_window_view(padded, KS[-1])


def ahead_of(text: AnalysedText, name: str) -> Ahead:
    """A draft at every depth behind every start; of a model, what it says of the text."""
    draft = text.drafts[name]
    if "ahead" in draft:
        return draft["ahead"]
    columns = {
        "keep": draft["keep"], "hit": text.tokens["token"] == draft["draft_most_likely"], "overlap": draft["overlap"],
        "most_likely_p": draft["draft_most_likely_p"], "readable": draft["readable"],
    }  # fmt: skip
    return Ahead(
        **{each: _by_start(values, each == "readable") for each, values in columns.items()},
        waits=False,
    )


def _chances(text: AnalysedText, name: str, shard: Shard, way: str) -> Chances:
    """way: "keep" for drawn drafts, "hit" for the likeliest tokens."""
    ahead, size, asked = (
        ahead_of(text, name),
        len(text.tokens["token"]),
        shard.request.max_new_tokens,
    )
    most = (
        max(size, asked) if text.written.finish == "eos" else size
    )  # what ended by itself had room behind it
    return draft_chances(getattr(ahead, way), ahead.readable, most, waits=ahead.waits)


def _expect_steps(chances: Chances, k: int, step_ms: Array) -> dict[str, Array]:
    """The steps of a draft along a text as the columns of the sums, by K and first token [16, N]; "kept" at this k
    [17, N]. step_ms: of a step that drafts 0, 1, ... 16 tokens, nan where costs are not known."""
    begins = whatif.start_chances(chances, KS)
    longest = whatif.step_distributions(
        chances, KS[-1]
    )  # [N, 17]; a smaller K only cuts the same step short
    reached = np.cumsum(longest[:, ::-1], axis=1)[
        :, ::-1
    ]  # the chance of at least 1, 2, ... 17 tokens
    lengths = np.cumsum(reached, axis=1)[:, 1:].T
    time_ms = np.array([step_ms[chances.depths(k)] for k in KS])
    own = np.cumsum(whatif.step_distributions(chances, k)[:, ::-1], axis=1)[
        :, ::-1
    ].T  # at least 1, 2, ... k + 1 tokens
    own[0] = chances.depths(k) > 0
    kept = np.zeros((KS[-1] + 1, len(chances)))
    kept[: k + 1] = own * begins[k - KS[0]]
    return {"calls": begins, "emitted": begins * lengths, "time_ms": begins * time_ms, "kept": kept}


def _frame(table: str, pieces: Sequence[Mapping[str, object]]) -> pandas.DataFrame:
    """The rows below each other: every column of the table in its order and type."""
    kinds = {name: column.type for name, column in COLUMNS[table].items()}
    types = {
        name: "object" if kind.startswith(("string", "list")) else kind
        for name, kind in kinds.items()
    }
    frames = [pandas.DataFrame({name: piece[name] for name in types}) for piece in pieces]
    return pandas.concat(frames or [pandas.DataFrame(columns=[*types])], ignore_index=True).astype(
        types
    )


def _token_rows(text: AnalysedText, name: str, chances: Chances, k: int) -> types.Columns:
    rows = {**text.tokens, **text.drafts[name]}
    lines = {
        "saved": whatif.saved_along_text(chances, k),
        "lost": whatif.lost_along_text(chances, k),
    }
    return rows | lines | {"reason": NAMES[find_reasons(rows)]}


def _prompt_row(
    text: AnalysedText, name: str, steps: types.Columns, k: int, plain_ms: float
) -> types.Columns:
    draft, written, row = text.drafts[name], text.written, text.written.row
    readable = np.flatnonzero(draft["readable"])
    means = {
        "alpha": draft["overlap"],
        "greedy_agreement": _agreement(text, name),
        "mean_acceptance": draft["keep"],
    }
    speedups = steps["emitted"].sum(1) * plain_ms / steps["time_ms"].sum(1)
    best = int(np.nanargmax(speedups)) if np.isfinite(speedups).any() else None
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
        **{
            mean: values[readable].mean() if len(readable) else np.nan
            for mean, values in means.items()
        },
        "tokens_per_call": len(written.ids) / steps["calls"][k - KS[0]].sum(),
        "best_k": 0 if best is None else KS[best],
        "speedup": np.nan if best is None else speedups[best],
    }
    return {name: [value] for name, value in values.items()}


def _agreement(text: AnalysedText, name: str) -> Array:
    return text.tokens["most_likely"] == text.drafts[name]["draft_most_likely"]


def _sum_rows(
    text: AnalysedText, name: str, steps: types.Columns, slices: Membership, shared: Array
) -> types.Columns:
    """shared: the places that every draft can read [N]."""
    draft, inside = text.drafts[name], slices.inside  # [S, N]
    over_readable, over_shared = inside * draft["readable"], inside * shared
    return {
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
        **{
            column: list((inside @ numbers.T).astype(np.float32))
            for column, numbers in steps.items()
        },
    }


def _reads(ahead: Ahead) -> Array:
    """Where something is drafted, within the text [N, DEPTHS]."""
    reads = _by_start(ahead.readable, 0.0)[:, :DEPTHS] > 0
    return reads & (np.arange(len(reads))[:, None] + np.arange(DEPTHS) < len(reads))


def _depth_rows(text: AnalysedText, name: str, shared: Array) -> types.Columns:
    """One row per depth of a draft: over all starts that have so much text behind them, whatever was judged before.

    shared: where every draft drafts [N, DEPTHS]."""
    ahead = ahead_of(text, name)
    reads = _reads(ahead)
    depths = np.flatnonzero(reads.any(0))
    reads, shared = reads[:, depths], shared[:, depths]
    sums = {"overlap": ahead.overlap, "keep": ahead.keep, "argmax": ahead.most_likely_p}
    return {
        "kind": "ahead",
        "value": np.array([str(depth + 1) for depth in depths], dtype=object),
        "num_tokens": len(reads) - depths,
        "num_readable": reads.sum(0),
        "num_shared": shared.sum(0),
        "agreement": 0.0,
        "outside": 0.0,
        "shared_overlap": (shared * ahead.overlap[:, depths]).sum(0),
        **{each: (reads * values[:, depths]).sum(0) for each, values in sums.items()},
        **{each: [np.zeros(len(KS), np.float32)] * len(depths) for each in BY_K},
        **{each: [np.zeros(len(KS) + 1, np.float32)] * len(depths) for each in KEPT},
    }
