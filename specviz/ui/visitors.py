"""The identity of visitors: the server gives it, in a signed cookie. Without a cookie, all of one address are one
visitor.

The name of a session begins with its visitor's name, and a visitor's name begins with the name of his network.
"""

import hashlib
import hmac
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Scope, Send

from specviz.decoding.turns import Asker
from specviz.errors import SpecvizError

COOKIE = "specviz-visitor"
ASKED_S = 2.0
MOST_ASKED = 40
"""Events of one browser in ASKED_S. A page that opens takes about eight."""
MOST_ASKED_BY_ALL = 400
"""Events of a whole network in ASKED_S."""
MOST_UNHEARD = 48
"""Events of a network that wait for a listener."""
LISTENER_S = 10.0
"""Seconds that work waits until its asker listens. A browser does so at once, but may be busy."""
LEFT_S = 5.0
"""Seconds that work goes on when nobody listens any more: a lost connection may come back."""
UNHEARD = "nobody listens to this run: it was not begun"


def visitor_of(session: str) -> str:
    """The visitor who has this session. A session that came through no gate is its own visitor."""
    return session.rpartition(".")[0] or session


def network_of(visitor: str) -> str:
    return visitor.partition("-")[0]


def has_cookie(visitor: str) -> bool:
    """Whether this is one browser, and not all that came from one address without a cookie."""
    return "-" in visitor


class Visitors:
    """The identities that this server has given, and the sessions that somebody listens to."""

    def __init__(self, *, is_proxied: bool = False) -> None:
        """Begins with nobody known. is_proxied: whether a proxy tells the addresses."""
        self._secret = secrets.token_bytes(32)
        self._is_proxied = is_proxied
        self._listening: Counter[str] = Counter()
        self._unheard: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def of(self, scope: Scope, headers: Headers) -> str:
        """The visitor of the cookie if this server has signed it, else of the address."""
        visitor, _, signature = Request(scope).cookies.get(COOKIE, "").partition(".")
        if visitor and hmac.compare_digest(signature.encode(), self._sign(visitor).encode()):
            return visitor
        return self._sign(self._address(scope, headers))[:12]

    def issue(self, scope: Scope, send: Send) -> Send:
        """A `send` that gives the page, and nothing else, a new visitor's cookie, for all that lies beside the page. A
        frame on another site needs a cookie of its own kind, which only https has."""
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
        now = time.monotonic()
        if now - self._since > ASKED_S:
            self._asked = Counter()
            self._since = now
        network = network_of(visitor)
        self._asked.update({visitor, network})
        if has_cookie(visitor) and self._asked[visitor] > MOST_ASKED:
            return False
        return self._asked[network] <= MOST_ASKED_BY_ALL

    @contextmanager
    def listening(self, name: str) -> Iterator[None]:
        """Counts somebody who waits for news of this session or event, for as long as he waits."""
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
        """Waits until somebody listens to one of these sessions and events. Raises SpecvizError where nobody does."""
        network = network_of(visitor)
        deadline = time.monotonic() + LISTENER_S
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
        """The address that the request came from. For IPv6 it is the network that a provider gives to one customer."""
        address = ""
        if self._is_proxied:
            address = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        if not address:
            client = scope.get("client") or ("",)
            address = client[0]
        if ":" not in address:
            return address
        try:
            return str(ip_network((address, 64), strict=False))
        except ValueError:  # a proxy may write anything
            return address

    def _sign(self, words: str) -> str:
        return hmac.new(self._secret, words.encode(), hashlib.sha256).hexdigest()[:32]


def asker_of(request: Any, event: str | None = None) -> Asker:
    """The asker who made this call; he has left when nobody has listened to its session or event for a while. Work
    begins only for those who listen: raises SpecvizError. Nobody is known of a call that came through no gate."""
    scope = getattr(getattr(request, "request", None), "scope", {})
    visitors = scope.get("specviz_listeners")
    visitor = scope.get("specviz_visitor", "")
    if visitors is None:
        return Asker(visitor)
    names = (request.session_hash, event)
    visitors.await_listener(visitor, *names)
    silent_since = math.inf

    def has_left() -> bool:
        nonlocal silent_since
        if visitors.hears(*names):
            silent_since = math.inf
            return False
        now = time.monotonic()
        silent_since = min(silent_since, now)
        return now - silent_since > LEFT_S

    return Asker(visitor, has_left)


def runner_of(session: str) -> Asker:
    """The asker who runs in this session. The rows of his prompts are kept where he is one browser, not an address."""
    visitor = visitor_of(session)
    return Asker(visitor, keeps_rows=has_cookie(visitor))


def asking_visitor(request: Any) -> str:
    """The visitor who makes this call; all that came through no gate are one."""
    return getattr(request, "scope", {}).get("specviz_visitor", "visitor")
