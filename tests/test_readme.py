"""The Python of README and of the documents runs as it stands, each sample in a process of its own; only the two slow
calls are made shorter."""

import os
import re
import shlex

import pytest

import specviz
from specviz.alignment.tables.columns import COLUMNS
from specviz.checks.report import EXIT_WORDS
from specviz.cli import main as cli
from specviz.drafters import METHODS
from specviz.drafters.params import Choice, NumberParam
from specviz.models import catalog
from specviz.rules import RULES
from specviz.trace import export as exports
from specviz.trace.frames import STEP_COLUMNS, TOKEN_COLUMNS
from specviz.zoo import __main__ as zoo
from specviz.zoo.for_target import __main__ as for_target
from tests.helpers import warm_processes
from tests.helpers.documents import ALL, DOCS, PATHS, README, ROOT, SNIPPETS

COMMANDS = {
    cli._parser: [*re.findall(r"python -m specviz ([^`\n]+)", ALL)]
    + [f"page {options}" for options in re.findall(r"python app\.py([^`\n]*)", ALL)],
    zoo.make_parser: re.findall(r"python -m specviz\.zoo ([^`\n]+)", ALL),
    for_target.make_parser: re.findall(r"python -m specviz\.zoo\.for_target ([^`\n]+)", ALL),
}
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
NAMED = re.compile(r"`(?:python -m pytest )?((?:specviz|tests|assets)/[\w./-]+)`")
MOST_BYTES = 16_000  # of README: what a newcomer reads
SHORTER = {"specviz.costs(": "quick_costs(", "prove(tokens=2000)": "prove(tokens=24)"}


AROUND = """
import specviz

def quick_costs(*, draft):
    "specviz.costs with one round of timings in place of many."
    from specviz.analysis import costs
    from specviz.models import catalog, pool
    target, draft = map(pool.ModelPool().load, (catalog.default_pair()[0], draft))
    *_, last = costs.measure_costs(target, [draft], rounds=1)
    return last.costs[0]

trace = specviz.load_trace("run.jsonl.gz")
served_text = " there was a little fox who lived in a wood. It saw a dog."
"""  # what a reader has from the samples before; it loads no part of specviz that they do not


