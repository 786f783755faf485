"""What stands before the application: who and what is admitted, and the headers of answers."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import ceil
from typing import Any, Final

from a2a.types import AgentCard
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE, VERSION_HEADER
from a2a.utils.errors import A2A_REASON_TO_ERROR, JSON_RPC_ERROR_CODE_MAP
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http import CALLBACKS_PATH, JSONRPC_PATHS, PUBLIC_PATHS, V0_3_PREFIX
from a2a_serverless.http.auth import Authenticator
from a2a_serverless.http.callbacks import Callbacks
from a2a_serverless.http.context import (
    EXTENSION_HEADERS,
    names_1_0,
    requested_extensions,
)
from a2a_serverless.http.errors import (
    RequestRefusedError,
    internal_error,
    response_of,
    rest_error,
)
from a2a_serverless.http.files import ServedFiles
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import PATH, ServedBlobs
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.values import dataclass

_JSON: Final = "application/json"
_PLAIN: Final = (_JSON, "application/*", "*/*")
"""The names under which `Accept` takes `application/json`."""
_WEIGHT_0: Final = re.compile(r"q=0(\.0*)?")

_BAD_REQUEST: Final = 400


def add_middleware(
    app: Starlette,
    card: AgentCard,
    settings: Settings,
    authenticator: Authenticator | None,
    storage: DurableStorage,
) -> None:
    """Put the middleware around an application: the last one that is added comes first.

    Without an authenticator every request is let through, without a principal. Callbacks are taken
    for `storage` here, and a store of blobs that has no links of its own is served.
    """
    blobs = storage.table.blobs
    rate = _Rate(settings.requests_per_s, storage.clock) if settings.requests_per_s else None
    app.add_middleware(
        _Admission,
        card=card,
        settings=settings,
        authenticator=authenticator,
        rate=rate,
        callbacks=Callbacks(storage, rate.take if rate else None),
        served=ServedFiles(blobs) if isinstance(blobs, ServedBlobs) else None,
    )
    if settings.cors_origins:
        # A browser's preflight has no credentials, and it must read refusals, too.
        app.add_middleware(CORSMiddleware, **_browser_access(settings.cors_origins))


class _Admission:
    """Checks the headers of a request, its caller, the caller's rate, and the body's length.

    What is asked below the paths of `served` and `callbacks` goes there: the link, or the token in
    its path, admits its bearer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        card: AgentCard,
        settings: Settings,
        authenticator: Authenticator | None,
        rate: _Rate | None,
        callbacks: ASGIApp,
        served: ASGIApp | None,
    ) -> None:
        self._app = app
        self._offered = frozenset(e.uri for e in card.capabilities.extensions)
        self._longest_headers = settings.max_header_bytes
        self._longest_body = settings.max_body_bytes
        self._authenticator = authenticator
        self._rate = rate
        self._callbacks = callbacks
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer, size = _Answer(Request(scope), send, self._offered), 0
        too_long = f"The body is longer than {self._longest_body} bytes."

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._longest_body:
                raise RequestRefusedError("BodyTooLarge", 413, too_long)
            return message

        try:
            if self._served is not None and scope["path"].startswith(PATH):
                answer.is_file = True
                await self._served(scope, receive, answer.send)
                return
            if scope["path"].startswith(CALLBACKS_PATH):
                answer.is_file = True
                await self._callbacks(scope, receive, answer.send)
                return
            scope = await self._admitted(scope, answer)
            # The body comes last. Its length is only what the client says, and may be missing or no
            # number; so what is read is counted as well.
            with suppress(ValueError):
                if int(Headers(scope=scope).get("content-length", "0")) > self._longest_body:
                    raise RequestRefusedError("BodyTooLarge", 413, too_long)
            await self._app(scope, receive_counted, answer.send)
        except RequestRefusedError as error:
            # Also one of `receive_counted`: no operation answers before it has read the body.
            await response_of(error, scope["path"])(scope, receive, answer.send)
        except Exception as error:
            # An error of the runtime's own, in a check or in a route. An answer that has begun
            # cannot be replaced.
            if answer.has_begun:
                raise
            await rest_error(internal_error(error, "http_request"))(scope, receive, answer.send)

    async def _admitted(self, scope: Scope, answer: _Answer) -> Scope:
        """Return the scope with its caller, once all but the body has been checked."""
        headers, limit = Headers(scope=scope), self._longest_headers
        # Lengths come first, so that no long credentials are read.
        if sum([len(name) + len(value) for name, value in scope["headers"]]) > limit:
            message = f"The headers are longer than {limit} bytes."
            raise RequestRefusedError("HeadersTooLarge", 431, message)
        if len(scope["path"]) + len(scope["query_string"]) > limit:
            message = f"The path and query are longer than {limit} bytes."
            raise RequestRefusedError("UriTooLong", 414, message)
        # Before any code that looks for an address, such as the request's URL.
        check_addresses(headers.items())
        if scope["path"] in PUBLIC_PATHS:
            return scope
        # A cache between us and the clients does not look at X-API-Key, and would give one caller's
        # answer to another. Refusals from here on depend on the caller, too.
        answer.is_private = True
        if self._authenticator is not None:
            scope = {**scope, "user": await self._authenticator.authenticate(headers)}
        # After the key is checked: a stranger must not use up the requests of a caller.
        if self._rate is not None:
            self._rate.take(getattr(scope.get("user"), "user_name", ""))
        return scope


