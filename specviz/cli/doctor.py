"""A diagnosis for the terminal: the verdict first, then what it rests on. Nothing in it that a terminal would obey."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specviz.alignment.causes.doctor import Chat, Diagnosis, NamedId, Special, Way
from specviz.views.explore.sentences import percent
from specviz.views.terminal import neutral

MOST_NAMED = 6  # special tokens of a kind


def text(diagnosis: Diagnosis) -> str:
    """Sections of short lines; model names and token texts are neutral."""
    sections = (
        _verdict(diagnosis),
        ["Ids", *_table(_id_rows(diagnosis))],
        ["Special tokens (target | draft)", *_table(map(_special_row, diagnosis.special))],
        ["Chat form", f"  {_chat_words(diagnosis.chat)}"],
        ["Ways to draft", *_table(_way_row(way, diagnosis.is_direct) for way in diagnosis.ways)],
    )
    return "\n\n".join("\n".join(neutral(line, keep=" ") for line in lines) for lines in sections)


def _verdict(diagnosis: Diagnosis) -> list[str]:
    can = "can" if diagnosis.is_direct else "cannot"
    first = f"{diagnosis.draft.name} {can} draft for {diagnosis.target.name} directly"
    return [first, *_other_ways(diagnosis), *(f"  note: {note}" for note in diagnosis.notes)]


def _other_ways(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.is_direct:
        return []
    return [f"  possible: {way.name}, with {way.command}" for way in diagnosis.ways if way.works]


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {words}".rstrip() for name, words in rows]


def _id_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    for who, side in (("target", diagnosis.target), ("draft", diagnosis.draft)):
        padding = max(0, side.table - side.num_ids)
        reads = f"reads {side.context_limit:,} tokens"
        yield who, f"{side.name}: {side.num_ids:,} ids, a table of {side.table:,} ({padding:,} padding), {reads}"
    yield "same text", f"{diagnosis.num_same:,} ids"
    yield "other text", f"{diagnosis.num_differing:,} ids{':' if diagnosis.differing else ''}"
    for item in diagnosis.differing:
        yield "", f"id {item.id}: {item.target} | {item.draft}"
    if (more := diagnosis.num_differing - len(diagnosis.differing)) > 0:
        yield "", f"and {more:,} more"
    if diagnosis.num_other_special:
        yield "special in both", f"{diagnosis.num_other_special:,} ids of other text, which is allowed"
    yield "only in one", f"{diagnosis.num_only_target:,} ids of the target, {diagnosis.num_only_draft:,} of the draft"
    yield "common texts", f"{diagnosis.num_common_texts:,}: {_share(diagnosis)}"


def _share(diagnosis: Diagnosis) -> str:
    pairs = (("target's", diagnosis.num_target_texts), ("draft's", diagnosis.num_draft_texts))
    return ", ".join(f"{percent(diagnosis.num_common_texts / max(total, 1))} of the {who}" for who, total in pairs)


def _special_row(special: Special) -> tuple[str, str]:
    if not special.differs:
        return special.kind, f"{_named(special.target)}, the same"
    return special.kind, f"{_named(special.target)} | {_named(special.draft)}: {special.words}"


def _named(ids: tuple[NamedId, ...]) -> str:
    shown = ", ".join(f"{item.label} (id {item.id})" for item in ids[:MOST_NAMED])
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return f"{shown}{more}" or "none"


def _chat_words(chat: Chat) -> str:
    if not chat.target and not chat.draft:
        return "neither model has a chat template"
    if chat.difference is not None:
        return f"differs: {chat.difference}"
    return "the same template" if chat.same_text else "two templates that render three dialogues alike"


def _way_row(way: Way, is_direct: bool) -> tuple[str, str]:
    state = "no" if not way.works else "not needed" if is_direct and way.name != "direct" else "yes"
    return way.name, f"{state}: {way.words}"
