"""Analysed texts -> the tables of a shard: tokens, prompts, and sums per text and slice that add up over shards.

Also the class of every token.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specviz.alignment.tables.columns import COLUMNS
from specviz.alignment.tables.reasons import NAMES, find_reasons
from specviz.alignment.tables.slices import Membership, find_slices
from specviz.alignment.types import BINS, GIVEN, KS, SAMPLED, AnalysedText, Array, Refused, Shard, ShardTables
from specviz.analysis import whatif
from specviz.analysis.whatif import Chances

if TYPE_CHECKING:
    import pandas

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


def classify(texts: Sequence[str], ids: Iterable[int], special_ids: Collection[int], num_ids: int) -> Array:
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
        found.append("special" if is_special else _class_of(text, token >= rare_from, starts_sentence))
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
    texts: Sequence[AnalysedText], shard: Shard, refused: Iterable[Refused] = (), warnings: Iterable[str] = ()
) -> ShardTables:
    """The tables of a shard, columns as in `columns`; a cell of a list column is an array [16], by K."""
    tokens, prompts, sums = [], [], []
    confidence = {name: np.zeros((BINS, 3)) for name in shard.drafts}
    for text in texts:
        slices = find_slices(text)
        shared = np.logical_and.reduce([draft["readable"] for draft in text.drafts.values()])
        for name in shard.drafts:
            steps = _expect_steps(text, name, shard)
            tokens.append(_token_rows(text, name))
            prompts.append(_prompt_row(text, name, steps, shard.request.num_speculative_tokens))
            sums.append(_sum_rows(text, name, steps, slices, shared))
            confidence[name] += text.drafts[name]["confidence"]
    rows = {"tokens": tokens, "prompts": prompts, "sums": sums}
    tables = {name: _frame(name, pieces) for name, pieces in rows.items()}
    return ShardTables(**tables, confidence=confidence, refused=tuple(refused), warnings=tuple(warnings))


def draft_chances(keep: Array, readable: Array, most_tokens: int | None = None) -> Chances:
    """The what-if's chances of a text, for every K of `KS`: a draft drafts up to the first place it cannot read.

    most_tokens: the length the text was allowed, if it ended before it.
    """
    chances = whatif.chances_along_text(keep, deepest=KS[-1], most_tokens=most_tokens)
    places = np.arange(len(keep))
    unreadable = np.where(readable, len(keep) + KS[-1], places)
    first = np.minimum.accumulate(unreadable[::-1])[::-1]
    return Chances(chances.keep, np.minimum(chances.drafted, first - places))


def allowed_tokens(text_length: int, finish: str, max_new_tokens: int) -> int:
    """The length that the what-if takes as allowed: a text that ended by itself had room behind it."""
    return max(text_length, max_new_tokens) if finish == "eos" else text_length


class _Steps(NamedTuple):
    """The expected steps of a draft along a text, each [16, N] by K and first token. plain_ms: a step without a draft;
    nan, as time_ms, where costs are not known."""

    begins: Array
    emitted: Array
    time_ms: Array
    plain_ms: float


def _expect_steps(text: AnalysedText, name: str, shard: Shard) -> _Steps:
    draft, size = text.drafts[name], len(text.tokens["token"])
    most = allowed_tokens(size, text.written.finish, shard.request.max_new_tokens)
    chances = draft_chances(draft["keep"], draft["readable"], most)
    step_ms = np.array(shard.step_ms.get(name, [np.nan] * (KS[-1] + 1)), dtype=np.float64)
    begins = whatif.start_chances(chances, KS)
    longest = whatif.step_laws(chances, KS[-1])  # [N, 17]; a smaller K only cuts the same step short
    reached = np.cumsum(longest[:, ::-1], axis=1)[:, ::-1]  # the chance of at least 1, 2, ... 17 tokens
    lengths = np.cumsum(reached, axis=1)[:, 1:].T
    time_ms = np.array([step_ms[chances.depths(k)] for k in KS])
    return _Steps(begins, begins * lengths, begins * time_ms, float(step_ms[0]))


def _frame(table: str, pieces: Sequence[Mapping[str, object]]) -> pandas.DataFrame:
    """The rows below each other: every column of the table in its order and type."""
    import pandas

    kinds = {name: column.type for name, column in COLUMNS[table].items()}
    types = {name: "object" if kind in ("string", "list<float>") else kind for name, kind in kinds.items()}
    frames = [pandas.DataFrame({name: piece[name] for name in types}) for piece in pieces]
    return pandas.concat(frames or [pandas.DataFrame(columns=[*types])], ignore_index=True).astype(types)


def _token_rows(text: AnalysedText, name: str) -> dict[str, object]:
    size = len(text.tokens["token"])
    labels = {"prompt": np.full(size, text.written.row.number), "draft": np.full(size, name, dtype=object)}
    rows = labels | text.tokens | text.drafts[name]
    return rows | {"reason": NAMES[find_reasons(rows)]}


def _prompt_row(text: AnalysedText, name: str, steps: _Steps, k: int) -> dict[str, object]:
    draft, written, row = text.drafts[name], text.written, text.written.row
    readable = np.flatnonzero(draft["readable"])
    means = {"alpha": draft["overlap"], "greedy_agreement": _agreement(text, name), "mean_keep": draft["keep"]}
    speedups = steps.emitted.sum(1) * steps.plain_ms / steps.time_ms.sum(1)
    best = int(np.nanargmax(speedups)) if np.isfinite(speedups).any() else None
    values = {
        "prompt": row.number,
        "id": row.id,
        "tags": "|".join(row.tags),
        "line": row.line,
        "source": GIVEN if written.finish == GIVEN else SAMPLED,
        "exact": written.exact,
        "finish": written.finish,
        "prompt_text": written.prompt,
        "num_prompt_tokens": len(written.prompt_ids),
        "num_tokens": len(written.ids),
        "draft": name,
        "num_readable": len(readable),
        **{mean: values[readable].mean() if len(readable) else np.nan for mean, values in means.items()},
        "tokens_per_call": len(written.ids) / steps.begins[k - KS[0]].sum(),
        "best_k": 0 if best is None else KS[best],
        "speedup": np.nan if best is None else speedups[best],
    }
    return {name: [value] for name, value in values.items()}


def _agreement(text: AnalysedText, name: str) -> Array:
    return text.tokens["favourite"] == text.drafts[name]["draft_favourite"]


def _sum_rows(text: AnalysedText, name: str, steps: _Steps, slices: Membership, shared: Array) -> dict[str, object]:
    """shared: the places that every draft can read [N]."""
    draft, size, inside = text.drafts[name], len(slices.kinds), slices.inside  # [S, N]
    over_readable, over_shared = inside * draft["readable"], inside * shared
    by_k = {"calls": steps.begins, "emitted": steps.emitted, "time_ms": steps.time_ms}
    return {
        "prompt": np.full(size, text.written.row.number),
        "draft": np.full(size, name, dtype=object),
        "kind": slices.kinds,
        "value": slices.values,
        "num_tokens": inside.sum(1),
        "num_readable": over_readable.sum(1),
        "overlap": over_readable @ draft["overlap"],
        "keep": over_readable @ draft["keep"],
        "agreement": over_readable @ _agreement(text, name),
        "outside": over_readable @ draft["outside"],
        "num_shared": over_shared.sum(1),
        "shared_overlap": over_shared @ draft["overlap"],
        **{name: list((inside @ numbers.T).astype(np.float32)) for name, numbers in by_k.items()},
    }
