"""One file that shows sections: whole, quiet, safe from what it shows, and no larger than it must be."""

import base64
import hashlib
import json
import re

import pytest

from specviz.alignment.report.sections import report_page
from specviz.views import blocks
from specviz.views.document import page, quiet_json
from tests.helpers.made_summaries import HOSTILE, made_summary, made_text
from tests.helpers.one_file import held, unpacked, unpacked_text

TAG = re.compile(r"<script([^>]*)>(.*?)</script>", re.DOTALL)


def words_page(text="hello", title="A page"):
    return page(
        title, [blocks.PageSection("one", "One", text, [blocks.ButtonControl("go", "Go")], [blocks.WordsBlock(text)])]
    )


def message(html):
    return unpacked(held(html, "sv-data"))


@pytest.fixture(scope="module")
def report():
    return report_page(made_summary(), [made_text(number) for number in range(40)])


def test_what_is_shown_comes_back_whole_without_controls(report):
    shown = message(report)
    assert shown["order"] == [section["id"] for section in shown["sections"]]
    assert shown["order"][0] == "overview"
    assert "texts" in shown["order"]
    assert message(words_page())["sections"][0]["controls"] == []


def test_nothing_outside_is_named(report):
    outside = report.replace(held(report, "sv-plotly"), "").replace(held(report, "sv-data"), "")
    outside = outside.replace("http://www.w3.org/2000/svg", "")  # a name, no address
    assert re.findall(r"""(?:src|href)\s*=\s*["']""", outside) == []
    assert re.findall(r"https?://|@import|url\(", outside) == []


def test_only_the_scripts_of_the_page_may_run(report):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', report)[1]
    allowed = set(re.findall(r"'sha256-([^']*)'", policy))
    scripts = [text for attributes, text in TAG.findall(report) if "text/plain" not in attributes]
    plotly = unpacked_text(held(report, "sv-plotly"))
    expected = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in [*scripts, plotly]}
    assert allowed == expected
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]


@pytest.mark.parametrize("text", [HOSTILE, "<!--<script>", "]]></SCRIPT >", "\ud800 half"])
def test_no_text_can_leave_its_place(text):
    html = words_page(text, text.replace("\ud800", ""))
    usual = words_page()
    for mark in ("<script", "</script", "<img", "<!--"):
        assert html.lower().count(mark) == usual.lower().count(mark), mark
    assert len(TAG.findall(html)) == len(TAG.findall(usual))


def test_a_page_is_small_and_without_charts_smaller(report):
    shown = len(held(report, "sv-data"))
    assert len(report) - shown < 2_500_000
    assert len(words_page()) < 100_000
    assert words_page().count("'sha256-") == len(TAG.findall(words_page())) - 2
    assert 'id="sv-plotly"' not in words_page()


def test_the_same_findings_give_the_same_bytes():
    assert report_page(made_summary(), [made_text()]) == report_page(made_summary(), [made_text()])


def test_json_in_a_page_closes_no_tag_and_comes_back():
    value = {"</script>": ["<!--<script>", "\u2028", HOSTILE]}
    assert "<" not in quiet_json(value)
    assert json.loads(quiet_json(value)) == value
