"""The records of a report page as tests read them."""

from collections.abc import Iterator, Sequence
from typing import get_type_hints

import msgspec
from msgspec import UNSET, Struct

from specviz.views.blocks import DetailsBlock, ExampleBlock, PageBlock, PageControl, PageSection


def kind_of(part: PageBlock | PageControl) -> str:
    """The name by which the browser draws a block or a control."""
    return part.__struct_config__.tag


def kinds(section: PageSection) -> list[str]:
    """The kinds of a section's blocks, in order."""
    return [kind_of(block) for block in section.blocks]


def every_block(shown: Sequence[PageBlock]) -> Iterator[PageBlock]:
    """Yields the blocks, and those inside each fold and each example."""
    for block in shown:
        yield block
        if isinstance(block, (DetailsBlock, ExampleBlock)):
            yield from every_block(block.blocks)


def check_record(record: Struct) -> None:
    """Checks that each value is of its field's type and can be sent. Raises msgspec.ValidationError, TypeError."""
    for name, declared in get_type_hints(type(record)).items():
        value = getattr(record, name)
        parts = value if isinstance(value, (list, tuple)) else ()
        if any(isinstance(part, Struct) for part in parts):
            for part in parts:
                check_record(part)
        elif value is not UNSET:
            msgspec.convert(msgspec.to_builtins(value), declared)
