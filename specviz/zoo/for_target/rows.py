"""Rows that the alignment lab exports (`align --export-rows`), put into shards of the store: what drafts learn from.

A row's own probabilities and weights are taken as they are. Where it has none, the target reads the text.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from specviz.errors import SpecvizError
from specviz.models.files.hub import hash_of
from specviz.models.pool import LoadedModel
from specviz.request import RunSettings
from specviz.trace.lines import numbered_lines, parse_line, unpack
from specviz.zoo.for_target.store import TOP, NewText, StoredDistribution, write_shard
from specviz.zoo.for_target.teacher import distributions_of
from specviz.zoo.training.export import replacing

_SHARD = 256  # rows
_MOST_ROWS = 100_000_000
_PLAIN = {"temperature": 1.0, **RunSettings.FILTERS}


def stored_rows(target: LoadedModel, file: Path, folder: Path) -> Path:
    """The folder below `folder` that holds the rows of a file; it is filled once. SpecvizError for other files."""
    made = folder / "rows" / hash_of(file)[:16]
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with replacing(made) as partial:
        partial.mkdir()
        rows = _rows(file)
        for number, some in enumerate(iter(lambda: list(islice(rows, _SHARD)), [])):
            write_shard(partial / f"{number:05}", _texts(target, some), 0, target.info.vocab_size)
    return made


def _rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each row with the words that name it in an error."""
    drafts = set()
    with file.open("rb") as stream:
        for number, line, _ in numbered_lines(unpack(stream, None, None), _MOST_ROWS):
            where = f"line {number} of {file.name!r}"
            row = parse_line(line, whole=True)
            if not row or not all(_are_ids(row.get(name)) for name in ("prompt", "completion")):
                raise SpecvizError(
                    f"{where} is no row of `align --export-rows`: it needs token ids"
                )
            drafts.add(row.get("draft"))
            if len(drafts) > 1:
                raise SpecvizError(f"{file.name!r} has rows of several drafts: export with one")
            yield where, row


def _are_ids(value: object) -> bool:
    return bool(value) and isinstance(value, list) and all(type(item) is int for item in value)


def _texts(target: LoadedModel, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[NewText]:
    texts = [row["prompt"] + row["completion"] for _, row in rows]
    for (where, _), ids in zip(rows, texts, strict=True):
        if not 0 <= min(ids) <= max(ids) < target.info.vocab_size:
            raise SpecvizError(f"{where} has ids that {target.name} does not know")
    untold = [ids for (_, row), ids in zip(rows, texts, strict=True) if "top_ids" not in row]
    read = iter(distributions_of(target, untold))
    return [
        _told(where, row, target) if "top_ids" in row else _text(where, row, next(read), 1.0)
        for where, row in rows
    ]


def _text(
    where: str, row: Mapping[str, Any], distribution: StoredDistribution, temperature: float
) -> NewText:
    weights = row.get("place_weights")
    if weights is not None and len(weights) != len(row["completion"]):
        raise SpecvizError(f"{where} must have a weight for each id of its completion")
    return NewText(row["prompt"], row["completion"], distribution, temperature, weights)


def _told(where: str, row: Mapping[str, Any], target: LoadedModel) -> NewText:
    """A text with the probabilities of its row, which are those of the completion's places."""
    sampling = _PLAIN | row.get("sampling", {})
    if sampling.get("target", target.name) != target.name:
        raise SpecvizError(f"{where} is of the target {sampling['target']}, not {target.name}")
    count = len(row["completion"])
    ids, log_probs = torch.zeros(count, TOP, dtype=torch.long), torch.full((count, TOP), -torch.inf)
    if not len(row["top_ids"]) == len(row["top_probs"]) == count:
        raise SpecvizError(f"{where} must have probabilities for each id of its completion")
    for place, (own, probs) in enumerate(zip(row["top_ids"], row["top_probs"], strict=True)):
        ids[place, : len(own)] = torch.tensor(own[:TOP])
        log_probs[place, : len(own)] = torch.tensor(probs[:TOP], dtype=torch.float32).log()
    if not 0 <= int(ids.min()) <= int(ids.max()) < target.info.vocab_size:
        raise SpecvizError(f"{where} has ids that {target.name} does not know")
    temperature = sampling["temperature"] or 1.0  # the most likely token is so at any temperature
    return _text(where, row, StoredDistribution(ids, log_probs), temperature)
