"""README's Python runs as it stands, on the bundled models; only the two slow calls are made shorter."""

import inspect
import re
import shlex
from pathlib import Path

import pytest

import specviz
from specviz import catalog, cli, costing
from specviz.alignment.columns import COLUMNS
from specviz.drafters import METHODS
from specviz.rules import RULES
from specviz.session import workbench

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"python -m specviz ([^`\n]+)", README)
SHORTER = {"specviz.costs(": "quick_costs(", "prove(tokens=2000)": "prove(tokens=24)"}


def quick_costs(**options):
    """specviz.costs with one round of timings in place of many."""
    given = inspect.signature(specviz.costs).bind(**options).arguments
    load, (target, draft) = workbench().library.load, catalog.default_pair()
    models = load(given.get("target", target)), load(given.get("draft", draft))
    *_, last = costing.measure_costs(*models, repeats=1)
    return last.costs


def test_the_python_in_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    served = " there was a little fox who lived in a wood. It saw a dog."
    names = {"quick_costs": quick_costs, "served_text": served}
    assert len(SNIPPETS) == 4
    code = "".join(SNIPPETS)
    for slow, quick in SHORTER.items():
        assert code.count(slow) == 1
        code = code.replace(slow, quick)
    exec(compile(code, "README.md", "exec"), names)
    assert names["report"].exit_code in (0, 3)
    assert specviz.load_trace(tmp_path / "run.jsonl.gz") == names["trace"]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_readme_are_understood(command):
    """As far as reading their options goes; argparse leaves the program where it cannot."""
    options = cli._parser().parse_args(shlex.split(command, comments=True))
    assert callable(options.command)


@pytest.mark.parametrize("table", ["tokens", "prompts", "slices"])
def test_the_columns_in_readme_are_those_of_the_tables(table):
    (listed,) = re.findall(rf"^\| `{table}`, [^|]+\| ([^|]+) \|$", README, re.MULTILINE)
    assert listed.split(", ") == [f"`{name}`" for name in COLUMNS[table]]


@pytest.mark.parametrize(("heading", "table"), [("| method |", METHODS), ("| rule | lossless |", RULES)])
def test_readme_lists_every_method_and_rule(heading, table):
    rows = README[README.index(heading) :].split("\n\n", 1)[0].splitlines()[2:]
    assert sorted(row.split("`")[1] for row in rows) == sorted(table)


def test_readme_says_which_rules_are_lossless():
    for name, rule in RULES.items():
        assert f"| `{name}` | {'yes' if rule.lossless else 'no'} |" in README
