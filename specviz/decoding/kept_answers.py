"""KeptAnswers: the answers of ended runs, for drafters in later runs of the same visitor that look for repetitions.

They are a person's text, so nobody else's run gets them: see `Kept` for their bounds and their end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specviz.decoding.kept_rows import Kept

MOST_TOKENS = 8_192  # of one visitor


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and the name of the vocabulary that numbers them."""

    vocabulary: str
    tokens: tuple[int, ...]


class KeptAnswers(Kept[tuple[Answer, ...]]):
    """The answers of ended runs by visitor, the oldest first."""

    def keep(self, visitor: str, vocabulary: str, tokens: Sequence[int]) -> None:
        """Adds an answer of the visitor. Beyond MOST_TOKENS, his oldest answers are dropped, and then the beginning of
        this one."""
        with self._lock:
            answers = [*self._of(visitor), Answer(vocabulary, tuple(tokens[-MOST_TOKENS:]))]
            while sum(len(answer.tokens) for answer in answers) > MOST_TOKENS:
                del answers[0]
            self._put(visitor, tuple(answers))

    def of(self, visitor: str, vocabulary: str) -> tuple[tuple[int, ...], ...]:
        """The tokens of the visitor's answers in this vocabulary, the oldest first."""
        with self._lock:
            answers = self._of(visitor)
        return tuple(answer.tokens for answer in answers if answer.vocabulary == vocabulary)

    def _of(self, visitor: str) -> tuple[Answer, ...]:
        kept = self._kept.get(visitor)
        return kept.left if kept else ()
