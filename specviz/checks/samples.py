"""Someone else's decoder: its token ids, line by line, against the target's exact distribution, without a draft model.

The file is not trusted. A line is JSON: {"prompt_ids", "ids", "sampling": {"temperature", "top_k", "top_p", "min_p"}}
and, if known, "made_in", a number format. The names of the alignment lab's rows and of engines are read, too. Every
line that cannot be used is named by its number, and then nothing is judged.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct, structs
from torch import Tensor

from specviz.checks.end_to_end import judge_evidence
from specviz.checks.scoring import (
    ROUNDING,
    Outside,
    Reach,
    Scored,
    features,
    plain_logits,
    score_parts,
)
from specviz.checks.statistics import CheckOutcome, Evidence
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.models.generation import Asked, asked_words, unlike
from specviz.models.pool import LoadedModel
from specviz.models.quantisation import is_quantised
from specviz.request import MAX_ID
from specviz.session.setup import Setup
from specviz.trace.lines import numbered_lines, parse_line, unpack
from specviz.trace.values import TraceError, convert

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MOST_BYTES = 64 << 20
MOST_LINES = 100_000
MOST_NAMED = 10
NEEDED = ("prompt_ids", "ids")
OTHER_NAMES = {
    "prompt_ids": ("prompt_token_ids", "prompt"),
    "ids": ("token_ids", "completion"),
    "sampling": ("sampled",),
}
TEXTS = ("text", "prompt", "completion", "output", "response")
TEXT_REFUSED = (
    "holds text instead of token ids: a text can be split into tokens in several ways, and the check is about the "
    "tokens that were drawn; write out the ids"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One written text."""

    line: int  # its number in the file, from 1
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    sampling: Sampling
    made_in: str | None = None  # one of FORMATS; None where the line names none


Ids = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=MAX_ID)], ...], Meta(min_length=1, max_length=1_000_000)
]


class _Distribution(Struct, frozen=True, forbid_unknown_fields=True):
    """The sampling of a line; without its temperature the distribution is not known."""

    temperature: Annotated[float, Meta(ge=0, le=100, title="a number from 0 to 100")]
    top_k: Annotated[int, Meta(ge=0, le=10**9)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1, title="a number above 0 and at most 1")] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1, title="a number from 0 to 1")] = 0.0


class _Line(Struct, frozen=True):
    prompt_ids: Ids
    ids: Ids
    sampling: _Distribution
    made_in: Literal[tuple(FORMATS)] | None = None


def read_samples(path: Path, target: LoadedModel, made_in: str | None = None) -> tuple[Sample, ...]:
    """Reads every sample of the file. made_in: the format for lines that name none.

    Raises SpecvizError that names the bad lines.
    """
    samples: list[Sample] = []
    bad: list[str] = []
    try:
        with path.open("rb") as stream:
            unpacked = unpack(stream, MOST_BYTES, MOST_BYTES)
            for number, line, _ in numbered_lines(unpacked, MOST_LINES):
                try:
                    samples.append(_sample(number, line, target, made_in))
                except SpecvizError as error:
                    bad.append(f"line {number} {error}")
    except OSError as error:
        raise SpecvizError(f"{path.name} cannot be opened ({error.strerror})") from None
    except TraceError as error:
        raise SpecvizError(f"{path.name} cannot be judged: {error}") from None
    if bad:
        more = ""
        if len(bad) > MOST_NAMED:
            more = f"; {len(bad) - MOST_NAMED} more lines cannot be used either"
        raise SpecvizError(f"{path.name} cannot be judged: {'; '.join(bad[:MOST_NAMED])}{more}")
    if not samples:
        raise SpecvizError(f"{path.name} holds no samples: one JSON object per line is expected")
    return tuple(samples)


def _sample(number: int, line: bytes, target: LoadedModel, made_in: str | None) -> Sample:
    """Reads one line. Raises SpecvizError with words that continue "line 7"."""
    data = _renamed(parse_line(line, whole=True))
    names = NEEDED if all(name in data for name in NEEDED) else (*NEEDED, *TEXTS)
    if any(isinstance(data.get(name), str) for name in names):
        raise SpecvizError(TEXT_REFUSED)
    read = convert(data, _Line)
    info = target.info
    largest = max(*read.prompt_ids, *read.ids)
    if largest >= info.vocab_size:
        raise SpecvizError(
            f"has the id {largest:,}: ids are whole numbers from 0 to {info.vocab_size - 1:,}"
        )
    if len(read.prompt_ids) + len(read.ids) > info.context_limit:
        raise SpecvizError(
            f"is longer than the {info.context_limit:,} tokens that {target.name} reads"
        )
    sampling = Sampling(**structs.asdict(read.sampling))
    return Sample(number, read.prompt_ids, read.ids, sampling, read.made_in or made_in)


