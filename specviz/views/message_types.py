"""The types of the browser's messages for TypeScript's checker, made from the records.

`python -m specviz.views.message_types` prints `assets/web/messages.d.ts`, in which every record is an interface.
"""

import json
from typing import Any

import msgspec

from specviz.views import live, site
from specviz.views.blocks import PageBlock, PageControl, PageRecord
from specviz.views.compare import side_by_side_player
from specviz.views.explore import panels, run_file
from specviz.views.explore.message import DraftPart
from specviz.views.learn import draft_game, predict
from specviz.views.learn.plan import PlanEntry

MODULES = (panels, run_file, side_by_side_player, draft_game, predict, site, live)
"""The modules that define records, each with those that it imports."""
FAMILIES = (PageBlock, PageControl, DraftPart, PlanEntry)
"""The records that stand for any of their kinds."""
PLAIN = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}
REFERENCE = "#/$defs/{name}"


def definitions() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each record by its name; a field with a default is required, since it is always sent."""
    _, schemas = msgspec.json.schema_components(_kinds_of(PageRecord), ref_template=REFERENCE)
    for schema in schemas.values():
        fields = schema.get("properties", {}).items()
        sent = [name for name, field in fields if "default" in field]
        schema["required"] = [*schema.get("required", ()), *sent]
    for family in FAMILIES:
        names = sorted(kind.__name__ for kind in family.__subclasses__())
        kinds = [{"$ref": REFERENCE.format(name=name)} for name in names]
        schemas[family.__name__] = {"description": family.__doc__, "anyOf": kinds}
    return schemas


def _kinds_of(record: type[PageRecord]) -> list[type[PageRecord]]:
    """The records that are kinds of this one, with their own kinds."""
    kinds = []
    for kind in record.__subclasses__():
        kinds += [kind, *_kinds_of(kind)]
    return kinds


def type_declarations() -> str:
    """The content of assets/web/messages.d.ts."""
    parts = [
        "// Made by `python -m specviz.views.message_types` from the records that Python sends."
    ]
    for name, schema in sorted(definitions().items()):
        parts.append(f"/** {schema['description']} */\n{_declaration(name, schema)}")
    return "\n\n".join(parts) + "\n"


def _declaration(name: str, schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        return f"export type {name} = {_type_of(schema)};"
    lines = []
    for field, value in schema["properties"].items():
        mark = "" if field in schema["required"] else "?"
        lines.append(f"  {field}{mark}: {_type_of(value)};")
    return "\n".join([f"export interface {name} {{", *lines, "}"])


def _type_of(schema: dict[str, Any]) -> str:
    """The TypeScript type of a value with this schema."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type_of(option) for option in schema["anyOf"])
    kind = schema.get("type")
    if kind == "array":
        return _array_type(schema)
    if kind == "object":
        return f"Record<string, {_type_of(schema.get('additionalProperties') or {})}>"
    return PLAIN.get(kind, "any")


def _array_type(schema: dict[str, Any]) -> str:
    if "prefixItems" in schema:
        items = [_type_of(item) for item in schema["prefixItems"]]
        return f"[{', '.join(items)}]"
    return f"Array<{_type_of(schema.get('items') or {})}>"


if __name__ == "__main__":
    print(type_declarations(), end="")
