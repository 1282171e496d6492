"""`prove` makes one Report of all checks of a pair and a rule, or of someone else's samples.

No check claims a proof. It is exact where it enumerates, and consistent where it samples; then it says what it would
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
    """What is checked."""

    pair: Setup
    rule: Rule
    prompts: tuple[tuple[int, ...], ...]
    request: Request  # all of the settings, K as the method has it
    tokens: int  # how many are written
    watch: Watch

    @property
    def sampling(self) -> Sampling:
        return Sampling.of(self.request)

    @property
    def k(self) -> int:
        return self.request.num_speculative_tokens


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
    min_p: float = 0.0,
    draft_temperature: float | None = None,
    draft_top_k: int | None = None,
    draft_top_p: float | None = None,
    draft_min_p: float | None = None,
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
    chat: whether the target reads the prompts in its chat form. rule: a name of RULES, or "broken:NAME" for a rule that
    is wrong on purpose. tokens: how many are written at temperatures above 0.
    samples: a file of someone else's token ids, which is then judged alone, each line at its own settings. made_in: the
    number format that they were made in (bf16, fp16 or fp32), for lines that name none.
    on_progress(message, fraction or None) is told what takes long. Raises SpecvizError.
    """
    asked = Request(
        target="",
        method=method,
        params=params,
        rule=rule,
        num_speculative_tokens=one_k(k, num_speculative_tokens),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        draft_temperature=draft_temperature,
        draft_top_k=draft_top_k,
        draft_top_p=draft_top_p,
        draft_min_p=draft_min_p,
        chat=chat,
        chat_options=chat_options,
        seed=seed,
    )
    watch = on_progress or ignore_progress
    check_whole("tokens", tokens, 1, MOST_TOKENS)
    _check_made_in(made_in, samples)
    find_method(method)
    if samples is not None:
        return _prove_samples(Path(samples), made_in, target, draft, watch)
    return _prove_pair(asked, prompt, target, draft, tokens, watch)


def _check_made_in(made_in: str | None, samples: str | Path | None) -> None:
    if made_in is not None and (samples is None or made_in not in FORMATS):
        raise SpecvizError(
            f"made_in must be one of {', '.join(FORMATS)}, and needs samples (got {made_in!r:.40})"
        )


def _prove_pair(
    asked: Request, prompt: str | Sequence[int] | None, target, draft, tokens: int, watch: Watch
) -> Report:
    """Loads the models, completes the request with them and the prompt, and runs all checks of the pair."""
    pool = workbench().pool
    method = METHODS[asked.method]
    large, small = _load_models(pool, target, draft, asked.method, watch)
    rule = find_rule(asked.rule or method.default_rule)
    request = replace(
        asked, target=large.name, draft=None if small is None else small.name, prompt="bundled"
    )
    if isinstance(prompt, str):
        request = replace(request, prompt=prompt)
    elif prompt is not None:
        request = replace(request, prompt_ids=tuple(prompt))
    request = request.validate()
    prompts = _prompts_of(large, prompt, request)
    pair = gather(method, request.params, large, small, pool)
    if rule.name in RULES:
        pair.rule(rule.name)  # raises where the rule cannot judge these drafts
    k = pair.k(request.num_speculative_tokens)
    request = replace(request, num_speculative_tokens=k)
    return _check_pair(_Job(pair, rule, prompts, request, tokens, watch))


def bundled_prompts(
    target: LoadedModel, request: Request | None = None
) -> tuple[tuple[int, ...], ...]:
    """The prompts that come with specviz, as this model's ids; `request` says whether they are in its chat form."""
    prompts = []
    for kind in prompts_file()["kinds"]:
        prompts += [_encode(target, prompt["text"], request) for prompt in kind["prompts"]]
    return tuple(prompts)


def _encode(target: LoadedModel, prompt: str, request: Request | None) -> tuple[int, ...]:
    if request is None or not request.chat:
        return tuple(target.text.encode(prompt))
    rendered = render_chat(target.tokenizer, as_messages(prompt), request.chat_options)
    return tuple(target.text.encode(rendered, special=False))


def find_rule(name: str) -> Rule:
    """Finds a rule by its name, a broken one by "broken:" and its name. Raises SpecvizError that lists the names."""
    rules = BROKEN if name.startswith(BROKEN_PREFIX) else RULES
    rule = rules.get(name.removeprefix(BROKEN_PREFIX))
    if rule is None:
        broken = ", ".join(f"{BROKEN_PREFIX}{known}" for known in BROKEN)
        raise SpecvizError(
            f"no rule is named {name!r}; choose one of {', '.join(RULES)}, or to see one fail {broken}"
        )
    return rule


