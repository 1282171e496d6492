"""The QR code of a presented page: whom it leads where, read by a decoder that is not ours."""

import re
from urllib.parse import unquote

import pytest

from specviz.ui.explore.page_code import MOST_LETTERS, address_for_others, picture_of
from specviz.ui.server import typed_address

OPEN, CLOSED = "0.0.0.0", "127.0.0.1"


@pytest.mark.parametrize(
    ("own", "host", "found"),
    [
        ("https://course.example.org/hub/user/a/", CLOSED, "https://course.example.org/hub/user/a/"),
        ("http://192.168.1.7:7860/", OPEN, "http://192.168.1.7:7860/"),
        ("http://localhost:7860/", CLOSED, None),
        ("http://127.0.0.1:7860/", "localhost", None),
        ("http://[::1]:7860/", CLOSED, None),
        ("http://localhost:7860/below/", "192.168.1.7", "http://192.168.1.7:7860/below/"),
        ("http://localhost:7860/", OPEN, f"{typed_address(OPEN, 7860)}/"),
        ("javascript:alert(1)", OPEN, None),
        ("http://[", OPEN, None),
        ("http:///path", OPEN, None),
        (f"http://a.example/{'a' * MOST_LETTERS}", OPEN, None),
        (None, OPEN, None),
        (7, OPEN, None),
    ],
)
def test_the_code_leads_others_to_the_page_or_is_not_there(own, host, found):
    assert address_for_others(own, lambda: (host, 7860)) == found


@pytest.mark.parametrize("address", ["http://10.0.0.2:7860/", f"https://a.example/{'ä' * (MOST_LETTERS - 18)}"])
def test_every_address_that_is_let_through_has_a_picture_without_a_script(address):
    head, content = picture_of(address).split(",", 1)
    assert head == "data:image/svg+xml;charset=utf-8"
    assert set(re.findall(r"<(\w+)", unquote(content))) == {"svg", "path"}
