"""Undos of rows of the embedding or the output matrix that stand at other ids, and of tied and untied matrices.

Where the target wants x, a draft may again and again give y instead: its rows of x and y have changed places, or all
rows from some id on have moved.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from specviz.alignment.causes.reading import Family, Reading, Subject, on_module
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.undo.matrices import put
from specviz.models.pool import LoadedModel
from specviz.views.words import label, percent

FEWEST_WANTED = 0.5  # the target's probability of an id, summed over all tokens, to judge it
DEAF = 0.05  # of what the draft gives to other wanted ids, at most
CLEAR = 0.1  # mean q of the other id where this one is wanted, at least
LEAST_SHARE = 0.1  # of the target's probability; below, nothing is said, as of a small draft
FEWEST_TOKENS = (
    300  # of the texts that choose; in fewer, most ids are wanted once, which tells nothing
)
FEWEST_IDS = 5  # below, nothing is said
SHOWN = 6  # ids that are named
SHIFTS = (1, -1)
GRID = 6  # places at which a shift may begin that are tried at once


@dataclass(frozen=True, slots=True, eq=False)
class DeafIds:
    """The ids that the target wants and the draft does not give."""

    ids: tuple[int, ...]
    num_wanted: int
    """How many ids the target wants, given or not."""
    share: float
    """The target's probability on these ids that the draft lacks, as a share of all."""
    found: Mapping[int, int]
    """The id that the draft gives instead, for some of these ids. Their rows have changed places."""


def deaf_ids(sample: TargetTexts, draft: LoadedModel, reading: Reading) -> DeafIds:
    """Finds the ids that the draft gives least as it reads here, compared with what the target wants."""
    draft = replace(draft, model=reading.module)
    width = sample.p.shape[1]
    wanted = torch.zeros(width, dtype=torch.float64, device=sample.p.device)  # [V], sums of p
    overlap = torch.zeros_like(wanted)  # [V], sums of min(p, q)
    for _, p, logits in sample.read_draft(draft, reading.texts):
        q = sample.sampling.probs(logits)
        wanted += p.sum(0)
        overlap += torch.minimum(p, q).sum(0)
    is_wanted = wanted >= FEWEST_WANTED
    is_wanted[draft.info.vocab_size :] = False  # ids that it lacks are another matter
    usual = float(overlap[is_wanted].sum() / wanted[is_wanted].sum().clamp_min(1e-9))
    is_deaf = is_wanted & (overlap < DEAF * usual * wanted)
    deaf = torch.nonzero(is_deaf).flatten()
    share = float((wanted[deaf] - overlap[deaf]).sum() / wanted.sum())
    given_instead = _find_given_instead(sample, draft, reading, deaf, wanted)
    return DeafIds(tuple(deaf.tolist()), int(is_wanted.sum()), share, given_instead)


def _find_given_instead(
    sample: TargetTexts, draft: LoadedModel, reading: Reading, deaf: Tensor, wanted: Tensor
) -> Mapping[int, int]:
    """The id that the draft gives in the place of a deaf one, each at most once, the clearest first.

    deaf: ids [D]. wanted: sums of p [V].
    """
    if not len(deaf):
        return {}
    sums = sample.p.new_zeros(len(deaf), sample.p.shape[1])  # [D, V]
    for _, p, logits in sample.read_draft(draft, reading.texts):
        q = sample.sampling.probs(logits)
        surplus = (q - p).clamp_min(0)  # what the target does not want itself
        sums += p[:, deaf].T @ surplus
    rates = sums / wanted[deaf, None].float()
    best, other = rates.max(1)  # [D]
    found: dict[int, int] = {}
    for place in best.argsort(descending=True).tolist():
        other_id = int(other[place])
        if best[place] >= CLEAR and other_id not in found.values():
            found[int(deaf[place])] = other_id
    return found


def deaf_words(draft: LoadedModel, found: DeafIds) -> str:
    """What is wrong with these ids; empty where they are too few or too seldom wanted."""
    if found.share < LEAST_SHARE or len(found.ids) < FEWEST_IDS:
        return ""
    shown = ", ".join(label(draft.text.label(token)) for token in found.ids[:SHOWN])
    return (
        f"The draft hardly ever gives {len(found.ids):,} of {found.num_wanted:,} ids that the target wants here, such "
        f"as {shown}: {percent(found.share)} of the target's probability is on them. It never learned them, or its "
        "rows of these ids are damaged."
    )


