"""Makes rows to train on from a finished job: each text, what the target says at its places, where the draft fails.

A row holds the measured ids, which the lab can read again, and the same text as `conversations`. The target reads the
texts once more, for the probabilities that the job's tables do not hold.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from specviz.alignment import model_identity as identity
from specviz.alignment.executors import Map
from specviz.alignment.outputs import Alignment
from specviz.alignment.shard import read_in_groups
from specviz.alignment.token_stats import Numbers, measure_rows
from specviz.alignment.types import ModelIdentity, PromptRow
from specviz.decoding.sampling import TARGET, Sampling, refuse_nan
from specviz.models.score import ScoredRows, TextIds
from specviz.session.workbench import workbench

AT_ONCE = 256  # prompts whose tables and probabilities are held
DECIMALS = 6  # of a weight and of a probability
TEXT = ["prompt", "draft", "id", "tags", "exact", "prompt_text", "prompt_ids", "text"]
TOKENS = ["prompt", "draft", "token", "overlap", "readable"]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Texts for the target to read: work that stands alone."""

    target: ModelIdentity
    sampling: Sampling
    num_probs: int
    texts: Sequence[TextIds]


def training_lines(
    done: Alignment,
    prompts: Iterable[PromptRow],
    run_each: Map,
    *,
    num_probs: int = 32,
    batch: int = 32,
) -> Iterator[str]:
    """Yields a JSON line per text and draft. prompts: of the job, in order. batch: the most texts read at once.

    num_probs: how many of the target's likeliest tokens a line holds for each place; with 0 the target reads nothing.
    A line holds id, tags, prompt and completion as ids, place_weights, top_ids, top_probs and rest by place of the
    completion, sampling, draft and conversations. `sampled` stands where the text is the target's own. Raises
    SpecvizError.
    """
    import pandas

    sampling = {"target": done.summary.target, **done.summary.sampling}
    waiting = iter(prompts)
    piece = partial(_Piece, done.target, Sampling(**done.summary.sampling), num_probs)
    while rows := {row.number: row for row in islice(waiting, AT_ONCE)}:
        filters = [("prompt", ">=", min(rows)), ("prompt", "<=", max(rows))]
        texts = pandas.read_parquet(done.folder / "prompts.parquet", columns=TEXT, filters=filters)
        tokens = pandas.read_parquet(
            done.folder / "tokens.parquet", columns=TOKENS, filters=filters
        )
        tokens_of = dict(iter(tokens.groupby(["prompt", "draft"], sort=False)))
        ids = {}
        for text in texts.itertuples():
            completion = tokens_of[text.prompt, text.draft]["token"].tolist()
            ids[text.prompt] = TextIds(text.prompt_ids.tolist(), completion)
        probs_of: dict[int, dict[str, Any]] = {}
        if num_probs:
            read = _read_in_pieces(run_each, piece, [*ids.values()], batch)
            probs_of = dict(zip(ids, map(_probs_fields, read), strict=True))
        for text in texts.itertuples():
            line = _values(rows[text.prompt], text, ids[text.prompt], sampling)
            line |= probs_of.get(text.prompt, {})
            line |= {
                "draft": text.draft,
                "place_weights": _weights(tokens_of[text.prompt, text.draft]),
            }
            yield json.dumps(line, ensure_ascii=False)


def _read_in_pieces(
    run_each: Map,
    piece: Callable[[Sequence[TextIds]], _Piece],
    texts: Sequence[TextIds],
    batch: int,
) -> Iterator[Numbers]:
    """Yields what `read_probs` finds in each text, in order."""
    pieces = [piece(texts[first : first + batch]) for first in range(0, len(texts), batch)]
    read = dict(run_each(read_probs, pieces))
    for place in range(len(pieces)):
        yield from read[place]


def read_probs(piece: _Piece) -> list[Numbers]:
    """The target's likeliest tokens at each of a text's N places, for every text: top_ids and top_probs [N, K]."""
    target, _ = identity.load([piece.target], workbench().pool)
    numbers = partial(_likeliest, sampling=piece.sampling, count=piece.num_probs)

    def measure(texts: Sequence[TextIds]) -> list[Numbers]:
        return [of_target for (of_target,) in measure_rows(target, [], texts, numbers)]

    return read_in_groups(measure, piece.texts, target, len(piece.texts))


@torch.inference_mode()
def _likeliest(rows: ScoredRows, sampling: Sampling, count: int) -> list[dict[str, Tensor]]:
    p = sampling.probs(rows.target)
    refuse_nan(p.sum(-1).tolist(), TARGET)
    top = p.topk(min(count, p.shape[-1]), dim=-1)
    return [{"top_ids": top.indices, "top_probs": top.values}]


def _probs_fields(numbers: Numbers) -> dict[str, Any]:
    """The fields of a line from the likeliest tokens [N, K]. Tokens whose probability rounds to 0 are left out."""
    fields: dict[str, Any] = {"top_ids": [], "top_probs": [], "rest": []}
    probs = numbers["top_probs"].astype("float64").round(DECIMALS)
    for ids, of_place in zip(numbers["top_ids"].tolist(), probs.tolist(), strict=True):
        count = sum(p > 0 for p in of_place)  # the likeliest come first
        fields["top_ids"].append(ids[:count])
        fields["top_probs"].append(of_place[:count])
        fields["rest"].append(round(max(0.0, 1 - sum(of_place)), DECIMALS))
    return fields


def _values(row: PromptRow, text: Any, ids: TextIds, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a line that tell the text. text: a row of prompts.parquet."""
    values = {
        "id": text.id,
        "tags": [tag for tag in text.tags.split("|") if tag],
        "prompt": ids.prompt,
        "completion": ids.ids,
    }
    if text.exact:
        values["sampled"] = sampling
    as_message = {"role": "user", "content": text.prompt_text}
    turns = [as_message] if isinstance(row.prompt, tuple) else row.asked()
    values["conversations"] = [*turns, {"role": "assistant", "content": text.text}]
    if row.tools:
        values["tools"] = list(row.tools)
    if row.chat_options:
        values["chat_template_kwargs"] = dict(row.chat_options)
    values["sampling"] = sampling
    return values


def _weights(tokens: Any) -> list[float]:
    """The probability of a rejection at each place: 1 - overlap, and 0 where the draft cannot read."""
    weights = (1 - tokens["overlap"].astype("float64")).where(tokens["readable"], 0.0)
    return weights.round(DECIMALS).tolist()
