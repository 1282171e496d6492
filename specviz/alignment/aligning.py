"""align(): a prompt file becomes texts of the target, every draft's agreement with them, tables and a report.

`aligning` does it shard by shard and says how far it is. What is done lies in the job's folder, so that the same call
goes on where an earlier one was stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from .. import __version__, catalog
from ..costing import Costs
from ..errors import SpecvizError
from ..request import Request
from . import outputs
from .executors import Executor, Map, local
from .identity import Identity, introduce
from .parts import Job, JobFolder
from .prompt_files import PromptSet, of_values, open_prompts
from .rows import KS
from .summary import Summary
from .working import Progress, Runner, Work

if TYPE_CHECKING:
    import pandas

MOST_DRAFTS = 8
MOST_BATCH = 4096
SHARD_SIZE = 32


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """A finished job. folder: where tables, summary.json and report.html lie; a temporary one is removed with this."""

    summary: Summary
    folder: Path
    _home: TemporaryDirectory | None = field(default=None, repr=False)

    @property
    def tokens(self) -> pandas.DataFrame:
        """One row per token and draft (`columns.TOKENS`)."""
        return self._frame("tokens")

    @property
    def prompts(self) -> pandas.DataFrame:
        """One row per text and draft (`columns.PROMPTS`)."""
        return self._frame("prompts")

    @property
    def slices(self) -> pandas.DataFrame:
        """One row per draft and slice (`columns.SLICES`)."""
        return self._frame("slices")

    @property
    def report_path(self) -> Path:
        return self.folder / "report.html"

    def _frame(self, name: str) -> pandas.DataFrame:
        import pandas

        return pandas.read_parquet(self.folder / f"{name}.parquet")


def align(
    prompts: str | Path | Sequence[str | Mapping[str, Any]],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Alignment:
    """Does the whole job and returns its result. Takes the arguments of `aligning`. Raises SpecvizError."""
    for progress in aligning(prompts, **options):
        if on_progress is not None:
            on_progress(progress)
    return progress.result


def aligning(
    prompts: str | Path | Sequence[str | Mapping[str, Any]],
    *,
    target=None,
    draft=None,
    out: str | Path | None = None,
    k: int = 4,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 128,
    chat: bool = False,
    costs: Mapping[str, Costs] | None = None,
    batch: int = 32,
    shard_size: int = SHARD_SIZE,
    limit: int | None = None,
    executor: Executor = local,
    overwrite: bool = False,
    keep_parts: bool = False,
) -> Iterator[Progress]:
    """The job step by step, one shard of `shard_size` prompts at most between two results.

    prompts: a file of JSON lines, or texts and mappings in memory; limit: only so many of them. target, draft: as for
    `run`; draft may be a list of them. out: the folder of the job, None for a temporary one. costs: per draft; None
    measures them where the shards run, and {} does without speeds. executor: `executors.local` or one that starts
    `executors.on_ray`. overwrite: what an earlier job left in `out` is removed. Raises SpecvizError.
    """
    if k not in KS:
        raise SpecvizError(f"k must be a whole number from {KS[0]} to {KS[-1]} (got {k!r})")
    request = Request(prompt="of a file", target="a model", k=k, temperature=temperature, top_k=top_k, top_p=top_p,
                      seed=seed, max_new_tokens=max_new_tokens, chat=chat).checked()  # fmt: skip
    _check_size("batch", batch, MOST_BATCH)
    _check_size("shard_size", shard_size, MOST_BATCH)
    rows = _prompt_set(prompts)
    wanted = _wanted(target, draft)
    if executor is not local:
        _check_names(wanted)
    if limit is not None:
        _check_size("limit", limit, len(rows))
    home = TemporaryDirectory(prefix="specviz-align-") if out is None else None
    folder = Path(out if home is None else home.name)
    with executor() as each:
        models = yield from _introduced(each, wanted, limit or len(rows))
        request = replace(request, prompt="", target=models[0].name, time_limit_s=None)
        contents = tuple((model.name, model.content) for model in models)
        job = Job(request, contents, rows.fingerprint, limit or len(rows), shard_size, _told(costs), __version__)
        given = None if costs is None else _given_costs(costs, models)
        work = Work(JobFolder(folder, job, overwrite=overwrite), rows, models, batch, Runner(each, wanted))
        if not work.folder.is_finished:
            yield from work.prepare(given)
            yield from work.read()
            yield from work.put_together(keep_parts)
    summary = outputs.read_summary(folder / "summary.json")
    result = Alignment(summary, folder, home)
    yield Progress("done", job.num_rows, job.num_rows, work.num_tokens, result=result)


# ---- what is asked --------------------------------------------------------------------------------------------------


def _check_size(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise SpecvizError(f"{name} must be a whole number from 1 to {most:,} (got {value!r:.40})")


def _prompt_set(prompts: str | Path | Sequence[str | Mapping[str, Any]]) -> PromptSet:
    return open_prompts(prompts) if isinstance(prompts, (str, Path)) else of_values(prompts)


def _wanted(target: Any, draft: Any) -> tuple[Any, ...]:
    """The target and the drafts, as the caller named them."""
    default_target, default_draft = catalog.default_pair()
    if draft is None and target not in (None, default_target):
        raise SpecvizError("name at least one draft model for a target of your own (got none)")
    drafts = (default_draft if draft is None else draft,)
    if isinstance(draft, (list, tuple)) and not _is_pair(draft):
        drafts = tuple(draft)
    if not 1 <= len(drafts) <= MOST_DRAFTS:
        raise SpecvizError(f"from 1 to {MOST_DRAFTS} drafts can be compared at once (got {len(drafts)})")
    return (default_target if target is None else target, *drafts)


def _is_pair(value: Sequence[Any]) -> bool:
    """Whether it is a (model, tokenizer) pair, not two names."""
    return len(value) == 2 and not isinstance(value[0], (str, tuple))


def _check_names(wanted: tuple[Any, ...]) -> None:
    if not all(isinstance(each, str) for each in wanted):
        raise SpecvizError("models in memory cannot be sent to other processes: save them and name their folders")


def _introduced(each: Map, wanted: tuple[Any, ...], total: int) -> Iterator[Progress]:
    """Their identities; SpecvizError where one is named twice."""
    yield Progress("loading the models", 0, total)
    ((_, models),) = each(introduce, [wanted])
    names = [model.name for model in models[1:]]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SpecvizError(f"each draft must be named once (got {twice[0]} {names.count(twice[0])} times)")
    return models


def _told(costs: Mapping[str, Costs] | None) -> str:
    if not costs:
        return "measured" if costs is None else "none"
    plain = json.dumps({name: own.to_dict() for name, own in sorted(costs.items())}, sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def _given_costs(costs: Mapping[str, Costs], models: Sequence[Identity]) -> dict[str, Costs]:
    target, *drafts = (model.name for model in models)
    for name, own in costs.items():
        if name not in drafts:
            raise SpecvizError(f"costs are given for {name}, which is not among the drafts {', '.join(drafts)}")
        if own.target != target:
            raise SpecvizError(f"the costs given for {name} were measured with the target {own.target}, not {target}")
    return dict(costs)
