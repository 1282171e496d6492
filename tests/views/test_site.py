"""The folder of a site without a server: whole, small, quiet; its links lead to its own files."""

import json
import re
from posixpath import dirname, join, normpath

import pytest

from specviz.trace.shipped import WELCOME, shipped_runs, shipped_trace
from specviz.views import blocks
from specviz.views.explore.opening import opening
from specviz.views.explore.run_file import stage_page
from specviz.views.site import OF_A_RUN, site_files
from tests.helpers.one_file import held, unpacked

MOST_BYTES = 5_000_000
RUNS = re.compile(r"data/sv-(run|opening|of|side-by-side)-")
LINK = re.compile(r'href="(?!https?:|#)([^"#]*)')


@pytest.fixture(scope="module")
def files():
    race = blocks.PageSection("race", "Race", "", [blocks.ButtonControl("race", "Race")], [blocks.WordsBlock("A won")])
    return site_files({"compare": [race]}, report="<!doctype html><title>a report</title>")


def text_of(files, name):
    (text,) = re.findall(r"^document\.currentScript\.packed = (.*);\n$", files[f"data/{name}.js"])
    return json.loads(text)


@pytest.mark.slow
def test_without_charts_runs_and_weights_it_is_below_five_megabytes(files):
    apart = re.compile(rf"{RUNS.pattern}|plotly\.min\.js|data/sv-weights-")
    own = [text for name, text in files.items() if not apart.match(name)]
    assert sum(len(text.encode()) for text in own) < MOST_BYTES


def test_every_run_lies_in_it_as_in_a_file_of_its_own(files):
    assert unpacked(text_of(files, "sv-data"))["runs"][1:] == [name for name in shipped_runs() if name != WELCOME]
    for name in ("eagle", "real-eagle"):
        page = stage_page(shipped_trace(name))
        parts, own = (
            [unpacked(part) for part in text.split("\n")]
            for text in (text_of(files, f"sv-run-{name}"), held(page, "sv-run"))
        )
        assert [{**part, "run": ""} for part in parts] == [{**part, "run": ""} for part in own]
        told = unpacked(text_of(files, f"sv-opening-{name}"))
        assert told["steps"][2] == json.loads(blocks.dump(opening(shipped_trace(name), 2)))
        assert [section["id"] for section in unpacked(text_of(files, f"sv-of-{name}"))] == list(OF_A_RUN)


def test_what_was_recorded_is_shown_without_buttons(files):
    compare = unpacked(text_of(files, "sv-data"))["pages"]["compare"]
    race = next(section for section in compare["sections"] if section["id"] == "race")
    assert (race["controls"], race["blocks"][0]["words"]) == ([], "A won")
    assert compare["order"] == ["races", "race", *OF_A_RUN]


def test_only_its_own_scripts_may_run_and_no_host_is_named(files):
    pages = {name: text for name, text in files.items() if name.endswith(".html") and name != "report.html"}
    for name, text in pages.items():
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
        assert "default-src 'none'" in policy, name
        computes = "; script-src 'self' file: 'wasm-unsafe-eval'; worker-src blob:"
        assert name != "index.html" or policy.endswith(computes)  # WebAssembly, and no text as JavaScript
        assert "unsafe" not in policy.removesuffix(computes).partition("script-src")[2], name
        assert re.findall(r"""src\s*=\s*["']https?:|@import|url\(""", text) == [], name


def test_every_link_leads_to_a_file_of_the_site(files):
    pages = {name: text for name, text in files.items() if name.endswith(".html")}
    links = [(name, place) for name, text in pages.items() for place in LINK.findall(text)]
    assert ("index.html", "report.html") in links
    lost = [(name, place) for name, place in links if normpath(join(dirname(name), place)) not in files]
    assert lost == []


def test_a_folder_with_other_files_is_refused(tmp_path):
    from specviz.cli.main import main

    (tmp_path / "mine.txt").write_text("mine", "utf-8")
    assert main(["export", "--site", str(tmp_path), "--no-checks"]) == 2
    assert main(["export", "first-visit", "--site", str(tmp_path / "new")]) == 2
    assert main(["export", "--no-checks"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