# -- addresses -------------------------------------------------------------------------------


def _listed(form: str) -> re.Pattern[str]:
    """Return the pattern of a header with one value for each proxy, separated by commas."""
    return re.compile(rf"(?:{form})(?:\s*,\s*(?:{form}))*", re.ASCII | re.IGNORECASE)


_NAME: Final = r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])"
_PORT: Final = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[1-5]?\d{1,4})"
_FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "host": (re.compile(f"{_NAME}(?::{_PORT})?", re.ASCII), "the name of a host, and a port"),
    "x-forwarded-host": (_listed(f"{_NAME}(?::{_PORT})?"), "names of hosts"),
    "x-forwarded-port": (_listed(_PORT), "numbers of ports"),
    "x-forwarded-proto": (_listed("https?|wss?"), "http or https"),
    "x-forwarded-for": (_listed(r"[A-Za-z0-9._:\[\]%-]{1,255}"), "addresses"),
}
"""Headers in which servers, proxies and frameworks look for an address."""


def check_addresses(headers: Iterable[tuple[str, str]]) -> None:
    """Refuse a malformed header about hosts and proxies.

    No client needs to send such a header, and libraries raise all kinds of errors on it.

    Raises:
        RequestRefusedError: names the first of them.
    """
    for name, value in headers:
        form, meaning = _FORMS.get(name.lower(), (None, ""))
        if form is not None and form.fullmatch(value.strip()) is None:
            message = f"The header {name.title()} is malformed: send {meaning}, or leave it out."
            raise RequestRefusedError("MalformedHeader", 400, message)


# -- rates -----------------------------------------------------------------------------------


class _Rate:
    """Limits a caller to `rate` requests per second.

    A caller has a bucket that holds two seconds' worth of requests and fills at `rate`; if callers
    are not known, they share one. The buckets belong to this process: in Lambda each environment
    has its own. All environments together are limited by the throttling of the API and the reserved
    concurrency of the functions.
    """

    MAX_BUCKETS = 10_000
    """The most buckets; beyond it the least recently used is dropped, and so is full again."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate = rate
        self._size = max(1.0, 2 * rate)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Take one request out of the caller's bucket.

        Raises:
            RequestRefusedError: the bucket is empty; says when the next request is in it.
        """
        now = self._clock.monotonic()
        left, at = self._buckets.pop(caller, (self._size, now))
        left = min(self._size, left + (now - at) * self._rate)
        self._buckets[caller] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > self.MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if left < 1:
            message = f"You have sent more than {self._rate:g} requests per second."
            headers = {"Retry-After": str(ceil((1 - left) / self._rate))}
            raise RequestRefusedError("TooManyRequests", 429, message, headers)


# -- answers ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Answer:
    """Sends the answer to a request with the media type, extensions and form of its errors.

    One rule gives every answer its type. A stream is `text/event-stream`. A result of HTTP+JSON 1.0
    is `application/a2a+json` (section 11.1), unless its caller sends `application/json`, or accepts
    only `application/json` of the two. An error of it is `application/json`, unless its caller
    accepts only `application/a2a+json` of the two. All other answers are `application/json`:
    JSON-RPC, 0.3, the card. The routes give these types already; this class only applies the
    caller's choice. So refusals have the right type, too.

    `A2A-Extensions` names the card's extensions that the caller has declared; so does the header's
    former name, for callers that have used it.

    Every error has the form of before 1.0, unless its request is of 1.0: that of an unknown path,
    of a body that is too long and of a missing key, too. Making it loads none of the models of 0.3.
    """

    _request: Request
    _send: Send
    _offered: frozenset[str]
    is_private: bool = False
    """True for an answer that no cache may keep."""
    is_file: bool = False
    """True for a file, whose headers its link has fixed, and for a refusal of its link."""
    has_begun: bool = False
    _error: tuple[Message, Callable[[bytes], bytes]] | None = None
    """An error's beginning, whose length is not known before the body, and the body's form."""

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            if self.is_file:
                await self._send(message)
                return
            self._negotiate(message)
            formed = _former_form(self._request) if message["status"] >= _BAD_REQUEST else None
            if formed is not None:
                self._error = message, formed
                return
        elif self._error is not None:
            start, formed = self._error
            message = {**message, "body": formed(message["body"])}
            MutableHeaders(scope=start)["content-length"] = str(len(message["body"]))
            self._error = None
            await self._send(start)
        await self._send(message)

    def _negotiate(self, beginning: Message) -> None:
        headers = MutableHeaders(scope=beginning)
        if self.is_private:
            headers.setdefault("Cache-Control", "no-store")
        if beginning["status"] >= _BAD_REQUEST:
            headers["content-type"] = _error_type(self._request)
        elif headers.get("content-type") == A2A_JSON_MEDIA_TYPE and self._wants_plain_json():
            headers["content-type"] = _JSON
        if active := sorted(self._offered & requested_extensions(self._request)):
            names = [name for name in EXTENSION_HEADERS if name in self._request.headers]
            headers.update({name: ", ".join(active) for name in names})

    def _wants_plain_json(self) -> bool:
        takes = _named_in_accept(self._request)
        if A2A_JSON_MEDIA_TYPE in takes:
            return not takes[A2A_JSON_MEDIA_TYPE]
        sends_json = self._request.headers.get("content-type", "").lower().startswith(_JSON)
        return takes.get(_JSON, sends_json)


