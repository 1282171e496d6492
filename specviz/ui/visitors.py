"""Who a visitor is: the server says so, in a signed cookie. Without one, all visitors of one address are one.

A session of the page bears its visitor's name in front, and that the name of the network it came from.
"""

import hashlib
import hmac
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_network
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Scope, Send

from specviz.decoding.turns import Asker
from specviz.errors import SpecvizError

COOKIE = "specviz-visitor"
MOST_ASKED, MOST_ASKED_BY_ALL, MOST_UNHEARD = 40, 400, 48
"""Events of a browser and of a whole network in ASKED_S, of which opening a page takes about eight; and those of a
network that wait for a listener."""
ASKED_S, LISTENER_S, LEFT_S = 2.0, 10.0, 5.0
"""LISTENER_S: how long work waits for whoever asked for it to listen: a browser does so at once, but may be busy.
LEFT_S: how long it goes on when nobody listens any more, as a connection may be made anew."""
UNHEARD = "nobody listens to this run: it was not begun"


def visitor_of(session: str) -> str:
    """The visitor whose session this is; a session that came through no gate is its own visitor."""
    return session.rpartition(".")[0] or session


def network_of(visitor: str) -> str:
    return visitor.partition("-")[0]


def has_cookie(visitor: str) -> bool:
    """Whether this is one browser, and not all that came from one address without a cookie."""
    return "-" in visitor


class Visitors:
    """Issues identities, and knows which sessions somebody listens to. is_proxied: addresses are told by a proxy."""

    def __init__(self, *, is_proxied: bool = False) -> None:
        self._secret, self._is_proxied = secrets.token_bytes(32), is_proxied
        self._listening: Counter[str] = Counter()
        self._unheard: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._since, self._lock = time.monotonic(), threading.Lock()

    def of(self, scope: Scope, headers: Headers) -> str:
        """The visitor of the cookie if this server has signed it, else of the address."""
        visitor, _, signature = Request(scope).cookies.get(COOKIE, "").partition(".")
        if visitor and hmac.compare_digest(signature.encode(), self._sign(visitor).encode()):
            return visitor
        return self._sign(self._address(scope, headers))[:12]

    def issue(self, scope: Scope, send: Send) -> Send:
        """`send`, which gives the page, and nothing else, a new visitor's cookie, for all that lies beside the page. A
        frame on another site needs one of its own kind, which only https has."""
        visitor = scope["specviz_visitor"]
        if scope["path"] != "/" or has_cookie(visitor):
            return send
        visitor = f"{visitor}-{secrets.token_hex(8)}"
        is_secure = scope["scheme"] == "https" or self._is_proxied
        kind = "SameSite=None; Secure; Partitioned" if is_secure else "SameSite=Lax"
        cookie = f"{COOKIE}={visitor}.{self._sign(visitor)}; HttpOnly; {kind}"

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"set-cookie", cookie.encode())]
            await send(message)

        return with_cookie

    def admit(self, visitor: str) -> bool:
        """Whether the visitor may ask for one more event now: neither one browser nor one network fills the queue."""
        if time.monotonic() - self._since > ASKED_S:
            self._asked, self._since = Counter(), time.monotonic()
        self._asked.update({visitor, network_of(visitor)})
        is_one_too_many = has_cookie(visitor) and self._asked[visitor] > MOST_ASKED
        return self._asked[network_of(visitor)] <= MOST_ASKED_BY_ALL and not is_one_too_many

    @contextmanager
    def listening(self, name: str) -> Iterator[None]:
        """While somebody waits for news of this session or event."""
        self._listening[name] += 1
        try:
            yield
        finally:
            self._listening[name] -= 1
            if not self._listening[name]:
                del self._listening[name]

    def hears(self, *names: str | None) -> bool:
        """Whether anybody listens to any of these sessions and events."""
        return any(self._listening[name] for name in names if name)

    def await_listener(self, visitor: str, *names: str | None) -> None:
        """Raises SpecvizError where nobody begins to listen to any of these."""
        network, deadline = network_of(visitor), time.monotonic() + LISTENER_S
        with self._lock:
            self._unheard[network] += 1
        try:
            while not self.hears(*names):
                if time.monotonic() > deadline or self._unheard[network] > MOST_UNHEARD:
                    raise SpecvizError(UNHEARD)
                time.sleep(0.02)
        finally:
            with self._lock:
                self._unheard[network] -= 1

    def _address(self, scope: Scope, headers: Headers) -> str:
        """The address that the request came from; of IPv6 the part that a provider gives one customer."""
        told = (
            headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
            if self._is_proxied
            else ""
        )
        address = told or (scope.get("client") or ("",))[0]
        with suppress(ValueError):  # a proxy may write anything
            return str(ip_network((address, 64), strict=False)) if ":" in address else address
        return address

    def _sign(self, words: str) -> str:
        return hmac.new(self._secret, words.encode(), hashlib.sha256).hexdigest()[:32]


def asker_of(request: Any, event: str | None = None) -> Asker:
    """Whoever made this call, who has left when nobody has listened to its session or event for a while. Work begins
    only for those who listen: raises SpecvizError. Of a call that did not come through the gate nobody is known."""
    scope = getattr(getattr(request, "request", None), "scope", {})
    visitors, visitor = scope.get("specviz_listeners"), scope.get("specviz_visitor", "")
    if visitors is None:
        return Asker(visitor)
    names = request.session_hash, event
    visitors.await_listener(visitor, *names)
    silent_since = math.inf

    def has_left() -> bool:
        nonlocal silent_since
        silent_since = math.inf if visitors.hears(*names) else min(silent_since, time.monotonic())
        return time.monotonic() - silent_since > LEFT_S

    return Asker(visitor, has_left)


def asking_visitor(request: Any) -> str:
    """Whose call this is; all that came through no gate are one."""
    return getattr(request, "scope", {}).get("specviz_visitor", "visitor")