def _load_models(
    pool: ModelPool, target, draft, method: str | None, watch: Watch
) -> tuple[LoadedModel, LoadedModel | None]:
    """Loads the target, and a draft model where the method needs one; without a method, one that comes with it."""
    large = pool.load(target or catalog.default_pair()[0], watch)
    known_method = METHODS.get(method)
    is_foreign = known_method is not None and known_method.foreign
    draft = draft or catalog.bundled_draft(large.name, foreign=is_foreign)
    needs_none = known_method is not None and "draft" not in known_method.roles
    if draft is None or needs_none:
        return large, None
    return large, pool.load(draft, watch, as_draft=True)


def _prompts_of(
    target: LoadedModel, prompt: str | Sequence[int] | None, request: Request
) -> tuple[tuple[int, ...], ...]:
    """The ids of the prompt; of the bundled prompts where none is given."""
    if prompt is None:
        return bundled_prompts(target, request)
    ids = _encode(target, prompt, request) if isinstance(prompt, str) else tuple(prompt)
    if any(token >= target.info.vocab_size for token in ids):
        raise SpecvizError(
            f"the prompt has ids that {target.name} does not know: they end at {target.info.vocab_size}"
        )
    return (ids,)


def _environment(pair: Setup) -> dict[str, Any]:
    return {
        "dtype": pair.target.info.dtype,
        "specviz": __version__,
        **environment(pair.target.model.device),
    }


def _check_pair(job: _Job) -> Report:
    about = job.request.settings.to_dict()
    del about["params"]
    about["seed"] = job.request.seed
    about["rule"] = about.pop("rule") or job.rule.name
    about["tokens"] = job.tokens
    if job.request.chat:
        about["chat"] = True
        about["chat_options"] = dict(job.request.chat_options)
    about |= _environment(job.pair)
    checks = [_enumeration(job)]
    if job.sampling.temperature == 0:
        checks.append(_greedy(job))
    else:
        checks += [*_end_to_end(job), _first_token(job)]
    checks += _self_checks(job)
    return Report(about, tuple(checks), _compare_rules(job))


def _last_result(results: Iterator[Result], words: str, watch: Watch) -> Result:
    """Runs a check to its end and returns its last result; reports the progress of each."""
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
    differs = result.distance > SAME
    if not differs and not rule.lossless:
        return CheckOutcome("unsure", f"cannot tell: the rule's error has no effect here, {places}")
    state = "differs" if differs else "exact"
    return CheckOutcome(state, f"{state} by formula, one token judged alone: {places}")


def _first_token(job: _Job) -> CheckResult:
    n = max(1, round(FIRST_TOKENS * job.tokens))
    results = first_token(
        job.pair, job.rule, job.prompts[0], job.sampling, job.k, n, job.request.seed
    )
    result = _last_result(results, "drawing the first token many times", job.watch)
    numbers = {
        "n": result.total,
        "tokens": list(result.tokens),
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
    if not job.pair.method.is_plain or job.request.temperature == 0:
        return ()
    copied = ("target", "draft", "seed", *Request.ALL_SAMPLING)
    request = Request(
        prompt_ids=job.prompts[0],
        num_speculative_tokens=job.k,
        max_new_tokens=RULES_TOKENS,
        **{name: getattr(job.request, name) for name in copied},
    )
    recorded = whole_run(activate(request.validate(), workbench().pool))
    results = side_by_side(recorded, job.pair.target, job.pair.draft)
    return _last_result(results, "judging the same drafts by every rule", job.watch).rows


def _prove_samples(path: Path, made_in: str | None, target, draft, watch: Watch) -> Report:
    """Judges the samples of a file; a draft model that comes with the target sharpens the evidence."""
    large, small = _load_models(workbench().pool, target, draft, None, watch)
    pair = gather(METHODS["draft_model" if small else "none"], {}, large, small)
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
    smallest = evidence.smallest_shifts()
    columns = zip(evidence.features, evidence.shifts, evidence.z, smallest, strict=True)
    rows = []
    for name, shift, z, seen in columns:
        would_see = None if seen == math.inf else seen
        rows.append({"feature": name, "shift": shift, "z": z, "would_see": would_see})
    return {"n": evidence.num_tokens, "log10_e": evidence.peak / math.log(10), "features": rows}
