"""Where a reasoning step ends: whether a delimiter has come, in the bytes of the tokens, and drafting up to it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specviz.drafters.policy import Policy
from specviz.models.tokens import TokenText

DELIMITERS = {"blank_line": b"\n\n", "line": b"\n"}


class Watch:
    """Whether the delimiter has come since the place where the watch began."""

    def __init__(self, text: TokenText, delimiter: bytes) -> None:
        self._text, self._delimiter = text, delimiter
        self._tail = b""

    def begin(self, tokens: Sequence[int]) -> None:
        """Behind these tokens; a delimiter may have begun in them."""
        tail = b"".join(map(self._text.bytes_of, tokens[-len(self._delimiter) :]))
        self._tail = b"" if tail.endswith(self._delimiter) else self._short(tail)

    def ends_with(self, token: int) -> bool:
        written = self._tail + self._text.bytes_of(token)
        self._tail = self._short(written)
        return self._delimiter in written

    def _short(self, raw: bytes) -> bytes:
        return raw[max(0, len(raw) - len(self._delimiter) + 1) :]


class UntilDelimiter(Policy):
    """Stops behind the token that completes the delimiter or ends the text; every id comes to the host for it."""

    def __init__(self, watch: Watch, eos_ids: frozenset[int]) -> None:
        super().__init__()
        self._watch, self._eos_ids = watch, eos_ids

    def most(self, k: int, text: Sequence[int]) -> int:
        self._watch.begin(text)
        return super().most(k, text)

    def stops(self, logits: Tensor, token: Tensor) -> bool:
        written = int(token)
        return self._watch.ends_with(written) or written in self._eos_ids

    def evidence(self, k: int) -> dict[str, object]:
        return {}
