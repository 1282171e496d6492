"""What lies in a page that is one file: its data by id, and what was packed for the browser."""

import base64
import gzip
import json
import re
from typing import Any


def held(html: str, name: str) -> str:
    """The data of this id, as it lies in the page; there must be exactly one."""
    (text,) = re.findall(rf'<script type="text/plain" id="{name}">(.*?)</script>', html, re.DOTALL)
    return text


def unpacked(text: str) -> Any:
    """JSON that was packed."""
    return json.loads(unpacked_text(text))


def unpacked_text(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode()
