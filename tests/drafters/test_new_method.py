"""A new method is one file and one line: in a copy of the tree it is first-class everywhere without another word."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import SNIPPETS

ROOT = Path(__file__).parents[2]
(FILE,) = (code for code in SNIPPETS if "class LastToken" in code)  # of CONTRIBUTING
USES = """
import json, sys
from specviz import METHODS, load_trace, prove, what_if
from specviz.analysis.breakdown import why_slow
from tests.helpers.made_costs import made_costs
from specviz.rules import RULES
from specviz.ui.choices import list_methods
from specviz.views.explore.help import method_help
from specviz.views.words import headline

run, method = load_trace(sys.argv[1]), METHODS["last_token"]
costs = made_costs(None, target="fable-target")
report = prove(method="last_token", tokens=60)
print(json.dumps({
    "headline": "".join(headline(run.steps[-1].settings)),
    "listed": ["Last token", "last_token"] in [list(each) for each in list_methods()],
    "help": method_help(method, RULES[method.default_rule], has_k=method.sets_k).title,
    "docs": "Last token" in repr(METHODS),
    "what_if": list(what_if(run, [1, 2, 4]).k),
    "breakdown": [each.name for each in why_slow(run, costs, tokens_per_s=9.0, baseline_tokens_per_s=10.0).factors],
    "enumerated": [each.words for each in report.checks if "outcomes of the real program" in each.words],
}))
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A copy of the tree with one more file and one more line."""
    copy = tmp_path_factory.mktemp("scratch")
    for name in ("specviz", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("assets", "pyproject.toml", "requirements.txt", "app.py", "README.md"):
        (copy / name).symlink_to(ROOT / name)
    (copy / "specviz" / "drafters" / "last_token.py").write_text(FILE, "utf-8")
    table = copy / "specviz" / "drafters" / "__init__.py"
    before, after = table.read_text("utf-8").split('    "none",\n')
    table.write_text(f'{before}    "last_token",\n    "none",\n{after}', "utf-8")
    return copy


def started(scratch, *arguments):
    """What a Python program in the copy writes."""
    environment = {**os.environ, "PYTHONPATH": str(scratch)}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=scratch, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    return done.stdout


@pytest.mark.slow
def test_the_contract_runs_over_it_by_itself(scratch):
    last = started(scratch, "-m", "pytest", "tests/drafters/test_contract.py", "-n", "0", "-k", "last_token")
    assert int(last.split(" passed")[0].split()[-1]) > 20


@pytest.mark.slow
def test_the_command_line_the_page_and_every_report_know_it(scratch, tmp_path):
    run = tmp_path / "run.jsonl"
    started(
        scratch, "-m", "specviz", "run", "--method", "last_token", "--prompt", "a a a", "--k", "3",
        "--max-new-tokens", "24", "--temperature", "0", "--out", run,
    )  # fmt: skip
    found = json.loads(started(scratch, "-c", USES, run).splitlines()[-1])
    assert found["headline"].startswith("The last token is proposed again, up to 3 tokens ahead. ")
    assert (found["listed"], found["docs"], found["help"]) == (True, True, "Last token")
    assert found["what_if"] == [1, 2, 4]
    assert found["breakdown"][0] == "shorter drafts"
    (enumerated,) = found["enumerated"]
    assert enumerated.startswith("exact (enumerated)")
    assert "the rule alone" not in enumerated
    assert "last_token" in started(scratch, "-m", "specviz", "run", "--help")


@pytest.mark.slow
def test_bench_measures_it(scratch):
    table = started(scratch, "-m", "specviz", "bench", "methods", "last_token", "--num-tokens", "8", "--repeats", "1")
    assert "last_token" in table
