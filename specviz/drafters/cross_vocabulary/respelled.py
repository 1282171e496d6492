"""Respelled: the text so far as another tokenizer cuts it, for a draft model with a vocabulary of its own.

Follows a growing list of the target's ids: a step encodes the new tokens and the last few before them.
"""

from collections.abc import Sequence

from specviz.decoding.draft import common_prefix
from specviz.models.tokens import TokenText, encode_after, ends_whole

LOOKBACK = 8  # how many of the draft's ids are cut again with what follows them


class Respelled:
    """ids: what the draft reads, the same list as long as it only grows. backed: how many of its last ids the latest
    tokens made another cut of, and the text from there on."""

    def __init__(self, target: TokenText, draft: TokenText) -> None:
        self._target, self._draft = target, draft
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._num_read = 0
        self._open = b""  # what self.ids[self._settled:] spell, and what came after
        self._settled = 0
        self.ids: list[int] = []
        self.backed = (0, "")

    def follow(self, tokens: Sequence[int]) -> bool:
        """Reads the text up to its end; False where it ends within a character, which no tokenizer can cut."""
        if tokens is not self._tokens:
            self._reset(tokens)
        new = tokens[self._num_read :]
        if not self._num_read and new and new[0] == self._target.tokenizer.bos_token_id:
            new = new[1:]  # no text; the draft's tokenizer sets a start token of its own
        self._open += b"".join(map(self._target.bytes_of, new))
        self._num_read = len(tokens)
        if not ends_whole(self._open):
            return False
        if len(new):
            self._cut()
            self._settle()
        return True

    def evidence(self, way: str, pieces: Sequence[str], tokens: Sequence[int]) -> dict[str, object]:
        """What a draft shows. pieces: the texts of the draft model's tokens; tokens: the target's ids of the draft."""
        num_backed, text = self.backed
        return {
            "way": way,
            "draft_tokens": [{"text": piece} for piece in pieces],
            "target_tokens": [{"id": token} for token in tokens],
            "boundary": {"backed": num_backed, "text": text} if num_backed else None,
        }

    def _cut(self) -> None:
        cut, known = self._encode(), self.ids[self._settled :]
        same = common_prefix(cut, known, min(len(cut), len(known)))
        num_backed = len(known) - same
        self.backed = (num_backed, self._bytes(cut[same:]).decode("utf-8", "replace"))
        if num_backed:
            self.ids = self.ids[: self._settled + same]  # another list: another text
        self.ids += cut[same:]

    def _encode(self) -> list[int]:
        text = self._open.decode("utf-8", "replace")
        if not self._settled:
            return self._draft.encode(text)
        before = self._bytes(self.ids[max(0, self._settled - LOOKBACK) : self._settled])
        exactly = encode_after(self._draft, before, text.encode("utf-8"))
        return exactly or self._draft.encode(
            text, special=False
        )  # a tokenizer that changes the text

    def _settle(self) -> None:
        """From now on only the last few ids are cut again."""
        if len(self.ids) - self._settled <= 4 * LOOKBACK:
            return
        for size in range(LOOKBACK, 2 * LOOKBACK):
            end = self._bytes(self.ids[-size:])
            if self._open.endswith(end) and ends_whole(self._open[: len(self._open) - len(end)]):
                self._settled, self._open = len(self.ids) - size, end
                return
        self._settled, self._open = len(self.ids), b""

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._draft.bytes_of, ids))
