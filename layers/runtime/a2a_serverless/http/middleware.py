"""Middleware besides authentication: limits of requests, and the headers of answers."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import ceil

from a2a.types import AgentCard
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2a_serverless.clock import Clock
from a2a_serverless.http import PUBLIC_PATHS
from a2a_serverless.http.address import malformed_header
from a2a_serverless.http.context import EXTENSION_HEADERS, names_1_0, requested_extensions
from a2a_serverless.http.errors import RefusedError, response_of

_JSON = "application/json"
_WEIGHT_0 = re.compile(r"q=0(\.0*)?")

_BAD_REQUEST = 400
_CONTENT_TOO_LARGE = 413
_URI_TOO_LONG = 414
_TOO_MANY_REQUESTS = 429
_HEADERS_TOO_LARGE = 431


class HeaderLimit:
    """Refuses requests with more than `limit` bytes of headers (431), or of path and query (414).

    It also refuses malformed headers about hosts and proxies (400). It comes before authentication,
    so that no long credentials are read, and before any code that looks for an address.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._problem(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await response_of(error, scope["path"])(scope, receive, send)

    def _problem(self, scope: Scope) -> RefusedError | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._limit:
            message = f"The headers are longer than {self._limit} bytes."
            return RefusedError("HeadersTooLarge", _HEADERS_TOO_LARGE, message)
        if len(scope["path"]) + len(scope["query_string"]) > self._limit:
            message = f"The path and query are longer than {self._limit} bytes."
            return RefusedError("UriTooLong", _URI_TOO_LONG, message)
        return malformed(Headers(scope=scope).items())


def malformed(headers: Iterable[tuple[str, str]]) -> RefusedError | None:
    """Return the refusal of a request with a malformed header about hosts or proxies; or None."""
    problem = malformed_header(headers)
    return None if problem is None else RefusedError("MalformedHeader", _BAD_REQUEST, problem)


class BodyLimit:
    """Refuses bodies of more than `limit` bytes with 413, before or while they are read.

    The application's own endpoints read the body outside of any exception handler, so the exception
    for a body that is too long arrives here.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = 0

        async def receive_some() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise self._error()
            return message

        try:
            if self._announces_more(scope):
                raise self._error()
            await self._app(scope, receive_some, send)
        except RefusedError as error:
            await response_of(error, scope["path"])(scope, receive, send)

    def _error(self) -> RefusedError:
        message = f"The body is longer than {self._limit} bytes."
        return RefusedError("BodyTooLarge", _CONTENT_TOO_LARGE, message)

    def _announces_more(self, scope: Scope) -> bool:
        stated = Headers(scope=scope).get("content-length", "")
        try:
            return int(stated or "0") > self._limit
        except ValueError:
            return False


class RateLimit:
    """Refuses a caller's requests beyond `rate` per second with 429.

    A caller has a bucket that holds two seconds' worth of requests and fills at `rate`; if callers
    are not known, they share one. The buckets belong to this process: in Lambda each environment
    has its own. All environments together are limited by the throttling of the API and the reserved
    concurrency of the functions.

    Args:
        rate: requests per second and caller.
    """

    MAX_BUCKETS = 10_000
    """The most buckets; beyond it the least recently used is dropped, and so is full again."""

    def __init__(self, app: ASGIApp, *, rate: float, clock: Clock) -> None:
        self._app = app
        self._rate = rate
        self._size = max(1.0, 2 * rate)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_free = scope["type"] != "http" or scope["path"] in PUBLIC_PATHS
        wait_s = 0.0 if is_free else self._take(getattr(scope.get("user"), "user_name", ""))
        if wait_s == 0:
            await self._app(scope, receive, send)
            return
        message = f"You have sent more than {self._rate:g} requests per second."
        headers = {"Retry-After": str(ceil(wait_s))}
        error = RefusedError("TooManyRequests", _TOO_MANY_REQUESTS, message, headers)
        await response_of(error, scope["path"])(scope, receive, send)

    def _take(self, caller: str) -> float:
        """Take one request out of the caller's bucket; return 0, or the seconds until one is in."""
        now = self._clock.monotonic()
        left, at = self._buckets.pop(caller, (self._size, now))
        left = min(self._size, left + (now - at) * self._rate)
        is_free = left >= 1
        self._buckets[caller] = (left - 1 if is_free else left, now)
        if len(self._buckets) > self.MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if is_free else (1 - left) / self._rate


class ErrorForm:
    """Gives every error of some paths the form of another version, unless its request is of 1.0.

    It stands before everything that refuses requests, so that an unknown path, a body that is too
    long and a missing key are answered in this form, too.

    Args:
        has: returns True for a path that it is to be done for.
        formed: returns the body of an error, JSON in the form of 1.0, in that form.
    """

    def __init__(
        self, app: ASGIApp, *, has: Callable[[str], bool], formed: Callable[[bytes], bytes]
    ) -> None:
        self._app = app
        self._has = has
        self._formed = formed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_one = scope["type"] == "http" and self._has(scope["path"])
        if not is_one or names_1_0(Request(scope)):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_formed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= _BAD_REQUEST:
                start = message  # its length is not known before the body
                return
            if start is not None:
                message = {**message, "body": self._formed(message["body"])}
                MutableHeaders(scope=start)["content-length"] = str(len(message["body"]))
                await send(start)
                start = None
            await send(message)

        await self._app(scope, receive, send_formed)


class Negotiation:
    """Sets the answer's media type and extensions.

    One rule gives every answer its type. A stream is `text/event-stream`. A result of HTTP+JSON 1.0
    is `application/a2a+json` (section 11.1), unless its caller sends `application/json`, or accepts
    only `application/json` of the two. All other answers are `application/json`: JSON-RPC, 0.3,
    errors, the card. Answers of the SDK's routes have these types already; this class only applies
    the caller's choice.

    `A2A-Extensions` names the card's extensions that the caller has declared; so does the header's
    former name, for callers that have used it.
    """

    def __init__(self, app: ASGIApp, *, card: AgentCard) -> None:
        self._app = app
        self._offered = frozenset(e.uri for e in card.capabilities.extensions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        wants_json = _wants_plain_json(request)
        active = sorted(self._offered & requested_extensions(request))
        names = [name for name in EXTENSION_HEADERS if name in request.headers]

        async def send_negotiated(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                if wants_json and headers.get("content-type") == A2A_JSON_MEDIA_TYPE:
                    headers["content-type"] = _JSON
                if active:
                    headers.update({name: ", ".join(active) for name in names})
            await send(message)

        await self._app(scope, receive, send_negotiated)


def _wants_plain_json(request: Request) -> bool:
    takes = _named_in_accept(request)
    if A2A_JSON_MEDIA_TYPE in takes:
        return not takes[A2A_JSON_MEDIA_TYPE]
    sends_json = request.headers.get("content-type", "").lower().startswith(_JSON)
    return takes.get(_JSON, sends_json)


def _named_in_accept(request: Request) -> dict[str, bool]:
    """Return the media types that `Accept` names, and False for those of weight 0.

    It may be sent in several lines, and a weight of 0 refuses a type (RFC 9110, section 12.5.1).
    """
    takes: dict[str, bool] = {}
    for entry in ",".join(request.headers.getlist("accept")).lower().split(","):
        media_type, *parameters = (part.strip() for part in entry.split(";"))
        takes[media_type] = not any(map(_WEIGHT_0.fullmatch, parameters))
    return takes
