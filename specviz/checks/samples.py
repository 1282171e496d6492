"""Someone else's decoder: its token ids, line by line, against the target's exact law. No draft model is needed.

The file is not trusted: JSON lines {"prompt_ids", "ids", "sampling": {"temperature", "top_k", "top_p"}} and, if known,
"made_in", a number format; every line that cannot be used is named by its number, and then nothing is judged.
"""

import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.checks.end_to_end import judge_evidence
from specviz.checks.pair import Pair
from specviz.checks.scoring import ROUNDING, Outside, Reach, Scored, features, plain_logits, score_parts
from specviz.checks.statistics import Evidence, Outcome
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.models.library import LoadedModel
from specviz.models.quantisation import is_quantised

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MOST_BYTES = 64 << 20
MOST_LINES = 100_000
MOST_NAMED = 10
NEEDED = ("prompt_ids", "ids")
TEXTS = ("text", "prompt", "completion", "output", "response")
TEXT_REFUSED = (
    "holds text instead of token ids: a text is cut into tokens in more than one way, and the law is that of the "
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


def read_samples(path: Path, target: LoadedModel, made_in: str | None = None) -> tuple[Sample, ...]:
    """Every sample of the file. made_in: the number format of the lines that name none. Raises SpecvizError that names
    the lines which cannot be used."""
    samples: list[Sample] = []
    bad: list[str] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            samples.append(_sample(number, line, target, made_in))
        except ValueError as error:
            bad.append(f"line {number} {error}")
    if bad:
        more = f"; {len(bad) - MOST_NAMED} more lines cannot be used either" if len(bad) > MOST_NAMED else ""
        raise SpecvizError(f"{path.name} cannot be judged: {'; '.join(bad[:MOST_NAMED])}{more}")
    if not samples:
        raise SpecvizError(f"{path.name} holds no samples: one JSON object per line is expected")
    return tuple(samples)


def _lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise SpecvizError(f"{path.name} cannot be opened ({error.strerror})") from None
    if len(data) > MOST_BYTES:
        raise SpecvizError(f"{path.name} is too large: at most {MOST_BYTES >> 20} MiB are read")
    lines = data.splitlines()
    if len(lines) > MOST_LINES:
        raise SpecvizError(f"{path.name} has too many lines: at most {MOST_LINES:,} (got {len(lines):,})")
    return lines


def _sample(number: int, line: bytes, target: LoadedModel, made_in: str | None) -> Sample:
    """Raises ValueError with what is wrong; it goes on after "line 7"."""
    try:
        data = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError("is no JSON object in UTF-8") from None
    if not isinstance(data, dict):
        raise ValueError("is no JSON object")
    names = NEEDED if all(name in data for name in NEEDED) else (*NEEDED, *TEXTS)
    if any(isinstance(data.get(name), str) for name in names):
        raise ValueError(TEXT_REFUSED)
    prompt, ids = (_ids(data, name, target.info.vocab_size) for name in NEEDED)
    if len(prompt) + len(ids) > target.info.context_limit:
        raise ValueError(f"is longer than the {target.info.context_limit:,} tokens that {target.name} reads")
    sampling, made_in = _sampling(data.get("sampling")), data.get("made_in", made_in)
    if made_in is not None and not (isinstance(made_in, str) and made_in in FORMATS):
        raise ValueError(f'has {str(made_in)[:20]!r} for "made_in": it is one of {", ".join(FORMATS)}')
    return Sample(number, prompt, ids, sampling, made_in)


def _ids(data: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    ids = data.get(name)
    if not isinstance(ids, list) or not ids:
        raise ValueError(f'needs "{name}", a list of at least one token id')
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ValueError(f'has {str(token)[:20]!r} in "{name}": ids are whole numbers from 0 to {vocab_size - 1:,}')
    return tuple(ids)


_LIMITS = {"temperature": (0.0, 100.0), "top_k": (0, 10**9), "top_p": (0.0, 1.0)}


def _sampling(values: object) -> Sampling:
    if not isinstance(values, dict) or set(values) - set(_LIMITS):
        raise ValueError(f'needs "sampling", an object with {", ".join(_LIMITS)}')
    if "temperature" not in values:
        raise ValueError('needs "temperature" in "sampling": without it the law is not known')
    for name, value in values.items():
        low, high = _LIMITS[name]
        kinds = (int,) if name == "top_k" else (int, float)
        if type(value) not in kinds or not low <= value <= high:  # not-a-number fails both comparisons
            raise ValueError(f'has {str(value)[:20]!r} for "{name}": it lies between {low:g} and {high:g}')
    if values.get("top_p") == 0:
        raise ValueError('has 0 for "top_p": at least one token must be allowed')
    return Sampling(**values)


def reach_of(rounded: LoadedModel, text: Sequence[int], logits: Tensor) -> Tensor:
    """[T] how far each logit may lie from `logits` [T, V], those behind the last T tokens of `text`, either way, where
    a text was made in the number format of `rounded`.

    It is the largest difference that the format shows at this place, and half a unit in the last place of the largest
    logit, rounded up: whoever made the text may have added up in another order.
    """
    here = plain_logits(rounded, text[:-1], len(logits)).to(logits)
    last_place = torch.finfo(rounded.model.dtype).eps / 2 * logits.abs().amax(-1)
    return (here - logits).abs().amax(-1) + last_place


def format_name(target: LoadedModel) -> str:
    """What the format that the target itself computes in is called."""
    dtype = target.model.dtype
    return next((name for name, known in FORMATS.items() if known == dtype), str(dtype).removeprefix("torch."))


def in_format(target: LoadedModel, name: str) -> LoadedModel:
    """The target's weights, copied and rounded to one of FORMATS. SpecvizError where they hold fewer bits."""
    if is_quantised(target.model):
        raise SpecvizError(
            f"{target.name} holds quantised weights, which cannot be computed in {name}; judge the samples by the "
            "model in full precision"
        )
    model = copy.deepcopy(target.model)
    for parameter in model.parameters():  # buffers stay as they are, as when a model is loaded in this format
        parameter.data = parameter.data.to(FORMATS[name])
    return replace(target, model=model)


@dataclass(frozen=True, slots=True)
class Finding:
    """A token of a sample that the target's law does not allow."""

    sample: Sample
    token: Outside

    @property
    def words(self) -> str:
        token = self.token
        return (
            f"line {self.sample.line}, token {token.place + 1}: id {token.token} (logit {token.logit:.6f}), "
            f"the target's favourite is id {token.favourite} (logit {token.favourite_logit:.6f})"
        )


@dataclass(frozen=True, slots=True)
class JudgedSamples:
    """Samples judged so far. Tokens drawn at temperature 0 are counted apart: each must be the target's favourite.
    own_format: the number format of the target that judges, for texts that name none."""

    done: int
    total: int
    evidence: Evidence
    num_greedy: int = 0
    wrong_greedy: tuple[Finding, ...] = ()
    tied_greedy: tuple[Finding, ...] = ()
    impossible: tuple[Finding, ...] = ()
    tied: tuple[Finding, ...] = ()
    own_format: str = "fp32"

    @property
    def greedy_outcome(self) -> Outcome | None:
        """None where no sample was drawn at temperature 0, or not all have been judged."""
        if self.wrong_greedy:
            words = f"differs: {len(self.wrong_greedy)} tokens at temperature 0 are not the target's favourite; "
            more = self._more_ties(self.tied_greedy) + _format_hint(self.wrong_greedy)
            return Outcome("differs", words + self.wrong_greedy[0].words + more)
        if not self.num_greedy or self.done < self.total:
            return None
        what = f"{self.num_greedy:,} tokens at temperature 0"
        if not self.tied_greedy:
            return Outcome("exact", f"exact, token by token: {what}, each the target's favourite")
        words = f"consistent: {what}, each the target's favourite but for {self._ties(self.tied_greedy)}"
        return Outcome("consistent", words)

    @property
    def drawn_outcome(self) -> Outcome | None:
        """The same for what was drawn at other temperatures."""
        if self.impossible:
            words = f"differs: {len(self.impossible)} tokens have probability 0 under the target and these settings; "
            return Outcome("differs", words + self.impossible[0].words + _format_hint(self.impossible))
        is_complete = self.evidence.num_tokens > 0 and self.done >= self.total
        return judge_evidence(self.evidence, is_complete, self._more_ties(self.tied))

    def _ties(self, found: Sequence[Finding]) -> str:
        """ "27 near-ties within bf16 rounding, first line 3, ..."; there must be one."""
        counts = Counter(finding.sample.made_in or self.own_format for finding in found)
        ties = [f"{n} near-tie{'s' if n > 1 else ''} within {name} rounding" for name, n in counts.items()]
        return f"{', '.join(ties)}, first {found[0].words}"

    def _more_ties(self, found: Sequence[Finding]) -> str:
        return f"; beside them {self._ties(found)}" if found else ""


def _format_hint(wrong: Sequence[Finding]) -> str:
    """Asks for the number format where none was declared and the rounding of a coarser one could explain the tokens."""
    if any(finding.sample.made_in is not None or finding.token.beyond > ROUNDING[FORMATS["bf16"]] for finding in wrong):
        return ""
    return '; if the text was made in bf16 or fp16, say so: --made-in bf16, or "made_in" in its line'


def judge_samples(pair: Pair, samples: Sequence[Sample]) -> Iterator[JudgedSamples]:
    """One sample per result, the first result before any. The pair's draft model, if any, sharpens the evidence."""
    own = format_name(pair.target)
    formats = cache(lambda name: in_format(pair.target, name))
    so_far = JudgedSamples(0, len(samples), Evidence.empty(features(pair.comparable_draft is not None)), own_format=own)
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
    wrong, tied = (
        tuple(Finding(sample, token) for token in scored.outside if token.is_tie == is_tie) for is_tie in (False, True)
    )
    if sample.sampling.temperature == 0:
        return replace(
            so_far,
            num_greedy=so_far.num_greedy + len(scored.tokens),
            wrong_greedy=so_far.wrong_greedy + wrong,
            tied_greedy=so_far.tied_greedy + tied,
        )
    return replace(
        so_far,
        evidence=so_far.evidence.add(scored.holds, scored.chances()),
        impossible=so_far.impossible + wrong,
        tied=so_far.tied + tied,
    )
