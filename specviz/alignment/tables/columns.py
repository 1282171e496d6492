"""The tables of the alignment lab: name, Arrow type and meaning of every column, and how columns become Arrow tables.

A shard gives tokens, prompts and sums; tokens, prompts and slices are saved. pyarrow is loaded when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Column(NamedTuple):
    type: str
    meaning: str


Table = Mapping[str, Column]


def _table(*rows: tuple[str, str, str]) -> Table:
    return {name: Column(kind, meaning) for name, kind, meaning in rows}


TOKENS = _table(
    ("prompt", "int32", "number of the prompt, from 0: one row per token and draft"),
    ("place", "int32", "position in the text, from 0"),
    ("context", "int32", "tokens before it, prompt included"),
    ("token", "int32", "its id"),
    ("text", "string", "its text"),
    ("class", "string", "whitespace, punctuation, digit, name, code, special, rare or word"),
    ("class_before", "string", "class of the token before it"),
    ("p", "float32", "its probability from the target, at the sampling asked for"),
    ("p_entropy", "float32", "entropy of p, nats"),
    ("favourite", "int32", "id of the target's likeliest token"),
    ("favourite_text", "string", "its text"),
    ("favourite_p", "float32", "its p"),
    ("target_favourite_q", "float32", "its q"),
    ("draft", "string", "name of the draft"),
    ("q", "float32", "the draft's probability of the token; 0 where it cannot read the position"),
    ("overlap", "float32", "sum over all tokens of min(p, q)"),
    ("keep", "float32", "probability that this token is accepted if drafted here, a = min(1, q/p)"),
    ("q_entropy", "float32", "entropy of q, nats"),
    ("draft_favourite", "int32", "id of the draft's likeliest token"),
    ("draft_favourite_text", "string", "its text"),
    ("draft_favourite_q", "float32", "its q"),
    ("draft_favourite_p", "float32", "its p"),
    ("rank_in_draft", "int32", "rank of the target's likeliest token for the draft, 1 = the same"),
    ("rank_in_target", "int32", "rank of the draft's likeliest token for the target, 1 = the same"),
    ("outside", "float32", "the target's probability of all tokens that the draft has no id for"),
    ("readable", "bool", "false beyond the draft's context or after an id that it lacks: it drafts nothing there"),
    ("saved", "float32", "target calls saved at the job's K if the draft were always accepted at this one position"),
    ("lost", "float32", "tokens that a rejection here is expected to lose: those that its step could still have added"),
    ("reason", "string", "why p and q differ here; empty where they are equal"),
)
PROMPTS = _table(
    ("prompt", "int32", "number of the prompt, from 0: one row per text and draft"),
    ("id", "string", "its id"),
    ("tags", "string", "its tags, joined by |"),
    ("line", "int32", "its line in the file, from 1"),
    ("source", "string", "sampled (from the target here) or given"),
    ("exact", "bool", "whether the text is the target's own at the sampling asked for"),
    ("finish", "string", "eos, length, context or given"),
    ("prompt_text", "string", "the prompt as the target read it, chat form included"),
    ("num_prompt_tokens", "int32", "its tokens"),
    ("prompt_ids", "list<int32>", "their ids"),
    ("text", "string", "the text, without the token that ends it"),
    ("num_tokens", "int32", "tokens of the text"),
    ("draft", "string", "name of the draft"),
    ("num_readable", "int32", "tokens of the text that the draft's context reaches"),
    ("alpha", "float32", "agreement, mean of sum min(p, q), over readable tokens; nan where there are none"),
    ("greedy_agreement", "float32", "share of readable tokens with the same likeliest token; nan where there are none"),
    ("mean_keep", "float32", "mean of keep over readable tokens; nan where there are none"),
    ("tokens_per_call", "float32", "tokens over the expected target calls at the job's K"),
    ("best_k", "int32", "the fastest K for this text; 0 where costs are unknown"),
    ("speedup", "float32", "predicted speedup at best_k; nan where costs are unknown"),
)
SUMS = _table(
    ("prompt", "int32", "number of the prompt: one row per text, draft, kind of slice and value"),
    ("draft", "string", "name of the draft"),
    (
        "kind",
        "string",
        "all, tag, class, depth, context, settled (context from depth 16 on) or ahead (depth in a draft)",
    ),
    ("value", "string", "which of that kind"),
    ("num_tokens", "int32", "tokens of the text in the slice"),
    ("num_readable", "int32", "those that the draft's context reaches; the next four are sums over these"),
    ("overlap", "float64", "of sum min(p, q)"),
    ("keep", "float64", "of keep"),
    ("agreement", "float64", "of positions with the same likeliest token"),
    ("outside", "float64", "of the target's probability outside the draft's vocabulary"),
    ("argmax", "float64", "of p of the draft's likeliest token"),
    ("num_shared", "int32", "tokens that every draft's context reaches"),
    ("shared_overlap", "float64", "of sum min(p, q) over these"),
    ("calls", "list<float>", "for K = 1 to 16: expected steps that begin at these tokens"),
    ("emitted", "list<float>", "for K = 1 to 16: expected tokens of the text that those steps give"),
    ("time_ms", "list<float>", "for K = 1 to 16: their expected time; nan where costs are unknown"),
    ("argmax_calls", "list<float>", "the same where the draft's likeliest tokens are drafted"),
    ("argmax_emitted", "list<float>", "likewise"),
    ("argmax_time_ms", "list<float>", "likewise"),
    ("kept", "list<float>", "at the job's K: expected steps that draft, then those that keep 1, 2, ... 16 or more"),
    ("argmax_kept", "list<float>", "the same where the draft's likeliest tokens are drafted"),
)
SLICES = _table(
    ("draft", "string", "name of the draft"),
    (
        "kind",
        "string",
        "all, tag, class, depth (tokens of text before), context (prompt included) or ahead (in a draft)",
    ),
    ("value", "string", "which of that kind"),
    ("num_tokens", "int64", "tokens in the slice that the draft's context reaches"),
    ("num_prompts", "int64", "prompts with such tokens"),
    ("alpha", "float64", "agreement, mean of sum min(p, q)"),
    ("alpha_interval", "list<double>", "95 % interval of alpha, Student's t over prompts; null below two prompts"),
    ("greedy_agreement", "float64", "share of positions where both models have the same likeliest token"),
    (
        "tokens_per_call",
        "float64",
        "tokens per target call of steps that begin in the slice, at the job's K; null where none does",
    ),
    ("best_k", "int64", "the fastest K for these steps; null where costs are unknown or no step begins at some K"),
    ("speedup", "float64", "predicted speedup at best_k; null where that is"),
    ("cliff", "bool", "whether alpha falls here by 0.1 or more from the slice before"),
    ("share", "float64", "its share of the tokens that the draft can read; null for depths in a draft"),
    ("loss_share", "float64", "its share of their lost agreement, 1 - alpha; null where nothing is lost"),
    ("excess", "list<double>", "95 % interval of loss_share - share over prompts; null below two prompts"),
    ("stands_out", "bool", "whether it loses clearly more than its share of the tokens"),
)
COLUMNS: Mapping[str, Table] = {"tokens": TOKENS, "prompts": PROMPTS, "sums": SUMS, "slices": SLICES}
_LISTS = {"list<float>": "float32", "list<double>": "float64", "list<int32>": "int32"}


def schema_of(table: Table) -> pyarrow.Schema:
    import pyarrow

    lists = {name: pyarrow.list_(pyarrow.type_for_alias(inner)) for name, inner in _LISTS.items()}
    return pyarrow.schema([(name, lists.get(column.type, column.type)) for name, column in table.items()])


def to_arrow(columns: pandas.DataFrame | Mapping[str, list[Any]], table: Table) -> pyarrow.Table:
    """The columns of `table`, in its order and types. ValueError for a column that is missing or does not fit."""
    import pyarrow

    if list(columns) != list(table):
        raise ValueError(f"columns must be {', '.join(table)} (got {', '.join(columns)})")
    rows = {name: cells if isinstance(cells, list) else cells.to_numpy() for name, cells in columns.items()}
    return pyarrow.table(rows, schema=schema_of(table))  # of arrays, not of a frame: nan stays nan
