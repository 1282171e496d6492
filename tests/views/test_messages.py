"""Laws of the messages to the browser: they fit the records that declare them, and so do the types of its scripts."""

import pytest
from jsonschema import Draft202012Validator

from specviz.views.bundle import web_file
from specviz.views.message_types import definitions, type_declarations
from tests.helpers.written_messages import written_messages


@pytest.fixture(scope="module")
def written():
    return written_messages()


def test_each_message_fits_its_record(written):
    kinds = definitions()
    problems = []
    for name, messages in written.items():
        validator = Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": kinds})
        for message in messages:
            problems += [
                f"{name}{error.json_path[1:]}: {error.message:.200}" for error in validator.iter_errors(message)
            ]
    assert problems == []


def test_the_types_of_the_scripts_are_those_of_the_records():
    assert web_file("messages.d.ts").read_text("utf-8") == type_declarations()
