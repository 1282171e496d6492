"""Makes rows to train on from the tables of a finished job: every text, weighted by what each rejection loses.

A row holds the measured ids, which the lab can read again, and the same text as `conversations`.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from specviz.alignment.outputs import Alignment
from specviz.alignment.types import PromptRow

AT_ONCE = 256  # prompts whose tables are held
DECIMALS = 6  # of a weight
TEXT = ["prompt", "draft", "id", "tags", "exact", "prompt_text", "prompt_ids", "text"]
TOKENS = ["prompt", "draft", "token", "lost"]


def training_lines(done: Alignment, prompts: Iterable[PromptRow]) -> Iterator[str]:
    """Yields a JSON line per text and draft. prompts: of the job, in order.

    A line holds id, tags, prompt and completion as ids, weights of the completion's ids, draft and conversations.
    `sampled` stands where the text is the target's own.
    """
    import pandas

    sampling = {"target": done.summary.target, **done.summary.sampling}
    waiting = iter(prompts)
    while rows := {row.number: row for row in islice(waiting, AT_ONCE)}:
        filters = [("prompt", ">=", min(rows)), ("prompt", "<=", max(rows))]
        texts = pandas.read_parquet(done.folder / "prompts.parquet", columns=TEXT, filters=filters)
        tokens = pandas.read_parquet(
            done.folder / "tokens.parquet", columns=TOKENS, filters=filters
        )
        tokens_of = dict(iter(tokens.groupby(["prompt", "draft"], sort=False)))
        for text in texts.itertuples():
            own_tokens = tokens_of[text.prompt, text.draft]
            line = _values(rows[text.prompt], text, own_tokens, sampling if text.exact else None)
            yield json.dumps(line, ensure_ascii=False)


def _values(row: PromptRow, text: Any, tokens: Any, sampling: object) -> dict[str, Any]:
    """The values of one line. text: a row of prompts.parquet. sampling: None where the text is not the target's own."""
    values = {
        "id": text.id,
        "tags": [tag for tag in text.tags.split("|") if tag],
        "prompt": text.prompt_ids.tolist(),
        "completion": tokens["token"].tolist(),
    }
    if sampling is not None:
        values["sampled"] = sampling
    as_message = {"role": "user", "content": text.prompt_text}
    turns = [as_message] if isinstance(row.prompt, tuple) else row.asked()
    values["conversations"] = [*turns, {"role": "assistant", "content": text.text}]
    if row.tools:
        values["tools"] = list(row.tools)
    if row.chat_options:
        values["chat_template_kwargs"] = dict(row.chat_options)
    values["draft"] = text.draft
    values["weights"] = [round(lost, DECIMALS) for lost in tokens["lost"].tolist()]
    return values
