"""What a person reads is in one vocabulary: accepted, rejected, resampled, random draw, shortfall, probability.

The tests render texts as Python does and look for the words that were given up. Keys of traces, CSV, links and JSON
keep theirs: nobody reads them. Tokens are a model's own words: `muted` takes them out of a run before it is rendered.
"""

import ast
import json
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from specviz.alignment.report.sections import sections as alignment_sections
from specviz.cli.main import main
from specviz.drafters import METHODS
from specviz.lessons.load import lessons
from specviz.rules import RULES
from specviz.rules.broken import BROKEN
from specviz.rules.facts import FACTS
from specviz.trace import read_trace
from specviz.trace.export import json_lines
from specviz.trace.link import decode
from specviz.trace.metrics import METRICS
from specviz.trace.schema import schema_text
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.trace.tool_names import tool_numbers
from specviz.views.compare.rules import side_by_side
from specviz.views.compare.side_by_side_player import side_by_side_block
from specviz.views.explore.feed import Feed
from specviz.views.explore.help import method_help
from specviz.views.explore.library import entry, shipped_entry
from specviz.views.explore.run_file import stage_page
from specviz.views.learn.lesson import lesson_props
from specviz.views.learn.plan import plan
from specviz.views.learn.predict import predict_block
from specviz.views.palette import palette
from tests.helpers import evidence_traces, traces
from tests.helpers.made_summaries import made_summary
from tests.helpers.messages import as_json

PACKAGE = Path(__file__).parent.parent / "specviz"
OLD = re.compile(
    r"\b(kept|cuts?|darts?|owed|odds|favou?rites?|befell|anew|accepted of judged|off this path|would have seen"
    r"|top token)\b",
    re.IGNORECASE,
)
ROOMS = sorted(
    path.relative_to(PACKAGE.parent).as_posix()
    for path in (*PACKAGE.iterdir(), *(PACKAGE / "views").iterdir())
    if path.name not in ("__pycache__", "py.typed", "views", "zoo")
)
CODES = {"reason", "name", "id", "kind", "status", "mark", "tone", "parts"}
"""Keys of props whose values are names for the browser, never shown."""


def read(value):
    """The texts in props that a person reads, or hears."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            shown = [words for _, words in each] if name == "key" else each  # of (tone, what it means)
            yield from () if name in CODES else read(shown)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from read(each)


def old_words(value):
    return sorted({text for text in read(msgspec.to_builtins(value)) if OLD.search(text)})


def muted(trace):
    """The same run without the models' own words."""
    return read_trace(
        "\n".join(json.dumps(_mute(json.loads(line))) for line in json_lines(trace).split("\n")[:-1]).encode()
    )


def _mute(value, name=""):
    if isinstance(value, str):
        return "x" if name in ("text", "prompt", "top") else value
    if isinstance(value, dict):
        return {key: _mute(each, key) for key, each in value.items()}
    return [_mute(each, name) for each in value] if isinstance(value, list) else value


RUNS = {
    **{f"recorded {name}": (lambda name=name: shipped_trace(name)) for name in shipped_runs()},
    **traces.ALL,
    **evidence_traces.ALL,
}


@cache
def run(name):
    return muted(RUNS[name]())


each_run = pytest.mark.parametrize("name", RUNS)


# ---- a run: the page, its one-file export, the terminal --------------------------------------------------------------


@each_run
def test_the_page_of_a_run_has_the_new_words(name):
    feed = Feed.from_trace(run(name), "run")
    assert old_words(as_json(feed.since(0))) == []
    assert old_words([entry(run(name)), predict_block({"run": run(name)})]) == []


@each_run
def test_the_terminal_has_the_new_words(name, tmp_path, capsys):
    run(name).save(tmp_path / "run.jsonl")
    assert main(["show", str(tmp_path / "run.jsonl")]) == 0
    assert OLD.findall(capsys.readouterr().out) == []


def test_a_run_in_the_terminal_has_the_new_words(capsys):
    assert main(["run", "--prompt", "Once upon a time", "--max-new-tokens", "8"]) == 0
    assert OLD.findall(capsys.readouterr().out) == []


def test_a_page_in_one_file_has_the_new_words_around_its_run():
    (head,) = re.findall('<header class="sv-report.*?</header>', stage_page(run("chain"), charts=False), re.DOTALL)
    assert "recorded by specviz" in head
    assert OLD.findall(head) == []


# ---- what is said of every run ---------------------------------------------------------------------------------------


def test_the_numbers_have_the_new_words():
    said = [[each.label, each.formula, each.on_trees, each.on_graded] for each in METRICS.values()]
    said += [[each.name, each.label, each.formula] for each in tool_numbers(run("chain"))]
    assert old_words([said, json.loads(schema_text())]) == []
    assert METRICS["acceptance_rate_judged"].label == "acceptance rate"
    assert METRICS["acceptance_rate"].label == "accepted of drafted"
    assert [each.label for each in METRICS.values() if "acceptance rate" in each.label] == ["acceptance rate"]


