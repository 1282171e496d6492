"""Turns a prompt file into texts of the target, every draft's agreement with them, tables and a report: align().

`align_steps` works shard by shard and yields its progress. Finished shards lie in the job's folder, so the same call
resumes a job that was stopped.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas

from specviz import __version__
from specviz.alignment import outputs
from specviz.alignment.aggregate import Aggregator, Facts
from specviz.alignment.causes.probes import NUM_TEXTS, look, steps
from specviz.alignment.executors import Executor, Map, local
from specviz.alignment.job_folder import (
    Job,
    JobFolder,
    Preparation,
    explain_disk_errors,
    lock_folder,
)
from specviz.alignment.model_identity import identify, load
from specviz.alignment.outputs import Alignment
from specviz.alignment.prompts import PromptSet, from_values, open_prompts
from specviz.alignment.served.beside import check_k
from specviz.alignment.served.counters import read_counters
from specviz.alignment.served.shards import analyse_served, identify_served
from specviz.alignment.shard import analyse
from specviz.alignment.states.files import whole_texts
from specviz.alignment.states.target import WithStates, unexamined
from specviz.alignment.summary import (
    IGNORED,
    LOGPROBS,
    NEW_TOKENS,
    TIMEOUT_S,
    Counters,
    Examined,
    Summary,
)
from specviz.alignment.tables.compare import check_old_job, check_old_models
from specviz.alignment.types import KS, Asking, ModelIdentity, PromptRow, Shard
from specviz.analysis import theory
from specviz.analysis.costs import CONTEXT, Costs, longest_context, measure_costs
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.chat import NO_OPTIONS
from specviz.models.pool import LoadedModel
from specviz.request import Option, Request, check_whole, one_k
from specviz.session.workbench import workbench
from specviz.views.words import draft_label

Prompts = str | Path | PromptSet | Sequence[str | Mapping[str, Any]] | pandas.DataFrame

MOST_DRAFTS = 16
MOST = {
    "k": KS[-1],
    "batch": 4096,
    "shard_size": 4096,
    "limit": 1_000_000_000,
    "logprobs": 1000,
    "timeout_s": 86_400,
}
SHARD_SIZE = 32
NO_WEIGHTS = "The models are served elsewhere: faults in their files were not looked for, and no costs were measured."
READING = "writing and reading the texts"
TOGETHER = "assembling the tables"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is."""

    words: str
    done: int  # prompts
    total: int  # prompts
    num_tokens: int = 0  # of the texts that this call worked on
    tokens_per_s: float | None = None  # of the texts that this call worked on
    seconds_left: float | None = None  # None if not known
    num_trials: int | None = None  # of the search for faults, while that goes on
    result: Alignment | None = None  # given with the last progress

    @property
    def how_far(self) -> str:
        """What is done and how far it is, in words."""
        if self.num_trials is not None:
            return f"{self.words}: {self.num_trials:,} trials"
        return f"{self.words}: {self.done:,} of {self.total:,} prompts"


