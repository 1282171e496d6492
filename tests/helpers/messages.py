"""Messages and their parts as the browser gets them."""

import json
from typing import Any

from specviz.views.blocks import dump


def as_json(record: object) -> Any:
    """A record, or plain values with records in them, as parsed JSON."""
    return json.loads(dump(record))
