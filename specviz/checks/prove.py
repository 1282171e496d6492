"""prove(): all checks of one pair and one rule, or of someone else's samples, as one Report.

Nothing is said to be proved: a check is exact where it enumerates, consistent where it samples, and says what it would
have seen.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from specviz import __version__
from specviz.checks.end_to_end import EndToEnd, end_to_end, first_token
from specviz.checks.enumerated import enumerate_texts
from specviz.checks.greedy import greedy
from specviz.checks.one_step import SAME
from specviz.checks.report import CheckResult, Report
from specviz.checks.samples import FORMATS, judge_samples, read_samples
from specviz.checks.self_checks import self_checks
from specviz.checks.side_by_side import RuleResult, side_by_side
from specviz.checks.statistics import CheckOutcome, Evidence
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS, find_method
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.chat import NO_OPTIONS, as_messages, render_chat
from specviz.models.files.hub import ignore_progress
from specviz.models.memory import environment
from specviz.models.pool import LoadedModel, ModelPool
from specviz.prompts import prompts_file
from specviz.request import Request, check_whole, one_k
from specviz.rules import RULES
from specviz.rules.broken import BROKEN
from specviz.session.setup import Setup, gather
from specviz.session.whole_run import activate, whole_run
from specviz.session.workbench import workbench

Watch = Callable[[str, float | None], None]
Result = TypeVar("Result")

BROKEN_PREFIX = "broken:"  # a rule that is wrong on purpose is never picked by accident
FIRST_TOKENS = 0.6  # draws of the first token, per token of the end-to-end check
GREEDY_TOKENS = (8, 64)  # after each prompt: at least, at most
RULES_TOKENS = 64  # of the run whose drafts all rules judge
MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class _Job:
    """What is checked. request: all of its settings, K as the method has it; tokens: how many are written."""

    pair: Setup
    rule: Rule
    prompts: tuple[tuple[int, ...], ...]
    request: Request
    sampling: Sampling
    k: int
    tokens: int
    watch: Watch


def prove(
    prompt: str | Sequence[int] | None = None,
    *,
    target=None,
    draft=None,
    method: str = "draft_model",
    params: Mapping[str, object] = MappingProxyType({}),
    rule: str | None = None,
    k: int | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    draft_temperature: float | None = None,
    draft_top_k: int | None = None,
    draft_top_p: float | None = None,
    chat: bool = False,
    chat_options: Mapping[str, bool | int | float | str] = NO_OPTIONS,
    tokens: int = 2000,
    seed: int = 0,
    samples: str | Path | None = None,
    made_in: str | None = None,
    on_progress: Watch | None = None,
    num_speculative_tokens: int | None = None,
) -> Report:
    """Checks whether the text is the target's own, and returns what each check came to.

    prompt: text, token ids, or None for the bundled prompts. target, draft, params, k, chat_options: as for `run`.
    chat: whether the target reads the prompts in its chat form. rule: a name of RULES, or "broken:NAME" for one that is
    wrong on purpose. tokens: how many are written at temperatures above 0.
    samples: a file of someone else's token ids, which is then judged alone, each line at its own settings. made_in: the
    number format that they were made in (bf16, fp16 or fp32), for lines that name none.
    on_progress(message, fraction or None) is told what takes long. Raises SpecvizError.
    """
    asked = {
        name: value for name, value in locals().items() if name in Request.__dataclass_fields__
    }
    asked["num_speculative_tokens"] = one_k(k, num_speculative_tokens)
    watch = on_progress or ignore_progress
    check_whole("tokens", tokens, 1, MOST_TOKENS)
    if made_in is not None and (samples is None or made_in not in FORMATS):
        raise SpecvizError(
            f"made_in must be one of {', '.join(FORMATS)}, and needs samples (got {made_in!r:.40})"
        )
    find_method(method)
    large, small = _load_models(
        workbench().pool, target, draft, method if samples is None else None, watch
    )
    if samples is not None:
        pair = gather(METHODS["draft_model" if small else "none"], {}, large, small)
        return _check_samples(pair, Path(samples), made_in, watch)
    chosen = find_rule(rule or METHODS[method].default_rule)
    text = (
        {"prompt": prompt}
        if isinstance(prompt, str)
        else {"prompt_ids": None if prompt is None else tuple(prompt)}
    )
    models = {"target": large.name, "draft": None if small is None else small.name}
    request = Request(**{**asked, "prompt": "bundled", **text, **models}).validate()
    prompts = (
        bundled_prompts(large, request)
        if prompt is None
        else (_prompt_ids(large, prompt, request),)
    )
    pair = gather(METHODS[method], request.params, large, small, workbench().pool)
    if chosen.name in RULES:
        pair.rule(chosen.name)  # which refuses one that cannot judge these drafts
    request = replace(request, num_speculative_tokens=(k := pair.k(request.num_speculative_tokens)))
    return _check_pair(_Job(pair, chosen, prompts, request, Sampling.of(request), k, tokens, watch))


def bundled_prompts(
    target: LoadedModel, request: Request | None = None
) -> tuple[tuple[int, ...], ...]:
    """The prompts that come with specviz, as this model's ids; request: says whether they are in its chat form."""
    kinds = prompts_file()["kinds"]
    return tuple(
        _encode(target, prompt["text"], request) for kind in kinds for prompt in kind["prompts"]
    )


