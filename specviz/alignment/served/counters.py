"""Reads what an engine counted while it served: tokens per step and acceptance by position.

Read are vLLM (requests, log, metrics, `vllm bench serve`), SGLang (requests), TensorRT-LLM
(dflash_accept_stats), llama.cpp (timings, log) and AIPerf (profile_export.jsonl). Files are not trusted.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from specviz.alignment.summary import Counters
from specviz.alignment.types import KS
from specviz.errors import SpecvizError
from specviz.trace.values import format_got

MOST_BYTES = 256 << 20
MOST_LINE = 4_000  # characters of a log's line
MOST_COUNTS = 1_000  # in a list
MOST_COUNT = 1e18
RISE = 0.01  # of acceptance from one position to the next, by rounding: a step that accepts more accepts fewer, too
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # how gzip's and zstandard's files begin
MOST_NESTED = 8  # objects inside each other that are searched
FORGED = re.compile(
    r"rejection_sample_method\W{1,6}synthetic|synthetic_acceptance|spec-decode-acceptance-length|SIMULATE_ACC_LEN"
)
"""Settings of engines that draw acceptance instead of finding it."""
NAMES = (
    "vLLM's requests, log lines, metrics or bench results, SGLang's meta_info, TensorRT-LLM's "
    "dflash_accept_stats, llama.cpp's timings or log lines, AIPerf's profile_export.jsonl"
)


class _Count:
    """Sums over what a file holds."""

    def __init__(self) -> None:
        self.source = ""
        self.steps = 0.0
        self.accepted = 0.0
        self.squares = 0.0  # of the tokens accepted by a step, where they are told
        self.reached: list[float] = []  # steps that accept 1, 2, ... tokens or more
        self.most = 0  # tokens that a step may draft
        self.has_positions = True

    def add(
        self,
        source: str,
        steps: float,
        accepted: float,
        *,
        reached: Sequence[float] | None = None,
        most: int = 0,
    ) -> None:
        """Adds steps that drafted, and the tokens that they accepted."""
        if self.source not in ("", source):
            raise SpecvizError(f"holds counters of {self.source} and of {source}: give one of them")
        self.source = source
        self.steps += steps
        self.accepted += accepted
        self.most = max(self.most, most)
        if reached is None:
            self.has_positions = False
            return
        self.reached += [0.0] * (len(reached) - len(self.reached))
        for place, count in enumerate(reached):
            self.reached[place] += count
            self.squares += (2 * place + 1) * count  # n * n is the sum of the first n odd numbers

    def counters(self, *, is_forged: bool, content: str) -> Counters:
        if not self.steps > 0:
            raise SpecvizError("holds counters of no step that drafted")
        mean = self.accepted / self.steps
        by_position = ()
        deviation = None
        if self.has_positions and self.reached:
            by_position = tuple(count / self.steps for count in self.reached)
            variance = max(0.0, self.squares / self.steps - mean * mean)
            deviation = math.sqrt(variance / self.steps)
        most = self.most or len(by_position) or None
        if most is not None and most > KS[-1]:
            raise SpecvizError(f"counts drafts of {most} tokens: at most {KS[-1]} are compared")
        rises = [late - early for early, late in pairwise(by_position)]
        is_odd = any(not 0 <= share <= 1 for share in by_position) or max(rises, default=0) > RISE
        if not 0 <= mean <= (most or KS[-1]) or is_odd:
            raise SpecvizError(
                f"holds counters that cannot be: {self.accepted:,.0f} tokens accepted in {self.steps:,.0f} steps"
            )
        return Counters(
            source=self.source,
            num_steps=self.steps,
            tokens_per_step=1 + mean,
            deviation=deviation,
            by_position=by_position,
            k=most,
            is_forged=is_forged,
            content=content,
        )


def read_counters(path: str | Path) -> Counters:
    """The counters of a file, summed over all requests in it. Raises SpecvizError where it holds none."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise SpecvizError(f"{path.name} is not a file")
        with path.open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise SpecvizError(f"{path.name} cannot be opened ({error.strerror})") from error
    if len(raw) > MOST_BYTES:
        raise SpecvizError(f"{path.name} is too large: at most {MOST_BYTES:,} bytes are read")
    if raw.startswith(PACKED):
        raise SpecvizError(f"{path.name} is packed: unpack it first")
    text = raw.decode("utf-8-sig", "replace")
    count = _Count()
    try:
        for record in _records(text):
            _add_record(record, count)
        _add_lines(text, count)
        if not count.source:
            raise SpecvizError(f"holds no counters of speculative decoding; read are {NAMES}")
        content = hashlib.sha256(raw).hexdigest()[:16]
        return count.counters(is_forged=bool(FORGED.search(text)), content=content)
    except SpecvizError as error:
        raise SpecvizError(f"{path.name} {error}") from error


