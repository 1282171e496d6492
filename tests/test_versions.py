"""The versions that requirements.txt allows: the lowest ones work, and tables are the same bytes under all of them."""

import gzip
import sys

import pytest

from tests.helpers import environments
from tests.helpers.environments import ROOT

pytestmark = pytest.mark.slow
QUICK = (
    *("session/request", "trace/file", "trace/metrics", "analysis/whatif", "decoding/engine", "models/tokens"),
    *("models/library", "session/background_task", "checks/statistics", "views/figures", "trace/export"),
    "alignment/job_folder",
)
"""Tests of every package that is required: torch, transformers, tokenizers, safetensors, scipy, plotly, pandas,
pyarrow, msgspec and, in the routes of `exports`, gradio."""
WITHOUT_TORCH = ("msgspec", "numpy", "pandas", "plotly", "pyarrow", "scipy")
TESTING = ("pytest", "pytest-xdist", "hypothesis", "jsonschema")


def python(version):
    """The command of that Python; the test is skipped where there is none."""
    return environments.python_of(version) or pytest.skip(f"there is no Python {version} on this machine")


def tables(command, folder):
    """What the parts that need no torch write there, by name."""
    folder.mkdir()
    environments.run(command, "-m", "tests.helpers.without_torch", folder, env={"PYTHONPATH": str(ROOT)})
    plain = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    return plain | {path.name: gzip.decompress(path.read_bytes()) for path in folder.glob("*.csv.gz")}


@pytest.mark.parametrize(("version", "is_lowest"), [("3.10", True), ("3.11", True), ("3.13", False)])
def test_tables_are_the_same_bytes_without_torch_under_the_oldest_and_the_newest_versions(tmp_path, version, is_lowest):
    listed = environments.lowest if is_lowest else environments.newest
    packages = listed(ROOT / "requirements.txt", WITHOUT_TORCH)
    assert len(packages) == len(WITHOUT_TORCH)
    made = tables(environments.make(tmp_path / "one", *packages, python=python(version)), tmp_path / "there")
    here = tables(sys.executable, tmp_path / "here")
    assert {name for name in here if made[name] != here[name]} == set()
    assert made.keys() == here.keys()
    assert {
        "chain-tokens.csv",
        "hostile-tokens.csv",
        "hostile-steps.csv",
        "tokens.csv.gz",
        "prompts.csv",
    } <= here.keys()


def test_the_lowest_versions_pass_the_quick_tests(tmp_path):
    lowest = [each for each in environments.lowest(ROOT / "requirements.txt") if not each.startswith("torch==")]
    testing = environments.newest(ROOT / "tests" / "requirements.txt", TESTING)
    packages = (*lowest, environments.TORCH, *testing)
    command = environments.make(tmp_path / "lowest", *packages, python=python("3.11"))
    files = [ROOT / "tests" / room / f"test_{name}.py" for room, name in (each.split("/") for each in QUICK)]
    said = environments.run(command, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *files, cwd=ROOT)
    assert " passed" in said
