"""Who may use the server: requests to its own address, from its own page, with the token that it printed.

The address is checked because a foreign site can point its own name at 127.0.0.1 (DNS rebinding), the origin because a
foreign page can send requests to 127.0.0.1. The token keeps out other users of the machine.
"""

import hmac
import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "[::1]")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access:
    """Rejects every request that does not come from the app's own page; adds security headers to every answer."""

    def __init__(self, app: ASGIApp, *, token: str, host: str, port: int) -> None:
        self._app = app
        self._token = token
        self._host = host
        self._port = port
        self._cookie = f"promptcal-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no web sockets
        headers = Headers(scope=scope)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        is_with_link = self._is_token(given)
        refusal = self._refusal(scope["method"], headers, is_with_link)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
                if is_with_link and refusal is None:
                    value = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    answer.append("Set-Cookie", value)
            await send(message)

        answer = self._app if refusal is None else PlainTextResponse(refusal[1], refusal[0])
        await answer(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers, is_with_link: bool) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._is_own_address(host):
            return 403, "This address is not that of the server. Open the link that promptcal serve printed."
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if not (is_with_link or self._is_token(bearer) or self._is_token(self._cookie_of(headers))):
            return 401, "The token is missing or wrong. Open the link that promptcal serve printed."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        is_own = origin == f"http://{host}"
        if origin is not None and not is_own:
            return 403, "Another site sent this request."
        if method not in ("GET", "HEAD") and not (is_own or self._is_token(bearer)):
            return 403, "This request names no origin."
        if site not in ("same-origin", "none") and (method not in ("GET", "HEAD") or not is_with_link):
            return 403, "Another site sent this request."
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _cookie_of(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value

    def _is_own_address(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if port != str(self._port):
            return False
        if name in LOCAL:
            return True
        if self._host in LOCAL:
            return False
        if name in (self._host, socket.gethostname()):
            return True
        try:  # a name can be pointed at any machine, an address cannot
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True
