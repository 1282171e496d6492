"""Who sees the card that fetches a model: whoever may, and nobody in a class."""

import json

import gradio as gr
import httpx
import pytest

from specviz.errors import SpecvizError
from specviz.models import get
from specviz.models.files.hub import ignore_progress
from specviz.session import workbench
from specviz.ui import startup
from specviz.ui.choices import make_offer
from specviz.ui.explore import getting
from specviz.ui.explore.form import Form
from tests.helpers.package_index import NAME, make_index


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    monkeypatch.setattr(startup.Page, "warm_up", lambda page: None)
    monkeypatch.setattr(workbench, "_shared", [])  # a page that is started takes it for the whole process
    return make_index(tmp_path, monkeypatch)


def elements(host, target="fable-target"):
    """The ids of a page's elements, and the functions that a browser can call, when it is started on this host. target:
    what its first request asks."""
    page = startup.start(host, 0, None, None, None)
    assert (page.first.target, page.first.chat) == (target, target == NAME)
    try:
        config = httpx.get(f"{page.demo.local_url}config", timeout=60).json()
    finally:
        page.demo.close(verbose=False)
    calls = [str(each.get("api_name")) for each in config["dependencies"]]
    return [each["props"].get("elem_id") for each in config["components"]], calls


@pytest.mark.parametrize(
    ("host", "setting", "expected"),
    [("127.0.0.1", "", True), ("127.0.0.1", "0", False), ("0.0.0.0", "", False), ("0.0.0.0", "1", True)],
)
def test_a_student_on_a_class_server_starts_no_download(host, setting, expected, monkeypatch):
    monkeypatch.setenv("SPECVIZ_ALLOW_GET", setting)
    ids, calls = elements(host)
    assert ("getting" in ids) is ("fetch" in calls) is expected


def test_the_card_is_gone_when_the_model_is_here_and_the_page_begins_with_it():
    get.get(NAME, ignore_progress)
    ids, calls = elements("127.0.0.1", NAME)
    assert "getting" not in ids
    assert "fetch" not in calls


def test_a_download_that_fails_leaves_no_progress_behind(monkeypatch):
    def fails(name, on_progress=None):
        raise SpecvizError("no way")

    monkeypatch.setattr(get, "get", fails)
    said, stream = [], getting.Getting(NAME, make_offer()).fetch()
    with pytest.raises(gr.Error, match="no way"):
        said.extend(iter(lambda: json.loads(next(stream)[0]), None))
    assert said[-1]["words"].startswith("Not fetched. SmolLM2")
    assert said[-1]["progress"] is None


def test_the_card_says_what_is_fetched_from_where_and_ends_with_the_first_run_of_the_model():
    offer = make_offer(may_get=True)
    fetching = getting.Getting(NAME, offer)
    card = json.loads(fetching.card())
    assert "SmolLM2" in card["words"]
    assert "98\u00a0MB" in card["words"]
    assert card["about"] == get.describe(NAME)
    form = Form(("prompt", "target", "draft", "temperature", "seed"))
    prompt, target, draft, temperature, seed = fetching.fill(form)
    first = make_offer(NAME).first
    assert (prompt, target["value"], draft["value"]) == (first.prompt, NAME, first.draft)
    assert (temperature, seed) == (first.temperature, first.seed)
