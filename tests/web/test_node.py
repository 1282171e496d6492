"""The views' own tests, which need no browser: they run under node over what Python sends. A type checker reads all."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.npm import npm_program
from tests.web.messages import write

HERE = Path(__file__).resolve().parent
WEB = HERE.parent.parent / "assets" / "web"
SCRIPTS = [path for path in sorted(WEB.rglob("*.js")) if path.parent.name != "vendor"]


def test_the_views_pass_their_own_tests(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the views' own tests need it (Debian: apt-get install nodejs)")
    write(tmp_path)
    tests = sorted(HERE.glob("*.test.js"))
    environment = {**os.environ, "SPECVIZ_MESSAGES": str(tmp_path)}
    done = subprocess.run([node, "--test", *tests], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def type_checker():
    """Skips where there is no type checker to ask."""
    return npm_program(HERE, "typescript", "tsc")


def test_the_views_have_no_type_errors(type_checker):
    checked = type_checker("--project", ".", "--pretty", "false")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_script_of_the_pages_is_checked(type_checker):
    read = {Path(line) for line in type_checker("--project", ".", "--listFilesOnly").stdout.splitlines()}
    assert [path.name for path in SCRIPTS if path not in read] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_hides_a_type_error(script):
    assert re.findall(r"@ts-\w+", script.read_text("utf-8")) == []
