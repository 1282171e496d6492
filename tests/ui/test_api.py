"""What programs and agents ask: every endpoint over HTTP, and the same as tools of a real MCP client."""

import asyncio
import json

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from specviz.drafters.mtp import modules as mtp_modules
from specviz.session import workbench
from specviz.trace import read_trace
from specviz.ui import api
from tests.helpers import tiny_server as pages

NAMES = ["run", "what_if", "prove", "align", "compare_tokenizers", "models"]
RENAMED = {"doctor": "compare_tokenizers"}
served, client = pages.fixtures()


@pytest.fixture(scope="module")
def caller(served):
    """Asks the page, whose models are those of the whole process, as where it is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workbench, "_shared", [workbench.Workbench(served.page.bench.pool)])
        yield Client(served.address, verbose=False)


def test_every_endpoint_says_what_it_takes_and_gives(served, client):
    told = client.get("/gradio_api/info").json()["named_endpoints"]
    assert set(told) == {f"/{name}" for name in (*NAMES, *RENAMED)}
    for old, new in RENAMED.items():
        assert f"The old name of `{new}`" in told[f"/{old}"]["description"]
    for name in NAMES:
        words = told[f"/{name}"]["description"]
        assert "Example: " + name in words, name
        assert all(each["type"] for each in told[f"/{name}"]["parameters"]), name


def test_a_run_keeps_to_the_servers_own_limit_of_seconds(caller, client, monkeypatch):
    monkeypatch.setenv("SPECVIZ_MAX_SECONDS", "30")
    answer = caller.predict("The fox said", max_new_tokens=4, api_name="/run")
    assert read_trace(client.get(answer["trace"]).content).header.request["time_limit_s"] == 30


def test_a_run_gives_its_numbers_and_the_whole_trace_as_a_file(caller, client):
    answer = caller.predict("The fox said", k=2, max_new_tokens=8, seed=3, api_name="/run")
    trace = read_trace(client.get(answer["trace"]).content, max_bytes=10**7)
    assert trace.footer.reason == answer["end"]
    assert "".join(token.text for token in trace.tokens) == answer["text"]
    assert trace.header.request["seed"] == 3
    assert trace.header.request["time_limit_s"] == api.API_LIMIT_S
    assert answer["numbers"]["emitted"] == len(trace.tokens)
    assert client.get(answer["page"]).status_code == 200
    assert len(json.dumps(answer)) < 4_000
    every_k = caller.predict(answer["run"], max_k=3, api_name="/what_if")
    assert [row["k"] for row in every_k["rows"]] == [1, 2, 3]


def test_a_recorded_run_can_be_asked_for_every_k(caller):
    answer = caller.predict("first-visit", max_k=4, api_name="/what_if")
    calls = [row["expected_target_calls"] for row in answer["rows"]]
    assert calls == sorted(calls, reverse=True)


READ_AGAIN = {
    "early_exit": {"params": {"layers": 1}},
    "eagle": {"target": "fable-target", "params": {"children": "drawn"}},  # a chain, not a tree
    "medusa": {"target": "fable-target", "params": {"children": "drawn"}},
    "mtp": {"target": "with-modules"},
}


def with_modules(pool):
    """A tiny target with modules of its own, its tokenizer that of the page's."""
    from tests.helpers.mtp_targets import tiny_modules, tiny_target  # skips where this transformers cannot run them

    tokenizer = pool.load("tiny-target").tokenizer
    model = tiny_target(vocab_size=len(tokenizer))
    mtp_modules._attached.get(model, None, lambda: tiny_modules(model))
    model.name_or_path = "with-modules"
    pool.load((model, tokenizer))


@pytest.mark.parametrize("method", READ_AGAIN)
def test_of_heads_modules_and_early_exits_every_k_is_told_by_reading_the_text_again(served, caller, method):
    """At temperature 0 the expected calls are those that real runs make."""
    pool = served.page.bench.pool
    for name in ("fable-target", "fable-draft"):
        pool.load(name)
    with_modules(pool)
    ways = {"method": method, "draft": "tiny-draft", "temperature": 0, "max_new_tokens": 24, **READ_AGAIN[method]}
    made = {k: caller.predict("The fox said", k=k, **ways, api_name="/run") for k in (1, 3)}
    answer = caller.predict(made[3]["run"], max_k=3, api_name="/what_if")
    calls = {row["k"]: row["expected_target_calls"] for row in answer["rows"]}
    assert answer["exact"]
    assert [calls[k] for k in made] == pytest.approx([each["numbers"]["target_calls"] for each in made.values()])


def test_a_target_that_has_left_memory_is_loaded_again_to_read_its_text(served, caller):
    pool = served.page.bench.pool
    ways = {"target": "fable-target", "draft": "tiny-draft", "method": "early_exit", "max_new_tokens": 8}
    pool.load("fable-target")
    made = caller.predict("The fox said", **ways, api_name="/run")
    pool._entries[next(key for key, held in pool._entries.items() if held.get().name == "fable-target")].release()
    assert "fable-target" not in pool.loaded_names()
    assert caller.predict(made["run"], max_k=2, api_name="/what_if")["num_tokens"] == 8