def _encode(target: LoadedModel, prompt: str, request: Request | None) -> tuple[int, ...]:
    if request is None or not request.chat:
        return tuple(target.text.encode(prompt))
    rendered = render_chat(target.tokenizer, as_messages(prompt), request.chat_options)
    return tuple(target.text.encode(rendered, special=False))


def find_rule(name: str) -> Rule:
    """A rule by its name, a broken one by "broken:" and its name. Raises SpecvizError with those there are."""
    wrong = name.removeprefix(BROKEN_PREFIX)
    known = BROKEN.get(wrong) if wrong != name else RULES.get(name)
    if known is None:
        broken = ", ".join(f"{BROKEN_PREFIX}{each}" for each in BROKEN)
        raise SpecvizError(
            f"no rule is named {name!r}; choose one of {', '.join(RULES)}, or to see one fail {broken}"
        )
    return known


def _load_models(
    pool: ModelPool, target, draft, method: str | None, watch: Watch
) -> tuple[LoadedModel, LoadedModel | None]:
    """The target, and a draft model where the method needs one; where there is no method, one that is at hand."""
    large = pool.load(target or catalog.default_pair()[0], watch)
    wanted = draft or catalog.bundled_draft(
        large.name, foreign=method is not None and METHODS[method].foreign
    )
    if wanted is None or (method is not None and "draft" not in METHODS[method].roles):
        return large, None
    return large, pool.load(wanted, watch, as_draft=True)


def _prompt_ids(
    target: LoadedModel, prompt: str | Sequence[int], request: Request
) -> tuple[int, ...]:
    ids = _encode(target, prompt, request) if isinstance(prompt, str) else tuple(prompt)
    if any(token >= target.info.vocab_size for token in ids):
        raise SpecvizError(
            f"the prompt has ids that {target.name} does not know: they end at {target.info.vocab_size}"
        )
    return ids


def _environment(pair: Setup) -> dict[str, Any]:
    return {
        "dtype": pair.target.info.dtype,
        "specviz": __version__,
        **environment(pair.target.model.device),
    }


def _check_pair(job: _Job) -> Report:
    asked = {
        name: value
        for name, value in job.request.settings.to_dict().items()
        if name not in ("rule", "params")
    }
    own = {
        "seed": job.request.seed,
        "rule": job.request.rule or job.rule.name,
        "tokens": job.tokens,
    }
    form = (
        {"chat": True, "chat_options": dict(job.request.chat_options)} if job.request.chat else {}
    )
    about = {**asked, **own, **form, **_environment(job.pair)}
    texts = (
        [_greedy(job)] if job.sampling.temperature == 0 else [*_end_to_end(job), _first_token(job)]
    )
    return Report(about, (_enumeration(job), *texts, *_self_checks(job)), _compare_rules(job))


def _last_result(results: Iterator[Result], words: str, watch: Watch) -> Result:
    """The last of the results; reports the progress of each."""
    for result in results:
        watch(words, result.done / max(1, result.total))
    return result


def _enumeration(job: _Job) -> CheckResult:
    results = enumerate_texts(job.pair, job.rule, job.prompts, job.sampling, job.k)
    result = _last_result(results, "enumerating every outcome over small texts", job.watch)
    numbers = {"outcomes": result.num_outcomes, "k": result.k, "total_variation": result.distance}
    return CheckResult("whole texts, every outcome of the rule's program", *result.outcome, numbers)


