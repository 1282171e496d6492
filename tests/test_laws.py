"""Laws of the source itself: who imports whom, what is loaded when, what stands nowhere."""

import ast
import gzip
import hashlib
import json
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import specviz
from specviz.drafters import METHODS
from specviz.request import RunSettings
from specviz.rules.broken import BROKEN
from specviz.rules.facts import FACTS
from tests.helpers import traces

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "specviz"
SOURCES = [ROOT / "app.py", *sorted(PACKAGE.rglob("*.py"))]
LIGHT = ["trace", "views", "lessons.load", "notebook", "request", "settings", "models.catalog", "alignment.summary"]
"""What reads and shows recorded things: a laptop without torch has to be able to."""
MAY_IMPORT_TRANSFORMERS = ["alignment", "decoding", "models", "drafters", "zoo"]
MEASURES_TRANSFORMERS = ["bench"]  # its own `generate` is the peer that they time
# Directories of one machine; the pattern is written so that it does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.~])(?:/(?:home|Users|root|tmp|work|mnt|private)/|[A-Z]:\\+Users\\)[\w.-]")
NOT_OURS = re.compile(r"\..*|__pycache__|.*\.egg-info|venv|build|dist|runs")
TEXTS = (".py", ".cpp", ".js", ".ts", ".css", ".html", ".json", ".jsonl", ".md", ".toml", ".txt", ".yml", "")


def part_of(path):
    """The part of the house that a file belongs to: "ui", "models", "app", ..."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py") if path.is_relative_to(PACKAGE) else path.stem


@cache
def imports(path):
    """The absolute names of all modules that a file imports, anywhere in it."""
    found = []
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            found += [f"{module}.{name.name}" for name in node.names]
    return found


def importers(wanted):
    """The parts of the house that import this module or something inside it."""
    return {part_of(path) for path in SOURCES for name in imports(path) if f"{name}.".startswith(f"{wanted}.")}


def test_a_room_imports_only_the_rooms_below_it():
    """The contracts of pyproject.toml: layers, who knows Gradio, what the core reads, no circle inside a room."""
    done = subprocess.run([Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr


def test_only_who_reads_models_imports_transformers():
    assert importers("transformers") - set(MEASURES_TRANSFORMERS) <= set(MAY_IMPORT_TRANSFORMERS)


FILLED = {"empty", "ones", "rand", "randn", "zeros"}
"""The functions of torch that take its default number format where none is named."""


def tensors_of_the_default_format(tree):
    """The lines that make a tensor in the default format."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLED:
            is_torchs = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            if is_torchs and all(keyword.arg != "dtype" for keyword in node.keywords):
                yield node.lineno


def test_no_tensor_takes_the_default_number_format():
    """transformers sets it for the whole process while it loads a model in another format; other threads go on."""
    trees = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in SOURCES if part_of(path) != "zoo"
    }
    assert {name: lines for name, tree in trees.items() if (lines := [*tensors_of_the_default_format(tree)])} == {}


def test_a_tensor_of_the_default_number_format_would_be_found():
    source = "torch.empty(2)\ntorch.zeros(2, dtype=x)\nlike.new_zeros(2)\ntorch.full((1,), 2)\ntorch.ones(n, device=d)"
    assert [*tensors_of_the_default_format(ast.parse(source))] == [1, 5]


