"""The Python of README and of the documents runs as it stands, each sample in a process of its own; only the two slow
calls are made shorter."""

import os
import re
import shlex

import pytest
import warm
from documents import ALL, DOCS, ROOT

import specviz
from specviz.alignment.tables.columns import COLUMNS
from specviz.cli import main as cli
from specviz.drafters import METHODS
from specviz.rules import RULES
from specviz.trace import export as exports

SNIPPETS = re.findall(r"^```python\n(.*?)^```", ALL, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"python -m specviz ([^`\n]+)", ALL)
SHORTER = {"specviz.costs(": "quick_costs(", "prove(tokens=2000)": "prove(tokens=24)"}


AROUND = """
import specviz

def quick_costs(*, draft):
    "specviz.costs with one round of timings in place of many."
    from specviz.analysis import costs
    from specviz.models import catalog, library
    target, draft = map(library.Library().load, (catalog.default_pair()[0], draft))
    *_, last = costs.measure_costs(target, [draft], rounds=1)
    return last.costs[0]

trace = specviz.load_trace("run.jsonl.gz")
served_text = " there was a little fox who lived in a wood. It saw a dog."
"""  # what a reader has from the samples before; it loads no part of specviz that they do not


@pytest.fixture(scope="module")
def run_before():
    trace = specviz.run("Once upon a time", max_new_tokens=16)
    return trace, exports.tokens_csv(trace)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_each_python_sample_runs_in_a_fresh_process(number, run_before, tmp_path):
    trace, table = run_before
    trace.save(tmp_path / "run.jsonl.gz")
    (tmp_path / "run-tokens.csv").write_bytes(table.encode())
    code = SNIPPETS[number]
    for slow, quick in SHORTER.items():
        code = code.replace(slow, quick)
    code = code if code.startswith("import") else AROUND + code
    done = warm.run(code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert specviz.load_trace(tmp_path / "run.jsonl.gz").footer.reason == "length"


def test_what_is_made_shorter_stands_in_one_sample_each():
    assert [sum(slow in code for code in SNIPPETS) for slow in SHORTER] == [1] * len(SHORTER)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command):
    """As far as reading their options goes; argparse leaves the program where it cannot."""
    options = cli._parser().parse_args(shlex.split(command, comments=True))
    assert callable(options.command)


@pytest.mark.parametrize("table", ["tokens", "prompts", "slices"])
def test_the_columns_in_the_documents_are_those_of_the_tables(table):
    (listed,) = re.findall(rf"^\| `{table}`, [^|]+\| ([^|]+) \|$", ALL, re.MULTILINE)
    assert listed.split(", ") == [f"`{name}`" for name in COLUMNS[table]]


@pytest.mark.parametrize(("heading", "table"), [("| method |", METHODS), ("| rule | lossless |", RULES)])
def test_the_documents_list_every_method_and_rule(heading, table):
    text = DOCS["methods.md"]
    rows = text[text.index(heading) :].split("\n\n", 1)[0].splitlines()[2:]
    assert sorted(row.split("`")[1] for row in rows) == sorted(table)


def test_the_documents_say_which_rules_are_lossless():
    for name, rule in RULES.items():
        assert f"| `{name}` | {'yes' if rule.lossless else 'no'} |" in DOCS["methods.md"]
