"""The endpoints that programs and agents call over HTTP or MCP: small JSON answers, and files by their address.

Callers read the docstrings with the words of PARAMETERS put in, as documents and as descriptions of MCP tools. Errors
are plain text. Anyone who reaches the server may call: the gate checks arguments by the endpoints' signatures, names
are looked up, and work is bounded.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args

import gradio as gr
import msgspec

from specviz.alignment.causes.doctor import examine
from specviz.alignment.job import align_steps
from specviz.alignment.summary import DraftSummary
from specviz.analysis.given_text import KS, judge_run
from specviz.checks.prove import prove
from specviz.decoding.turns import Asker
from specviz.drafters import METHODS, find_method
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.files.hub import is_here
from specviz.request import Request, check_whole, one_k
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from specviz.settings import settings
from specviz.trace.metrics import METRICS, count, metrics
from specviz.trace.values import TraceError, convert, format_got
from specviz.ui.choices import Offer
from specviz.ui.events import asker_of_call, callback, in_one_turn
from specviz.ui.registry import Registry
from specviz.views.explore import library

API_LIMIT = 4
"""Answers of one endpoint that are made at once."""
API_JOBS = 16
"""Jobs of all endpoints that use the engine, in turns."""
API_LIMIT_S = 60.0
"""Seconds that a caller without a watcher may hold the engine."""
MOST_PROVED = 500  # tokens
MOST_PROMPTS = 32  # of a job
MOST_ALIGNED = 128  # tokens of a text
RENAMED = (
    "this endpoint is called compare_tokenizers now: the next release knows no endpoint doctor"
)
SHARD = 4  # prompts between two reports of progress
PARAMETERS = {
    "prompt": "the text to continue",
    "prompts": "1 to 32 texts to continue",
    "target": "the target model, a name of `models`; none: the page's own",
    "draft": "the draft model, a name of `models`; none: the page's own",
    "method": "how tokens are drafted, such as draft_model, prompt_lookup or eagle",
    "rule": "how drafted tokens are judged; none: the method's own (lossy for reasoning); broken:NAME: `prove` alone",
    "params": "the method's own parameters by name, each a number, a text, true or false",
    "chat": "whether the target's chat template is used; none: where chat_options are given",
    "chat_options": "switches of the chat template by name, such as enable_thinking: true, false, a number or a text",
    "k": "tokens drafted per step, 1 to 32, of `align` 1 to 16; none: 4",
    "num_speculative_tokens": "another name for k",
    "max_k": "the largest K, 1 to 32",
    "temperature": "0 (the most likely token) to 5",
    "top_k": "keep only this many of the most likely tokens; 0: all",
    "top_p": "keep the most likely tokens up to this total probability; 1: all",
    "min_p": "keep the tokens at least this many times as likely as the most likely one; 0: all",
    "draft_temperature": "the draft model's own temperature; none: the target's",
    "draft_top_k": "the draft model's own top_k; none: the target's",
    "draft_top_p": "the draft model's own top_p; none: the target's",
    "draft_min_p": "the draft model's own min_p; none: the target's",
    "stop": "texts; the answer ends where one of them appears",
    "seed": "of all random draws, a whole number from 0",
    "max_new_tokens": "length of a text in tokens; `align` takes at most 128",
    "tokens": "how many tokens are written and judged, 1 to 500; few cannot tell much",
    "run": "what `run` gave back as its run, or the name of a recorded run such as first-visit",
}


def add_endpoints(registry: Registry, bench: Workbench, offer: Offer) -> None:
    """Adds the endpoints to the page that is being built."""
    endpoints = _Endpoints(registry, bench, offer)
    for name in ENDPOINTS:
        limits = {"concurrency_limit": API_LIMIT}
        if name in JOBS:
            limits = {"concurrency_limit": API_JOBS, "concurrency_id": "jobs"}
        gr.api(_for_callers(getattr(endpoints, name)), api_name=name, **limits)


def _for_callers(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint with its parameters described and its SpecvizErrors as plain text."""
    called = callback(endpoint, as_html=False)
    names = parameters_of(endpoint.__name__)
    words = "".join(f"\n    {name}: {PARAMETERS[name]}" for name in names)
    document = inspect.getdoc(endpoint)
    called.__doc__ = document.replace("\n\nReturns:", f"\n\nArgs:{words}\n\nReturns:")
    return called


