"""A conversation as one text, and back."""

import sys
import time

import pytest

from specviz.errors import SpecvizError
from specviz.models import chat
from specviz.models.chat import ROLES, as_lines, as_messages, chat_switches, render_answer, render_chat
from tests.helpers.tiny_models import tiny_tokenizer

MESSAGES = [{"role": role, "content": f"words of {role}\nin two lines: yes"} for role in ROLES]
ASKED = [*MESSAGES, {"role": "user", "content": "and now?"}]
SWITCHED = (
    "{% for m in messages %}{% set body = m.content %}{{ body }}{% endfor %}"
    "{% if messages[0].role == 'system' %}{% set lead = messages[0].content %}{% endif %}{{ lead }}{{ bos_token }}"
    "{% if tools or documents %}{{ raise_exception('no') }}{% endif %}{{ namespace(a=1).a }}"
    "{% if effort is not defined %}{% set effort = 'low' %}{% endif %}"
    "{% generation %}{% if add_generation_prompt and not enable_thinking %}plain {% endif %}{% endgeneration %}"
    "{{ effort }}"
)


@pytest.mark.parametrize("messages", [ASKED, ASKED[1:], ASKED[:2], ASKED[-1:]])
def test_messages_come_back_as_they_were(messages):
    assert as_messages(as_lines(messages)) == messages


@pytest.mark.parametrize("text", ["", "The fox", "A user: no", "\nUser: later", "user: small letters"])
def test_any_other_text_is_one_message_as_it_stands(text):
    assert as_messages(text) == text


def test_the_answer_that_was_begun_stays():
    assert as_messages("User: Hi\nAssistant: Hel")[-1] == {"role": "assistant", "content": "Hel"}


def test_a_template_that_goes_on_for_ever_is_stopped(monkeypatch):
    monkeypatch.setattr(chat, "MOST_RENDER_S", 0.2)
    tokenizer, before = tiny_tokenizer(), sys.gettrace()
    inner = "{% for number in range(90000) %}{% endfor %}"
    tokenizer.chat_template = "{% for number in range(90000) %}" + inner + "{% endfor %}"
    with pytest.raises(SpecvizError, match=r"it takes more than 0\.2 s"):
        render_chat(tokenizer, "Hi")
    assert sys.gettrace() is before


# ---- what a template writes besides plain turns ----------------------------------------------------------------------

ASK, ANSWER = {"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}
THOUGHT = {**ANSWER, "reasoning_content": "Two and three."}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "c1", "content": "5"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
TOOLS = "{% for tool in tools or [] %}[may call {{ tool.function.name }}]{% endfor %}"
THINKS = "{% if m.reasoning_content %}({{ m.reasoning_content }}) {% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
SAYS = "{{ m.content }}"
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}(no thoughts) {% endif %}"


def speaker(*parts, first=TOOLS, begun=SWITCH):
    """A tokenizer whose template writes these parts of each turn."""
    tokenizer = tiny_tokenizer()
    turns = "{% for m in messages %}<{{ m.role }}>" + "".join(parts) + "{{ eos_token }}\n{% endfor %}"
    tokenizer.chat_template = first + turns + "{% if add_generation_prompt %}<assistant>" + begun + "{% endif %}"
    return tokenizer


def test_a_developer_is_the_system_to_a_template_that_knows_no_developer():
    talk = [{"role": "developer", "content": "Be brief."}, ASK]
    assert render_chat(speaker(SAYS), talk).startswith("<system>Be brief.")
    knowing = speaker(SAYS, first="{% if messages[0].role == 'developer' %}!{% endif %}")
    assert render_chat(knowing, talk).startswith("!<developer>Be brief.")
    assert as_lines(talk) == "System: Be brief.\nUser: 2+3?\nAssistant:"


def test_reasoning_stands_before_its_answer_as_the_template_writes_it_or_in_tags():
    talk, end = [ASK, THOUGHT, ASK], tiny_tokenizer().eos_token
    assert f"<assistant>(Two and three.) 5{end}" in render_chat(speaker(THINKS, SAYS), talk)
    assert f"<assistant><think>\nTwo and three.\n</think>\n\n5{end}" in render_chat(speaker(SAYS), talk)
    assert "\nAssistant: <think>\nTwo and three.\n</think>\n\n5\n" in as_lines(talk)


def test_tools_and_their_turns_are_written_by_the_template():
    tokenizer, talk = speaker(CALLS, SAYS), [ASK, CALLING, TOLD]
    end = tokenizer.eos_token
    assert render_chat(tokenizer, talk, tools=[TOOL]) == (
        f'[may call add]<user>2+3?{end}\n<assistant>[add {{"a": 2, "b": 3}}]{end}\n<tool>5{end}\n<assistant>'
    )