def _renamed(data: dict[str, Any]) -> dict[str, Any]:
    """The row with this module's own names. The target that a row of the alignment lab names is left out."""
    renamed = dict(data)
    for name, others in OTHER_NAMES.items():
        known = [other for other in others if isinstance(data.get(other), (list, dict))]
        if name not in data and known:
            renamed[name] = data[known[0]]
    sampling = renamed.get("sampling")
    if "sampling" not in data and isinstance(sampling, dict):
        renamed["sampling"] = {key: sampling[key] for key in sampling if key != "target"}
    return renamed


def reach_of(rounded: LoadedModel, text: Sequence[int], logits: Tensor) -> Tensor:
    """How far each logit may lie from `logits` [T, V] where the text was made in the number format of `rounded`: [T].

    logits: behind the last T tokens of `text`. The result is the largest difference that the format shows at a place,
    and half a unit in the last place of the largest logit: who made the text may have added up in another order.
    """
    here = plain_logits(rounded, text[:-1], len(logits)).to(logits)
    last_place = torch.finfo(rounded.model.dtype).eps / 2 * logits.abs().amax(-1)
    return (here - logits).abs().amax(-1) + last_place


def format_name(target: LoadedModel) -> str:
    """The name of the number format that the target itself computes in."""
    dtype = target.model.dtype
    for name, known in FORMATS.items():
        if known == dtype:
            return name
    return str(dtype).removeprefix("torch.")


def in_format(target: LoadedModel, name: str) -> LoadedModel:
    """The target with its weights copied and rounded to one of FORMATS. SpecvizError where they hold fewer bits."""
    if is_quantised(target.model):
        raise SpecvizError(
            f"{target.name} holds quantised weights, which cannot be computed in {name}; judge the samples by the "
            "model in full precision"
        )
    model = copy.deepcopy(target.model)
    # Buffers stay as they are, as when a model is loaded in this format.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(FORMATS[name])
    return replace(target, model=model)


