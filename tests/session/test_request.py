"""Requests, settings and the catalogue: plain values, one validation, clear refusals."""

import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specviz import request as request_module
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.request import MAX_SEED, REQUEST_KEYS, Request, read_options, spell_options
from specviz.settings import ProgramSettings, assets_dir

GOOD = Request(prompt="Once upon a time", target="fable-target", draft="fable-draft")
FIELDS = list(REQUEST_KEYS)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),  # half surrogates too
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
requests = st.builds(
    Request,
    prompt=st.text(min_size=1),
    chat=st.booleans(),
    target=st.sampled_from(list(catalog.MODELS)),
    draft=st.none() | st.sampled_from(list(catalog.MODELS)),
    rule=st.none() | st.just("token_match"),
    params=st.dictionaries(st.sampled_from(["max_ngram", "x"]), st.integers(0, 9) | st.floats(0, 1) | st.booleans()),
    num_speculative_tokens=st.integers(1, 32),
    temperature=st.floats(0, 5),
    top_k=st.integers(0, 100),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    draft_temperature=st.none() | st.floats(0, 5),
    draft_top_k=st.none() | st.integers(0, 100),
    draft_top_p=st.none() | st.floats(0, 1, exclude_min=True),
    draft_min_p=st.none() | st.floats(0, 1),
    seed=st.integers(0, MAX_SEED),
    max_new_tokens=st.integers(1, 4096),
    stop=st.lists(st.sampled_from(["\n\n", "a\tb", "🦊"]), max_size=2).map(tuple),
    time_limit_s=st.none() | st.floats(0, 3600, exclude_min=True),
)


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), anything, max_size=6) | anything)
def test_arbitrary_json_is_a_request_or_a_specviz_error(values):
    try:
        request = Request.from_dict(values)
    except SpecvizError:
        return
    json.dumps(request.to_dict(), allow_nan=False).encode()


@given(requests)
def test_a_request_comes_back_from_json(request):
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request.validate()


def test_prompt_ids_come_back_from_json():
    request = replace(GOOD, prompt="", prompt_ids=(1, 2, 3))
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request


def test_a_request_can_be_pickled_and_hashed():
    assert pickle.loads(pickle.dumps(GOOD)) == GOOD
    assert len({GOOD, replace(GOOD, num_speculative_tokens=4), replace(GOOD, num_speculative_tokens=5)}) == 2


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("num_speculative_tokens", 0, "k .* 1 to 32 .got 0"),
        ("num_speculative_tokens", 33, "got 33"),
        ("num_speculative_tokens", True, "k .*got True"),
        ("num_speculative_tokens", 4.0, "k .*got 4.0"),
        pytest.param("num_speculative_tokens", 10**5000, "k .* 1 to 32", id="k-huge"),
        ("temperature", math.nan, "temperature .* 0 to 5 .got nan"),
        ("temperature", math.inf, "got inf"),
        ("temperature", -0.1, "got -0.1"),
        ("temperature", 5.01, "got 5.01"),
        ("temperature", "1", "temperature .*got '1'"),
        ("temperature", False, "temperature .*got False"),
        ("top_k", -1, "top_k .* 0 .*got -1"),
        ("top_p", 0.0, "top_p .* above 0 .* 1 .got 0.0"),
        ("top_p", 1.01, "got 1.01"),
        ("top_p", math.nan, "got nan"),
        ("min_p", -0.01, "min_p .* 0 to 1 .got -0.01"),
        ("min_p", 1.01, "got 1.01"),
        ("min_p", math.nan, "got nan"),
        ("draft_temperature", 5.01, "draft_temperature .* 0 to 5 .got 5.01"),
        ("draft_top_k", 1.5, "draft_top_k .*got 1.5"),
        ("draft_top_p", 0.0, "draft_top_p .*got 0.0"),
        ("draft_min_p", 1.5, "draft_min_p .*got 1.5"),
        ("max_new_tokens", 0, "max_new_tokens .* 1 to 4,096 .got 0"),
        ("max_new_tokens", 4097, "got 4097"),
        ("stop", ["a", ""], "stop .* one character"),
        ("stop", ["\ufffd"], "U.FFFD"),
        ("stop", [3], "stop .*got 3"),
        ("stop", ["a"] * 17, "16 texts"),
        ("stop", ["a" * 201], "200 characters"),
        ("seed", -1, "seed .*got -1"),
        ("seed", 2**53, "seed .*got 9007199254740992"),
        ("time_limit_s", 0, "above 0"),
        ("prompt", "", "prompt is empty"),
        ("prompt", None, "prompt .*got None"),
        ("prompt", "a" * 200_001, "200,000 .*got 200,001"),
        ("prompt", "half \ud83d", "surrogate"),
        ("prompt_ids", [], "empty: prompt_ids"),
        ("prompt_ids", [1, -1], "prompt_ids.*got -1"),
        ("prompt_ids", [True], "prompt_ids.*got True"),
        ("prompt_ids", "12", "list of token ids"),
        ("prompt_ids", [0] * 100_001, "100,000 ids"),
        ("chat", 1, "chat .*got 1"),
        ("target", "", "target"),
        ("target", None, "target .*got None"),
        ("target", "a\x00b", "target .*control"),
        ("draft", 3, "draft .*got 3"),
        ("method", 1, "method .*got 1"),
        ("rule", [], "rule .*got"),
        ("params", [], "params"),
        ("params", {"n": [1]}, "params.n"),
        ("params", {"n": math.nan}, "params.n"),
        ("params", {str(i): i for i in range(33)}, "params .*32"),
    ],
)
def test_each_refusal_names_the_field_what_was_got_and_what_is_allowed(field, value, told):
    with pytest.raises(SpecvizError, match=told):
        replace(GOOD, **{field: value}).validate()


