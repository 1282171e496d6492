"""The views' own tests, which need no browser: they run under node over what Python sends. A type checker reads all."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.web.messages import write

HERE = Path(__file__).resolve().parent
WEB = HERE.parent.parent / "assets" / "web"
SCRIPTS = [path for path in sorted(WEB.rglob("*.js")) if path.parent.name != "vendor"]
PATIENCE_S = 120  # for npm, which may have to bring the type checker


def test_the_views_pass_their_own_tests(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the views' own tests need it (Debian: apt-get install nodejs)")
    write(tmp_path)
    tests = sorted(HERE.glob("*.test.js"))
    environment = {**os.environ, "SPECVIZ_MESSAGES": str(tmp_path)}
    done = subprocess.run([node, "--test", *tests], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def tsc(*options):
    """Runs the type checker that package.json names; npm keeps it after the first time."""
    version = json.loads((HERE / "package.json").read_text("utf-8"))["devDependencies"]["typescript"]
    command = [shutil.which("npx"), "--yes", f"--package=typescript@{version}", "--", "tsc", *options]
    environment = {**os.environ, "npm_config_fetch_retries": "1", "npm_config_fetch_retry_mintimeout": "1000"}
    return subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.fixture
def type_checker():
    """Skips where there is no type checker to ask."""
    if shutil.which("npx") is None:
        pytest.skip("npx is not installed: the type checker needs it (Debian: apt-get install npm)")
    try:
        started = tsc("--version")
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not bring the type checker within {PATIENCE_S} seconds")
    if started.returncode:
        pytest.skip(f"npm could not bring the type checker: {started.stderr.strip() or started.stdout.strip()}")
    return tsc


def test_the_views_have_no_type_errors(type_checker):
    checked = type_checker("--project", ".", "--pretty", "false")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_script_of_the_pages_is_checked(type_checker):
    read = {Path(line) for line in type_checker("--project", ".", "--listFilesOnly").stdout.splitlines()}
    assert [path.name for path in SCRIPTS if path not in read] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_hides_a_type_error(script):
    assert re.findall(r"@ts-\w+", script.read_text("utf-8")) == []
