"""All lessons in one file: whole, quiet, safe from what it shows, small enough, and true to the recorded runs."""

import re

import pytest
from starlette.testclient import TestClient

from specviz.errors import SpecvizError
from specviz.lessons.load import lessons
from specviz.trace.shipped import shipped_trace
from specviz.views.learn.lesson_file import lesson_page
from tests.helpers.lesson_texts import HOSTILE, hostile_lesson, lesson, other_lesson, stage_lesson, taught
from tests.helpers.one_file import held, unpacked

LYING = re.compile(r'<script type="text/plain" id="([^"]*)">(.*?)</script>', re.DOTALL)
MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def own():
    return lesson_page()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with taught(tmp_path_factory.mktemp("assets"), stage_lesson(), other_lesson(), hostile_lesson()):
        return lesson_page()


def test_the_lessons_that_come_with_specviz_stay_below_one_and_a_half_megabytes(own):
    assert len(own.encode()) < MOST_BYTES


def test_every_lesson_every_run_and_every_pair_lies_in_it(own):
    lying = dict(LYING.findall(own))
    data = unpacked(lying["sv-data"])
    assert list(data["lessons"]) == list(lessons())
    assert data["pages"]["learn"]["order"] == ["plan", "predict"]
    for name, found in lessons().items():
        assert len(data["lessons"][name]["screens"]) == len(found.screens)
        assert {f"sv-run-{run}" for run in found.runs()} <= set(lying)
        pairs = [screen.show.compare for screen in found.screens if screen.show and screen.show.compare]
        assert {f"sv-side-by-side-{'-'.join(pair)}" for pair in pairs} <= set(lying)


@pytest.mark.parametrize("run", ["first-visit", "sum", "eagle"])
def test_a_run_in_the_file_is_the_recorded_run(made, run):
    parts = [unpacked(part) for part in held(made, f"sv-run-{run}").split("\n")]
    steps = [step for part in parts for step in part["steps"]]
    trace = shipped_trace(run)
    assert parts[0]["run"] == f"shipped:{run}"
    assert "".join(step["written"] for step in steps) == "".join(token.text for token in trace.tokens)
    assert len(steps) == parts[0]["total"] == len(trace.steps)
    assert not any("points" in step for step in steps)


def test_nothing_outside_is_named_and_no_chart_library_is_in_it(own):
    bare = LYING.sub("", own)
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", bare) == []
    assert re.findall(r"@import|url\(", bare) == []
    assert "sv-plotly" not in dict(LYING.findall(own))
    assert "default-src 'none'" in own


def test_what_a_hostile_lesson_says_is_in_no_markup(made):
    assert HOSTILE not in made
    assert "alert(" not in LYING.sub("", made)
    assert unpacked(held(made, "sv-data"))["lessons"]["hostile"]["title"] == HOSTILE


def test_the_same_lessons_give_the_same_file(own):
    assert lesson_page() == own


def test_without_lessons_there_is_no_file_but_a_word(tmp_path):
    with taught(tmp_path), pytest.raises(SpecvizError, match="There are no lessons"):
        lesson_page()


def test_a_lesson_with_an_unknown_run_is_refused_by_name(tmp_path):
    show = [{"title": "A", "words": ["B"], "show": {"run": "nowhere"}}]
    with taught(tmp_path, lesson("lost", screens=show)), pytest.raises(SpecvizError) as error:
        lesson_page()
    assert "01-lost.json: screens[1]: show: run must be one of" in str(error.value)
    assert "nowhere" in str(error.value)


def test_the_page_hands_it_out_and_says_what_is_wrong_where_it_cannot(own, tmp_path):
    from starlette.applications import Starlette

    from specviz.decoding.turns import FairQueue
    from specviz.ui.registry import Registry
    from specviz.ui.server import launch_options

    routes = launch_options(Registry(), FairQueue(), ready=lambda: True)["app_kwargs"]["routes"]
    client = TestClient(Starlette(routes=routes))
    answer = client.get("/specviz/lessons.html")
    assert (answer.status_code, answer.text) == (200, own)
    assert 'filename="specviz-lessons.html"' in answer.headers["content-disposition"]
    with taught(tmp_path, {**lesson(), "minutes": 0}):
        refused = client.get("/specviz/lessons.html")
    assert refused.status_code == 404
    assert "01-first.json: minutes must be a whole number" in refused.text