class _Endpoints:
    def __init__(self, registry: Registry, bench: Workbench, offer: Offer) -> None:
        self._registry = registry
        self._bench = bench
        self._offer = offer

    def run(
        self,
        prompt: str,
        target: str | None = None,
        draft: str | None = None,
        method: str = "draft_model",
        k: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        draft_temperature: float | None = None,
        draft_top_k: int | None = None,
        draft_top_p: float | None = None,
        draft_min_p: float | None = None,
        seed: int = 0,
        max_new_tokens: int = 64,
        stop: list[str] | str | None = None,
        rule: str | None = None,
        params: dict[str, Any] | None = None,
        chat: bool | None = None,
        chat_options: dict[str, Any] | None = None,
        num_speculative_tokens: int | None = None,
        caller: gr.Request = None,
    ) -> dict:
        """Continue one prompt by speculative decoding, to its end, and count what was accepted.

        Example: run("Once upon a time", k=4, max_new_tokens=32)

        Returns:
            run: a name for `what_if`; title, text, end; numbers: by name (tokens_per_target_call in tokens,
            acceptance_rate_judged from 0 to 1, tokens_per_s in tokens per second; null where undefined); trace,
            page: what to append to this server's address for the whole trace (.jsonl.gz) and for a page that shows it
        """
        find_method(method)
        target, draft = self._pair(target, draft)
        values = {
            "prompt": prompt,
            "target": target,
            "draft": draft,
            "method": method,
            "k": one_k(k, num_speculative_tokens),
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "draft_temperature": draft_temperature,
            "draft_top_k": draft_top_k,
            "draft_top_p": draft_top_p,
            "draft_min_p": draft_min_p,
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            "stop": stop or [],
            "rule": rule,
            "params": params or {},
            "chat": bool(chat_options) if chat is None else chat,
            "chat_options": chat_options or {},
        }
        return self._answer_run(values, caller)

    def _answer_run(self, values: dict[str, Any], caller: gr.Request | None) -> dict:
        limit_s = min(API_LIMIT_S, settings().max_seconds or API_LIMIT_S)
        request = Request.from_dict({**values, "time_limit_s": limit_s})
        with self._job(caller) as asker:
            run = open_run(request, bench=self._bench, asker=asker)
            for _ in run.events():
                pass
        trace = run.trace
        if trace.footer is None:
            raise SpecvizError("the run was ended before it began")
        view = self._registry.keep(trace)
        view.run = run
        numbers = metrics(count(trace))
        return {
            "run": view.id,
            "title": library.entry(trace).title,
            "text": trace.text,
            "end": trace.footer.reason,
            "numbers": {
                name: numbers[name]
                for name in METRICS
                if isinstance(numbers[name], float | int | None)
            },
            "trace": f"/specviz/trace/{view.id}",
            "page": f"/specviz/page/{view.id}.html",
        }

    def what_if(self, run: str, max_k: int = 8, caller: gr.Request = None) -> dict:
        """How many target calls each K would have taken on the text of a run, without generating again. Heads, modules
        and early exits read the text again, where `run` made it; what they drafted as a tree is told as a chain.

        Example: what_if("first-visit", max_k=4)

        Returns:
            num_tokens of the text; exact: whether the answer is exact, else note says why; rows: per K the expected
            target calls with their 5 % and 95 % bounds, and tokens per call
        """
        check_whole("max_k", max_k, 1, max(KS))
        view = self._registry.get(run) or self._registry.find_recorded(run)
        with self._job(caller) as asker:
            target = self._bench.pool.load(view.reader) if view.reader else None
            judge = partial(judge_run, view.trace, target=target)
            judged = in_one_turn(self._bench, judge, asker)
        answer = judged.every_k(range(1, max_k + 1))
        rows = [asdict(row) for row in answer.outcomes]
        for row in rows:
            row.pop("speedup", None)
        return {
            "num_tokens": answer.num_tokens,
            "exact": answer.exact,
            "note": answer.note,
            "rows": rows,
        }

    def prove(
        self,
        target: str | None = None,
        draft: str | None = None,
        method: str = "draft_model",
        rule: str | None = None,
        k: int | None = None,
        temperature: float = 1.0,
        tokens: int = 200,
        seed: int = 0,
        num_speculative_tokens: int | None = None,
        caller: gr.Request = None,
    ) -> dict:
        """Check whether text that was written with a draft is distributed as the target's own text.

        Example: prove(rule="broken:resample_p", tokens=200)

        Returns:
            verdict: exact, consistent, suspicious, differs or unsure; checks: each with its verdict and words
        """
        check_whole("tokens", tokens, 1, MOST_PROVED)
        target, draft = self._pair(target, draft)
        check_pair = partial(
            prove,
            target=target,
            draft=draft,
            method=method,
            rule=rule,
            k=one_k(k, num_speculative_tokens),
            temperature=temperature,
            tokens=tokens,
            seed=seed,
        )
        loaded_draft = draft if "draft" in find_method(method).roles else None
        with self._job(caller) as asker, self._held(target, loaded_draft):
            report = in_one_turn(self._bench, check_pair, asker)
        checks = [
            {"name": check.name, "verdict": check.verdict, "words": check.words}
            for check in report.checks
        ]
        return {"verdict": report.verdict, "checks": checks}

    def align(
        self,
        prompts: list[str],
        target: str | None = None,
        draft: str | None = None,
        k: int | None = None,
        temperature: float = 1.0,
        max_new_tokens: int = 64,
        num_speculative_tokens: int | None = None,
        caller: gr.Request = None,
    ) -> Iterator[dict]:
        """Find out why a draft model is rejected, over several prompts; reports its progress while it works.

        Example: align(["Once upon a time", "The king said"], max_new_tokens=32)

        Returns:
            done, total: prompts; words: what is being done. The last answer has result: alpha (the chance that a
            drafted token is accepted, 0 to 1) with its interval, greedy_agreement (0 to 1), tokens_per_call for each
            K from 1, the verdict (sound, weak or broken; null for too few prompts), the findings (faults with a name),
            the next step and the reasons for rejections with their share of the loss
        """
        if not 1 <= len(prompts) <= MOST_PROMPTS:
            raise SpecvizError(
                f"prompts must be a list of 1 to {MOST_PROMPTS} texts (got {len(prompts)})"
            )
        check_whole("max_new_tokens", max_new_tokens, 1, MOST_ALIGNED)
        target, draft = self._pair(target, draft)
        work = align_steps(
            prompts,
            target=target,
            draft=draft,
            k=one_k(k, num_speculative_tokens),
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            costs={},
            shard_size=SHARD,
        )
        with self._job(caller) as asker, self._held(target, draft), closing(work):
            for progress in self._bench.in_turns(work, asker):
                answer = {"done": progress.done, "total": progress.total, "words": progress.words}
                if progress.result is not None:
                    answer["result"] = _drafts_answer(progress.result.summary.drafts[0])
                yield answer

    def compare_tokenizers(self, target: str | None = None, draft: str | None = None) -> dict:
        """Compare the tokenizers of a target and a draft model: can this one draft for that one, and how?

        Example: compare_tokenizers("fable-target", "fable-draft-othervocab")

        Returns:
            direct: whether they share a vocabulary; num_same, num_differing: token ids of the same and of other
            bytes; ways: how this pair can draft, each with whether it works and why; notes
        """
        pool = self._bench.pool
        loaded = pool.loaded_names()
        pair = []
        for name in self._pair(target, draft):
            # of a model that is not loaded the tokenizer alone is read
            pair.append(pool.load(name) if name in loaded else name)
        found = examine(*pair, allow_any=pool.allow_any)
        ways = [{"name": way.name, "works": way.works, "words": way.words} for way in found.ways]
        return {
            "direct": found.is_direct,
            "num_same": found.num_same,
            "num_differing": found.num_differing,
            "ways": ways,
            "chat": found.chat,
            "notes": list(found.notes),
        }

    def doctor(self, target: str | None = None, draft: str | None = None) -> dict:
        """The old name of `compare_tokenizers`, to which this release alone still answers.

        Returns:
            what `compare_tokenizers` returns, with a note that says so
        """
        answer = self.compare_tokenizers(target, draft)
        return {**answer, "notes": [RENAMED, *answer["notes"]]}

    def models(self) -> dict:
        """List the target models on offer with their draft models and draft heads, the best first.

        Example: models()

        Returns:
            targets: each with name, title, drafts, heads, stated (size and licence as public pages state them) and here
            (whether it is on this machine); methods: the names
            that `run` takes
        """
        targets = [
            {
                "name": name,
                "title": catalog.MODELS[name].title,
                "drafts": list(catalog.drafts_for(name)),
                "heads": [heads.name for heads in catalog.HEADS.values() if heads.target == name],
                "stated": catalog.stated(name),
                "here": name in self._bench.pool.loaded_names() or is_here(name),
            }
            for name in catalog.targets()
        ]
        return {"targets": targets, "methods": list(METHODS)}

    @contextmanager
    def _job(self, caller: gr.Request | None) -> Iterator[Asker]:
        """Counts a call as one of its visitor's jobs while it does work. Raises SpecvizError."""
        asker = asker_of_call(caller)
        with self._registry.job(asker.visitor, settings().max_runs):
            yield asker

    @contextmanager
    def _held(self, target: str, draft: str | None) -> Iterator[None]:
        """Loads a pair and holds it at hand: a model that is loaded during a turn would keep others from the engine."""
        held = [self._bench.pool.load(target)]
        if draft is not None:
            held.append(self._bench.pool.load(draft, as_draft=True))
        yield
        del held

    def _pair(self, target: str | None, draft: str | None) -> tuple[str, str | None]:
        """The named pair, or the page's own. Raises SpecvizError for what is not on offer."""
        first = self._offer.first
        target = target or first.target
        if not draft and target == first.target:
            draft = first.draft
        if not draft:
            draft = next(iter(catalog.drafts_for(target)), None)
        loaded = self._bench.pool.loaded_names()
        for role, name in (("target", target), ("draft", draft)):
            if name and not self._offer.allows(name) and name not in loaded:
                words = "this server offers only the models that `models` lists"
                raise SpecvizError(f"{role} cannot be used: {words} (got {name!r:.80})")
        return target, draft


