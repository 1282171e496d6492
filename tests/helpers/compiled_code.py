"""The compiled code of this machine, for tests that read through it."""

import pytest

from specviz.decoding.forward.products import Products
from specviz.models.compiler import build
from specviz.models.memory import products


def compiled_products() -> Products:
    """Products with compiled code; the test is skipped, with the reason, where none can be built."""
    build().wait()
    found = products()
    if found.compiled is None:
        pytest.skip(f"no compiled code: {found.why_not_compiled}")
    return found