def is_rest_1_0(path: str) -> bool:
    """Return True for a path of HTTP+JSON 1.0, and for one at which nothing is served."""
    return path not in JSONRPC_PATHS | PUBLIC_PATHS and not path.startswith(V0_3_PREFIX)


def _error_type(request: Request) -> str:
    """Return the media type of an error (A2A 1.0.1, section 11.6)."""
    takes = _named_in_accept(request)
    is_taken = takes.get(A2A_JSON_MEDIA_TYPE) and not any(map(takes.get, _PLAIN))
    return A2A_JSON_MEDIA_TYPE if is_taken and is_rest_1_0(request.scope["path"]) else _JSON


def _named_in_accept(request: Request) -> dict[str, bool]:
    """Return the media types that `Accept` names, and False for those of weight 0.

    It may be sent in several lines, and a weight of 0 refuses a type (RFC 9110, section 12.5.1).
    """
    takes: dict[str, bool] = {}
    for entry in ",".join(request.headers.getlist("accept")).lower().split(","):
        media_type, *parameters = map(str.strip, entry.split(";"))
        takes[media_type] = not any(map(_WEIGHT_0.fullmatch, parameters))
    return takes


def _former_form(request: Request) -> Callable[[bytes], bytes] | None:
    """Return the function that gives the body of an error the form of before 1.0.

    None for a request that says that it is of 1.0, and for a path that is neither that of JSON-RPC
    nor below `/v1/`.
    """
    path: str = request.scope["path"]
    is_rest = path.startswith(V0_3_PREFIX)
    if not is_rest and path not in JSONRPC_PATHS:
        return None
    if names_1_0(request):
        return None
    return _with_code if is_rest else _without_details


def _without_details(body: bytes) -> bytes:
    """Return the body of an error over JSON-RPC without the typed details, which only 1.0 has."""
    content = json.loads(body)
    if isinstance(content["error"].get("data"), list):
        del content["error"]["data"]
    return json.dumps(content).encode()


def _with_code(body: bytes) -> bytes:
    """Return the body of an error, the protocol's or HTTP's, with code and message at its top.

    The code is that of JSON-RPC (0.3, section 8); HTTP's own errors have no such code.
    """
    content = json.loads(body)
    error = content["error"]
    reasons = [detail.get("reason") for detail in error.get("details", [])]
    kinds = [A2A_REASON_TO_ERROR[reason] for reason in reasons if reason in A2A_REASON_TO_ERROR]
    codes = [JSON_RPC_ERROR_CODE_MAP[kind] for kind in kinds if kind in JSON_RPC_ERROR_CODE_MAP]
    top = {"code": codes[0] if codes else error["code"], "message": error["message"]}
    return json.dumps({**content, **top}).encode()


# -- pages in browsers -----------------------------------------------------------------------

ANY_ORIGIN: Final = "*"
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.\-\[\]:]+", re.IGNORECASE)
_SENT: Final = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-Modified-Since",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
    "X-API-Key",
    VERSION_HEADER,
    *EXTENSION_HEADERS,
)


def origins_of(text: str) -> tuple[str, ...]:
    """Return the origins of a setting, in lower case; `*` stands for every origin.

    Raises:
        ConfigurationError: one is no origin, such as a URL with a path.
    """
    origins = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
            msg = f"A2A_CORS_ORIGINS: {origin!r} is no origin: write https://HOST, without a path."
            raise ConfigurationError(msg)
    return origins


def _browser_access(text: str) -> dict[str, Any]:
    """Return the arguments of Starlette's CORSMiddleware for a setting, see `origins_of`.

    They say which pages may call, and what they may send and read (Fetch, CORS). Pages may not send
    cookies, because callers are not recognised by cookies.
    """
    return {
        "allow_origins": origins_of(text),
        "allow_methods": ("GET", "POST", "PUT", "DELETE"),
        "allow_headers": _SENT,
        "expose_headers": ("Retry-After", "WWW-Authenticate", *EXTENSION_HEADERS),
        "max_age": 600,
    }