@dataclass(frozen=True, slots=True)
class ForbiddenToken:
    """A token of a sample that the target's distribution does not allow."""

    sample: Sample
    token: Outside

    @property
    def words(self) -> str:
        token = self.token
        return (
            f"line {self.sample.line}, token {token.place + 1}: id {token.token} (logit {token.logit:.6f}), the "
            f"target's most likely token is id {token.most_likely} (logit {token.most_likely_logit:.6f})"
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """The tokens of one kind that the target does not allow."""

    first: ForbiddenToken | None = None
    by_format: Counter[str | None] = field(default_factory=Counter)
    """Their number, by the format that their line names."""
    may_be_coarse: bool = True
    """Whether no line names a format, and the rounding of bf16 would explain them all."""

    def __len__(self) -> int:
        return self.by_format.total()

    def add(self, sample: Sample, found: Sequence[Outside]) -> "Findings":
        if not found:
            return self
        first = self.first or ForbiddenToken(sample, found[0])
        by_format = self.by_format + Counter({sample.made_in: len(found)})
        farthest = max(token.beyond for token in found)
        is_coarse = sample.made_in is None and farthest <= ROUNDING[FORMATS["bf16"]]
        return Findings(first, by_format, self.may_be_coarse and is_coarse)


@dataclass(frozen=True, slots=True)
class JudgedSamples:
    """The samples judged so far. At temperature 0 each token must be the target's most likely one."""

    done: int
    total: int
    evidence: Evidence  # over the tokens drawn at temperatures above 0
    num_greedy: int = 0  # tokens at temperature 0
    wrong_greedy: Findings = Findings()  # tokens at temperature 0 that are not the most likely ones
    tied_greedy: Findings = Findings()  # tokens at temperature 0 that are so up to rounding
    impossible: Findings = Findings()  # drawn tokens that the filters do not allow
    tied: Findings = Findings()  # drawn tokens that they allow up to rounding
    own_format: str = "fp32"  # of the target that judges, for texts that name none
    asked_greedy: str = ""  # a hint at the target's own settings, for temperature 0
    asked_drawn: str = ""  # likewise for the other temperatures

    @property
    def greedy_outcome(self) -> CheckOutcome | None:
        """What the tokens at temperature 0 came to; None where there are none, or not all have been judged."""
        if self.wrong_greedy:
            words = f"differs: {len(self.wrong_greedy)} tokens at temperature 0 are not the most likely ones; "
            words += self.wrong_greedy.first.words + self._more_ties(self.tied_greedy)
            words += self.asked_greedy + _format_hint(self.wrong_greedy)
            return CheckOutcome("differs", words)
        if not self.num_greedy or self.done < self.total:
            return None
        what = f"{self.num_greedy:,} tokens at temperature 0"
        if not self.tied_greedy:
            return CheckOutcome(
                "exact", f"exact, token by token: {what}, each the target's most likely token"
            )
        ties = self._ties(self.tied_greedy)
        words = f"no difference found: {what}, each the target's most likely token but for {ties}"
        return CheckOutcome("consistent", words)

    @property
    def drawn_outcome(self) -> CheckOutcome | None:
        """What the tokens drawn at other temperatures came to; None likewise."""
        if self.impossible:
            words = f"differs: {len(self.impossible)} tokens have probability 0 under the target and these settings; "
            words += self.impossible.first.words + self.asked_drawn + _format_hint(self.impossible)
            return CheckOutcome("differs", words)
        is_complete = self.evidence.num_tokens > 0 and self.done >= self.total
        outcome = judge_evidence(self.evidence, is_complete, self._more_ties(self.tied))
        if outcome is None or outcome.state not in ("differs", "suspicious"):
            return outcome
        return CheckOutcome(outcome.state, outcome.words + self.asked_drawn)

    def _ties(self, found: Findings) -> str:
        """Words such as "27 near-ties within bf16 rounding, first line 3, ..."; there must be one."""
        counts: Counter[str] = Counter()
        for name, num_ties in found.by_format.items():
            counts[name or self.own_format] += num_ties
        ties = []
        for name, num_ties in counts.items():
            noun = "near-ties" if num_ties > 1 else "near-tie"
            ties.append(f"{num_ties} {noun} within {name} rounding")
        return f"{', '.join(ties)}, first {found.first.words}"

    def _more_ties(self, found: Findings) -> str:
        return f"; besides, {self._ties(found)}" if found else ""


def _settings_hint(asked: Asked, samplings: Iterable[Sampling]) -> str:
    """Words for what the target's file asks for and these samplings do without: a possible reason to differ."""
    unmet: Asked = {}
    for sampling in samplings:
        unmet |= unlike(asked, sampling)
    if not unmet:
        return ""
    return (
        f"; the target's generation_config.json asks for {asked_words(unmet)}, which the engine that wrote it may have "
        "applied: this may be why"
    )


def _format_hint(wrong: Findings) -> str:
    """Asks for the number format where none was declared and the rounding of a coarser one could explain the tokens."""
    if not wrong.may_be_coarse:
        return ""
    return (
        '; if the text was made in bf16 or fp16, say so: --made-in bf16, or "made_in" in its line'
    )


def judge_samples(pair: Setup, samples: Sequence[Sample]) -> Iterator[JudgedSamples]:
    """Judges one sample per result; the first result stands before any.

    The pair's draft model, if any, sharpens the evidence.
    """
    target = pair.target
    own_format = format_name(target)
    formats = cache(lambda name: in_format(target, name))
    asked = target.info.generation_config or {}
    samplings = {sample.sampling for sample in samples}
    so_far = JudgedSamples(
        done=0,
        total=len(samples),
        evidence=Evidence.empty(features(pair.comparable_draft is not None)),
        own_format=own_format,
        asked_greedy=_settings_hint(asked, [one for one in samplings if one.temperature == 0]),
        asked_drawn=_settings_hint(asked, [one for one in samplings if one.temperature > 0]),
    )
    yield so_far
    for sample in samples:
        reach: Reach | None = None
        if sample.made_in not in (None, own_format):
            reach = lambda text, rows, name=sample.made_in: reach_of(formats(name), text, rows)  # noqa: E731
        for scored in score_parts(pair, sample.prompt, sample.ids, sample.sampling, reach):
            so_far = _add(so_far, sample, scored)
        so_far = replace(so_far, done=so_far.done + 1)
        yield so_far


def _add(so_far: JudgedSamples, sample: Sample, scored: Scored) -> JudgedSamples:
    wrong = [token for token in scored.outside if not token.is_tie]
    tied = [token for token in scored.outside if token.is_tie]
    if sample.sampling.temperature == 0:
        return replace(
            so_far,
            num_greedy=so_far.num_greedy + len(scored.tokens),
            wrong_greedy=so_far.wrong_greedy.add(sample, wrong),
            tied_greedy=so_far.tied_greedy.add(sample, tied),
        )
    return replace(
        so_far,
        evidence=so_far.evidence.add(scored.holds, scored.chances()),
        impossible=so_far.impossible.add(sample, wrong),
        tied=so_far.tied.add(sample, tied),
    )
