"""A conversation as one text, and back."""

import sys
import time

import pytest
from tiny_models import tiny_tokenizer

from specviz.errors import SpecvizError
from specviz.models import chat
from specviz.models.chat import ROLES, as_lines, as_messages, chat_switches, render_chat

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
