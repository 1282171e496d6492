"""Respelled: the target's text in the token ids of a draft model with another tokenizer.

It follows the growing list of the target's ids. A step encodes only the new tokens and a few before them.
"""

from collections.abc import Sequence

from specviz.decoding.draft import common_prefix
from specviz.models.tokens import TokenText, encode_after, ends_whole

LOOKBACK = 8  # draft ids before the new text that are encoded again together with it


class Respelled:
    """The text so far as the draft model's tokenizer splits it.

    `ids` are the draft model's token ids of the text. It stays the same list object while it only grows. New text can
    change how the last ids are split. `backed` then holds how many ids were replaced, and the text from there on; its
    number is 0 if none were.
    """

    def __init__(self, target: TokenText, draft: TokenText) -> None:
        self._target = target
        self._draft = draft
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._num_read = 0
        self._settled = 0  # the first so many ids are never split again
        self._open = b""  # the text behind the settled ids
        self.ids: list[int] = []
        self.backed = (0, "")

    def follow(self, tokens: Sequence[int]) -> bool:
        """Reads the text up to its end. Returns False if it ends within a character, which no tokenizer can split."""
        if tokens is not self._tokens:
            self._reset(tokens)
        new = tokens[self._num_read :]
        if not self._num_read and new and new[0] == self._target.tokenizer.bos_token_id:
            new = new[1:]  # it is no text; the draft's tokenizer adds its own start token
        self._open += b"".join(map(self._target.bytes_of, new))
        self._num_read = len(tokens)
        if not ends_whole(self._open):
            return False
        if len(new):
            self._update_ids()
            self._settle()
        return True

    def evidence(self, way: str, pieces: Sequence[str], tokens: Sequence[int]) -> dict[str, object]:
        """The evidence of a draft. pieces: the texts of the draft model's tokens; tokens: the drafted target ids."""
        num_backed, text = self.backed
        return {
            "way": way,
            "draft_tokens": [{"text": piece} for piece in pieces],
            "target_tokens": [{"id": token} for token in tokens],
            "boundary": {"backed": num_backed, "text": text} if num_backed else None,
        }

    def _update_ids(self) -> None:
        """Encodes the open text again and replaces the ids that are no longer right."""
        encoded = self._encode()
        known = self.ids[self._settled :]
        num_same = common_prefix(encoded, known, min(len(encoded), len(known)))
        num_backed = len(known) - num_same
        added = encoded[num_same:]
        self.backed = (num_backed, self._bytes(added).decode("utf-8", "replace"))
        if num_backed:
            self.ids = self.ids[: self._settled + num_same]  # another list: another text
        self.ids += added

    def _encode(self) -> list[int]:
        text = self._open.decode("utf-8", "replace")
        if not self._settled:
            return self._draft.encode(text)
        before = self._bytes(self.ids[max(0, self._settled - LOOKBACK) : self._settled])
        ids = encode_after(self._draft, before, text.encode("utf-8"))
        # none: this tokenizer changes the text
        return ids or self._draft.encode(text, special=False)

    def _settle(self) -> None:
        """Settles all ids but the last few, so that later steps encode little."""
        if len(self.ids) - self._settled <= 4 * LOOKBACK:
            return
        for size in range(LOOKBACK, 2 * LOOKBACK):
            end = self._bytes(self.ids[-size:])
            if self._open.endswith(end) and ends_whole(self._open[: len(self._open) - len(end)]):
                self._settled = len(self.ids) - size
                self._open = end
                return
        self._settled = len(self.ids)
        self._open = b""

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._draft.bytes_of, ids))
