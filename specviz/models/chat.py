"""A conversation as plain text, one "Role: words" line per message, and back.

So a conversation can be typed into the one prompt field, and models without a chat template can read it as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

ROLES = ("system", "user", "assistant")
_HEAD = re.compile(r"^(System|User|Assistant):[ \t]*", re.MULTILINE)


def as_lines(messages: Sequence[Mapping[str, str]]) -> str:
    """The messages as text that ends where the assistant's answer begins."""
    lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
    return "\n".join([*lines, "Assistant:"])


def as_messages(text: str) -> str | list[dict[str, str]]:
    """The messages of a text that begins with such a line; any other text as it is, one user's message."""
    if not _HEAD.match(text):
        return text
    _, *parts = _HEAD.split(text)
    messages = [
        {"role": role.lower(), "content": content.strip()}
        for role, content in zip(parts[::2], parts[1::2], strict=True)
    ]
    return messages[:-1] if messages[-1] == {"role": "assistant", "content": ""} else messages