def families(module: nn.Module, deaf: DeafIds) -> Iterator[Family]:
    """Rows put back one by one, and matrices tied that are not."""
    if deaf.found:
        cure = f"the rows of {len(deaf.found):,} ids put back in their places"
        for tables, words in tables_of(module):
            change = partial(_put_back, found=deaf.found, tables=tables)
            yield (on_module("token ids", f"{cure}{words}", change),)
    if _is_untied(module):
        cure = "the embedding as output matrix (tie_word_embeddings)"
        yield (on_module("setting", cure, partial(_tie, tied="get_output_embeddings")),)
        cure = "the output matrix as embedding (tie_word_embeddings)"
        yield (on_module("setting", cure, partial(_tie, tied="get_input_embeddings")),)


def _is_untied(module: nn.Module) -> bool:
    embedding = module.get_input_embeddings().weight
    output = module.get_output_embeddings().weight
    return embedding is not output and embedding.shape == output.shape


def tables_of(module: nn.Module) -> list[tuple[tuple[str, ...], str]]:
    """The tables whose rows may stand in wrong places, with words that say which; a tied one serves both ways."""
    both = ("get_input_embeddings", "get_output_embeddings")
    if not _is_untied(module):
        return [(both, "")]
    return [
        (both, " (embedding and output matrix)"),
        (both[:1], " (embedding)"),
        (both[1:], " (output matrix)"),
    ]


def _tie(module: nn.Module, tied: str) -> None:
    source = {"get_output_embeddings", "get_input_embeddings"} - {tied}
    put(getattr(module, tied)(), getattr(module, source.pop())().weight.detach())


def _put_back(module: nn.Module, found: Mapping[int, int], tables: Sequence[str]) -> None:
    """Gives the keys of `found` the rows of its values."""
    rows = torch.arange(module.config.get_text_config(decoder=True).vocab_size)
    rows[torch.tensor(list(found))] = torch.tensor(list(found.values()))
    _take_rows(module, rows, tables)


def _take_rows(module: nn.Module, rows: Tensor, tables: Sequence[str]) -> None:
    """Gives each id the row of another. rows [V]: whose. No weight is copied: ids and logits are looked up."""
    for table in tables:
        part = getattr(module, table)()
        if isinstance(part, nn.Embedding):
            part.register_forward_pre_hook(partial(_look_up_ids, rows))
        else:
            part.register_forward_hook(partial(_look_up_logits, rows))


def _look_up_ids(rows: Tensor, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    ids = inputs[0]
    return (rows.to(ids.device)[ids], *inputs[1:])


def _look_up_logits(rows: Tensor, _: nn.Module, __: object, logits: Tensor) -> Tensor:
    return logits[..., rows.to(logits.device)]


# ---- all rows from some id on ----------------------------------------------------------------------------------------


def shifted_rows(
    subject: Subject, reading: Reading, sample: TargetTexts, deaf: DeafIds
) -> Iterator[Family]:
    """Rows from some id on moved back, for each table and number of rows by which they may have moved."""
    wanted = torch.nonzero(sample.p.sum(0) >= FEWEST_WANTED / 2).flatten().tolist()
    offsets = Counter(other - token for token, other in deaf.found.items())
    steps = dict.fromkeys([*SHIFTS, *(step for step, _ in offsets.most_common(1) if step)])
    (before,) = subject.agreements([reading], sample)
    for tables, words in tables_of(reading.module):
        for step in steps:
            change = partial(shift, step=step, tables=tables)

            def gain(begin: int, change=change) -> float:
                tried = reading.with_module(partial(change, begin=begin))
                (after,) = subject.agreements([tried], sample)
                return float((after - before).mean())

            begin = _best_begin([0, *wanted[1:]], gain)
            if begin is not None:
                rows = f"{abs(step)} row" + "s" * (abs(step) > 1)
                way = "later" if step > 0 else "earlier"
                cure = f"each id from about {begin:,} on given the row {rows} {way}{words}"
                yield (on_module("token ids", cure, partial(change, begin=begin)),)


def _best_begin(ids: Sequence[int], gain: Callable[[int], float]) -> int | None:
    """The id from which shifted rows gain most; None where none gains.

    The gain falls with every id between a place that is tried and the true one. So a grid over the ids is refined
    around its best place until neighbours are tried.
    """
    first, last = 0, len(ids)
    while True:
        stride = max(1, -(-(last - first) // GRID))
        gains = {place: gain(ids[place]) for place in range(first, last, stride)}
        best = max(gains, key=gains.__getitem__)
        if gains[best] <= 0:
            return None
        if stride == 1:
            return ids[best]
        first = max(first, best - stride + 1)
        last = min(last, best + stride)


def shift(module: nn.Module, begin: int, step: int, tables: Sequence[str]) -> None:
    """Gives each id from `begin` on the row that stands `step` further; the last rows go round to `begin`."""
    rows = torch.arange(module.config.get_text_config(decoder=True).vocab_size)
    rows[begin:] = rows[begin:].roll(-step)
    _take_rows(module, rows, tables)