def _drafts_answer(draft: DraftSummary) -> dict[str, Any]:
    reasons = [
        {"name": reason.name, "share": reason.share, "words": reason.words}
        for reason in draft.reasons
    ]
    return {
        "alpha": draft.alpha,
        "alpha_interval": draft.alpha_interval,
        "greedy_agreement": draft.greedy_agreement,
        "tokens_per_call": draft.tokens_per_call,
        "verdict": draft.verdict,
        "findings": [finding.words for finding in draft.findings],
        "next_step": draft.next_step,
        "reasons": reasons,
    }


# ---- the arguments of callers, checked by the endpoints' own signatures ----------------------------------------------

JOBS = ("run", "what_if", "prove", "align")
"""The endpoints that take turns at the engine for their work."""
ENDPOINTS = (*JOBS, "compare_tokenizers", "doctor", "models")
KINDS: Mapping[Any, tuple[str, Any]] = {
    str: ("a text", str),
    int: ("a whole number", int),
    float: ("a number", float),
    bool: ("true, false", bool),
    list[str]: ("a list of texts", list[Annotated[str, msgspec.Meta(title="a text")]]),
    dict[str, Any]: ("an object of plain values", dict[str, str | float | bool | None]),
    NoneType: ("null", None),
}
"""The words for each type in a signature, and the type that values are checked against."""