def align(
    prompts: Prompts | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Alignment:
    """Does the whole job and returns its result. Takes the arguments of `align_steps`; raises SpecvizError."""
    for progress in align_steps(prompts, **options):
        if on_progress is not None:
            on_progress(progress)
    return progress.result


def align_steps(
    prompts: Prompts | None = None,
    *,
    target=None,
    draft=None,
    out: str | Path | None = None,
    k: int | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = NEW_TOKENS,
    chat: bool = False,
    chat_options: Mapping[str, bool | int | float | str] = NO_OPTIONS,
    costs: Mapping[str, Costs] | None = None,
    batch: int = 32,
    shard_size: int = SHARD_SIZE,
    limit: int | None = None,
    executor: Executor = local,
    overwrite: bool = False,
    keep_parts: bool = False,
    older: Summary | None = None,
    reference: Any = None,
    num_speculative_tokens: int | None = None,
    logprobs: int = LOGPROBS,
    timeout_s: int = TIMEOUT_S,
    served: str | Path | None = None,
) -> Iterator[Progress]:
    """Does the job step by step, at most one shard of `shard_size` prompts between two results.

    prompts: a file of JSON lines; texts, mappings or a data frame in memory; or a PromptSet. limit: the most of them.
    target, draft, k, chat_options: as for `run`; draft may be a list, target a WithStates, both addresses of servers.
    out: None for a temporary folder. chat: each prompt is read in the target's chat form, not rows with messages alone.
    costs: per draft; None measures them where the shards run, {} means no speeds. executor: `local`, or what starts
    `executors.on_ray`. overwrite: removes the earlier job in `out`. older: a summary of the same job to compare with.
    reference: a sound ancestor of the drafts in the same shape, whose tensors are tried in their place. served: a file
    of what an engine counted. Of servers: batch is how many requests run at once, logprobs how many likeliest tokens
    they name at each place, timeout_s the seconds to wait for an answer. Raises SpecvizError.
    """
    k = one_k(k, num_speculative_tokens)
    amounts = {"batch": batch, "shard_size": shard_size, "limit": 1 if limit is None else limit}
    _check_given(costs, k=k, logprobs=logprobs, timeout_s=timeout_s, **amounts)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    lengths = {"num_speculative_tokens": k, "max_new_tokens": max_new_tokens}
    request = _request(chat, chat_options, seed=seed, **sampling, **lengths)
    wanted = _wanted_models(target, draft, in_memory=executor is local)
    asking = _asking(wanted, reference, logprobs, timeout_s)
    counters = _counters(served, k, len(wanted) - 1)
    rows = _prompt_set(prompts, wanted[0])
    terms = _Terms(request, wanted, reference, asking, counters, rows, limit, shard_size, costs)
    if older is not None:
        check_old_job(older, request, rows.fingerprint)
    folder, home = _choose_folder(out)
    result = yield from _steps(terms, older, folder, executor, batch, overwrite, keep_parts)
    done = Alignment(outputs.read_summary(folder / "summary.json"), folder, result.models[0], home)
    yield Progress("done", terms.num_rows, terms.num_rows, result.num_tokens, result=done)


def _steps(
    terms: "_Terms",
    older: Summary | None,
    folder: Path,
    executor: Executor,
    batch: int,
    overwrite: bool,
    keep_parts: bool,
) -> Iterator[Progress]:
    """Does the job in its folder; the generator's value is the finished work."""
    with executor() as run_each:
        yield Progress("loading the models", 0, terms.num_rows)
        models, ancestor = _identify(run_each, terms)
        _check_models(models, older, terms.known_costs)
        job = terms.job(models, ancestor)
        with lock_folder(folder):
            job_folder = JobFolder(folder, job, overwrite=overwrite)
            is_local = executor is local
            job_run = _JobRun(job_folder, terms, models, ancestor, batch, run_each, is_local)
            yield from job_run.steps(keep_parts=keep_parts)
    return job_run


@dataclass(frozen=True, slots=True)
class _Terms:
    """What a job is about, as the caller gave it."""

    request: Request
    wanted: tuple[Any, ...]  # the target and the drafts, as `_wanted_models` gives them
    reference: Any
    asking: Asking | None
    counters: Counters | None
    rows: PromptSet
    limit: int | None
    shard_size: int
    costs: Mapping[str, Costs] | None

    @property
    def num_rows(self) -> int:
        return min(self.limit or len(self.rows), len(self.rows))

    @property
    def known_costs(self) -> Mapping[str, Costs] | None:
        """The costs; None where they are to be measured, which needs the models here."""
        is_here = self.asking is None and not self.state_layers
        return self.costs if self.costs is not None or is_here else {}

    @property
    def state_layers(self) -> tuple[int, ...]:
        """The layers of the stored states that stand for the target's; none for a target that is loaded whole."""
        target = self.wanted[0]
        return target.layers if isinstance(target, WithStates) else ()

    def job(self, models: Sequence[ModelIdentity], reference: ModelIdentity | None) -> Job:
        """The terms that a resumed job must share."""
        request = replace(self.request, prompt="", time_limit_s=None, target=models[0].name)
        return Job(
            request=request,
            models=tuple((model.name, model.content) for model in models),
            prompts=self.rows.fingerprint,
            num_rows=self.num_rows,
            shard_size=self.shard_size,
            costs=_costs_word(self.known_costs),
            specviz=__version__,
            reference=None if reference is None else (reference.name, reference.content),
            num_top=None if self.asking is None else self.asking.num_top,
            counters=None if self.counters is None else self.counters.content,
        )


def _request(chat: bool, chat_options: Mapping[str, Option], **fields: object) -> Request:
    """Makes the request that all texts of the job share, checked.

    Options are allowed without `chat`, for rows with messages.
    """
    request = Request(
        prompt="of a file",
        target="a model",
        chat=chat or bool(chat_options),
        chat_options=chat_options,
        **fields,
    )
    return replace(request.validate(), chat=chat)


def _prompt_set(prompts: Prompts | None, target: Any) -> PromptSet:
    if prompts is None and isinstance(target, WithStates):
        return whole_texts(target.folder)
    if isinstance(prompts, PromptSet):
        return prompts
    return open_prompts(prompts) if isinstance(prompts, (str, Path)) else from_values(prompts)


def _check_models(
    models: Sequence[ModelIdentity], older: Summary | None, costs: Mapping[str, Costs] | None
) -> None:
    """Checks the older summary and the costs against the models of the job. Raises SpecvizError."""
    if older is not None:
        check_old_models(older, models[0], models[1:])
    if costs is not None:
        _check_costs(costs, models)


def _check_given(costs: object, **counts: int) -> None:
    for name, count in counts.items():
        check_whole(name, count, 1, MOST[name])
    if costs is None:
        return
    if not isinstance(costs, Mapping) or not all(isinstance(own, Costs) for own in costs.values()):
        raise SpecvizError(
            "costs must be None, or a mapping of drafts to Costs, as specviz.costs measures them"
        )


def _choose_folder(out: object) -> tuple[Path, TemporaryDirectory | None]:
    """The job's folder, and the temporary one that it lies in, if any."""
    if out is None:
        home = TemporaryDirectory(prefix="specviz-align-")
        return Path(home.name), home
    if not isinstance(out, (str, Path)):
        raise SpecvizError(f"out must be the name of a folder (got {out!r:.80})")
    return Path(out), None


def _asking(wanted: Sequence[Any], reference: Any, logprobs: int, timeout_s: int) -> Asking | None:
    """How the servers are asked; None where the models' weights are here. Raises SpecvizError for a mixture."""
    are_urls = [catalog.is_url(model) for model in wanted]
    if not any(are_urls):
        return None
    if not all(are_urls):
        raise SpecvizError(
            "the target and all drafts must be addresses of servers, or none of them: a server gives a few tokens of "
            "each place, and weights here give all (an address begins with http:// or https://)"
        )
    if reference is not None:
        raise SpecvizError("a reference needs the drafts' weights here, and these are served")
    return Asking(logprobs, float(timeout_s))


def _counters(served: object, k: int, num_drafts: int) -> Counters | None:
    """Reads what an engine counted. Raises SpecvizError for another K, or for several drafts."""
    if served is None:
        return None
    if not isinstance(served, (str, Path)):
        raise SpecvizError(f"served must be the name of a file (got {served!r:.80})")
    if num_drafts > 1:
        raise SpecvizError(
            f"an engine's counters are of one draft: name that one (got {num_drafts})"
        )
    counters = read_counters(served)
    check_k(counters, k)
    return counters


def _identify(
    run_each: Map, terms: _Terms
) -> tuple[tuple[ModelIdentity, ...], ModelIdentity | None]:
    """The target with its drafts, and the reference if there is one. It may have the name of a draft."""
    wanted = terms.wanted
    if terms.asking is not None:
        ((_, models),) = run_each(identify_served, [(terms.asking, wanted)])
        return models, None
    groups = [wanted]
    if terms.reference is not None:
        groups.append((wanted[0], _model(terms.reference)))
    found = dict(run_each(identify, groups))
    return found[0], found[1][-1] if terms.reference is not None else None


def _wanted_models(target: Any, draft: Any, *, in_memory: bool) -> tuple[Any, ...]:
    """The target and the drafts, as the caller named them. in_memory: whether they may be models in memory."""
    default_target, default_draft = catalog.default_pair()
    if draft is None and target not in (None, default_target):
        raise SpecvizError("name at least one draft model for a target of your own (got none)")
    if target is None:
        target = default_target
    if draft is None:
        drafts = (default_draft,)
    elif isinstance(draft, (list, tuple)) and not _is_pair(draft):
        drafts = tuple(draft)
    else:
        drafts = (draft,)
    if not 1 <= len(drafts) <= MOST_DRAFTS:
        raise SpecvizError(
            f"from 1 to {MOST_DRAFTS} drafts can be compared at once (got {len(drafts)})"
        )
    wanted = tuple(_model(model) for model in (target, *drafts))
    if not in_memory and any(isinstance(model, tuple) for model in wanted):
        raise SpecvizError(
            "models in memory cannot be sent to other processes: save them and name their folders"
        )
    return wanted


def _model(value: Any) -> str | tuple[Any, Any] | WithStates:
    """A name, a folder, a (model, tokenizer) pair, or a target with stored states."""
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, WithStates):
        return value
    if isinstance(value, (list, tuple)) and _is_pair(value):
        return tuple(value)
    raise SpecvizError(
        f"a model must be a bundled name, a folder, a hub id or a (model, tokenizer) pair (got {type(value).__name__})"
    )