def _records(text: str) -> Iterator[Any]:
    """The JSON values of a file: one, or one on each line; lines that are none are passed over."""
    start = text.lstrip()[:1]
    if start and start in "[{":
        try:
            yield json.loads(text)
            return
        except (ValueError, RecursionError):
            pass
    for line in text.splitlines():
        if line.lstrip().startswith("{"):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                continue


def _add_record(value: Any, count: _Count, depth: int = 0) -> None:
    """Adds the counters that stand anywhere in a JSON value, each once."""
    if depth > MOST_NESTED:
        return
    if isinstance(value, list):
        for item in value:
            _add_record(item, count, depth + 1)
    if not isinstance(value, dict):
        return
    for marker, add in _READERS.items():
        if value.get(marker) is not None:
            add(value, count)
            return
    for item in value.values():
        _add_record(item, count, depth + 1)


# ---- shapes of one request or of one file ----------------------------------------------------------------------------


def _number(values: Mapping[str, Any], name: str, *, default: float | None = None) -> float:
    """A count that is not negative. Raises SpecvizError for anything else."""
    value = values.get(name)
    if value is None and default is not None:
        return default
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_COUNT:
        raise SpecvizError(f'needs "{name}" as a number that is not negative {format_got(value)}')
    return float(value)


def _numbers(values: Mapping[str, Any], name: str) -> list[float]:
    """A list of counts, or {"0": count, ...}."""
    found = values.get(name)
    if isinstance(found, dict):
        if not all(key.isdecimal() and len(key) < 3 and int(key) <= KS[-1] for key in found):
            raise SpecvizError(f'needs "{name}" by numbers from 0 to {KS[-1]} {format_got(found)}')
        size = 1 + max(map(int, found), default=-1)
        found = [found.get(str(place), 0) for place in range(size)]
    if not isinstance(found, list) or len(found) > MOST_COUNTS:
        raise SpecvizError(
            f'needs "{name}" as a list of at most {MOST_COUNTS:,} numbers {format_got(found)}'
        )
    return [_number({name: item}, name) for item in found]


def _add_histogram(source: str, histogram: Sequence[float], count: _Count, most: float = 0) -> None:
    """Adds steps by how many tokens they accepted: entry 0 accepted none."""
    # the steps that accept n tokens or more, for n = 1, 2, ...
    reached = list(accumulate(reversed(histogram[1:])))[::-1]
    count.add(
        source,
        steps=sum(histogram),
        accepted=sum(reached),
        reached=reached,
        most=max(round(min(most, MOST_COUNTS)), len(reached)),
    )


def _vllm_request(values: Mapping[str, Any], count: _Count) -> None:
    """Adds vLLM's metrics.speculative_decoding."""
    most = _number(values, "num_spec_tokens", default=0.0)
    _add_histogram("vLLM", _numbers(values, "acceptance_histogram"), count, most)


def _aiperf(values: Mapping[str, Any], count: _Count) -> None:
    inside = values["spec_decode_acceptance"]
    if not isinstance(inside, dict):
        raise SpecvizError(f'needs "spec_decode_acceptance" as an object {format_got(inside)}')
    most = _number(inside, "num_spec_tokens", default=0.0)
    _add_histogram("AIPerf", _numbers(inside, "acceptance_histogram"), count, most)


def _bench(values: Mapping[str, Any], count: _Count) -> None:
    """Adds the result file of `vllm bench serve`."""
    steps = _number(values, "spec_decode_num_drafts")
    rates = _numbers(values, "spec_decode_per_position_acceptance_rates")
    count.add(
        "vllm bench serve",
        steps,
        _number(values, "spec_decode_accepted_tokens"),
        reached=[rate * steps for rate in rates] or None,
    )


