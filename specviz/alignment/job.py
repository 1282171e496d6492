"""align(): a prompt file becomes texts of the target, every draft's agreement with them, tables and a report.

`aligning` does it shard by shard and says how far it is. What is done lies in the job's folder, so that the same call
goes on where an earlier one was stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from specviz import __version__
from specviz.alignment import outputs
from specviz.alignment.executors import Executor, Map, local
from specviz.alignment.folder_lock import holding
from specviz.alignment.job_folder import Job, JobFolder
from specviz.alignment.model_identity import introduce
from specviz.alignment.outputs import Alignment
from specviz.alignment.phases import Progress, Work
from specviz.alignment.prompts.files import PromptSet, of_values, open_prompts
from specviz.alignment.tables import compare as comparing
from specviz.alignment.types import KS, Identity
from specviz.analysis.costs import Costs
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.request import Request

if TYPE_CHECKING:
    import pandas

    Prompts = str | Path | PromptSet | Sequence[str | Mapping[str, Any]] | pandas.DataFrame

MOST_DRAFTS = 8
MOST_BATCH = 4096
MOST_LIMIT = 1_000_000_000
SHARD_SIZE = 32


def align(prompts: Prompts, *, on_progress: Callable[[Progress], None] | None = None, **options: Any) -> Alignment:
    """Does the whole job and returns its result. Takes the arguments of `aligning`. Raises SpecvizError."""
    for progress in aligning(prompts, **options):
        if on_progress is not None:
            on_progress(progress)
    return progress.result


def aligning(
    prompts: Prompts,
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
    older: Mapping[str, Any] | None = None,
) -> Iterator[Progress]:
    """The job step by step, one shard of `shard_size` prompts at most between two results.

    prompts: a file of JSON lines; texts, mappings or a data frame in memory; or a PromptSet. limit: only so many of
    them. target, draft: as for `run`; draft may be a list of them. out: the folder of the job, None for a temporary
    one. costs: per draft; None measures them where the shards run, and {} does without speeds. executor:
    `executors.local` or one that starts `executors.on_ray`. overwrite: what an earlier job left in `out` is removed.
    older: the summary of a job of other models is refused before the first shard. Raises SpecvizError.
    """
    request = _request(
        num_speculative_tokens=_size("k", k, KS[-1]),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_new_tokens=max_new_tokens,
        chat=chat,
    )
    _check_work(batch, shard_size, limit, costs)
    wanted = _wanted(target, draft, in_memory=executor is local)
    rows = _prompt_set(prompts)
    num_rows = min(limit or len(rows), len(rows))
    folder, home = _folder(out)
    with executor() as each:
        models = yield from _introduced(each, wanted, num_rows)
        if older is not None:
            comparing.check_models(older, models[0], models[1:])
        given = None if costs is None else _given_costs(costs, models)
        job = _job(request, models, rows, num_rows, shard_size, _told(costs))
        with holding(folder):
            work = Work(JobFolder(folder, job, overwrite=overwrite), rows, models, batch, each)
            yield from work.steps(given, keep_parts)
    result = Alignment(outputs.read_summary(folder / "summary.json"), folder, home)
    yield Progress("done", num_rows, num_rows, work.num_tokens, result=result)


# ---- what is asked --------------------------------------------------------------------------------------------------


def _request(**options: Any) -> Request:
    """Without a prompt and a target. Raises SpecvizError."""
    asked = Request(prompt="of a file", target="a model", **options).validate()
    return replace(asked, prompt="", time_limit_s=None)


def _check_work(batch: object, shard_size: object, limit: object, costs: object) -> None:
    _size("batch", batch, MOST_BATCH)
    _size("shard_size", shard_size, MOST_BATCH)
    if limit is not None:
        _size("limit", limit, MOST_LIMIT)
    fits = isinstance(costs, Mapping) and all(isinstance(own, Costs) for own in costs.values())
    if costs is not None and not fits:
        raise SpecvizError("costs must be None, or a mapping of drafts to Costs, as specviz.costs measures them")


def _size(name: str, value: object, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise SpecvizError(f"{name} must be a whole number from 1 to {most:,} (got {value!r:.40})")
    return value


def _folder(out: object) -> tuple[Path, TemporaryDirectory | None]:
    if out is None:
        home = TemporaryDirectory(prefix="specviz-align-")
        return Path(home.name), home
    if not isinstance(out, (str, Path)):
        raise SpecvizError(f"out must be the name of a folder (got {out!r:.80})")
    return Path(out), None


def _prompt_set(prompts: Prompts) -> PromptSet:
    if isinstance(prompts, PromptSet):
        return prompts
    return open_prompts(prompts) if isinstance(prompts, (str, Path)) else of_values(prompts)


def _wanted(target: Any, draft: Any, *, in_memory: bool) -> tuple[Any, ...]:
    """The target and the drafts, as the caller named them. in_memory: whether they may be models in memory."""
    default_target, default_draft = catalog.default_pair()
    if draft is None and target not in (None, default_target):
        raise SpecvizError("name at least one draft model for a target of your own (got none)")
    drafts = (default_draft if draft is None else draft,)
    if isinstance(draft, (list, tuple)) and not _is_pair(draft):
        drafts = tuple(draft)
    if not 1 <= len(drafts) <= MOST_DRAFTS:
        raise SpecvizError(f"from 1 to {MOST_DRAFTS} drafts can be compared at once (got {len(drafts)})")
    wanted = tuple(_model(each) for each in (default_target if target is None else target, *drafts))
    if not (in_memory or all(isinstance(each, str) for each in wanted)):
        raise SpecvizError("models in memory cannot be sent to other processes: save them and name their folders")
    return wanted


def _model(value: Any) -> str | tuple[Any, Any]:
    """A name, a folder, or a (model, tokenizer) pair."""
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, (list, tuple)) and _is_pair(value):
        return tuple(value)
    raise SpecvizError(
        f"a model must be a bundled name, a folder, a hub id or a (model, tokenizer) pair (got {type(value).__name__})"
    )


def _is_pair(value: Sequence[Any]) -> bool:
    """Whether it is a (model, tokenizer) pair, not two models."""
    return len(value) == 2 and hasattr(value[0], "name_or_path")


def _introduced(each: Map, wanted: tuple[Any, ...], total: int) -> Iterator[Progress]:
    """Their identities; SpecvizError where one is named twice."""
    yield Progress("loading the models", 0, total)
    ((_, models),) = each(introduce, [wanted])
    names = [model.name for model in models[1:]]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SpecvizError(f"each draft must be named once (got {twice[0]} {names.count(twice[0])} times)")
    return models


def _job(
    request: Request, models: Sequence[Identity], rows: PromptSet, num_rows: int, shard_size: int, costs: str
) -> Job:
    contents = tuple((model.name, model.content) for model in models)
    asked = replace(request, target=models[0].name)
    return Job(asked, contents, rows.fingerprint, num_rows, shard_size, costs, __version__)


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
