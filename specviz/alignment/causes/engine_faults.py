"""Tries on a draft alone what an engine may do to it by mistake, to see which of it would give the engine's counters.

A fault changes what the draft reads or stores, never its weights: a start token, another chat format, padding,
positions, states of another layer, keys and values in few bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from specviz.alignment.ahead import Proposer, measure_ahead
from specviz.alignment.causes.reading import Reading, Subject, Undo, on_module
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.search import Texts, divide
from specviz.alignment.causes.undo import heads, prompts
from specviz.alignment.summary import Change, EngineFault
from specviz.alignment.tables.shard_tables import draft_chances
from specviz.alignment.tables.slices import ratio_residuals, standard_error
from specviz.alignment.types import DEPTHS, Array
from specviz.analysis import whatif
from specviz.analysis.whatif import Chances
from specviz.models.pool import LoadedModel
from specviz.models.score import TextIds, of_tokens
from specviz.request import MAX_ID

READ_KINDS = ("long prompts", "start", "template", "feature", "position")
"""The kinds of undos that change what is read; an engine may do each of them to a draft."""
PADDING = (1, 8, 64)  # tokens
TEMPERATURES = (0.5, 0.7, 1.4, 2.0)
CACHES = (torch.float8_e4m3fn, torch.float8_e5m2)
Steps = Array
"""The expected steps of a text at one K: those that draft, then those that accept 1, 2, ... K tokens or more."""


def try_faults(subject: Subject, texts: Texts, k: int) -> tuple[EngineFault, ...]:
    """Tries each fault, returns what it changes in the steps of the draft on these texts.

    A fault that changes nothing there is left out: this draft cannot have it.
    """
    readings = [
        Reading(subject.module, half, sample.texts) for half, sample in enumerate(texts.samples)
    ]
    faults = list(_faults(subject, texts, readings))
    by_half = []
    for plain, sample in zip(readings, texts.samples, strict=True):
        changed = [fault.apply(plain) for fault in faults]
        by_half.append(_steps(subject, [plain, *changed], sample, k))
    before, *afters = (
        [np.concatenate(halves) for halves in zip(*of_reading, strict=True)]
        for of_reading in zip(*by_half, strict=True)
    )
    changes = [
        tuple(_change(*pair) for pair in zip(before, after, strict=True)) for after in afters
    ]
    return tuple(
        EngineFault(fault.cure, *change)
        for fault, change in zip(faults, changes, strict=True)
        if any(any(way.by_position) for way in change)
    )


def _faults(subject: Subject, texts: Texts, readings: Sequence[Reading]) -> Iterator[Undo]:
    for divisor in TEMPERATURES:
        yield divide(divisor)
    draft = subject.draft
    if isinstance(draft, Proposer):
        layers = subject.drafter(readings[0]).hidden_layers
        families = heads.families(subject.module, subject.target, layers) if layers else ()
    else:
        families = prompts.families(draft, subject.target, texts.halves)
        yield from _padding(draft, [text for reading in readings for text in reading.texts])
        yield prompts.shortened(1)
        yield Undo("position", "its proposals one token late", _propose_late)
    for family in families:
        if family[0].kind in READ_KINDS:
            yield family[0]
    if subject.module is not None:
        for dtype in CACHES:
            name = str(dtype).removeprefix("torch.")
            yield on_module(
                "cache", f"its keys and values stored as {name}", partial(_keep_in, dtype=dtype)
            )


def _padding(draft: LoadedModel, texts: Sequence[TextIds]) -> Iterator[Undo]:
    """The faults of padding before each prompt, which attention should leave out."""
    tokenizer = draft.tokenizer
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    pad = next(token for token in known if token is not None)
    longest = max(len(text) for text in texts)
    for size in PADDING:
        if longest + size <= (draft.info.context_limit or MAX_ID):
            cure = f"{size} padding token{'s' * (size > 1)} (id {pad}) before each prompt that it attends to"
            yield Undo("padding", cure, partial(_pad, ids=[pad] * size))


def _pad(reading: Reading, ids: Sequence[int]) -> Reading:
    padded = [TextIds([*ids, *text.prompt], text.ids) for text in reading.texts]
    return replace(reading, texts=padded)


def _propose_late(reading: Reading) -> Reading:
    return replace(reading, places=reading.places + 1)


class _Rounded(nn.Module):
    """A projection whose results are rounded to a format of few bits."""

    def __init__(self, projection: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.projection = projection
        self._dtype = dtype

    def forward(self, states: Tensor) -> Tensor:
        made = self.projection(states)
        return made.to(self._dtype).to(made.dtype)


def _keep_in(module: nn.Module, dtype: torch.dtype) -> None:
    """Rounds the keys and values of a twin."""
    for name, part in list(module.named_modules()):
        if name.rpartition(".")[2] in ("k_proj", "v_proj"):
            module.set_submodule(name, _Rounded(part, dtype))


# ---- steps -----------------------------------------------------------------------------------------------------------


def _steps(
    subject: Subject, readings: Sequence[Reading], sample: TargetTexts, k: int
) -> list[tuple[Steps, Steps]]:
    """The steps of each reading by text [texts, K + 1]: of drawn tokens, then of the most likely ones."""
    along = _along_heads if isinstance(subject.draft, Proposer) else _along_model
    found = []
    for by_text in along(subject, readings, sample):
        ways = zip(*by_text, strict=True)
        found.append(tuple(np.array([_steps_of(chances, k) for chances in way]) for way in ways))
    return found


def _steps_of(chances: Chances, k: int) -> Steps:
    begins = whatif.start_chances(chances, [k])[0]
    return whatif.accepted_by_start(chances, k, begins).sum(1)


Ways = tuple[Chances, Chances]
"""The chances of a text with drawn tokens, and with the most likely ones."""


def _along_model(
    subject: Subject, readings: Sequence[Reading], sample: TargetTexts
) -> Iterator[list[Ways]]:
    tokens = torch.tensor([token for text in sample.texts for token in text.ids])
    ends = torch.from_numpy(sample.starts[1:])
    p = of_tokens(sample.p, tokens.to(sample.p.device)).cpu().numpy()
    for reading in readings:
        q = np.zeros(len(tokens))
        hit = np.zeros(len(tokens))
        model = replace(subject.draft, model=reading.module)
        for numbers, rows, logits in sample.draft_rows(model, reading.texts):
            judged = rows + reading.places
            is_inside = judged < ends.to(rows.device)[numbers]
            judged, logits = judged[is_inside], logits[is_inside]
            own = tokens.to(rows.device)[judged]
            probs = sample.sampling.probs(logits / reading.divided_by)
            places = judged.cpu().numpy()
            q[places] = of_tokens(probs, own).cpu().numpy()
            hit[places] = (logits.argmax(-1) == own).cpu().numpy()
        keep = whatif.acceptance_chances(p, q)
        by_text = []
        for first, end in zip(sample.starts, sample.starts[1:], strict=False):
            readable = np.ones(end - first, dtype=bool)
            ways = (keep[first:end], hit[first:end])
            by_text.append(tuple(draft_chances(way, readable) for way in ways))
        yield by_text


def _along_heads(
    subject: Subject, readings: Sequence[Reading], sample: TargetTexts
) -> Iterator[list[Ways]]:
    by_reading: list[list[Ways]] = [[] for _ in readings]
    for text in sample.texts:
        drafters = [subject.drafter(reading) for reading in readings]
        measured = measure_ahead(subject.target, drafters, text, sample.sampling, DEPTHS)
        for own, numbers in zip(by_reading, measured, strict=True):
            ahead = numbers["ahead"]
            drawn, likely = (
                draft_chances(way, ahead.readable, waits=ahead.waits)
                for way in (ahead.acceptance, ahead.hit)
            )
            own.append((drawn, likely))
    return iter(by_reading)


def _change(before: Steps, after: Steps) -> Change:
    """The change from one sort of steps to another over the same texts [texts, K + 1]."""
    shares = []
    residuals = []
    for steps in (before, after):
        drafting = steps[:, 0]
        shares.append(steps.sum(0)[1:] / max(drafting.sum(), 1e-9))
        residuals.append(ratio_residuals(steps[:, 1:].sum(1), drafting))
    deviation = standard_error(residuals[1] - residuals[0])
    return Change(tuple((shares[1] - shares[0]).tolist()), float(deviation))
