"""The JSON Schema of a line of a trace, made from the records: `python -m specviz.trace.schema` prints it."""

import json

import msgspec

from specviz.trace.events import EVENTS, NEEDS_P, VERSION

ABOUT = (
    "One line of a trace file. A file is one header, models before the first step and before each step that uses other "
    "models, steps in order, any number of scores and unknown events, and at most one footer. Unknown fields and "
    "events are allowed and stay in the trace."
)


def schema_text() -> str:
    """The content of assets/trace.schema.json."""
    _, definitions = msgspec.json.schema_components(EVENTS.values(), ref_template="#/$defs/{name}")
    for definition in definitions.values():
        definition["properties"].pop("extra", None)  # of the record, not of its JSON
    definitions["Step"] |= NEEDS_P
    events = []
    for name, kind in EVENTS.items():
        condition = {"properties": {"event": {"const": name}}}
        events.append({"if": condition, "then": {"$ref": f"#/$defs/{kind.__name__}"}})
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"specviz trace, version {VERSION}",
        "description": ABOUT,
        "type": "object",
        "required": ["event"],
        "properties": {"event": {"type": "string"}},
        "allOf": events,
        "$defs": definitions,
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
