"""A conversation as one text, and back."""

import sys

import pytest
from tiny_models import tiny_tokenizer

from specviz.errors import SpecvizError
from specviz.models import chat
from specviz.models.chat import ROLES, as_lines, as_messages, render_chat

MESSAGES = [{"role": role, "content": f"words of {role}\nin two lines: yes"} for role in ROLES]
ASKED = [*MESSAGES, {"role": "user", "content": "and now?"}]


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
