"""A conversation as one text, and back."""

import pytest

from specviz.models.chat import ROLES, as_lines, as_messages

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
