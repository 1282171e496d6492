"""Analysed texts -> the tables of a shard: tokens, prompts, and sums per text and slice that add up over shards.

Also says of every token what class it is of. numpy alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from specviz.alignment.tables.columns import COLUMNS
from specviz.alignment.tables.reasons import NAMES, reasons
from specviz.alignment.tables.slices import Membership, membership
from specviz.alignment.types import BINS, KS, AnalysedText, Array, Columns, Refused, Shard, ShardTables
from specviz.analysis import whatif
from specviz.analysis.whatif import Chances

# ---- classes of tokens ----------------------------------------------------------------------------------------------

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


def rare_from(num_ids: int) -> int:
    """The first id that counts as rare."""
    return num_ids - int(RARE_SHARE * num_ids)


def classes(texts: Sequence[str], ids: Iterable[int], special_ids: Collection[int], rare_from: int) -> Array:
    """The class of each token of a text, by its place in CLASSES [N]; the first that fits, in this order.

    texts: as `TokenText.label` gives them. special: a special id, or one without a text. whitespace: nothing but it.
    rare: half a character, or see RARE_SHARE. digit: digits, no letter. code: a bracket other than (), an operator, an
    underscore, or a capital inside a word. punctuation: no letter or digit. name: begins with a capital where no
    sentence does, "I" apart. word: anything else.
    """
    found, starts_sentence = [], True
    for text, token in zip(texts, ids, strict=True):
        name = (
            "special"
            if token in special_ids or _NO_TOKEN.fullmatch(text)
            else _class_of(text, token >= rare_from, starts_sentence)
        )
        found.append(CLASSES.index(name))
        starts_sentence = _ends_sentence(text, starts_sentence)
    return np.array(found, dtype=np.int8)


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


def _ends_sentence(text: str, before: bool) -> bool:
    """Whether a sentence begins behind this token; quotes and spaces leave that as it was."""
    rest = text.strip(_QUOTES)
    return rest[-1] in _SENTENCE_ENDS if rest else before


# ---- tables ---------------------------------------------------------------------------------------------------------


def of_texts(
    texts: Sequence[AnalysedText], shard: Shard, refused: Iterable[Refused] = (), warnings: Iterable[str] = ()
) -> ShardTables:
    """The tables of a shard, columns as in `columns`; list columns are [rows, 16], by K."""
    parts = [part for text in texts for part in _parts_of(text, shard)]
    confidence = {name: np.zeros((BINS, 3)) for name in shard.drafts}
    for part in parts:
        confidence[part.name] += part.draft.confidence
    return ShardTables(
        tokens=_stacked("tokens", [_token_rows(part) for part in parts]),
        prompts=_stacked("prompts", [_prompt_row(part) for part in parts]),
        sums=_stacked("sums", [_sum_rows(part) for part in parts]),
        confidence=confidence,
        refused=tuple(refused),
        warnings=tuple(warnings),
    )


def chances(keep: Array, readable: Array, most_tokens: int | None = None) -> Chances:
    """The what-if's chances of a text, for every K of `rows.KS`: a draft drafts up to the first place it cannot read.

    most_tokens: the length the text was allowed, if it ended before it.
    """
    along = whatif.chances_along_text(keep, deepest=KS[-1], most_tokens=most_tokens)
    places = np.arange(len(keep))
    unreadable = np.where(readable, len(keep) + KS[-1], places)
    first = np.minimum.accumulate(unreadable[::-1])[::-1]
    return Chances(along.keep, np.minimum(along.drafted, first - places))


def allowed_tokens(text_length: int, finish: str, max_new_tokens: int) -> int:
    """The length that the what-if takes as allowed: a text that ended by itself had room behind it."""
    return max(text_length, max_new_tokens) if finish == "eos" else text_length


def _parts_of(text: AnalysedText, shard: Shard) -> list[_Part]:
    members = membership(text, CLASSES)
    shared = np.logical_and.reduce([text.drafts[name].readable for name in shard.drafts])
    return [_Part(text, name, members, shared, shard) for name in shard.drafts]


class _Part:
    """One text under one draft, with the expected steps for every K: begins, emitted, time_ms [16, N]. shared: the
    places that every draft can read [N]."""

    def __init__(self, text: AnalysedText, name: str, members: Membership, shared: Array, shard: Shard) -> None:
        self.text, self.name, self.members, self.k, self.draft = text, name, members, shard.k, text.drafts[name]
        self.shared = shared
        most = allowed_tokens(len(text.ids), text.finish, shard.request.max_new_tokens)
        laws = chances(self.draft.keep, self.draft.readable, most)
        step_ms = np.array(shard.step_ms.get(name, [np.nan] * (KS[-1] + 1)), dtype=np.float64)
        self.plain_ms = float(step_ms[0])
        self.begins = whatif.start_chances(laws, KS)
        self.emitted = self.begins * _expected_lengths(laws)
        self.time_ms = self.begins * np.array([step_ms[laws.depths(k)] for k in KS])


def _expected_lengths(laws: Chances) -> Array:
    """Tokens of a step begun at each place, for every K: [16, N]. A smaller K only cuts the same step short."""
    longest = whatif.step_laws(laws, KS[-1])  # [N, 17]
    reached = np.cumsum(longest[:, ::-1], axis=1)[:, ::-1]  # the chance of at least 1, 2, ... 17 tokens
    return np.cumsum(reached, axis=1)[:, 1:].T


def _stacked(table: str, rows: Sequence[Mapping[str, object]]) -> Columns:
    """Rows below each other, every column of the table in its order and type."""
    return {name: _joined(column.type, [row[name] for row in rows]) for name, column in COLUMNS[table].items()}


def _joined(kind: str, pieces: Sequence[object]) -> Array:
    if kind == "string":
        return np.concatenate([np.zeros(0, dtype=object), *(np.asarray(piece, dtype=object) for piece in pieces)])
    if kind.startswith("list"):
        return np.concatenate([np.zeros((0, len(KS)), dtype=np.float32), *pieces]).astype(np.float32)
    return np.concatenate([np.zeros(0, dtype=kind), *pieces]).astype(kind)


def _token_rows(part: _Part) -> dict[str, object]:
    text, draft, size = part.text, part.draft, len(part.text.ids)
    rows = {
        "prompt": np.full(size, text.row.number),
        "place": np.arange(size),
        "context": text.context_lengths,
        "token": text.ids,
        "text": text.labels,
        "class": np.array(CLASSES, dtype=object)[text.kinds],
        "p": text.p,
        "p_entropy": text.entropy,
        "favourite": text.favourite,
        "favourite_text": text.favourite_labels,
        "favourite_p": text.favourite_p,
        "target_favourite_q": draft.target_favourite_q,
        "draft": np.full(size, part.name, dtype=object),
        "q": draft.q,
        "overlap": draft.overlap,
        "keep": draft.keep,
        "q_entropy": draft.entropy,
        "draft_favourite": draft.favourite,
        "draft_favourite_text": text.draft_favourite_labels[part.name],
        "draft_favourite_q": draft.favourite_q,
        "draft_favourite_p": draft.favourite_p,
        "rank_in_draft": draft.rank_in_draft,
        "rank_in_target": draft.rank_in_target,
        "outside": draft.outside,
        "readable": draft.readable,
        "price": draft.price,
        "lost": draft.lost,
    }
    return rows | {"reason": NAMES[reasons(rows)]}


def _prompt_row(part: _Part) -> dict[str, object]:
    text, draft, row = part.text, part.draft, part.text.row
    readable = np.flatnonzero(draft.readable)
    speedups = part.emitted.sum(1) * part.plain_ms / part.time_ms.sum(1)
    best = int(np.nanargmax(speedups)) if np.isfinite(speedups).any() else None
    values = {
        "prompt": row.number,
        "id": row.id,
        "tags": "|".join(row.tags),
        "line": row.line,
        "source": text.source,
        "exact": text.exact,
        "finish": text.finish,
        "prompt_text": text.prompt,
        "num_prompt_tokens": len(text.prompt_ids),
        "num_tokens": len(text.ids),
        "draft": part.name,
        "num_readable": len(readable),
        "alpha": _mean(draft.overlap[readable]),
        "greedy_agreement": _mean((text.favourite == draft.favourite)[readable]),
        "mean_keep": _mean(draft.keep[readable]),
        "tokens_per_call": len(text.ids) / part.begins[part.k - KS[0]].sum(),
        "best_k": 0 if best is None else KS[best],
        "speedup": np.nan if best is None else speedups[best],
    }
    return {name: [value] for name, value in values.items()}


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _sum_rows(part: _Part) -> dict[str, object]:
    text, draft, members = part.text, part.draft, part.members
    size, inside = len(members.kinds), members.inside  # [S, N]
    over_readable, over_shared = inside * draft.readable, inside * part.shared
    return {
        "prompt": np.full(size, text.row.number),
        "draft": np.full(size, part.name, dtype=object),
        "kind": members.kinds,
        "value": members.values,
        "num_tokens": inside.sum(1),
        "num_readable": over_readable.sum(1),
        "overlap": over_readable @ draft.overlap,
        "keep": over_readable @ draft.keep,
        "agreement": over_readable @ (text.favourite == draft.favourite),
        "outside": over_readable @ draft.outside,
        "num_shared": over_shared.sum(1),
        "shared_overlap": over_shared @ draft.overlap,
        "calls": inside @ part.begins.T,
        "emitted": inside @ part.emitted.T,
        "time_ms": inside @ part.time_ms.T,
    }
