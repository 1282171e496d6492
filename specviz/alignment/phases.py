"""One job's three steps: what must be known before, every shard, and what is put together from them.

Each step yields how far it is. What is done lies in the job's folder, so that a step goes on where it was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from specviz.alignment import outputs
from specviz.alignment.aggregate import Facts, Gathering
from specviz.alignment.causes.probes import NUM_TEXTS, look
from specviz.alignment.executors import Map
from specviz.alignment.job_folder import Job, JobFolder, Known, saving
from specviz.alignment.model_identity import load
from specviz.alignment.outputs import Alignment
from specviz.alignment.prompts.files import PromptSet
from specviz.alignment.shard import analyse
from specviz.alignment.summary import IGNORED
from specviz.alignment.types import KS, Identity, PromptRow, Shard
from specviz.analysis import theory
from specviz.analysis.costs import CONTEXT, Costs, longest_context, measure_costs
from specviz.errors import SpecvizError
from specviz.session.workbench import workbench

READING = "writing and reading the texts"
TOGETHER = "putting the tables together"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is. done, total: prompts; num_tokens, tokens_per_s: of texts that this call worked on; seconds_left
    None where that cannot be told; result with the last one."""

    words: str
    done: int
    total: int
    num_tokens: int = 0
    tokens_per_s: float | None = None
    seconds_left: float | None = None
    result: Alignment | None = None


def measure(models: Sequence[Identity]) -> tuple[Costs, ...]:
    """The costs of a target and each of its drafts, timed in the same rounds, behind the longest context up to
    `costing.CONTEXT` that all have room for."""
    target, drafts = load(models, workbench().library)
    *_, last = measure_costs(target, drafts, context_length=min(CONTEXT, longest_context(target, drafts)))
    names = [model.name for model in models]
    return tuple(replace(own, target=names[0], draft=name) for own, name in zip(last.costs, names[1:], strict=True))


