"""One run in one file: whole, small, quiet, and safe from what is in it."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import pytest

from specviz import __version__
from specviz.trace import Trace, read_trace
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views.explore.feed import SO_FAR, Feed
from specviz.views.explore.run_file import stage_page
from tests.helpers import traces
from tests.helpers.hostile_trace import evil_trace
from tests.helpers.one_file import held, unpacked, unpacked_text

TAG = re.compile(r"<script([^>]*)>(.*?)</script>", re.DOTALL)
LIMIT, LIMIT_WITH_CHARTS = 400_000, 2_500_000


def parts(page):
    return [unpacked(line) for line in held(page, "sv-run").split("\n")]


def about(page):
    return json.loads(held(page, "sv-about"))


@pytest.fixture(scope="module")
def long_trace():
    return traces.long(450)


@pytest.fixture(scope="module")
def charted():
    return stage_page(traces.tree())


@pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL)
def test_the_run_and_its_trace_come_back_whole(make):
    trace = make()
    page = stage_page(trace, charts=False)
    steps = [step for part in parts(page) for step in part["steps"]]
    assert "".join(step["written"] for step in steps) == trace.text
    kept = [sum(token.status == "accepted" for token in step.draft) for step in trace.steps]
    assert [step["bar"]["accepted"] for step in steps] == kept
    assert read_trace(unpacked_text(held(page, "sv-trace")).encode()) == trace


@pytest.mark.slow
def test_a_long_run_lies_in_parts_that_follow_each_other(long_trace):
    page = stage_page(long_trace, charts=False)
    assert about(page)["starts"] == [0, 200, 400]
    assert [len(part["steps"]) for part in parts(page)] == [200, 200, 50]
    assert [part["from"] for part in parts(page)] == about(page)["starts"]
    assert {part["total"] for part in parts(page)} == {450}
    assert ["head" in part for part in parts(page)] == [True, False, False]


@pytest.mark.parametrize("name", shipped_runs())
def test_every_recorded_run_fits_the_limits(name):
    trace = shipped_trace(name)
    plain, charted = stage_page(trace, charts=False), stage_page(trace)
    carried = len(held(charted, "sv-trace"))
    assert len(plain.encode()) <= LIMIT
    assert len(charted.encode()) - carried <= LIMIT_WITH_CHARTS


def test_what_only_charts_need_is_there_with_charts_alone(charted):
    plain = stage_page(traces.tree(), charts=False)
    assert all("points" in step for step in parts(charted)[0]["steps"])
    assert parts(charted)[0]["head"]["figures"]
    assert not any("points" in step for step in parts(plain)[0]["steps"])
    assert parts(plain)[0]["head"]["figures"] == {}
    assert 'id="sv-plotly"' in charted
    assert 'id="sv-plotly"' not in plain
    assert "specviz.figure =" not in plain


def test_nothing_outside_is_named(charted):
    outside = re.sub(r'<script type="text/plain".*?</script>', "", charted, flags=re.DOTALL)
    outside = outside.replace("http://www.w3.org/2000/svg", "")  # a name, no address
    assert re.findall(r"""(?:src|href)\s*=\s*["']""", outside) == []
    assert re.findall(r"https?://|@import|url\(", outside) == []


def test_only_the_scripts_of_the_page_may_run(charted):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', charted)[1]
    scripts = [text for attributes, text in TAG.findall(charted) if "text/plain" not in attributes]
    texts = [*scripts, unpacked_text(held(charted, "sv-plotly"))]
    expected = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts}
    assert set(re.findall(r"'sha256-([^']*)'", policy)) == expected
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy.partition("script-src")[2]


def test_no_text_can_leave_its_place():
    evil, usual = stage_page(evil_trace(), charts=False), stage_page(traces.chain(), charts=False)
    for mark in ("<script", "</script", "<img", "<!--", "<template", "</template"):
        assert evil.lower().count(mark) == usual.lower().count(mark), mark
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", about(evil)["file"])


def test_the_page_says_what_it_is_and_who_wrote_it():
    page = stage_page(traces.chain(), charts=False)
    assert "<title>specviz: Once upon a</title>" in page
    assert "recorded by specviz 0.1.0 (2025-01-01T00:00:00Z)" in page
    assert f"written by specviz {__version__}" in page


def ends(trace, **options):
    return [part.get("end") for part in parts(stage_page(trace, charts=False, **options))]


def test_a_page_of_a_recording_without_an_end_says_what_it_is():
    whole = traces.chain()
    cut = Trace(list(whole.events())[:4])
    count = f"{len(cut.tokens)} tokens in 2 steps"
    for unended, words in (
        ({}, "incomplete: the recording stops before the run ends"),
        ({"unended": SO_FAR}, "saved while the run was still going"),
    ):
        (end,) = ends(cut, **unended)
        assert (end["reason"], end["words"]) == ("cut", f"{words} · {count}")
    assert ends(whole) == ends(whole, unended=SO_FAR)
    assert ends(whole)[0]["reason"] == "length"
    assert "<p>Incomplete: the recording stops before the run ends. A run of" in stage_page(cut, charts=False)
    assert "<p>A run of" in stage_page(whole, charts=False)


@pytest.mark.slow
def test_a_feed_that_is_there_already_gives_the_same_page(long_trace):
    feed = Feed.from_trace(long_trace, "a-secret-id")
    assert stage_page(long_trace, charts=False, feed=feed) == stage_page(long_trace, charts=False)


def test_a_long_title_ends_between_two_words():
    trace = traces.chain()
    header, *rest = trace.events()
    for text, title in (
        ("word " * 60, f"specviz: {'word ' * 18}…"),
        ("x" * 300, f"specviz: {'x' * 90} …"),
        ("  \n ", "specviz: a recorded run"),
    ):
        changed = replace(header, prompt=replace(header.prompt, text=text, tokens=()))
        assert f"<title>{title}</title>" in stage_page(Trace([changed, *rest]), charts=False)


def test_the_selection_is_kept_and_checked():
    trace = traces.chain()
    assert about(stage_page(trace, charts=False, selection=(1, "2")))["selection"] == {"step": 1, "ref": "2"}
    assert about(stage_page(trace, charts=False))["selection"] is None
    with pytest.raises(ValueError, match=r"selection must name one of 7 steps \(got 7\)"):
        stage_page(trace, selection=(7, "0"))
    with pytest.raises(ValueError, match=r"selection must name one of 0, 1, .* in step 1 \(got 'x'\)"):
        stage_page(trace, selection=(1, "x"))


def test_a_trace_without_a_header_is_no_page():
    with pytest.raises(ValueError, match="trace must have its header"):
        stage_page(Trace())


def test_the_same_run_gives_the_same_bytes():
    assert stage_page(traces.tree()) == stage_page(traces.tree())
