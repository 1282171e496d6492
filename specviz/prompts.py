"""The prompts that come with specviz, as data: assets/prompts/prompts.json. Standard library only."""

import json
from typing import Any

from specviz.settings import assets_dir


def prompts_file() -> dict[str, Any]:
    """The prompts as they stand in the file.

    {"kinds": [{"name", "title", "prompts": [{"name", "text"}]}], "dialogues": {"title", "prompts": [...]}}. A prompt
    that is "hard" has fewer drafted tokens accepted than the first one, with the pairs that come with specviz.
    """
    return json.loads((assets_dir() / "prompts" / "prompts.json").read_text(encoding="utf-8"))
