"""The README as text."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


README = (ROOT / "README.md").read_text("utf-8")
