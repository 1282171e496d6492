"""What a server must stand: hostile inputs, and many ordinary visitors for a long time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
