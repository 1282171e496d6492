"""SuffixAutomaton: all strings that stand in a growing text, how often each does, and what followed it.

It is the automaton of Blumer et al. 1985 (Theoretical Computer Science 40, 31-55). A state stands for strings that end
at the same places: its longest one, and suffixes of that one. The link of a state is the state of the next shorter
suffix. A token that was pushed can be popped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ROOT = 0  # the state of the empty string
NONE = -1


class Follower(NamedTuple):
    """A token that followed a string, how often it did, and the state of the string with it."""

    token: int
    count: int
    state: int


class SuffixAutomaton:
    """The strings of up to `longest` tokens in a text. A push or a pop costs O(longest), and less as a rule.

    States are at most twice as many as tokens.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._next: list[
            dict[int, int]
        ] = []  # token -> state, in the order of their first occurrence
        self._link: list[int] = []
        self._length: list[int] = []  # of the longest string
        self._end: list[int] = []  # of the first occurrence
        self._count: list[int] = []  # occurrences
        self._last = self._add({}, NONE, 0, 0)  # the state of the longest suffix of the text
        # per token: itself, _last before it, whether it made a state, and the state that was split for it
        self._pushed: list[tuple[int, int, bool, int]] = []

    def __len__(self) -> int:
        return len(self._pushed)

    def push(self, token: int) -> None:
        """Adds a token at the end of the text."""
        start = self._start()
        new = self._next[start].get(token, NONE)
        is_new = new == NONE
        split = NONE
        if is_new:
            end = len(self) + 1
            new = self._add({}, ROOT, min(end, self._longest), end)
            state = self._redirect(start, token, NONE, new)
            if state != NONE:
                known = self._next[state][token]
                self._link[new] = known
                if self._length[known] > self._length[state] + 1:
                    split = known
                    self._link[new] = self._split(known, state, token)
        self._pushed.append((token, self._last, is_new, split))
        self._last = new
        for suffix in self._suffixes():
            self._count[suffix] += 1

    def _split(self, known: int, state: int, token: int) -> int:
        """Gives the shorter strings of a state, which now end at one more place, a state of their own."""
        length = self._length[state] + 1
        part = self._add(dict(self._next[known]), self._link[known], length, self._end[known])
        self._count[part] = self._count[known]
        self._redirect(state, token, known, part)
        self._link[known] = part
        return part

    def pop(self) -> None:
        """Takes the last token back. Everything is then as it was before its push."""
        for suffix in self._suffixes():
            self._count[suffix] -= 1
        new = self._last
        token, self._last, is_new, split = self._pushed.pop()
        if not is_new:
            return
        part = self._link[new]
        if split != NONE:
            self._link[split] = self._link[part]
        state = self._redirect(self._start(), token, new, NONE)
        if split != NONE:
            self._redirect(state, token, part, split)
            self._drop()
        self._drop()

    def match(self, most: int) -> tuple[int, int]:
        """The longest suffix of the text, up to `most` tokens, that stood before: its state and its length."""
        state = self._last
        if self._count[state] == 1:
            state = self._link[state]
        state = self._shorten(state, most)
        return state, min(self._length[state], most)

    def followers(self, state: int) -> list[Follower]:
        """What followed the strings of a state; the one that followed last for the first time comes first."""
        newest_first = reversed(self._next[state].items())
        return [Follower(token, self._count[after], after) for token, after in newest_first]

    def first_end(self, state: int) -> int:
        """The number of tokens up to the end of the first occurrence of a state's strings."""
        return self._end[state]

    def _add(self, followers: dict[int, int], link: int, length: int, end: int) -> int:
        self._next.append(followers)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        self._count.append(0)
        return len(self._next) - 1

    def _drop(self) -> None:
        """Removes the newest state."""
        for column in (self._next, self._link, self._length, self._end, self._count):
            column.pop()

    def _redirect(self, state: int, token: int, old: int, new: int) -> int:
        """Makes `token` lead to `new` from a state and its suffixes, as long as it leads to `old`.

        NONE: nowhere. Returns the first state where it leads elsewhere, NONE behind the last.
        """
        while state != NONE and self._next[state].get(token, NONE) == old:
            if new == NONE:
                del self._next[state][token]
            else:
                self._next[state][token] = new
            state = self._link[state]
        return state

    def _shorten(self, state: int, length: int) -> int:
        """The state of the suffix with this length of a state's strings, the state itself if they are shorter."""
        while state != ROOT and self._length[self._link[state]] >= length:
            state = self._link[state]
        return state

    def _start(self) -> int:
        """The state of the longest suffix that is still a string with one more token."""
        return self._shorten(self._last, self._longest - 1)

    def _suffixes(self) -> Iterator[int]:
        """The states of the text's suffixes, but the empty one's."""
        state = self._last
        while state != ROOT:
            yield state
            state = self._link[state]
