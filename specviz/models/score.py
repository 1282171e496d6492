"""The teacher-forced scorer: it takes token ids and gives every model's logits for every token of a batch of texts.

Texts of a batch are padded at their ends, which no earlier token sees. Each model reads them in pieces, so that memory
does not grow with their length. The scorer knows no session and no trace.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.forward.transformers_forward import empty_cache, read_behind, tokens_at_once
from specviz.decoding.sampling import Sampling, fit
from specviz.decoding.turns import give_way
from specviz.models.pool import LoadedModel

CHUNK = 256  # rows of logits that a caller should turn into probabilities at once
LOGITS_BYTES = 256 << 20  # the most that one model's logits take at once
LOGITS_BYTES_CUDA = 1 << 30


@dataclass(frozen=True, slots=True)
class TextIds:
    """The token ids of a text to score."""

    prompt: Sequence[int]  # at least one
    ids: Sequence[int]  # the tokens that are scored

    def __len__(self) -> int:
        return len(self.prompt) + len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class DraftRows:
    """A draft model's logits for R tokens."""

    logits: Tensor  # [R, V], as wide as the target's
    readable: (
        Tensor  # [R] False beyond the model's context, and where the text has a token that it lacks
    )


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """R tokens of a batch and each model's logits for them, on the target's device, in the models' number format."""

    text: Tensor  # [R] number of the text
    place: Tensor  # [R] place in the text's ids
    token: Tensor  # [R] id
    target: Tensor  # [R, V] logits
    drafts: tuple[DraftRows, ...]


def read(
    target: LoadedModel, drafts: Sequence[LoadedModel], texts: Sequence[TextIds]
) -> Iterator[ScoredRows]:
    """Reads the texts once with every model. Every place comes once, and the places of a text come in order.

    Raises ValueError for a text without prompt or without ids, or one that the target cannot read.
    """
    _check(target, texts)
    models = (target, *drafts)
    rows = [torch.tensor([*text.prompt, *text.ids]) for text in texts]
    # [B, longest], zeros behind each text
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    longest = ids.shape[1]
    starts = torch.tensor([len(text.prompt) for text in texts])
    ends = torch.tensor([len(text) for text in texts])
    most_bytes = LOGITS_BYTES_CUDA if target.model.device.type == "cuda" else LOGITS_BYTES
    bytes_per_position = 4 * target.info.vocab_size * len(texts)
    step = max(1, most_bytes // bytes_per_position)
    first = int(starts.min())
    at_once = min(tokens_at_once(model.model, len(texts)) for model in models)
    is_short = first + step >= longest and longest <= at_once
    readers = [_Reader(model, ids, in_pieces=not is_short) for model in models]
    for begin in range(first, longest, step):
        end = min(begin + step, longest)
        position = torch.arange(begin, end)
        is_scored = (position >= starts[:, None]) & (position < ends[:, None])  # [B, end - begin]
        text, offset = torch.nonzero(is_scored, as_tuple=True)
        if len(text):
            yield _rows(readers, ids, begin, end, text, offset, starts)


def _rows(
    readers, ids: Tensor, begin: int, end: int, text: Tensor, offset: Tensor, starts: Tensor
) -> ScoredRows:
    """The rows of the positions from begin to end. text [R], offset [R]: the positions that are scored."""
    target = readers[0]
    device = target.device
    position = offset + begin
    logits: list[Tensor] = []
    for reader in readers:
        piece = reader.read(begin, end)  # [B, end - begin, V]
        rows = piece[text.to(reader.device), offset.to(reader.device)]
        logits.append(rows.to(device))
    drafts: list[DraftRows] = []
    for reader, rows in zip(readers[1:], logits[1:], strict=True):
        readable = position <= reader.reach[text]
        drafts.append(DraftRows(fit(rows, target.width), readable.to(device)))
    place = position - starts[text]
    token = ids[text, position]
    return ScoredRows(text.to(device), place.to(device), token.to(device), logits[0], tuple(drafts))


class _Reader:
    """A model that reads a padded batch, piece after piece."""

    def __init__(self, model: LoadedModel, ids: Tensor, *, in_pieces: bool) -> None:
        self._model = model.model
        self.device = model.model.get_input_embeddings().weight.device
        self.width = model.info.vocab_size
        limit = model.info.context_limit
        known = ids < self.width
        # [B] the last position whose token it can predict
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
            zero = torch.zeros((), dtype=torch.float32, device=self.device)
            return zero.expand(len(self._ids), end - begin, self.width)
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
        ids = (*text.prompt, *text.ids)
        if min(ids) < 0 or max(ids) >= info.vocab_size:
            raise ValueError(f"token ids must be from 0 to {info.vocab_size - 1:,}")


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The scores of a text, one per emitted token; q and overlap are None where no draft model can read the text."""

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
    text = TextIds(tokens[:split], tokens[split:])
    drafts = [] if draft is None else [draft]
    p: list[float] = []
    q: list[float | None] = []
    overlap: list[float | None] = []
    for rows in read(target, drafts, [text]):
        for first in range(0, len(rows.token), CHUNK):
            give_way()
            piece = slice(first, first + CHUNK)
            p_rows = sampling.probs(rows.target[piece])  # [CHUNK, V]
            p += of_tokens(p_rows, rows.token[piece]).tolist()
            for draft_rows in rows.drafts:
                q_rows = sampling.of_draft.probs(draft_rows.logits[piece])  # [CHUNK, V]
                readable = draft_rows.readable[piece].tolist()
                q += _hide_unreadable(of_tokens(q_rows, rows.token[piece]), readable)
                overlap += _hide_unreadable(overlap_of(p_rows, q_rows), readable)
    nothing = (None,) * num_emitted
    return TokenScores(tuple(p), tuple(q) or nothing, tuple(overlap) or nothing)


def overlap_of(p: Tensor, q: Tensor) -> Tensor:
    """The probability that a token drawn from q is accepted (Leviathan et al., 3.1).

    It is sum min(p, q) = 1 - TV over the last axis.
    """
    return torch.minimum(p, q).sum(-1).clamp_max(1.0)


def of_tokens(rows: Tensor, tokens: Tensor) -> Tensor:
    """The entry of each row [R, V] at its token [R]."""
    return rows.gather(1, tokens[:, None])[:, 0]


def _hide_unreadable(values: Tensor, readable: Sequence[bool]) -> list[float | None]:
    shown: list[float | None] = []
    for value, is_readable in zip(values.tolist(), readable, strict=True):
        shown.append(value if is_readable else None)
    return shown
