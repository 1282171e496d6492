"""Models that take long to load or cannot be loaded, as a person meets them: any model may be typed here."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.explore_page import begin, choose_pace, run_to_end, saved, stop, wait_for_state
from tests.helpers import tiny_server as pages
from tests.helpers.fake_hub import HUB_ID, Hub
from tests.helpers.hub_errors import hub_error

pytestmark = pytest.mark.slow

LOADING = ".sv-loading:not([hidden])"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with pages.served(tmp_path_factory.mktemp("models"), any_model=True, max_new_tokens=48) as served:
        yield served


@pytest.fixture
def hub(app, tmp_path, monkeypatch):
    hub = Hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    yield hub
    hub.go_on()


def type_model(page, role, name):
    page.fill(f"#{role} input", name)
    page.press(f"#{role} input", "Enter")
    page.press(f"#{role} input", "Tab")
    expect(page.locator(f"#{role} input")).to_have_value(name)


def run_with_target(page, name):
    page.click("#more")
    type_model(page, "target", name)
    page.click("#more")
    page.click("#run")


def test_a_download_shows_how_far_it_is_and_can_be_cancelled(page, hub):
    run_with_target(page, HUB_ID)
    hub.go_on(1)
    page.wait_for_selector(f"{LOADING} [role=progressbar][aria-valuenow='25']")
    assert page.is_visible(f"text=downloading {HUB_ID}")
    page.click(f"{LOADING} [data-do=cancel]")
    wait_for_state(page, "finished")
    page.wait_for_selector(LOADING, state="detached")
    assert page.query_selector(".toast-body.error") is None
    run_with_target(page, "tiny-target")
    wait_for_state(page, "finished")


def test_stop_ends_the_waiting_too(page, hub):
    run_with_target(page, HUB_ID)
    page.wait_for_selector(LOADING)
    page.click("#stop")
    wait_for_state(page, "finished")


def test_a_change_during_a_run_can_be_cancelled_and_the_run_goes_on(page, hub):
    begin(page)
    type_model(page, "draft", HUB_ID)
    page.keyboard.press("Escape")  # the list lies over the stage
    page.click(f"{LOADING} [data-do=cancel]")
    page.wait_for_selector(".toast-body.warning:has-text('was cancelled; the run goes on as it was')")
    page.wait_for_function("document.querySelector('#draft input').value === 'tiny-draft'")
    choose_pace(page, "full")
    wait_for_state(page, "finished")
    assert {step.settings.draft_model for step in saved(page).steps} == {"tiny-draft"}


def test_another_choice_replaces_the_one_that_is_loading(page, hub):
    begin(page)
    type_model(page, "draft", HUB_ID)
    page.wait_for_selector(LOADING)
    type_model(page, "draft", "tiny-other")
    page.wait_for_selector(".sv-change-words:has-text('tiny-other')")
    stop(page)


def test_another_target_chosen_while_the_first_is_loading_begins_instead(page, hub):
    choose_pace(page, "full")
    page.click("#more")
    type_model(page, "target", HUB_ID)
    page.click("#run")
    page.wait_for_selector(LOADING)
    type_model(page, "target", "tiny-other")
    wait_for_state(page, "finished")
    page.click("#more")
    assert saved(page).header.request["target"] == "tiny-other"


ERRORS = [
    ("GatedRepoError", "ask on its page"),
    ("not cached", "the hub cannot be reached"),
    ("disk full", "disk is full"),
]


@pytest.mark.parametrize(("error", "words"), ERRORS)
def test_what_cannot_be_loaded_says_what_to_do_and_the_words_stay(page, hub, error, words):
    hub.error = hub_error(error)
    hub.go_on(1)
    run_with_target(page, HUB_ID)
    page.wait_for_selector(f".toast-body.error:has-text('{words}')")
    wait_for_state(page, "finished")
    page.wait_for_selector(f".sv-stage :text('{words}')")


def test_a_typed_folder_is_loaded_and_named_without_its_path(page, folder):
    run_with_target(page, str(folder))
    choose_pace(page, "full")
    wait_for_state(page, "finished")
    assert saved(page).header.request["target"] == "my-model"


@pytest.mark.parametrize(
    ("name", "words"), [("/no/such", "there is no folder or file 'such'"), ("a b", "is not a hub id")]
)
def test_a_name_that_is_nothing_is_refused_in_words(page, name, words):
    run_with_target(page, name)
    page.wait_for_selector(f'.toast-body.error:has-text("{words}")')
    page.click("#more")
    type_model(page, "target", "tiny-target")
    run_to_end(page)
