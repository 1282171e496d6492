"""The teacher-forced scorer: token ids in, every model's logits for every token of a batch of texts out, once each.

Texts of a batch are padded at their ends, which no earlier token sees, and read in pieces behind each model's own
cache, so that memory does not grow with their length. Knows no session and no trace.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.forward.transformers_forward import empty_cache, read_behind, tokens_at_once
from specviz.decoding.sampling import Sampling, fit
from specviz.decoding.turns import give_way
from specviz.models.pool import LoadedModel

CHUNK = 256  # rows of the vocabulary held at once by those who take rows one text at a time
LOGITS_BYTES, LOGITS_BYTES_CUDA = 256 << 20, 1 << 30  # of one model's logits held at once


@dataclass(frozen=True, slots=True)
class TextIds:
    """Token ids: what stands before, at least one, and what is asked about."""

    prompt: Sequence[int]
    ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class DraftRows:
    """A draft's logits [R, V] in the target's width; not readable [R]: beyond its context, or a token it lacks."""

    logits: Tensor
    readable: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """R tokens of a batch: number of the text [R], place in its ids [R], the token itself [R], and each model's logits
    for what stands there. On the target's device, in the models' own number format."""

    text: Tensor
    place: Tensor
    token: Tensor
    target: Tensor  # [R, V]
    drafts: tuple[DraftRows, ...]


def read(
    target: LoadedModel, drafts: Sequence[LoadedModel], texts: Sequence[TextIds]
) -> Iterator[ScoredRows]:
    """One pass of every model over the texts. Every place comes once; places of one text come in order. Raises
    ValueError for a text without prompt or without ids, or one that the target cannot read."""
    _check(target, texts)
    rows = [torch.tensor([*text.prompt, *text.ids]) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(
        rows, batch_first=True
    )  # [B, longest], zeros behind each text
    starts = torch.tensor([len(text.prompt) for text in texts])
    ends = torch.tensor([len(text) for text in texts])
    most = LOGITS_BYTES_CUDA if target.model.device.type == "cuda" else LOGITS_BYTES
    first, step = int(starts.min()), max(1, most // (4 * target.info.vocab_size * len(texts)))
    at_once = min(tokens_at_once(each.model, len(texts)) for each in (target, *drafts))
    is_short = first + step >= ids.shape[1] and ids.shape[1] <= at_once
    readers = [_Reader(model, ids, in_pieces=not is_short) for model in (target, *drafts)]
    for begin in range(first, ids.shape[1], step):
        end = min(begin + step, ids.shape[1])
        position = torch.arange(begin, end)
        text, offset = torch.nonzero(
            (position >= starts[:, None]) & (position < ends[:, None]), as_tuple=True
        )
        if len(text):
            yield _rows(readers, ids, begin, end, text, offset, starts)


def _rows(
    readers, ids: Tensor, begin: int, end: int, text: Tensor, offset: Tensor, starts: Tensor
) -> ScoredRows:
    """The rows of the positions from begin to end; (text, offset): which of them are asked about."""
    position, device = offset + begin, readers[0].device
    logits = [
        each.read(begin, end)[text.to(each.device), offset.to(each.device)].to(device)
        for each in readers
    ]
    drafts = tuple(
        DraftRows(fit(own, readers[0].width), (position <= reader.reach[text]).to(device))
        for reader, own in zip(readers[1:], logits[1:], strict=True)
    )
    place, token = position - starts[text], ids[text, position]
    return ScoredRows(text.to(device), place.to(device), token.to(device), logits[0], drafts)


class _Reader:
    """One model over a padded batch, piece after piece. reach [B]: the last position that it says something about."""

    def __init__(self, model: LoadedModel, ids: Tensor, *, in_pieces: bool) -> None:
        self._model, self.device = model.model, model.model.get_input_embeddings().weight.device
        self.width, limit = model.info.vocab_size, model.info.context_limit
        known = ids < self.width
        self.reach = known.long().cumprod(1).sum(1).clamp_max(limit)
        self._ids = (ids * known)[:, :limit].to(self.device)
        self._cache = empty_cache(model.model) if in_pieces else None
        self._num_read = 0

    @torch.inference_mode()
    def read(self, begin: int, end: int) -> Tensor:
        """Logits [B, end - begin, V] for the tokens at these positions; zeros beyond the context."""
        new = self._ids[:, self._num_read : end - 1]
        num_logits = self._num_read + new.shape[1] + 1 - begin
        if not new.shape[1] or num_logits < 1:
            return torch.zeros((), device=self.device).expand(
                len(self._ids), end - begin, self.width
            )
        self._num_read += new.shape[1]
        logits = read_behind(self._model, new, self._cache, num_logits)
        beyond = end - begin - num_logits
        return torch.nn.functional.pad(logits, (0, 0, 0, beyond)) if beyond else logits


def _check(target: LoadedModel, texts: Sequence[TextIds]) -> None:
    info = target.info
    for text in texts:
        if not len(text.prompt) or not len(text.ids):
            raise ValueError(
                f"a text needs a prompt and ids after it (got {len(text.prompt)} and {len(text.ids)})"
            )
        if len(text) > info.context_limit:
            raise ValueError(
                f"{info.name} reads at most {info.context_limit:,} tokens (got {len(text):,})"
            )
        if not 0 <= min(*text.prompt, *text.ids) <= max(*text.prompt, *text.ids) < info.vocab_size:
            raise ValueError(f"token ids must be from 0 to {info.vocab_size - 1:,}")


@dataclass(frozen=True, slots=True)
class TokenScores:
    """One value per emitted token; q and overlap are None where there is no draft model that can read the text."""

    p: tuple[float, ...]
    q: tuple[float | None, ...]
    overlap: tuple[float | None, ...]


def score(
    target: LoadedModel,
    draft: LoadedModel | None,
    tokens: Sequence[int],
    num_emitted: int,
    sampling: Sampling,
) -> TokenScores:
    """Scores the last `num_emitted` of `tokens`; overlap as in `overlap_of`."""
    split = len(tokens) - num_emitted
    p, q, overlap = [], [], []
    for rows in read(
        target, [] if draft is None else [draft], [TextIds(tokens[:split], tokens[split:])]
    ):
        for part in range(0, len(rows.token), CHUNK):
            give_way()
            piece = slice(part, part + CHUNK)
            p_rows = sampling.probs(rows.target[piece])
            p += of_tokens(p_rows, rows.token[piece]).tolist()
            for own in rows.drafts:
                q_rows = sampling.of_draft.probs(own.logits[piece])
                readable = own.readable[piece].tolist()
                q += _hide_unreadable(of_tokens(q_rows, rows.token[piece]), readable)
                overlap += _hide_unreadable(overlap_of(p_rows, q_rows), readable)
    nothing = (None,) * num_emitted
    return TokenScores(tuple(p), tuple(q) or nothing, tuple(overlap) or nothing)


def overlap_of(p: Tensor, q: Tensor) -> Tensor:
    """sum min(p, q) = 1 - TV over the last axis: the chance that a token from q is kept (Leviathan et al., 3.1)."""
    return torch.minimum(p, q).sum(-1).clamp_max(1.0)


def of_tokens(rows: Tensor, tokens: Tensor) -> Tensor:
    """The entry of each row [R, V] for its own token [R]."""
    return rows.gather(1, tokens[:, None])[:, 0]


def _hide_unreadable(values: Tensor, readable: Sequence[bool]) -> list[float | None]:
    return [
        value if known else None for value, known in zip(values.tolist(), readable, strict=True)
    ]