def _greedy(job: _Job) -> CheckResult:
    low, high = GREEDY_TOKENS
    length = min(high, max(low, job.tokens // len(job.prompts)))
    results = greedy(job.pair, job.rule, job.prompts, job.k, length, job.sampling)
    result = _last_result(results, "comparing with the target's own greedy text", job.watch)
    numbers = {
        "prompts": result.total,
        "tokens": result.num_tokens,
        "texts_that_part": len(result.differences),
    }
    return CheckResult("greedy text against the target's own", *result.outcome, numbers)


def _end_to_end(job: _Job) -> Iterator[CheckResult]:
    results = end_to_end(
        job.pair, job.rule, job.prompts, job.sampling, job.k, job.tokens, job.request.seed
    )
    result = _last_result(results, "writing texts and judging every token", job.watch)
    if result.distance is not None:
        numbers = {"largest_total_variation": result.distance}
        yield CheckResult("one step, by formula", *_judge_formula(result, job.rule), numbers)
    needed = {one.rule.name: one.tokens_needed for one in result.power}
    numbers = {**evidence_numbers(result.evidence), "tokens_needed_to_call_out": needed}
    yield CheckResult("end to end, every token against the target", *result.outcome, numbers)


def _judge_formula(result: EndToEnd, rule: Rule) -> CheckOutcome:
    places = (
        f"{result.done:,} positions, largest total variation to the target {result.distance:.1e}"
    )
    state = "differs" if result.distance > SAME else "exact" if rule.lossless else "unsure"
    if state == "unsure":
        return CheckOutcome(state, f"cannot tell: the rule's error has no effect here, {places}")
    return CheckOutcome(state, f"{state} by formula, one token judged alone: {places}")


def _first_token(job: _Job) -> CheckResult:
    n = max(1, round(FIRST_TOKENS * job.tokens))
    results = first_token(
        job.pair, job.rule, job.prompts[0], job.sampling, job.k, n, job.request.seed
    )
    result = _last_result(results, "drawing the first token many times", job.watch)
    numbers = {"n": result.total, "tokens": list(result.tokens)}
    numbers |= {
        "distribution": list(result.cells.distribution),
        "counts": list(result.cells.counts),
    }
    return CheckResult("first token after one prompt", *result.outcome, numbers)


def _self_checks(job: _Job) -> Iterator[CheckResult]:
    for check in self_checks(job.pair, job.prompts[0], job.sampling, job.k):
        job.watch("checking the pair itself", check.done / max(1, check.total))
        yield CheckResult(check.name, check.verdict, check.words)


def _compare_rules(job: _Job) -> tuple[RuleResult, ...]:
    """All rules on the drafts of one run; empty where drafts are certain, greedy or not the draft model's own."""
    pair, request = job.pair, job.request
    if not pair.method.is_plain or request.temperature == 0:
        return ()
    own = {
        name: getattr(request, name) for name in (*Request.ALL_SAMPLING, "target", "draft", "seed")
    }
    asked = Request(
        prompt_ids=job.prompts[0], num_speculative_tokens=job.k, max_new_tokens=RULES_TOKENS, **own
    )
    recorded = whole_run(activate(asked.validate(), workbench().pool))
    results = side_by_side(recorded, pair.target, pair.draft)
    return _last_result(results, "judging the same drafts by every rule", job.watch).rows


def _check_samples(pair: Setup, path: Path, made_in: str | None, watch: Watch) -> Report:
    samples = read_samples(path, pair.target, made_in)
    result = _last_result(judge_samples(pair, samples), "judging the samples", watch)
    about = {
        "samples": path.name,
        "target": pair.target.name,
        "num_samples": len(samples),
        "made_in": made_in,
    }
    checks = []
    if result.greedy_outcome is not None:
        numbers = {
            "n": result.num_greedy,
            "near_ties": len(result.tied_greedy),
            "wrong": len(result.wrong_greedy),
        }
        checks.append(CheckResult("tokens at temperature 0", *result.greedy_outcome, numbers))
    if result.drawn_outcome is not None:
        numbers = evidence_numbers(result.evidence)
        checks.append(
            CheckResult("drawn tokens against the target", *result.drawn_outcome, numbers)
        )
    return Report({**about, **_environment(pair)}, tuple(checks))


def evidence_numbers(evidence: Evidence) -> dict[str, Any]:
    """What the evidence rests on, JSON-safe."""
    seen = (None if shift == float("inf") else shift for shift in evidence.smallest_shifts())
    columns = zip(evidence.features, evidence.shifts, evidence.z, seen, strict=True)
    rows = [
        {"feature": name, "shift": shift, "z": z, "would_see": see}
        for name, shift, z, see in columns
    ]
    return {"n": evidence.num_tokens, "log10_e": evidence.peak / math.log(10), "features": rows}