def test_a_chat_needs_a_text_prompt():
    with pytest.raises(SpecvizError, match=r"chat .*prompt_ids"):
        replace(GOOD, chat=True, prompt_ids=(1,)).validate()


def test_unknown_and_missing_fields_are_named():
    with pytest.raises(SpecvizError, match=r"'top_q'; .* prompt,"):
        Request.from_dict({"prompt": "a", "target": "b", "top_q": 1})
    with pytest.raises(SpecvizError, match="target"):
        Request.from_dict({"prompt": "a"})


def test_the_servers_caps_hold(monkeypatch):
    monkeypatch.setenv("SPECVIZ_MAX_NEW_TOKENS", "10")
    monkeypatch.setenv("SPECVIZ_MAX_SECONDS", "30")
    assert replace(GOOD, max_new_tokens=10).validate().time_limit_s == 30.0
    with pytest.raises(SpecvizError, match=r"from 1 to 10 .got 11"):
        replace(GOOD, max_new_tokens=11).validate()
    with pytest.raises(SpecvizError, match=r"at most 30 .got 31"):
        replace(GOOD, max_new_tokens=1, time_limit_s=31).validate()


def test_numbers_get_their_own_types():
    checked = replace(GOOD, temperature=1, top_p=1, prompt_ids=[1, 2]).validate()
    assert [type(value) for value in (checked.temperature, checked.top_p, checked.prompt_ids)] == [float, float, tuple]


def test_settings_read_every_variable():
    read = ProgramSettings.from_environment(
        {
            "SPECVIZ_DEVICE": "cuda:1",
            "SPECVIZ_DTYPE": "float32",
            "SPECVIZ_MODEL_MEMORY_GB": "0.5",
            "SPECVIZ_ALLOW_ANY_MODEL": "no",
            "GRADIO_SERVER_NAME": "0.0.0.0",
            "GRADIO_SERVER_PORT": "8000",
            "GRADIO_ROOT_PATH": "https://hub.example/user/ann/",
        }
    )
    assert read == ProgramSettings(
        "cuda:1",
        "float32",
        2**29,
        allow_any_model=False,
        server_name="0.0.0.0",
        server_port=8000,
        root_path="https://hub.example/user/ann",
    )


