"""The QR code by which a class opens this page, shown while the page is presented."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import segno

from specviz.ui import components
from specviz.ui.events import as_fields
from specviz.ui.server import typed_address
from specviz.ui.under_path import is_loopback
from specviz.views.explore.panels import PageCode

MOST_LETTERS = 500
"""Characters of an address; a larger code could not be read from the last row."""
OWN = "This page"
LIVE = "Each phone for itself"
"""The words for the page that generates in the browser: a class waits for no server."""
Place = Callable[[], tuple[str, int]]
"""Gives the host and the port that a page is served at, once it is."""


def add(place: Place) -> None:
    """Adds the code to the bar that is being built."""

    def codes(data: Any) -> list[PageCode]:
        """The codes of this page and of the live page: {"address"} -> none where they would lead nobody here."""
        address = address_for_others(as_fields(data).get("address"), place)
        if address is None:
            return []
        live = f"{address.removesuffix('/')}/live/"
        return [PageCode(words, to, picture_of(to)) for words, to in ((OWN, address), (LIVE, live))]

    components.panel("page-code", events=[], calls=[codes])


def address_for_others(own: Any, place: Place) -> str | None:
    """The address by which other devices reach the page, None where there is none.

    own: the browser's. Where it leads to this machine alone, the server's address in the network takes its place, if
    it has one.
    """
    if not isinstance(own, str) or len(own) > MOST_LETTERS:
        return None
    try:
        parts = urlsplit(own)
        name = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not name:
        return None
    if not is_loopback(name):
        return own
    host, port = place()
    return None if is_loopback(host) else f"{typed_address(host, port)}{parts.path}"


def picture_of(address: str) -> str:
    """The code as the address of an SVG picture, dark on light in any theme, with the edge that a reader needs."""
    return segno.make_qr(address, error="m").svg_data_uri(
        border=4, dark="#000", light="#fff", omitsize=True
    )
