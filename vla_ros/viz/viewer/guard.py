"""Access to the page. It commands a robot, so a stranger's web page must not reach it.

A browser lets any page open a web socket to this machine; what it cannot do is lie about
where that page came from. So a request whose Origin is another host than it asks for is refused, on
localhost also one that calls this machine by another name (DNS rebinding), and elsewhere one
without the token.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

COOKIE = "vla_ros_view"
#: The page asks for it where it hears nothing: whether this server can still be reached.
ALIVE = "/alive"
#: Headers of every response: no page frames this one, to have its buttons pressed unseen.
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
}
_ASK = (
    "<!doctype html><title>vla-ros view</title><body style='font-family:sans-serif;margin:3em'>"
    "<p>This page needs its token: it stands at the end of the address that the view printed."
    "<form><input name=token autofocus placeholder=token> <button>Open</button></form>"
)


@dataclass(frozen=True, slots=True)
class GuardAnswer:
    """The response in place of the page."""

    status: HTTPStatus
    headers: Mapping[str, str]
    body: str


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address to bind to."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class PageGuard:
    """``token`` empty: it is bound to this machine alone and asks for none."""

    token: str = ""

    def judge(self, path: str, headers: Mapping[str, str]) -> GuardAnswer | None:
        """None: let it pass. ``headers`` by their names in lower case."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return _refused(f"a page of {origin} may not speak to the view at {host}")
        if not self.token:
            if not is_loopback(_hostname(host)):
                return _refused("the view answers to localhost only")
            return _passed(path)
        if self._is(_cookie(headers.get("cookie", ""))):
            return _passed(path)
        given = parse_qs(urlsplit(path).query).get("token", [""])[0]
        if not self._is(given):
            return GuardAnswer(HTTPStatus.UNAUTHORIZED, {"Content-Type": "text/html"}, _ASK)
        # The token leaves the address, so that it is in no history and on no screenshot.
        kept = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        return GuardAnswer(HTTPStatus.SEE_OTHER, {"Location": "/", "Set-Cookie": kept}, "")

    def _is(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def _hostname(host: str) -> str:
    return urlsplit(f"//{host}").hostname or ""


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _passed(path: str) -> GuardAnswer | None:
    return GuardAnswer(HTTPStatus.OK, {}, "alive") if path == ALIVE else None


def _refused(why: str) -> GuardAnswer:
    return GuardAnswer(HTTPStatus.FORBIDDEN, {"Content-Type": "text/plain"}, f"{why}\n")