def _is_pair(value: Sequence[Any]) -> bool:
    """Whether it is a (model, tokenizer) pair, not two models."""
    return len(value) == 2 and hasattr(value[0], "name_or_path")


def _costs_word(costs: Mapping[str, Costs] | None) -> str:
    """The source of the costs: "measured", "none", or a hash of those given."""
    if costs is None:
        return "measured"
    if not costs:
        return "none"
    values = {name: own.to_dict() for name, own in costs.items()}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _check_costs(costs: Mapping[str, Costs], models: Sequence[ModelIdentity]) -> None:
    target, *drafts = (model.name for model in models)
    for name, draft_costs in costs.items():
        if name not in drafts:
            raise SpecvizError(
                f"costs are given for {name}, which is not among the drafts {', '.join(drafts)}"
            )
        if draft_costs.target != target:
            raise SpecvizError(
                f"the costs given for {name} were measured with the target {draft_costs.target}, not {target}"
            )


def measure_models(models: Sequence[ModelIdentity]) -> tuple[Costs, ...]:
    """Measures the costs of a target and each of its draft models, in the same rounds.

    The context is the longest one up to `costs.CONTEXT` that all models have room for.
    """
    target, drafts = load(models, workbench().pool)
    draft_models = {}
    for identity, draft in zip(models[1:], drafts, strict=True):
        if isinstance(draft, LoadedModel):
            draft_models[identity.name] = draft
    if not draft_models:
        return ()
    to_measure = tuple(draft_models.values())
    context_length = min(CONTEXT, longest_context(target, to_measure))
    *_, last = measure_costs(target, to_measure, context_length=context_length)
    return tuple(
        replace(costs, target=models[0].name, draft=name)
        for costs, name in zip(last.costs, draft_models, strict=True)
    )