def test_a_space_offers_only_its_own_models_unless_told_otherwise():
    assert ProgramSettings.from_environment({}).commands_take_any_model
    assert not ProgramSettings.from_environment({"SPACE_ID": "a/b"}).commands_take_any_model
    assert ProgramSettings.from_environment({"SPACE_ID": "a/b", "SPECVIZ_ALLOW_ANY_MODEL": "1"}).allow_any_model


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPECVIZ_DEVICE", "gpu"),
        ("SPECVIZ_DTYPE", "int8"),
        ("SPECVIZ_MODEL_MEMORY_GB", "-1"),
        ("SPECVIZ_MODEL_MEMORY_GB", "inf"),
        ("SPECVIZ_MAX_NEW_TOKENS", "0"),
        ("SPECVIZ_MAX_SECONDS", "soon"),
        ("SPECVIZ_MAX_RUNS", "-3"),
        ("SPECVIZ_ALLOW_ANY_MODEL", "maybe"),
        ("GRADIO_SERVER_PORT", "70000"),
        ("GRADIO_ROOT_PATH", "hub/ann"),
        ("GRADIO_ROOT_PATH", '/hub">'),
    ],
)
def test_a_bad_variable_is_named(name, value):
    with pytest.raises(SpecvizError, match=f"{name} .*got '{value}'"):
        ProgramSettings.from_environment({name: value})


def test_assets_are_found_and_a_wrong_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("SPECVIZ_ASSETS", raising=False)
    assert (assets_dir() / "prompts" / "prompts.json").is_file()
    monkeypatch.setenv("SPECVIZ_ASSETS", str(tmp_path))
    assert assets_dir() == tmp_path
    monkeypatch.setenv("SPECVIZ_ASSETS", str(tmp_path / "none"))
    with pytest.raises(SpecvizError, match="SPECVIZ_ASSETS"):
        assets_dir()


def test_every_draft_in_the_catalogue_is_in_it_and_the_default_pair_is_bundled():
    assert all(draft in catalog.MODELS for name in catalog.targets() for draft in catalog.drafts_for(name))
    target, draft = catalog.default_pair()
    assert catalog.resolve(target).name == target
    assert draft == catalog.drafts_for(target)[0]
    assert catalog.MODELS[draft].is_bundled
    assert catalog.drafts_for("somebody/else") == ()
    with pytest.raises(SpecvizError, match=r"'somebody/else'.*fable-target"):
        catalog.resolve("somebody/else")


def test_the_ready_prompts_are_requests():
    kinds = json.loads((assets_dir() / "prompts" / "prompts.json").read_text("utf-8"))["kinds"]
    prompts = [prompt for kind in kinds for prompt in kind["prompts"]]
    assert all(3 <= len(kind["prompts"]) <= 5 for kind in kinds)
    assert [kind["name"] for kind in kinds] == ["story", "code", "arithmetic", "summarise", "repeat"]
    assert len({prompt["name"] for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        replace(GOOD, prompt=prompt["text"]).validate()


def test_requests_settings_and_the_catalogue_need_only_the_standard_library():
    code = (
        "import sys, specviz.request, specviz.settings, specviz.models.catalog;"
        "print({name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'__main__'})"
    )
    root = Path(request_module.__file__).parents[1]
    out = subprocess.run([sys.executable, "-S", "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "{'specviz'}"


@given(
    st.dictionaries(
        st.sampled_from(["enable_thinking", "effort", "x"]),
        st.booleans()
        | st.integers(-99, 99)
        | st.floats(-5, 5)
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
        | st.sampled_from(["true", "True", "1", "null", " high", '"', "a=b", "\u2028", "[]"]),
    )
)
def test_chat_options_that_are_spelled_are_read_as_they_were(options):
    read = read_options("\n".join(spell_options(options)).splitlines())
    assert read == options
    assert [type(value) for value in read.values()] == [type(value) for value in options.values()]


def test_chat_options_stand_in_a_request_and_come_back():
    asked = replace(GOOD, chat=True, chat_options={"enable_thinking": False, "effort": "low"}).validate()
    assert Request.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
    assert pickle.loads(pickle.dumps(asked)) == asked


@pytest.mark.parametrize("options", [["x"], {"a b": 1}, {"": 1}, {"x": None}, {"x": []}, {"x": math.nan}, {3: 1}])
def test_what_is_no_chat_option_is_refused(options):
    with pytest.raises(SpecvizError, match="chat_options"):
        replace(GOOD, chat=True, chat_options=options).validate()


def test_chat_options_without_a_chat_template_are_refused():
    with pytest.raises(SpecvizError, match=r"chat .*chat_options"):
        replace(GOOD, chat_options={"enable_thinking": False}).validate()


@pytest.mark.parametrize("line", ["enable_thinking", "=true", "x=1\nx=2"])
def test_a_line_that_is_no_chat_option_is_refused(line):
    with pytest.raises(SpecvizError, match="NAME=VALUE"):
        read_options(line.splitlines())
