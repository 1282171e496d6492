"""The views' own tests, which need no browser: tests/web/*.test.js under node, over what Python sends."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.web.messages import messages


def test_the_views_pass_their_own_tests(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the views' own tests need it (Debian: apt-get install nodejs)")
    sent = tmp_path / "messages.json"
    sent.write_text(json.dumps(messages()), "utf-8")
    tests = sorted(Path(__file__).parent.glob("*.test.js"))
    environment = {**os.environ, "SPECVIZ_MESSAGES": str(sent)}
    done = subprocess.run([node, "--test", *tests], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
