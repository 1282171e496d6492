"""What programs and agents may ask over HTTP or MCP: small JSON answers, and files by their address.

Callers read the docstrings, with the words of PARAMETERS put in: Gradio shows them as the endpoints' documents and as
descriptions of MCP tools. Errors are plain text. Anyone who reaches the server may call: the gate checks what is given
by the endpoints' own signatures, names are looked up, and work is bounded.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
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
from specviz.request import REQUEST_KEYS, Request, check_whole, one_k
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from specviz.settings import settings
from specviz.trace.metrics import METRICS, count, metrics
from specviz.trace.values import TraceError, convert, format_got
from specviz.ui.choices import Offer
from specviz.ui.events import asker_of_call, callback
from specviz.ui.registry import Registry
from specviz.views.explore import library

API_LIMIT, API_JOBS = 4, 16
"""Answers of one endpoint that are made at once; and jobs of all endpoints that use the engine, in turns."""
API_LIMIT_S = 60.0
"""A caller that nobody watches may hold the engine this long."""
MOST_PROVED = 500  # tokens
MOST_PROMPTS, MOST_ALIGNED = 32, 128  # prompts of a job, tokens of a text
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
    "draft_temperature": "the draft model's own temperature; none: the target's",
    "draft_top_k": "the draft model's own top_k; none: the target's",
    "draft_top_p": "the draft model's own top_p; none: the target's",
    "stop": "texts; the answer ends where one of them appears",
    "seed": "of all random draws, a whole number from 0",
    "max_new_tokens": "length of a text in tokens; `align` takes at most 128",
    "tokens": "how many tokens are written and judged, 1 to 500; few cannot tell much",
    "run": "what `run` gave back as its run, or the name of a recorded run such as first-visit",
}


def add_endpoints(registry: Registry, bench: Workbench, offer: Offer) -> None:
    """The endpoints of the page that is being built."""
    made = _Endpoints(registry, bench, offer)
    for name in ENDPOINTS:
        shared = {"concurrency_limit": API_JOBS, "concurrency_id": "jobs"} if name in JOBS else {}
        gr.api(
            _for_callers(getattr(made, name)),
            api_name=name,
            **{"concurrency_limit": API_LIMIT, **shared},
        )


def _for_callers(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint with its parameters described and its SpecvizErrors as plain text."""
    made = callback(endpoint, as_html=False)
    words = "".join(
        f"\n    {name}: {PARAMETERS[name]}" for name in parameters_of(endpoint.__name__)
    )
    made.__doc__ = inspect.getdoc(endpoint).replace("\n\nReturns:", f"\n\nArgs:{words}\n\nReturns:")
    return made