@pytest.mark.parametrize(
    ("tokenizer", "name"),
    [
        (speaker(CALLS, SAYS, first=""), "tools"),
        (speaker(SAYS), "tool calls"),
        (speaker(CALLS, "{% if m.role != 'tool' %}{{ m.content }}{% endif %}"), "answers of tools"),
    ],
)
def test_a_template_that_leaves_out_tools_or_their_turns_is_refused_by_name(tokenizer, name):
    with pytest.raises(SpecvizError, match=f"chat template leaves out the {name}$"):
        render_chat(tokenizer, [ASK, CALLING, TOLD], tools=[TOOL])


@pytest.mark.parametrize("switches", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
def test_switches_reach_the_template(switches):
    is_off = switches.get("enable_thinking") is False
    assert render_chat(speaker(SAYS), "Hi", switches).endswith("(no thoughts) ") is is_off


# ---- an answer that depends on the template --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokenizer", "answer", "expected"),
    [
        (speaker(THINKS, SAYS), THOUGHT, "(Two and three.) 5"),
        (speaker(THINKS, SAYS), {**THOUGHT, "content": "e"}, "(Two and three.) e"),  # as in the end token's name
        (speaker(SAYS), THOUGHT, "<think>\nTwo and three.\n</think>\n\n5"),
        (speaker(SAYS, begun="<think>\n"), THOUGHT, "Two and three.\n</think>\n\n5"),
        (speaker(CALLS, SAYS), CALLING, '[add {"a": 2, "b": 3}]'),
        (speaker(SAYS, CALLS), {**CALLING, "content": "So:"}, 'So:[add {"a": 2, "b": 3}]'),
    ],
)
def test_an_answer_is_what_the_template_writes_behind_the_prompt(tokenizer, answer, expected):
    assert render_answer(tokenizer, [ASK], answer) == expected


@pytest.mark.parametrize(
    ("tokenizer", "answer", "words"),
    [
        (speaker("{% if not loop.last %}", THINKS, "{% endif %}", SAYS), THOUGHT, "reasoning_content"),
        (speaker(THINKS, SAYS, begun="(no thoughts) "), THOUGHT, "reasoning_content"),
        (speaker(SAYS), CALLING, "tool_calls"),
    ],
)
def test_an_answer_that_the_template_does_not_write_there_is_refused_by_name(tokenizer, answer, words):
    with pytest.raises(SpecvizError, match=f"does not write the {words} of the last answer"):
        render_answer(tokenizer, [ASK], answer)


def switched(template=SWITCHED):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_the_switches_of_a_template_are_the_names_that_it_reads_and_nobody_sets():
    assert chat_switches(switched()) == ("effort", "enable_thinking")
    assert chat_switches(tiny_tokenizer(chat=True)) == chat_switches(tiny_tokenizer()) == ()


def test_an_option_is_the_templates_own_value():
    assert render_chat(switched(), "Hi").endswith("plain low")
    assert render_chat(switched(), "Hi", {"enable_thinking": True, "effort": "high"}).endswith("1high")


@pytest.mark.parametrize("name", ["tokenize", "add_generation_prompt", "tools", "chat_template", "conversation"])
def test_what_specviz_sets_itself_is_no_option(name):
    with pytest.raises(SpecvizError, match=f"cannot set '{name}'"):
        render_chat(switched("{{ tokenize }}{{ messages }}{{ chat_template }}{{ conversation }}"), "Hi", {name: True})


@pytest.mark.parametrize(
    ("template", "words"), [(SWITCHED, "it has effort, enable_thinking"), ("{{ messages }}", "it has none")]
)
def test_an_option_that_the_template_does_not_name_is_refused_with_those_there_are(template, words):
    with pytest.raises(SpecvizError, match=f"no option 'enable_thinkin'; {words}"):
        render_chat(switched(template), "Hi", {"enable_thinkin": True})


@pytest.mark.parametrize("template", ["{% if", "{{ " * 5000, "{% unknown %}"])
def test_a_template_that_is_no_program_has_no_switches(template):
    assert chat_switches(switched(template)) == ()


def test_however_many_names_a_template_reads_few_and_short_ones_are_its_switches():
    names = [f"x{number}" for number in range(500)] + ["y" * 5_000]
    found = chat_switches(switched("".join(f"{{{{ {name} }}}}" for name in names)))
    assert len(found) == 32
    assert set(found) < set(names[:-1])


def test_looking_for_switches_takes_no_longer_than_rendering(monkeypatch):
    monkeypatch.setattr(chat, "MOST_RENDER_S", 0.2)
    begun = time.monotonic()
    assert chat_switches(switched("{{ a }}" * 200_000)) == ()
    assert time.monotonic() - begun < 20