def test_a_job_reports_its_progress_and_ends_with_what_was_found(caller):
    job = caller.submit(["The fox said", "One day"], max_new_tokens=6, api_name="/align")
    job.result(timeout=pages.PATIENCE_S)
    answers = job.outputs()
    assert [answer["done"] for answer in answers] == sorted(answer["done"] for answer in answers)
    assert "result" not in answers[0]
    result = answers[-1]["result"]
    assert 0 < result["alpha"] <= 1
    assert len(result["tokens_per_call"]) == 16


def test_a_pair_is_examined_proved_and_listed(caller):
    found = caller.predict("tiny-target", "stranger", api_name="/compare_tokenizers")
    assert found["direct"] is False
    assert any(way["works"] for way in found["ways"])
    proof = caller.predict(rule="broken:resample_p", tokens=24, api_name="/prove")
    assert proof["verdict"] in ("exact", "consistent", "suspicious", "differs", "unsure")
    assert proof["checks"]
    listed = caller.predict(api_name="/models")
    assert {each["name"]: each["heads"] for each in listed["targets"]}["smollm2"] == ["smol-eagle"]
    assert "draft_model" in listed["methods"]


def test_an_old_name_answers_the_same_and_says_what_it_is_called_now(caller):
    for old, new in RENAMED.items():
        told, answer = (caller.predict("tiny-target", "stranger", api_name=f"/{name}") for name in (old, new))
        assert told == {**answer, "notes": [told["notes"][0], *answer["notes"]]}
        assert f"called {new} now" in told["notes"][0]


TAKE_K = {
    "run": {"prompt": "The fox said", "max_new_tokens": 6},
    "prove": {"tokens": 24},
    "align": {"prompts": ["The fox said"], "max_new_tokens": 6},
}


def without_what_was_timed(answer):
    return {name: value for name, value in answer.items() if name not in ("run", "trace", "page", "numbers")}


@pytest.mark.parametrize("name", TAKE_K)
def test_every_endpoint_that_takes_k_takes_it_by_its_second_name(caller, name):
    ways = [{"k": 2}, {"num_speculative_tokens": 2}, {"k": 2, "num_speculative_tokens": 2}]
    first, *others = (caller.predict(**TAKE_K[name], **way, api_name=f"/{name}") for way in ways)
    assert all(without_what_was_timed(each) == without_what_was_timed(first) for each in others)
    with pytest.raises(AppError, match=r"two names of one number.*k=2 and num_speculative_tokens=3"):
        caller.predict(**TAKE_K[name], k=2, num_speculative_tokens=3, api_name=f"/{name}")


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("run", {"prompt": "The fox", "temperature": 99}, "temperature must be"),
        ("run", {"prompt": "The fox", "target": "/etc"}, "/etc"),
        ("run", {"prompt": "The fox", "method": "prompt_lookup", "params": {"depth": 1}}, "has no parameter 'depth'"),
        ("what_if", {"run": "nowhere"}, "a recorded run must be one of"),
        ("what_if", {"run": "first-visit", "max_k": 99}, "max_k must be"),
        ("prove", {"tokens": 10**6}, "tokens must be"),
        ("align", {"prompts": []}, "prompts must be a list of 1 to 32 texts"),
        ("compare_tokenizers", {"draft": "../x"}, "this server offers only"),
    ],
)
def test_an_error_is_plain_text(caller, name, given, words):
    with pytest.raises(AppError) as refused:
        caller.predict(**given, api_name=f"/{name}")
    assert words in str(refused.value)


def test_an_agent_finds_the_same_as_tools_and_uses_them(tmp_path, monkeypatch):
    pytest.importorskip("mcp", reason="the package mcp is not installed")
    monkeypatch.setenv("SPECVIZ_MCP", "1")

    async def ask(address):
        async with pages.tools(address) as session:
            listed = await session.call_tool("models", {})
            made = await session.call_tool("run", {"prompt": "The fox said", "max_new_tokens": 6})
            refused = await session.call_tool("run", {"prompt": "The fox", "temperature": 99})
            return (await session.list_tools()).tools, listed, made, refused

    with pages.served(tmp_path) as served:
        tools, listed, made, refused = asyncio.run(ask(served.address))
    own = {tool.name: tool for tool in tools}
    assert set(own) == {*NAMES, *RENAMED}
    assert own["run"].inputSchema["properties"]["k"]["description"] == api.PARAMETERS["k"]
    assert "fable-target" in listed.content[0].text
    assert "tokens_per_target_call" in made.content[0].text
    assert refused.isError
    assert "temperature must be" in refused.content[0].text


def test_tools_without_their_package_are_refused_in_words(monkeypatch):
    from specviz.errors import SpecvizError
    from specviz.ui import server

    monkeypatch.setenv("SPECVIZ_MCP", "1")
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(SpecvizError, match="SPECVIZ_MCP needs the package mcp"):
        server.launch_options(None, None, ready=lambda: True)


def test_a_run_sets_the_switches_of_the_chat_template(served, caller, client, monkeypatch):
    template = "{{ messages[0].content }}{% if thinking is false %} at once{% endif %}"
    monkeypatch.setattr(served.page.bench.pool.load("tiny-target").tokenizer, "chat_template", template)
    asked = {"max_new_tokens": 2, "chat_options": {"thinking": False}, "api_name": "/run"}
    header = read_trace(client.get(caller.predict("The fox", **asked)["trace"]).content).header
    assert header.prompt.text == "The fox at once"
    assert header.request["chat_options"] == {"thinking": False}
    with pytest.raises(AppError, match="chat must be true"):
        caller.predict("The fox", chat=False, **asked)
