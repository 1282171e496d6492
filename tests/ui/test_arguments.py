"""JSON of any type for each parameter of each endpoint: it works, or words say what is wrong, whoever calls and how."""

import asyncio
import json
from random import Random

import pytest
from gradio_client import Client
from gradio_client.exceptions import ValidationError

from specviz.session import workbench
from specviz.ui import api, events, visitors
from tests.chaos.inputs import value
from tests.helpers import tiny_server as pages

served, client = pages.fixtures()
CHEAP = {"prompt": "The fox", "prompts": ["The fox"], "run": "k-1", "tokens": 2, "max_new_tokens": 1}
"""Values for what an endpoint needs, and for what makes its work short."""
EACH_TYPE = (None, True, 7, 1.5, "", "x", [], [5], ["x", [None]], {}, {"a": {}}, {"path": "x", "meta": 5})
CASES = [(endpoint, name) for endpoint in api.ENDPOINTS for name in api.parameters_of(endpoint)]
ALSO_CALLED = {"num_speculative_tokens": "k", "params": "parameter", "chat_options": "chat"}
UNREADABLE = "the body cannot be read as JSON"  # a number that is too large to be read has no name yet


@pytest.fixture(scope="module", autouse=True)
def _tiny_models(served):
    """Jobs and proofs use the models of the whole process, which are the page's where it is started.

    One address asks more here than a network may: a fast machine would be refused.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visitors, "MOST_ASKED_BY_ALL", 100_000)
        patch.setattr(workbench, "_shared", [workbench.Workbench(served.page.bench.pool)])
        yield


def drawn(endpoint, name, num_drawn):
    """Calls of the endpoint whose parameter of this name has each type of JSON, and as many drawn values."""
    chance = Random(f"{endpoint} {name}")
    cheap = {each: CHEAP[each] for each in api.parameters_of(endpoint) if each in CHEAP}
    odd = [*EACH_TYPE, *(value(chance) for _ in range(num_drawn))]
    return [{**cheap, name: each} for each in odd]


def error_of(client, endpoint, given):
    """What a program is told that calls by HTTP; None where it works."""
    answer = client.post(f"/gradio_api/call/v2/{endpoint}", json=given)
    if answer.status_code != 200:
        assert answer.status_code < 500
        return answer.json()["error"]
    told = client.get(f"/gradio_api/call/{endpoint}/{answer.json()['event_id']}").text
    kind, data = told.strip().split("\n\n")[-1].splitlines()
    return json.loads(data.removeprefix("data: "))["error"] if kind == "event: error" else None


def check_words(words, name, given):
    """An error names the parameter, shows what came or the odd name in it, and is short."""
    assert isinstance(words, str)
    assert words.startswith(UNREADABLE) or name in words or ALSO_CALLED.get(name, name) in words, (given, words)
    shown = [repr(given[name]), *map(repr, given[name] if isinstance(given[name], dict) else ())]
    told = ("(got ", "is empty", "has no chat template", UNREADABLE, *shown)
    assert any(each in words for each in told), (given, words)
    assert len(words) < 1_000, (given, words)


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case[0] == "prove" else ()) for case in CASES
    ],  # a proof takes seconds
)
def test_json_of_any_type_works_or_is_refused_in_words(client, capfd, endpoint, name):
    for given in drawn(endpoint, name, 8):
        words = error_of(client, endpoint, given)
        if words is not None or "error" in given:
            check_words(words, name, given)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("endpoint", api.ENDPOINTS)
def test_what_an_endpoint_lacks_and_what_it_does_not_know_is_named(client, endpoint):
    names = api.parameters_of(endpoint)
    assert f"{endpoint} has no field 'colour'; it may have " in error_of(client, endpoint, {"colour": 1})
    assert "has no field 'fn_index'" in error_of(client, endpoint, {"fn_index": 1})
    for data in ({"target": "x"}, 5, None):
        answer = client.post(f"/gradio_api/call/{endpoint}", json={"data": data})
        assert answer.json()["error"].startswith(f"data must be a list of the values for {endpoint} (got ")
    too_many = client.post(f"/gradio_api/call/{endpoint}", json={"data": [None] * (len(names) + 1)})
    assert f"takes {len(names)} values in data (got {len(names) + 1})" in too_many.json()["error"]
    needed = {"run": "prompt", "what_if": "run", "align": "prompts"}
    if endpoint in needed:
        assert error_of(client, endpoint, {}) == f"{endpoint} must have the field {needed[endpoint]!r} (got none)"


@pytest.mark.parametrize("path", ["call/nothing", "call/v2/nothing", "run/nothing", "call/run_1"])
def test_an_endpoint_that_is_not_there_is_told_with_those_that_are(client, path):
    answer = client.post(f"/gradio_api/{path}", json={"data": []})
    assert answer.status_code == 404
    assert all(name in answer.json()["error"] for name in api.ENDPOINTS)


def test_gradios_own_client_shows_the_same_words(served, client):
    caller = Client(served.address, verbose=False)
    for endpoint, name in CASES:
        given = {**dict.fromkeys(("prompt", "run"), "x"), "prompts": ["x"], name: {"a": [5]}}
        given = {each: given[each] for each in api.parameters_of(endpoint) if each in given}
        with pytest.raises(ValidationError) as refused:
            caller.predict(**given, api_name=f"/{endpoint}")
        assert str(refused.value).endswith(f"- {endpoint}: {error_of(client, endpoint, given)}")


def test_of_a_list_the_odd_one_is_named(client):
    words = error_of(client, "align", {"prompts": [*["x"] * 20, 5]})
    assert words == "prompts[20] must be a text (got 5)"


def test_a_fault_of_the_servers_own_is_told_in_words_and_in_the_log(client, capfd, monkeypatch):
    def broken(*arguments, **named):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(api, "judge_run", broken)
    assert error_of(client, "what_if", {"run": "k-1"}) == events.FAILED
    assert "RuntimeError: on purpose" in capfd.readouterr().err


@pytest.mark.slow
def test_a_tool_given_json_of_any_type_works_or_says_what_is_wrong(tmp_path, monkeypatch, capfd):
    pytest.importorskip("mcp", reason="the package mcp is not installed")
    monkeypatch.setenv("SPECVIZ_MCP", "1")

    async def ask(address):
        async with pages.tools(address) as session:
            for endpoint, name in CASES:
                for given in drawn(endpoint, name, 1):
                    answer = await session.call_tool(endpoint, given)
                    if answer.isError:
                        check_words(answer.content[0].text, name, given)
            unknown = await session.call_tool("nothing", {})
            assert "there is no endpoint 'nothing'" in unknown.content[0].text

    with pages.served(tmp_path) as served:
        monkeypatch.setattr(workbench, "_shared", [workbench.Workbench(served.page.bench.pool)])
        asyncio.run(ask(served.address))
    assert "Traceback" not in capfd.readouterr().err