def test_a_status_is_called_as_in_the_papers():
    labels = {name: status["label"] for name, status in palette()["statuses"].items()}
    assert {name: labels[name] for name in ("accepted", "rejected", "resampled", "bonus")} == {
        name: name for name in ("accepted", "rejected", "resampled", "bonus")
    }
    assert labels["ignored"] == "not judged"
    assert old_words([status["means"] for status in palette()["statuses"].values() if "means" in status]) == []


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_has_the_new_words(method):
    params = [[each.title, each.help, list(getattr(each, "options", {}).values())] for each in method.params]
    shown = [method_help(method, RULES.get(rule), has_k=True) for rule in (None, *method.rules)]
    assert old_words([params, shown, method.proposer, method.why_no_what_if]) == []


@pytest.mark.parametrize(
    "rule", [*FACTS.values(), *(rule.facts for rule in BROKEN.values())], ids=lambda rule: rule.name
)
def test_a_rule_has_the_new_words(rule):
    assert old_words([rule.title, rule.summary, rule.acceptance or "", rule.replaces]) == []


@pytest.mark.parametrize("name", lessons())
def test_a_lesson_has_the_new_words(name):
    panel = lesson_props(name)
    screens = [msgspec.structs.replace(screen, bars=None) for screen in panel.screens]
    assert old_words(msgspec.structs.replace(panel, screens=screens)) == []


def distributions():
    """What the lessons show of the rules."""
    return [screen.bars for name in lessons() for screen in lesson_props(name).screens if screen.bars]


def comparisons():
    pair = run("recorded right-rule"), run("recorded broken-residual")
    return [side_by_side_block(*pair, "token", ("A", "B")), side_by_side(None)]


REPORTS = {
    "specviz/alignment": lambda: alignment_sections(made_summary()),
    "specviz/views/check": distributions,
    "specviz/views/compare": comparisons,
}


@pytest.mark.parametrize("room", REPORTS)
def test_a_report_has_the_new_words(room):
    columns = {"most_likely"}  # of a table, as older files have it
    assert set(old_words(REPORTS[room]())) <= columns


@pytest.mark.parametrize("has_server", [True, False])
def test_the_plan_of_the_lessons_and_the_library_have_the_new_words(has_server):
    assert old_words([plan(has_server=has_server), [shipped_entry(each) for each in shipped_runs().values()]]) == []


# ---- the browser's half ----------------------------------------------------------------------------------------------


def test_the_stage_has_the_new_words_before_any_run():
    html = (PACKAGE.parent / "assets/web/stage/stage.html").read_text("utf-8")
    shown = re.sub(r"<[^>]*>", " ", html) + " ".join(re.findall(r'(?:aria-label|title)="([^"]*)"', html))
    assert OLD.findall(shown) == []


@pytest.mark.parametrize("path", sorted((PACKAGE.parent / "assets/web").rglob("*.js")), ids=lambda path: path.stem)
def test_a_sentence_in_a_view_has_the_new_words(path):
    code = re.sub(r"(^|\s)//.*", "", path.read_text("utf-8"))
    texts = re.findall(r"'([^'\n]*)'", code) + re.findall(r">([^<>${}`\n]+)<", code)
    assert [text for text in texts if " " in text.strip() and OLD.search(text)] == []


# ---- every other sentence: errors, buttons, leads --------------------------------------------------------------------


def sentences(path):
    """The constants of more than one word in a file of Python, without docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in statements]
    return [node.value for node in texts if isinstance(node.value, str) and " " in node.value.strip()]


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_in_a_room_has_an_old_word(room):
    place = PACKAGE.parent / room
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert {path.name: found for path in files if (found := old_words(sentences(path)))} == {}


# ---- what was made before still opens (recorded runs: tests/trace/test_recorded.py) ----------------------------------


BEFORE = (
    "eNpFjkEOgjAQRa9C_npclEo0vYQHMMQUOhACbbEtbgh3t1YTd_Pm_8m8HS8OcfIOShACPzeOCWrHGrxd84Sb67naVu8qXaXJMghJh5E_2aC7hU8_JJig"
    "h__6S4TIbKCag-A2-0h-ZhehZK5PY3kGoa-NEUJ2l06Wg4X7VJzuWapGS7A6zBlrqoU8t8cb0UI6Mg"
)


def test_a_link_of_before_still_opens():
    link = decode(BEFORE)
    assert (link.request.prompt, link.selection, link.num_tokens) == ("Once upon a time", (1, "2"), 3)


def test_a_run_of_before_keeps_the_keys_that_others_read():
    (step, *_) = as_json(Feed.from_trace(traces.chain(), "run").since(0).steps)
    assert {"accepted", "accepted_words", "accepted_share"} <= step["totals"].keys()
    assert {"both", "excess", "shortfall"} <= next(
        look["rows"].keys() for look in step["looks"].values() if "draw" in look
    )
