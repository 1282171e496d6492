"""What people read, as text: README and the documents of assets/docs."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
DOCS = {path.name: path.read_text("utf-8") for path in sorted((ROOT / "assets" / "docs").glob("*.md"))}
MEASURED = DOCS["measured.md"]
ALL = "\n".join([README, *DOCS.values()])