def _arguments_of(endpoint: Callable[..., Any]) -> type[msgspec.Struct]:
    """A record of the endpoint's parameters: their types from its signature, their words from PARAMETERS."""
    fields = []
    for name, parameter in inspect.signature(endpoint).parameters.items():
        hint = parameter.annotation
        if name == "self" or hint is gr.Request:
            continue
        hints = get_args(hint) if isinstance(hint, UnionType) else [hint]
        kinds = [KINDS[kind] for kind in hints]
        listed = ", ".join(words for words, _ in kinds)
        allowed = " or ".join(listed.rsplit(", ", 1))
        checked = Union[tuple(checked for _, checked in kinds)]  # noqa: UP007  # there are as many as the hint has
        described = Annotated[checked, msgspec.Meta(title=f"{allowed}: {PARAMETERS[name]}")]
        if parameter.default is inspect.Parameter.empty:
            fields.append((name, described))
        else:
            fields.append((name, described, parameter.default))
    return msgspec.defstruct(endpoint.__name__, fields, kw_only=True, forbid_unknown_fields=True)


_ARGUMENTS = {name: _arguments_of(getattr(_Endpoints, name)) for name in ENDPOINTS}


def parameters_of(endpoint: str) -> tuple[str, ...]:
    """The names of the arguments that callers may give, in their order."""
    return _ARGUMENTS[endpoint].__struct_fields__


def check_arguments(endpoint: str, values: Mapping[str, Any]) -> None:
    """Raises SpecvizError for a parameter that is missing, unknown, or of another type than the signature says."""
    try:
        convert(values, _ARGUMENTS[endpoint])
    except TraceError as error:
        raise SpecvizError(str(error) if error.path else f"{endpoint} {error}") from None
    for name, value in values.items():
        # Gradio would look for the file
        if isinstance(value, dict) and "path" in value and "meta" in value:
            raise SpecvizError(
                f"{name} must not name both path and meta, as a file does {format_got(value)}"
            )