@pytest.fixture(scope="module")
def run_before():
    trace = specviz.run("Once upon a time", max_new_tokens=16)
    return trace, exports.tokens_csv(trace)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_each_python_sample_runs_in_a_fresh_process(number, run_before, tmp_path):
    trace, table = run_before
    trace.save(tmp_path / "run.jsonl.gz")
    (tmp_path / "run-tokens.csv").write_bytes(table.encode())
    code = SNIPPETS[number]
    for slow, quick in SHORTER.items():
        code = code.replace(slow, quick)
    code = code if code.startswith("import") else AROUND + code
    done = warm_processes.run(code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert specviz.load_trace(tmp_path / "run.jsonl.gz").footer.reason == "length"


@pytest.mark.slow
def test_the_samples_that_readme_writes_can_be_judged(tmp_path):
    (code,) = (code for code in SNIPPETS if "samples.jsonl" in code)
    code += 'print(specviz.prove(samples="samples.jsonl").exit_code)\n'
    done = warm_processes.run(code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    few = 3  # cannot tell: nothing differs
    assert (done.returncode, done.stdout.split()[-1:]) == (0, [str(few)]), done.stderr


def test_what_is_made_shorter_stands_in_one_sample_each():
    assert [sum(slow in code for code in SNIPPETS) for slow in SHORTER] == [1] * len(SHORTER)


@pytest.mark.parametrize(
    ("parser", "command"), [(parser, command) for parser, commands in COMMANDS.items() for command in commands]
)
def test_commands_are_understood(parser, command):
    """As far as reading their options goes; argparse leaves the program where it cannot."""
    words = shlex.split(command.partition(" && ")[0], comments=True)
    options = parser().parse_args(cli.with_command(words) if parser is cli._parser else words)
    assert callable(options.command if parser is cli._parser else options.run)


def test_readme_is_short():
    assert len(README.encode()) <= MOST_BYTES


def test_the_version_to_cite_is_this_one():
    assert re.findall(r"^  version = {(.*)}$", README, re.MULTILINE) == [specviz.__version__]


def headings(path):
    """GitHub's ids of a document's headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_relative_link_leads_to_a_file_and_a_heading_of_it(path):
    links = LINK.findall(path.read_text("utf-8"))
    assert [place for place, _ in links if place and not (path.parent / place).is_file()] == []
    pointed = [(path.parent / place if place else path, anchor) for place, anchor in links if anchor]
    lost = [(place, anchor) for place, anchor in pointed if anchor not in headings(place)]
    assert lost == []


@pytest.mark.parametrize("path", PATHS[1:], ids=lambda path: path.name)
def test_no_two_headings_of_a_document_have_one_id(path):
    assert len(set(headings(path))) == len(headings(path))


def test_readme_and_the_index_list_every_document():
    for text, folder in ((README, "assets/docs/"), (DOCS["README.md"], "")):
        listed = re.findall(rf"^\| \[[^]]+\]\({folder}([\w-]+\.md)\) \|", text, re.MULTILINE)
        assert sorted(listed) == sorted(name for name in DOCS if name != "README.md")


def test_every_path_that_is_named_is_there():
    named = NAMED.findall(ALL)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_rooms_in_contributing_are_those_of_the_package():
    rooms = re.findall(r"^\| `(\w+)` \|", DOCS["CONTRIBUTING.md"], re.MULTILINE)
    assert sorted(rooms) == sorted(path.parent.name for path in (ROOT / "specviz").glob("*/__init__.py"))


def test_the_exit_codes_of_prove_are_those_of_its_verdicts():
    rows = dict(re.findall(r"^\| (.*) \| `(\d)` \|$", DOCS["checking.md"], re.MULTILINE))
    assert sorted(map(int, rows.values())) == sorted({*EXIT_WORDS, 2})
    for code, words in EXIT_WORDS.items():
        told = next(verdict for verdict, number in rows.items() if int(number) == code)
        assert words.split(":")[0].split(" or ")[0] in told


@pytest.mark.parametrize("table", ["tokens", "prompts", "slices"])
def test_the_columns_in_the_documents_are_those_of_the_tables(table):
    (listed,) = re.findall(rf"^\| `{table}`, [^|]+\| ([^|]+) \|$", ALL, re.MULTILINE)
    assert listed.split(", ") == [f"`{name}`" for name in COLUMNS[table]]


@pytest.mark.parametrize(("heading", "columns"), [("### Tokens", TOKEN_COLUMNS), ("### Steps", STEP_COLUMNS)])
def test_the_documents_say_what_each_column_of_a_run_holds(heading, columns):
    text = DOCS["python-and-shell.md"].partition(heading)[2].partition("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| \w.* \|$", text, re.MULTILINE)
    assert [name for name in rows if name != "text_json"] == list(columns)


def test_the_table_of_parameters_is_what_the_methods_take():
    heading = "| method | parameter | default | allowed |"
    _, _, *rows = DOCS["methods.md"].split(heading)[1].split("\n\n")[0].splitlines()
    found, method = {}, ""
    for row in rows:
        first, name, default, allowed = (cell.strip().replace("`", "") for cell in row.split("|")[1:5])
        method = first or method
        found[method, name] = default, allowed
    shared = {"k_policy", "least_confidence", "cost_ratio"}  # told below the table
    params = {(method, each.name): each for method in METHODS for each in METHODS[method].params}
    assert found.keys() == {key for key in params if key[1] not in shared}
    for key, (default, allowed) in found.items():
        if isinstance(params[key], Choice):
            assert (default, allowed) == (params[key].default, ", ".join(params[key].options)), key
        elif isinstance(params[key], NumberParam):
            assert (default, allowed) == (str(params[key].default), f"{params[key].low:g} to {params[key].high:g}"), key
    assert {method for method, name in params if name == "k_policy"} == set(
        re.findall(r"`(\w+)`", re.search(r"draft a chain \(([^)]*)\)", DOCS["methods.md"])[1])
    )


def test_the_table_of_pairs_is_what_the_catalogue_offers():
    """With the size and the licence of each model and head, as far as its own pages state them."""

    def words(name):
        return f"`{name}`: {catalog.stated(name)}" if catalog.stated(name) else f"`{name}`"

    rows = []
    for target in filter(catalog.stated, catalog.targets()):
        heads = [each for each in catalog.HEADS.values() if each.target == target]
        drafts = [("draft_model", name) for name in catalog.drafts_for(target)]
        drafts += [(each.kind, each.name) for each in heads]
        for place, (method, name) in enumerate(drafts):
            rows.append(f"|{'' if place else f' {words(target)}'} | `{method}` | {words(name)} |")
    found = DOCS["models.md"].split("### Pairs that people have")[1].split("\n## ")[0]
    assert [line for line in found.splitlines() if line.startswith("|")][2:] == rows


@pytest.mark.parametrize(("heading", "table"), [("| method |", METHODS), ("| rule | lossless |", RULES)])
def test_the_documents_list_every_method_and_rule(heading, table):
    text = DOCS["methods.md"]
    rows = text[text.index(heading) :].split("\n\n", 1)[0].splitlines()[2:]
    assert sorted(row.split("`")[1] for row in rows) == sorted(table)


def test_the_documents_say_which_rules_are_lossless():
    for name, rule in RULES.items():
        assert f"| `{name}` | {'yes' if rule.lossless else 'no'} |" in DOCS["methods.md"]