def test_the_engine_knows_no_drafter_by_type_or_name():
    tree = ast.parse((PACKAGE / "decoding" / "engine.py").read_text("utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert names.isdisjoint({"isinstance", "type", "METHODS"})
    assert texts.isdisjoint(METHODS)


def test_nothing_is_taken_from_typing_that_the_oldest_python_lacks():
    newer = {
        "LiteralString",
        "Never",
        "NotRequired",
        "Required",
        "Self",
        "TypeVarTuple",
        "Unpack",
        "override",
    }  # 3.11 on
    assert {name for path in SOURCES for name in imports(path) if name in {f"typing.{each}" for each in newer}} == set()


# ---- who knows the names of methods and rules -----------------------------------------------------------------------

NAMES = {*METHODS, *FACTS, *BROKEN}
MAY_NAME = ("drafters", "rules", "zoo")
FIELD = {"draft_model"}  # of a step's settings, too: it may key a table that names no other method
HOMONYMS = {
    ("alignment/prompts/formats.py", "assistant"),  # a role in the messages of a chat
    ("alignment/prompts/messages.py", "assistant"),
    ("alignment/prompts/rows.py", "assistant"),
    ("decoding/cached_lm.py", "hybrid"),  # transformers' own word for a layer with attention and a state
    ("models/files/draft_formats.py", "mtp"),  # speculators' own word for a format of heads
    ("trace/events.py", "none"),  # the trace format's own word for a step without a draft; drafters lie above it
    ("views/terminal.py", "none"),  # a mark that marks nothing
}


def strings_of(node, constants):
    """The strings that an expression is made of: its own, and those of the module's constants that it names."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.Name):
        return constants.get(node.id, set())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("frozenset", "set", "tuple"):
        return set().union(*(strings_of(each, constants) for each in node.args))
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return set().union(*(strings_of(each, constants) for each in node.elts))
    return set()


@cache
def constants_of(path):
    """Name -> its strings, for what a module assigns or imports from another module of the package."""
    found = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specviz."):
            place = ROOT.joinpath(*node.module.split("."))
            source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            above = {} if source.parent in path.parents and place.is_dir() else constants_of(source)
            found |= {each.asname or each.name: above.get(each.name, set()) for each in node.names}
        elif isinstance(node, ast.Assign):
            (target,) = node.targets
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
            found |= {name.id: strings_of(value, found) for name, value in pairs if isinstance(name, ast.Name)}
    return found


def names_compared(tree, constants=None):
    """The names of methods and rules that code compares with, keys a table by or matches; choices of one are free."""
    found, constants = set(), constants or {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found |= set().union(*(strings_of(each, constants) for each in (node.left, *node.comparators)))
        elif isinstance(node, ast.Dict):
            keys = set().union(*(strings_of(key, constants) for key in node.keys if key is not None))
            found |= set() if keys & NAMES == FIELD else keys
        elif isinstance(node, ast.MatchValue):
            found |= strings_of(node.value, constants)
    return found & NAMES


def test_nothing_outside_drafters_and_rules_compares_the_name_of_a_method_or_a_rule():
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in SOURCES[1:]
        if part_of(path) not in MAY_NAME
        for name in names_compared(ast.parse(path.read_text("utf-8")), constants_of(path))
    }
    assert found - HOMONYMS == set()
    assert found >= HOMONYMS  # an exception that nothing needs any more has to go


@pytest.mark.parametrize(
    "source",
    [
        "x == 'tree'",
        "'graded' != x",
        "x in ('none', 'other')",
        "table = {'medusa': 1}",
        "table = {'draft_model': 1, 'tree': 2}",
        "x in frozenset({'typical'})",
        "FIRST = ('eagle', 'mtp')\nx in FIRST",
        "match x:\n    case 'lookahead': pass",
    ],
)
def test_a_compared_name_would_be_found(source, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(source, "utf-8")
    assert names_compared(ast.parse(source), constants_of(path))


@pytest.mark.parametrize(
    "source", ["METHODS['none']", "method: str = 'tree'", "run(method='eagle')", "{'k': 4, 'draft_model': 'a'}"]
)
def test_a_choice_of_a_method_is_no_comparison(source):
    assert not names_compared(ast.parse(source))


def test_facts_of_methods_and_rules_load_no_torch():
    """Everything that is said of them, read in a process of its own."""
    read = """
from dataclasses import fields
from specviz.drafters import METHODS, facts_of
from specviz.rules.facts import FACTS
for each in (*METHODS.values(), *FACTS.values()):
    assert [getattr(each, field.name) for field in fields(each)]
print(facts_of("of another tool").proposer)
"""
    assert loaded_by(read).isdisjoint({"torch", "transformers", "numpy"})


KNOBS = {item.name for item in fields(RunSettings)} | {"k", "draft_model"}


def lists_of_knobs(node):
    """The lines on which a tuple, list, set or call spells three or more of the knobs as texts."""
    parts = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
    if len(KNOBS & {part.value for part in parts if isinstance(part, ast.Constant)}) >= 3:
        yield node.lineno
    for child in ast.iter_child_nodes(node):
        if getattr(child, "name", "") != "RunSettings":
            yield from lists_of_knobs(child)


def test_the_knobs_are_named_in_one_class_only():
    """Nowhere else a tuple, list, set or call of three or more of them, as texts."""
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in SOURCES}
    assert {name: lines for name, tree in trees.items() if (lines := [*lists_of_knobs(tree)])} == {}


def test_a_list_of_knobs_would_be_found():
    inside = 'class RunSettings:\n    ALL = ("k", "top_k", "rule")\n'
    assert [*lists_of_knobs(ast.parse(f'{inside}two = f("k", "top_k")\nmore = [("k", "top_k", "rule")]'))] == [4]


def everything_in(modules):
    """Full names of these modules, with everything inside the packages among them."""
    names = [f"specviz.{module}" for module in modules]
    inside = [
        module.name
        for name in names
        for module in pkgutil.walk_packages([str(PACKAGE.joinpath(*name.split(".")[1:]))], f"{name}.")
    ]
    return [*names, *inside]


def loaded_by(program):
    """The top-level modules that this program loads beyond those of a bare interpreter."""
    before = "import sys, json\nbare = set(sys.modules)"
    after = "print(json.dumps(sorted(set(sys.modules) - bare)))"
    wrapped = f"{before}\n{program}\n{after}"
    done = subprocess.run([sys.executable, "-c", wrapped], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_what_shows_recorded_runs_loads_no_torch(tmp_path):
    traces.chain().save(tmp_path / "run.jsonl.gz")
    show = f"from specviz.cli.main import main\nassert main(['show', {str(tmp_path / 'run.jsonl.gz')!r}]) == 0"
    assert loaded_by(show).isdisjoint({"torch", "transformers", "gradio", "plotly"})
    assert loaded_by(f"import {', '.join(everything_in(LIGHT))}").isdisjoint({"torch", "transformers", "gradio"})


def test_every_public_name_loads_and_none_hides_a_module():
    assert all(getattr(specviz, name) is not None for name in specviz.__all__)
    assert {module.name for module in pkgutil.iter_modules(specviz.__path__)}.isdisjoint(specviz.__all__)
    assert set(specviz.__all__) <= set(dir(specviz))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = specviz.nothing


def test_the_package_is_installed_with_all_of_its_folders():
    (listed,) = re.findall(
        r"^packages = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    inside = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("__init__.py")}
    assert set(re.findall(r'"([\w.]+)"', listed)) == inside | {"specviz.assets"}


SCRIPTS = [path for path in sorted((ROOT / "assets" / "web").rglob("*.js")) if path.parent.name != "vendor"]
"""Our own: what lies in vendor/ is kept as it came, and its one way to write markup is asked for by none of ours."""


def without_comments(script):
    return re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", script, flags=re.DOTALL)


VIEWS = [path for path in SCRIPTS if path.parent.name != "live" or path.name in ("live.js", "engine.js")]
"""All but the engine in a page, which does what Python does elsewhere."""


@pytest.mark.parametrize("script", VIEWS, ids=lambda path: path.name)
def test_the_views_compute_nothing(script):
    source = without_comments(script.read_text("utf-8"))
    assert set(re.findall(r"Math\.(\w+)", source)) <= {"floor", "random"}  # places on the screen, thrown darts
    assert re.findall(r"\*\*|toFixed|toPrecision", source) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_browser_writes_no_markup_and_asks_no_network(script):
    source = without_comments(script.read_text("utf-8"))
    assert re.findall(r"[iI]nnerHTML|outerHTML|insertAdjacent|document\.write", source) == []
    assert re.findall(r"\beval\b|new Function|\bfetch\b|XMLHttpRequest|WebSocket|EventSource|sendBeacon", source) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg|arxiv\.org/abs/)|#[0-9a-fA-F]{6}\b", source) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_is_drawn_is_safe_from_translators_and_asked_for_beside_the_page(script):
    source = without_comments(script.read_text("utf-8"))
    own = script.relative_to(ROOT / "assets" / "web").as_posix() == "core/html.js"
    vendored = re.findall(r"^import \{ (.*?) \} from '[./]*/vendor/preact_htm\.js'", source, re.MULTILINE)
    assert own or not {"h", "html"} & {name for names in vendored for name in names.split(", ")}
    assert re.findall(r"""translate=["']|\.translate = ['"]""", source) == [], "preact takes any text for yes"
    assert re.findall(r"""['"`=]/(?:specviz|gradio_api)/""", source) == [], "a proxy may serve the page under a path"


def test_what_is_vendored_is_as_it_came():
    head, _, code = (ROOT / "assets" / "web" / "vendor" / "preact_htm.js").read_text("utf-8").partition("*/\n")
    assert hashlib.sha256(code.encode()).hexdigest() in head
    assert "Permission is hereby granted" in head


def committed_texts():
    hidden = {".ci/release", ".ci/run", ".ci/slow", ".gitattributes", ".gitignore"}
    for path in sorted(ROOT.rglob("*")):
        place = path.relative_to(ROOT)
        is_ours = str(place) in hidden or not any(NOT_OURS.fullmatch(part) for part in place.parts)
        if is_ours and path.is_file() and path.suffix in TEXTS:
            yield place, path.read_text("utf-8")
        elif is_ours and path.suffix == ".gz":
            yield place, gzip.decompress(path.read_bytes()).decode("utf-8")


def test_no_file_holds_a_path_of_one_machine():
    found = {str(place): match[0] for place, text in committed_texts() if (match := MACHINE_PATH.search(text))}
    assert found == {}


def test_a_path_of_one_machine_would_be_found():
    for folder in ("home", "Users", "tmp"):
        assert MACHINE_PATH.search(f'"/{folder}/name"')
    assert not MACHINE_PATH.search("https://example.org/home/page /specviz/web/stage.js ./tmp/x")


MAY_HOLD = {"models/tokens.py", "cli/models.py", "zoo/for_target/store.py", "analysis/costs.py", "bench/race.py"}
"""What they keep asks no model: on Python 3.10 and 3.11 a cached property holds a lock of its class while it is made,
and work that gave way meanwhile could wait for ever for whoever has the engine and wants the same."""


def test_what_may_give_way_is_kept_by_no_cached_property():
    files = (file for file in PACKAGE.rglob("*.py") if "cached_property" in file.read_text())
    assert {file.relative_to(PACKAGE).as_posix() for file in files} <= MAY_HOLD
