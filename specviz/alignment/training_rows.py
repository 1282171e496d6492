"""Rows to train on, from the tables of a finished job: every text with what a rejection of each token loses.

A row holds the ids that were measured, which the lab reads again, and the same text as `conversations`.
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
    """A JSON line per text and draft: id, tags, prompt and completion as ids, weights of the completion's ids, draft,
    conversations, and `sampled` where the text is the target's own. prompts: those of the job, in order."""
    import pandas

    sampled, waiting = {"target": done.summary.target, **done.summary.sampling}, iter(prompts)
    while few := {row.number: row for row in islice(waiting, AT_ONCE)}:
        inside = [("prompt", ">=", min(few)), ("prompt", "<=", max(few))]
        texts, tokens = (
            pandas.read_parquet(done.folder / f"{name}.parquet", columns=columns, filters=inside)
            for name, columns in (("prompts", TEXT), ("tokens", TOKENS))
        )
        of_text = dict(iter(tokens.groupby(["prompt", "draft"], sort=False)))
        for text in texts.itertuples():
            own = of_text[text.prompt, text.draft]
            answer = {"role": "assistant", "content": text.text}
            row = {
                "id": text.id,
                "tags": [tag for tag in text.tags.split("|") if tag],
                "prompt": text.prompt_ids.tolist(),
                "completion": own["token"].tolist(),
                **({"sampled": sampled} if text.exact else {}),
                "conversations": [*_asked(few[text.prompt], text.prompt_text), answer],
                **_beside(few[text.prompt]),
                "draft": text.draft,
                "weights": [round(lost, DECIMALS) for lost in own["lost"].tolist()],
            }
            yield json.dumps(row, ensure_ascii=False)


def _beside(row: PromptRow) -> dict[str, Any]:
    """What a chat template needs beside the conversation."""
    found = {"tools": list(row.tools), "chat_template_kwargs": dict(row.chat_options)}
    return {name: value for name, value in found.items() if value}


def _asked(row: PromptRow, prompt_text: str) -> list[dict[str, Any]]:
    """The row's messages, or its prompt as a message of the user."""
    return (
        [{"role": "user", "content": prompt_text}] if isinstance(row.prompt, tuple) else row.asked()
    )