@dataclass(slots=True)
class _JobRun:
    """The work of one job in three steps; each yields how far it is."""

    folder: JobFolder
    terms: _Terms
    models: tuple[ModelIdentity, ...]  # the target first
    reference: ModelIdentity | None
    batch: int
    run_each: Map
    is_local: bool  # whether run_each runs in this process
    num_tokens: int = 0  # read so far

    @property
    def job(self) -> Job:
        return self.folder.job

    @property
    def drafts(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.models[1:])

    @property
    def rows(self) -> PromptSet:
        return self.terms.rows

    def steps(self, *, keep_parts: bool) -> Iterator[Progress]:
        """Does what is left of the job; nothing if it is finished."""
        if self.folder.is_finished:
            return
        yield from self.prepare()
        yield from self.read()
        yield from self.put_together(keep_parts)

    def prepare(self) -> Iterator[Progress]:
        """Finds the costs and the drafts' faults, and stores both for a resumed job."""
        if self.folder.preparation is not None:
            return
        created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        given = self.terms.known_costs
        costs = dict(given or {})
        if given is None:
            yield self._words(f"measuring the costs of {', '.join(self.drafts)}")
            measured = self._run_one(measure_models, self.models)
            costs = {own_costs.draft: own_costs for own_costs in measured}
        examined = yield from self._examine()
        preparation = Preparation(
            **{part.name: getattr(examined, part.name) for part in fields(examined)},
            created=created,
            costs={name: own_costs.to_dict() for name, own_costs in costs.items()},
        )
        self.folder.save_preparation(preparation)

    def _examine(self) -> Iterator[Progress]:
        """Looks for faults; the result is the generator's value. Another process tells nothing before it is done."""
        if self.terms.asking is not None:
            return Examined((), (NO_WEIGHTS,), ())
        if self.terms.state_layers:
            return unexamined(self.rows)
        words = self._words("looking for faults in the drafts")
        yield words
        first = tuple(islice(self.rows.rows(), min(NUM_TEXTS, self.job.num_rows)))
        is_counted = self.terms.counters is not None
        shard = replace(self._shard(first, {}), reference=self.reference, is_counted=is_counted)
        if not self.is_local:
            return self._run_one(look, shard)
        for step in steps(shard):
            if isinstance(step, Examined):
                return step
            yield replace(
                words,
                words=f"looking for faults in {draft_label(step.draft)}",
                num_trials=step.num_trials,
            )

    def read(self) -> Iterator[Progress]:
        """Works on every shard that is not done yet."""
        missing = [part for part in range(self.job.num_parts) if not self.folder.has(part)]
        total = self.job.num_rows
        shard_size = self.job.shard_size
        sizes = [min(shard_size, total - part * shard_size) for part in missing]
        started = time.perf_counter()
        done_before = total - sum(sizes)
        done = done_before
        yield self._words(READING, done)
        work = analyse if self.terms.asking is None else analyse_served
        for place, tables in self.run_each(work, self._shards(frozenset(missing))):
            self.folder.write(missing[place], tables)
            self.num_tokens += len(tables.tokens) // len(self.drafts)
            done += sizes[place]
            seconds = time.perf_counter() - started
            yield Progress(
                READING,
                done,
                total,
                self.num_tokens,
                tokens_per_s=self.num_tokens / seconds if seconds > 0 else None,
                seconds_left=seconds / (done - done_before) * (total - done),
            )

    def put_together(self, keep_parts: bool) -> Iterator[Progress]:
        """Writes the job's tables, summary and report."""
        aggregator = Aggregator(self.job.request.num_speculative_tokens, self.drafts)
        with explain_disk_errors(self.folder.path):
            for part in outputs.write_tables(self.folder.path, self.folder.parts()):
                aggregator.add(part)
                yield self._words(TOGETHER, self.job.num_rows)
            summary = aggregator.summary(self._facts())
            if not summary.num_prompts:
                reasons = "; ".join(f"line {line} {reason}" for line, reason in summary.refused[:3])
                raise SpecvizError(f"none of the prompts could be used: {reasons}")
            outputs.write_summary(self.folder.path, summary)
            yield self._words("writing the report", self.job.num_rows)
            outputs.write_report(self.folder.path, summary, self.folder.parts())
        self.folder.finish(keep_parts=keep_parts)

    def _shards(self, parts: Collection[int]) -> Iterator[Shard]:
        """Yields the shards of these parts in order; their prompts are read when they are due.

        Raises SpecvizError at the end if the prompts have changed meanwhile.
        """
        all_rows = self.rows.rows()
        rows = islice(all_rows, self.job.num_rows)
        step_ms = {}
        for name, costs in self._costs().items():
            if not costs.doubt:
                step_ms[name] = tuple(theory.step_ms(costs, k) for k in (0, *KS))
        for part in range(self.job.num_parts):
            own_rows = tuple(islice(rows, self.job.shard_size))
            if part in parts:
                yield self._shard(own_rows, step_ms)
        if self.job.num_rows == len(self.rows):
            next(all_rows, None)  # the check for changes runs behind the last row

    def _shard(
        self, rows: tuple[PromptRow, ...], step_ms: Mapping[str, tuple[float, ...]]
    ) -> Shard:
        return Shard(
            self.job.request,
            self.drafts,
            rows,
            step_ms,
            1 if self.terms.state_layers else self.batch,  # stored states have none for padding
            self.models,
            asking=self.terms.asking,
        )

    def _run_one(self, function: Callable[[Any], Any], item: Any) -> Any:
        ((_, result),) = self.run_each(function, [item])
        return result

    def _costs(self) -> dict[str, Costs]:
        costs = self.folder.preparation.costs
        return {name: Costs.from_dict(values) for name, values in costs.items()}

    def _facts(self) -> Facts:
        costs = self._costs()
        warnings = []
        for name, own_costs in costs.items():
            if own_costs.doubt:
                warnings.append(f"{name}: no speedup and no best K. {own_costs.doubt}")
        if self.rows.ignored:
            warnings.append(f"{IGNORED}: {', '.join(self.rows.ignored)}")
        # nobody knows which lines a limited job would have refused
        is_whole = self.job.num_rows == len(self.rows)
        return Facts(
            self.job,
            self.folder.preparation,
            costs,
            refused=self.rows.refused if is_whole else (),
            num_refused=self.rows.num_refused if is_whole else 0,
            warnings=warnings,
            num_ids={model.name: model.num_ids for model in self.models if model.num_ids},
            prompt_file=self.rows.name,
            number_formats={model.name: model.number_format for model in self.models},
            counters=self.terms.counters,
            state_layers=self.terms.state_layers,
        )

    def _words(self, words: str, done: int = 0) -> Progress:
        return Progress(words, done, self.job.num_rows, self.num_tokens)
