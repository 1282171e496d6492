"""What people read, as text: README and the documents of assets/docs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATHS = [ROOT / "README.md", *sorted((ROOT / "assets" / "docs").glob("*.md"))]
README, *_ = TEXTS = [path.read_text("utf-8") for path in PATHS]
DOCS = {path.name: text for path, text in zip(PATHS[1:], TEXTS[1:], strict=True)}
MEASURED = DOCS["measured.md"]
ALL = "\n".join(TEXTS)
SNIPPETS = re.findall(r"^```python\n(.*?)^```", ALL, re.MULTILINE | re.DOTALL)