def _sglang(values: Mapping[str, Any], count: _Count) -> None:
    """Adds SGLang's meta_info, or the same fields in spec_tokens_details."""
    steps = _number(values, "spec_verify_ct")
    if values.get("spec_correct_drafts_histogram"):
        histogram = _numbers(values, "spec_correct_drafts_histogram")
        drafted = _number(values, "spec_num_proposed_drafts", default=0.0)
        _add_histogram("SGLang", histogram, count, drafted / steps if steps >= 1 else 0)
    else:
        count.add("SGLang", steps, _number(values, "spec_num_correct_drafts"))


def _tensorrt(values: Mapping[str, Any], count: _Count) -> None:
    """Adds TensorRT-LLM's dflash_accept_stats_rank*.json."""
    most = _number(values, "max_draft_len", default=0.0)
    _add_histogram("TensorRT-LLM", _numbers(values, "accepted_draft_hist"), count, most)


def _llama(values: Mapping[str, Any], count: _Count) -> None:
    """Adds llama.cpp's timings. Every step gives one token more than it accepts, so the steps follow.

    The first token comes with the prompt, without a draft.
    """
    accepted = _number(values, "draft_n_accepted")
    steps = _number(values, "predicted_n") - accepted - 1
    if steps < 0:
        raise SpecvizError("counts more accepted tokens than written ones")
    count.add("llama.cpp", steps, accepted)


_READERS: Mapping[str, Callable[[Mapping[str, Any], _Count], None]] = {
    "acceptance_histogram": _vllm_request,
    "spec_decode_acceptance": _aiperf,
    "spec_decode_num_drafts": _bench,
    "spec_verify_ct": _sglang,
    "accepted_draft_hist": _tensorrt,
    "draft_n": _llama,
}
"""The field by which each shape is known -> what reads it."""


# ---- logs and metrics ------------------------------------------------------------------------------------------------

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_LIST = r"([0-9., ]*[0-9])"
_VLLM_LOG = re.compile(
    rf"SpecDecoding metrics:.*?Accepted: {_NUMBER} tokens, Drafted: {_NUMBER} tokens, "
    rf"Per-position acceptance rate: {_LIST}"
)
_LLAMA_LOG = re.compile(
    rf"draft acceptance = {_NUMBER} \( *{_NUMBER} accepted / *{_NUMBER} generated\)"
    rf".*?acceptance rate per position = \({_LIST}\)"
)
_METRIC = re.compile(
    r"^(vllm:[a-z_]+)(?:\{([^}]*)\})? +([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)(?: +[0-9]+)?\r?$",
    re.MULTILINE,
)
_POSITION = re.compile(r'position="(\d+)"')


def _add_lines(text: str, count: _Count) -> None:
    for line in text.splitlines():
        if len(line) > MOST_LINE:
            continue
        if found := _VLLM_LOG.search(line):
            _add_rates("vLLM's log", float(found[1]), float(found[2]), found[3], count)
        elif found := _LLAMA_LOG.search(line):
            _add_rates("llama.cpp's log", float(found[2]), float(found[3]), found[4], count)
    if not count.source:
        _add_metrics(text, count)


def _add_rates(source: str, accepted: float, drafted: float, listed: str, count: _Count) -> None:
    """Adds a line of a log. It does not tell the steps: each accepts as many tokens as the rates add up to."""
    rates = [float(rate) for rate in re.findall(_NUMBER, listed)]
    steps = accepted / sum(rates) if sum(rates) else drafted / len(rates)
    if steps:
        count.add(source, steps, accepted, reached=[rate * steps for rate in rates])


def _add_metrics(text: str, count: _Count) -> None:
    """Adds counters that an engine shows at /metrics, of all its processes together."""
    sums: dict[str, float] = {}
    reached: dict[int, float] = {}
    for name, labels, number in _METRIC.findall(text):
        value = float(number)
        position = _POSITION.search(labels)
        if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total" and position:
            place = int(position[1])
            if place < KS[-1]:
                reached[place] = reached.get(place, 0.0) + value
        else:
            sums[name] = sums.get(name, 0.0) + value
    prefix = "vllm:spec_decode_num_"
    if f"{prefix}drafts_total" in sums:
        count.add(
            "vLLM's metrics",
            sums[f"{prefix}drafts_total"],
            sums.get(f"{prefix}accepted_tokens_total", 0.0),
            reached=[reached.get(place, 0.0) for place in range(1 + max(reached, default=-1))]
            or None,
        )
