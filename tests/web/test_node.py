"""The views' own tests, which need no browser: tests/web/*.test.js under node."""

import shutil
import subprocess
from pathlib import Path

import pytest


def test_the_views_pass_their_own_tests():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the views' own tests need it (Debian: apt-get install nodejs)")
    tests = sorted(Path(__file__).parent.glob("*.test.js"))
    done = subprocess.run([node, "--test", *tests], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