class _Endpoints:
    def __init__(self, registry: Registry, bench: Workbench, offer: Offer) -> None:
        self._registry, self._bench, self._offer = registry, bench, offer

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
        draft_temperature: float | None = None,
        draft_top_k: int | None = None,
        draft_top_p: float | None = None,
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
        params, stop, chat_options = params or {}, stop or [], chat_options or {}
        k, chat = one_k(k, num_speculative_tokens), bool(chat_options) if chat is None else chat
        given = {name: value for name, value in locals().items() if name in REQUEST_KEYS}
        limit_s = min(API_LIMIT_S, settings().max_seconds or API_LIMIT_S)
        request = Request.from_dict({**given, "time_limit_s": limit_s})
        with self._job(caller) as asker:
            made = open_run(request, bench=self._bench, asker=asker)
            for _ in made.events():
                pass
        if made.trace.footer is None:
            raise SpecvizError("the run was ended before it began")
        view, values = self._registry.keep(made.trace), metrics(count(made.trace))
        view.run = made
        return {
            "run": view.id,
            "title": library.entry(made.trace)["title"],
            "text": made.trace.text,
            "end": made.trace.footer.reason,
            "numbers": {
                name: value
                for name in METRICS
                if isinstance(value := values[name], float | int | None)
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
            target = view.reader and self._bench.pool.load(view.reader)
            (judged,) = self._bench.in_turns(
                (judge_run(view.trace, target=target) for _ in range(1)), asker
            )
        answer = judged.every_k(range(1, max_k + 1))
        rows = [
            {name: value for name, value in asdict(row).items() if name != "speedup"}
            for row in answer.outcomes
        ]
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
        k = one_k(k, num_speculative_tokens)
        given = {
            "method": method,
            "rule": rule,
            "k": k,
            "temperature": temperature,
            "tokens": tokens,
            "seed": seed,
        }
        drafts = "draft" in find_method(method).roles
        with self._job(caller) as asker, self._held(target, draft if drafts else None):
            (report,) = self._bench.in_turns(
                (prove(target=target, draft=draft, **given) for _ in range(1)), asker
            )
        checks = [
            {"name": each.name, "verdict": each.verdict, "words": each.words}
            for each in report.checks
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
            K from 1, the findings (faults with a name) and the reasons for rejections with their share of the loss
        """
        if not 1 <= len(prompts) <= MOST_PROMPTS:
            raise SpecvizError(
                f"prompts must be a list of 1 to {MOST_PROMPTS} texts (got {len(prompts)})"
            )
        check_whole("max_new_tokens", max_new_tokens, 1, MOST_ALIGNED)
        target, draft = self._pair(target, draft)
        k = one_k(k, num_speculative_tokens)
        given = {"k": k, "temperature": temperature, "max_new_tokens": max_new_tokens}
        work = align_steps(prompts, target=target, draft=draft, costs={}, shard_size=SHARD, **given)
        with self._job(caller) as asker, self._held(target, draft), closing(work):
            for progress in self._bench.in_turns(work, asker):
                told = {"done": progress.done, "total": progress.total, "words": progress.words}
                made = progress.result
                yield (
                    told
                    if made is None
                    else {**told, "result": _drafts_answer(made.summary.drafts[0])}
                )

    def compare_tokenizers(self, target: str | None = None, draft: str | None = None) -> dict:
        """Compare the tokenizers of a target and a draft model: can this one draft for that one, and how?

        Example: compare_tokenizers("fable-target", "fable-draft-othervocab")

        Returns:
            direct: whether they share a vocabulary; num_same, num_differing: token ids of the same and of other
            bytes; ways: how this pair can draft, each with whether it works and why; notes
        """
        pool = self._bench.pool
        known = pool.loaded_names()
        pair = (pool.load(name) if name in known else name for name in self._pair(target, draft))
        found = examine(
            *pair, allow_any=pool.allow_any
        )  # of what is not loaded the tokenizer alone is read
        ways = [{"name": way.name, "works": way.works, "words": way.words} for way in found.ways]
        numbers = {"num_same": found.num_same, "num_differing": found.num_differing}
        return {
            "direct": found.is_direct,
            **numbers,
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
            targets: each with name, title, drafts, heads and here (whether it is on this machine); methods: the names
            that `run` takes
        """
        targets = [
            {
                "name": name,
                "title": catalog.MODELS[name].title,
                "drafts": list(catalog.drafts_for(name)),
                "heads": [heads.name for heads in catalog.HEADS.values() if heads.target == name],
                "here": name in self._bench.pool.loaded_names() or is_here(name),
            }
            for name in catalog.targets()
        ]
        return {"targets": targets, "methods": list(METHODS)}

    @contextmanager
    def _job(self, caller: gr.Request | None) -> Iterator[Asker]:
        """While a call does work, which counts as one of its visitor's jobs. Raises SpecvizError."""
        asker = asker_of_call(caller)
        with self._registry.job(asker.visitor, settings().max_runs):
            yield asker

    @contextmanager
    def _held(self, target: str, draft: str | None) -> Iterator[None]:
        """Loads a pair that is then at hand: what is loaded during a turn would keep others from the engine."""
        held = [self._bench.pool.load(target)]
        if draft is not None:
            held.append(self._bench.pool.load(draft, as_draft=True))
        yield
        del held

    def _pair(self, target: str | None, draft: str | None) -> tuple[str, str | None]:
        """The named pair, or the page's own. Raises SpecvizError for what is not on offer."""
        target = target or self._offer.first.target
        usual = self._offer.first.draft if target == self._offer.first.target else None
        pair = target, draft or usual or next(iter(catalog.drafts_for(target)), None)
        for role, name in zip(("target", "draft"), pair, strict=True):
            if name and not (self._offer.allows(name) or name in self._bench.pool.loaded_names()):
                words = "this server offers only the models that `models` lists"
                raise SpecvizError(f"{role} cannot be used: {words} (got {name!r:.80})")
        return pair


def _drafts_answer(draft: DraftSummary) -> dict[str, Any]:
    numbers = ("alpha", "alpha_interval", "greedy_agreement", "tokens_per_call")
    return {name: getattr(draft, name) for name in numbers} | {
        "findings": [each.words for each in draft.findings],
        "reasons": [
            {"name": each.name, "share": each.share, "words": each.words} for each in draft.reasons
        ],
    }


# ---- what callers give, checked by the endpoints' own signatures -----------------------------------------------------

JOBS = ("run", "what_if", "prove", "align")
"""The endpoints whose work takes turns at the engine."""
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
"""A type in a signature -> its words, and the type that values are checked against."""


def _arguments_of(endpoint: Callable[..., Any]) -> type[msgspec.Struct]:
    """A record of the endpoint's parameters: their types from its signature, their words from PARAMETERS."""
    items = []
    for name, parameter in inspect.signature(endpoint).parameters.items():
        hint = parameter.annotation
        if name == "self" or hint is gr.Request:
            continue
        kinds = [
            KINDS[each] for each in (get_args(hint) if isinstance(hint, UnionType) else [hint])
        ]
        allowed = " or ".join(", ".join(words for words, _ in kinds).rsplit(", ", 1))
        checked = Union[tuple(checked for _, checked in kinds)]  # noqa: UP007  # there are as many as the hint has
        described = Annotated[checked, msgspec.Meta(title=f"{allowed}: {PARAMETERS[name]}")]
        is_needed = parameter.default is inspect.Parameter.empty
        items.append((name, described) if is_needed else (name, described, parameter.default))
    return msgspec.defstruct(endpoint.__name__, items, kw_only=True, forbid_unknown_fields=True)


_ARGUMENTS = {name: _arguments_of(getattr(_Endpoints, name)) for name in ENDPOINTS}


def parameters_of(endpoint: str) -> tuple[str, ...]:
    """The names of what callers may give, in their order."""
    return _ARGUMENTS[endpoint].__struct_fields__


def check_arguments(endpoint: str, values: Mapping[str, Any]) -> None:
    """Raises SpecvizError for a parameter that is missing, unknown, or of another type than the signature says."""
    try:
        convert(values, _ARGUMENTS[endpoint])
    except TraceError as error:
        raise SpecvizError(str(error) if error.path else f"{endpoint} {error}") from None
    for name, value in values.items():
        if (
            isinstance(value, dict) and {"path", "meta"} <= value.keys()
        ):  # Gradio would look for the file
            raise SpecvizError(
                f"{name} must not name both path and meta, as a file does {format_got(value)}"
            )
