"""Someone else's decoder: its token ids, line by line, against the target's exact law. No draft model is needed.

The file is not trusted: JSON lines {"prompt_ids", "ids", "sampling": {"temperature", "top_k", "top_p"}} and, if known,
"made_in", a number format, also under the names of the alignment lab's rows and of engines; every line that cannot be
used is named by its number, and then nothing is judged.
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
    """One written text. line: its number in the file, from 1; made_in: one of FORMATS, None where nothing is said."""

    line: int
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    sampling: Sampling
    made_in: str | None = None


Ids = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=MAX_ID)], ...], Meta(min_length=1, max_length=1_000_000)
]


class _Distribution(Struct, frozen=True, forbid_unknown_fields=True):
    """The sampling of a line; without its temperature the law is not known."""

    temperature: Annotated[float, Meta(ge=0, le=100, title="a number from 0 to 100")]
    top_k: Annotated[int, Meta(ge=0, le=10**9)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1, title="a number above 0 and at most 1")] = 1.0


class _Line(Struct, frozen=True):
    prompt_ids: Ids
    ids: Ids
    sampling: _Distribution
    made_in: Literal[tuple(FORMATS)] | None = None


def read_samples(path: Path, target: LoadedModel, made_in: str | None = None) -> tuple[Sample, ...]:
    """Every sample of the file. made_in: of lines that name no number format. SpecvizError names the bad lines."""
    samples: list[Sample] = []
    bad: list[str] = []
    try:
        with path.open("rb") as stream:
            for number, line, _ in numbered_lines(
                unpack(stream, MOST_BYTES, MOST_BYTES), MOST_LINES
            ):
                try:
                    samples.append(_sample(number, line, target, made_in))
                except SpecvizError as error:
                    bad.append(f"line {number} {error}")
    except OSError as error:
        raise SpecvizError(f"{path.name} cannot be opened ({error.strerror})") from None
    except TraceError as error:
        raise SpecvizError(f"{path.name} cannot be judged: {error}") from None
    if bad:
        more = (
            f"; {len(bad) - MOST_NAMED} more lines cannot be used either"
            if len(bad) > MOST_NAMED
            else ""
        )
        raise SpecvizError(f"{path.name} cannot be judged: {'; '.join(bad[:MOST_NAMED])}{more}")
    if not samples:
        raise SpecvizError(f"{path.name} holds no samples: one JSON object per line is expected")
    return tuple(samples)


def _sample(number: int, line: bytes, target: LoadedModel, made_in: str | None) -> Sample:
    """Raises SpecvizError with what is wrong; it goes on after "line 7"."""
    data = _renamed(parse_line(line, whole=True))
    names = NEEDED if all(name in data for name in NEEDED) else (*NEEDED, *TEXTS)
    if any(isinstance(data.get(name), str) for name in names):
        raise SpecvizError(TEXT_REFUSED)
    read, info = convert(data, _Line), target.info
    if (largest := max(*read.prompt_ids, *read.ids)) >= info.vocab_size:
        raise SpecvizError(
            f"has the id {largest:,}: ids are whole numbers from 0 to {info.vocab_size - 1:,}"
        )
    if len(read.prompt_ids) + len(read.ids) > info.context_limit:
        raise SpecvizError(
            f"is longer than the {info.context_limit:,} tokens that {target.name} reads"
        )
    return Sample(
        number,
        read.prompt_ids,
        read.ids,
        Sampling(**structs.asdict(read.sampling)),
        read.made_in or made_in,
    )


def _renamed(data: dict[str, Any]) -> dict[str, Any]:
    """The row under this module's own names. A row of the alignment lab names its target, which the check ignores."""
    found = dict(data)
    for name, others in OTHER_NAMES.items():
        other = next((each for each in others if isinstance(data.get(each), (list, dict))), None)
        if name not in data and other is not None:
            found[name] = data[other]
    if "sampling" not in data and isinstance(found.get("sampling"), dict):
        found["sampling"] = {
            name: each for name, each in found["sampling"].items() if name != "target"
        }
    return found


def reach_of(rounded: LoadedModel, text: Sequence[int], logits: Tensor) -> Tensor:
    """[T] how far each logit may lie from `logits` [T, V], those behind the last T tokens of `text`, where a text was
    made in the number format of `rounded`: the largest difference that the format shows at this place, and half a unit
    in the last place of the largest logit, as whoever made the text may have added up in another order."""
    here = plain_logits(rounded, text[:-1], len(logits)).to(logits)
    last_place = torch.finfo(rounded.model.dtype).eps / 2 * logits.abs().amax(-1)
    return (here - logits).abs().amax(-1) + last_place


def format_name(target: LoadedModel) -> str:
    """What the format that the target itself computes in is called."""
    dtype = target.model.dtype
    return next(
        (name for name, known in FORMATS.items() if known == dtype),
        str(dtype).removeprefix("torch."),
    )


def in_format(target: LoadedModel, name: str) -> LoadedModel:
    """The target's weights, copied and rounded to one of FORMATS. SpecvizError where they hold fewer bits."""
    if is_quantised(target.model):
        raise SpecvizError(
            f"{target.name} holds quantised weights, which cannot be computed in {name}; judge the samples by the "
            "model in full precision"
        )
    model = copy.deepcopy(target.model)
    for (
        parameter
    ) in model.parameters():  # buffers stay as they are, as when a model is loaded in this format
        parameter.data = parameter.data.to(FORMATS[name])
    return replace(target, model=model)