@dataclass(slots=True)
class Work:
    """One job, in three steps; each yields how far it is."""

    folder: JobFolder
    rows: PromptSet
    models: Sequence[Identity]
    batch: int
    each: Map
    num_tokens: int = 0

    @property
    def job(self) -> Job:
        return self.folder.job

    @property
    def drafts(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.models[1:])

    def steps(self, given: Mapping[str, Costs] | None, keep_parts: bool) -> Iterator[Progress]:
        """All three, or none where the job is finished."""
        if not self.folder.is_finished:
            yield from self.prepare(given)
            yield from self.read()
            yield from self.put_together(keep_parts)

    def prepare(self, given: Mapping[str, Costs] | None) -> Iterator[Progress]:
        """Costs, and a look inside the drafts; kept for when the job is resumed."""
        if self.folder.known is not None:
            return
        created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        costs = dict(given or {})
        if given is None:
            yield self._words(f"measuring what {', '.join(self.drafts)} cost{'s' if len(self.drafts) == 1 else ''}")
            costs = dict(zip(self.drafts, self._one(measure, tuple(self.models)), strict=True))
        yield self._words("looking inside the drafts")
        first = tuple(islice(self.rows.rows(), min(NUM_TEXTS, self.job.num_rows)))
        found = self._one(look, self._shard(first, {}))
        plain = {name: own.to_dict() for name, own in costs.items()}
        self.folder.learn(Known(created, plain, found.findings, found.warnings, found.looked_for))

    def read(self) -> Iterator[Progress]:
        """Every shard that is not done yet."""
        numbers: list[int] = []
        missing = self._missing(numbers)
        done = sum(self._size(part) for part in range(self.job.num_parts) if self.folder.has(part))
        clock = _Clock(done, self.job.num_rows)
        yield self._words(READING, done)
        for place, tables in self.each(analyse, missing):
            self.folder.write(numbers[place], tables)
            self.num_tokens += len(tables.tokens["prompt"]) // len(self.drafts)
            done += self._size(numbers[place])
            yield clock.progress(done, self.num_tokens)

    def put_together(self, keep_parts: bool) -> Iterator[Progress]:
        """The job's tables, summary and report."""
        gathering = Gathering(self.job.request.num_speculative_tokens, self.drafts)
        with saving(self.folder.path):
            for part in outputs.write_tables(self.folder.path, self.folder.parts()):
                gathering.add(part)
                yield self._words(TOGETHER, self.job.num_rows)
            summary = gathering.summary(self._facts())
            if not summary.num_prompts:
                reasons = "; ".join(f"line {line} {reason}" for line, reason in summary.refused[:3])
                raise SpecvizError(f"none of the prompts could be used: {reasons}")
            outputs.write_summary(self.folder.path, summary)
            yield self._words("writing the report", self.job.num_rows)
            outputs.write_report(self.folder.path, summary, self.folder.parts())
        self.folder.finish(keep_parts=keep_parts)

    def _missing(self, numbers: list[int]) -> Iterator[Shard]:
        """The shards still to be done, read from the prompts when they are due; `numbers` gets their parts' numbers."""
        rows = islice(self.rows.rows(), self.job.num_rows)
        step_ms = {name: _step_ms(costs) for name, costs in self._costs().items() if not costs.doubt}
        for part in range(self.job.num_parts):
            own = tuple(islice(rows, self.job.shard_size))
            if not self.folder.has(part):
                numbers.append(part)
                yield self._shard(own, step_ms)

    def _shard(self, rows: tuple[PromptRow, ...], step_ms: Mapping[str, tuple[float, ...]]) -> Shard:
        request, models = self.job.request, tuple(self.models)
        return Shard(request, self.drafts, rows, request.num_speculative_tokens, step_ms, self.batch, models)

    def _one(self, function: Callable[[Any], Any], item: Any) -> Any:
        ((_, result),) = self.each(function, [item])
        return result

    def _size(self, part: int) -> int:
        return min(self.job.shard_size, self.job.num_rows - part * self.job.shard_size)

    def _costs(self) -> dict[str, Costs]:
        return {name: Costs.from_dict(values) for name, values in self.folder.known.costs.items()}

    def _facts(self) -> Facts:
        ignored = [f"{IGNORED}: {', '.join(self.rows.ignored)}"] if self.rows.ignored else []
        doubts = [f"{name}: no speedup and no best K. {own.doubt}" for name, own in self._costs().items() if own.doubt]
        is_whole = self.job.num_rows == len(self.rows)  # else nobody knows which lines would have been refused
        return Facts(
            request=self.job.request,
            specviz=self.job.specviz,
            created=self.folder.known.created,
            prompts=self.job.prompts,
            costs=self._costs(),
            refused=self.rows.refused if is_whole else (),
            num_refused=self.rows.num_refused if is_whole else 0,
            warnings=[*self.folder.known.warnings, *doubts, *ignored],
            findings=self.folder.known.findings,
            looked_for=self.folder.known.looked_for,
            num_ids={model.name: model.num_ids for model in self.models[1:]},
            models=dict(self.job.models),
        )

    def _words(self, words: str, done: int = 0) -> Progress:
        return Progress(words, done, self.job.num_rows, self.num_tokens)


def _step_ms(costs: Costs) -> tuple[float, ...]:
    """Of a step that drafts 0, 1, ... 16 tokens."""
    return tuple(theory.step_ms(costs, k) for k in (0, *KS))


class _Clock:
    """Speed and time left, by what was done since it was made."""

    def __init__(self, done: int, total: int) -> None:
        self._begun, self._done, self._total = time.perf_counter(), done, total

    def progress(self, done: int, num_tokens: int) -> Progress:
        spent = time.perf_counter() - self._begun
        left = spent / (done - self._done) * (self._total - done)
        speed = num_tokens / spent if spent > 0 else None
        return Progress(READING, done, self._total, num_tokens, speed, left)