@dataclass(frozen=True, slots=True)
class ForbiddenToken:
    """A token of a sample that the target's law does not allow."""

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
    """Such tokens, counted by the format that their line names, and the first of them. may_be_coarse: no line names a
    format, and the rounding of bf16 would explain them all."""

    first: ForbiddenToken | None = None
    by_format: Counter[str | None] = field(default_factory=Counter)
    may_be_coarse: bool = True

    def __len__(self) -> int:
        return self.by_format.total()

    def add(self, sample: Sample, found: Sequence[Outside]) -> "Findings":
        if not found:
            return self
        coarse = (
            sample.made_in is None
            and max(each.beyond for each in found) <= ROUNDING[FORMATS["bf16"]]
        )
        counted = self.by_format + Counter({sample.made_in: len(found)})
        return Findings(
            self.first or ForbiddenToken(sample, found[0]), counted, self.may_be_coarse and coarse
        )


@dataclass(frozen=True, slots=True)
class JudgedSamples:
    """Samples judged so far. Tokens drawn at temperature 0 are counted apart: each must be the target's favourite.
    own_format: the number format of the target that judges, for texts that name none."""

    done: int
    total: int
    evidence: Evidence
    num_greedy: int = 0
    wrong_greedy: Findings = Findings()
    tied_greedy: Findings = Findings()
    impossible: Findings = Findings()
    tied: Findings = Findings()
    own_format: str = "fp32"
    asked_greedy: str = ""
    asked_drawn: str = ""

    @property
    def greedy_outcome(self) -> CheckOutcome | None:
        """None where no sample was drawn at temperature 0, or not all have been judged."""
        if self.wrong_greedy:
            words = f"differs: {len(self.wrong_greedy)} tokens at temperature 0 are not the most likely ones; "
            more = (
                self._more_ties(self.tied_greedy)
                + self.asked_greedy
                + _format_hint(self.wrong_greedy)
            )
            return CheckOutcome("differs", words + self.wrong_greedy.first.words + more)
        if not self.num_greedy or self.done < self.total:
            return None
        what = f"{self.num_greedy:,} tokens at temperature 0"
        if not self.tied_greedy:
            return CheckOutcome(
                "exact", f"exact, token by token: {what}, each the target's most likely token"
            )
        words = f"consistent: {what}, each the target's most likely token but for {self._ties(self.tied_greedy)}"
        return CheckOutcome("consistent", words)

    @property
    def drawn_outcome(self) -> CheckOutcome | None:
        """The same for what was drawn at other temperatures."""
        if self.impossible:
            words = f"differs: {len(self.impossible)} tokens have probability 0 under the target and these settings; "
            more = self.asked_drawn + _format_hint(self.impossible)
            return CheckOutcome("differs", words + self.impossible.first.words + more)
        is_complete = self.evidence.num_tokens > 0 and self.done >= self.total
        outcome = judge_evidence(self.evidence, is_complete, self._more_ties(self.tied))
        if outcome is None or outcome.state not in ("differs", "suspicious"):
            return outcome
        return CheckOutcome(outcome.state, outcome.words + self.asked_drawn)

    def _ties(self, found: Findings) -> str:
        """ "27 near-ties within bf16 rounding, first line 3, ..."; there must be one."""
        counts: Counter[str] = Counter()
        for name, n in found.by_format.items():
            counts[name or self.own_format] += n
        ties = [
            f"{n} near-tie{'s' if n > 1 else ''} within {name} rounding"
            for name, n in counts.items()
        ]
        return f"{', '.join(ties)}, first {found.first.words}"

    def _more_ties(self, found: Findings) -> str:
        return f"; besides, {self._ties(found)}" if found else ""


def _settings_hint(asked: Asked, samplings: Iterable[Sampling]) -> str:
    """What the target's file asks for and none of these samplings allows for, named as a reason to differ."""
    named = {
        name: value for sampling in samplings for name, value in unlike(asked, sampling).items()
    }
    if not named:
        return ""
    return (
        f"; the target's generation_config.json asks for {asked_words(named)}, which the engine that wrote it may have "
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
    """One sample per result, the first result before any. The pair's draft model, if any, sharpens the evidence."""
    own = format_name(pair.target)
    formats = cache(lambda name: in_format(pair.target, name))
    asked, samplings = (
        pair.target.info.generation_config or {},
        {sample.sampling for sample in samples},
    )
    so_far = JudgedSamples(
        done=0,
        total=len(samples),
        evidence=Evidence.empty(features(pair.comparable_draft is not None)),
        own_format=own,
        asked_greedy=_settings_hint(asked, [each for each in samplings if each.temperature == 0]),
        asked_drawn=_settings_hint(asked, [each for each in samplings if each.temperature > 0]),
    )
    yield so_far
    for sample in samples:
        reach: Reach | None = None
        if sample.made_in not in (None, own):
            reach = lambda text, rows, name=sample.made_in: reach_of(formats(name), text, rows)  # noqa: E731
        for scored in score_parts(pair, sample.prompt, sample.ids, sample.sampling, reach):
            so_far = _add(so_far, sample, scored)
        so_far = replace(so_far, done=so_far.done + 1)
        yield so_far


def _add(so_far: JudgedSamples, sample: Sample, scored: Scored) -> JudgedSamples:
    wrong, tied = ([each for each in scored.outside if each.is_tie == tie] for tie in (False, True))
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
