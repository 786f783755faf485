"""The application: both bindings over the handler, the card, and what admits a request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import formatdate, parsedate_to_datetime
from functools import cache, partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from a2a.types import AgentCard
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Message, Receive, Scope, Send

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http import CALLBACKS_PATH, CARD_PATHS, HEALTH_PATH, JWKS_PATH
from a2a_serverless.http.auth import authenticator_of
from a2a_serverless.http.bindings import Endpoint, protocol_routes, route_of
from a2a_serverless.http.card import deployed_card
from a2a_serverless.http.context import BASE_URL, base_url
from a2a_serverless.http.errors import http_error, log_refusal
from a2a_serverless.http.middleware import add_middleware
from a2a_serverless.http.operations import DurableRequestHandler, Entrypoint
from a2a_serverless.http.receivers import KeySet
from a2a_serverless.observability import spans
from a2a_serverless.observability.logs import begun
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import whole
from a2a_serverless.wiring import Backends

if TYPE_CHECKING:
    from fastapi import FastAPI

A = TypeVar("A", bound=Starlette)

_CARD_MAX_AGE_S = 300
_STRICT = ("Strict-Transport-Security", "max-age=31536000")  # a year
_SERVER_ERROR = 500
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Those that a span names; another one is any text of its client."""

_SOMEWHERE = "https://localhost"
"""The address in the card that requests are checked against; no client sees it."""

_HTTP_ERRORS: Mapping[int, tuple[str, str, str]] = {
    404: (
        "NOT_FOUND",
        "UnknownPath",
        "Nothing is served at this path: the agent card names the interfaces.",
    ),
    405: (
        "UNIMPLEMENTED",
        "UnknownMethod",
        "The path does not serve this HTTP method: the header Allow names those that it serves.",
    ),
}
"""By HTTP's status: the name of google.rpc.Code, the reason for the log, the client's sentence."""
_UNSERVED = frozenset(_HTTP_ERRORS)
_OTHER_HTTP_ERROR = ("UNKNOWN", "HttpError", "The request cannot be answered.")


def create_app(
    settings: Settings,
    backends: Backends,
    card: AgentCard,
    *,
    entrypoint: Entrypoint = "api",
    extended_card: AgentCard | None = None,
) -> FastAPI:
    """Return the application of an entrypoint; it touches no backend until a request comes.

    Args:
        settings: the deployment's choices.
        backends: storage and queues, in the anonymous scope.
        card: the agent's card; interfaces and security schemes are filled in here.
        entrypoint: how its answers go out.
        extended_card: the card of A2A_EXTENDED_CARD, for authenticated callers.

    Raises:
        ConfigurationError: A2A_AUTH does not say who may call, or A2A_CONTEXT_VARIABLES,
            A2A_PUSH_ALLOWED_HOSTS or A2A_CORS_ORIGINS has an entry that is no context variable,
            host or origin.
    """
    app = add_protocol(_described_by(card), settings, backends, card, entrypoint, extended_card)
    app.openapi = cache(partial(_openapi, app))  # type: ignore[method-assign]  # as FastAPI documents
    return app


def add_protocol(
    app: A,
    settings: Settings,
    backends: Backends,
    card: AgentCard,
    entrypoint: Entrypoint,
    extended_card: AgentCard | None = None,
) -> A:
    """Add what `create_app` does to an application without routes, and return it.

    `Application()` answers as FastAPI's does, but has no OpenAPI description.
    """
    clock = backends.storage.clock
    authenticator = authenticator_of(settings, clock)
    if extended_card is not None and authenticator is None:
        msg = 'A2A_EXTENDED_CARD needs callers that are known: A2A_AUTH is "none".'
        raise ConfigurationError(msg)

    uploads = backends.storage.table.blobs is not None

    def deployed(card: AgentCard, request: Request) -> AgentCard:
        return deployed_card(card, settings, base_url(request, settings), uploads=uploads)

    as_written, card = card, deployed_card(card, settings, _SOMEWHERE, uploads=uploads)
    handler = DurableRequestHandler(
        backends,
        card,
        settings,
        entrypoint=entrypoint,
        extended_card=None if extended_card is None else partial(deployed, extended_card),
    )
    app.router.redirect_slashes = False
    app.state.entrypoint = entrypoint
    _add_own_routes(app, backends)
    # From the author's card, because its signatures hold only if it is served unchanged.
    _add_card_routes(app, partial(deployed, as_written))
    app.router.routes.extend(protocol_routes(handler, card, settings, handler.uploads))
    add_middleware(app, card, settings, authenticator, backends.storage)
    app.add_exception_handler(HTTPException, _http_exception)  # type: ignore[arg-type]  # as Starlette documents
    return app


class Application(Starlette):
    """Answers each request as a piece of work of its own, with its refusals and its failures.

    The request is a span, of the trace that its client names, or of a new one. What comes over
    https from the gateway, whose host serves nothing else, tells browsers to stay with https (A2A
    1.0.1, section 13.4; RFC 6797). Elsewhere the owner of the host decides.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # The server's start and stop, and sockets, which no route serves: all middleware from
            # here on reads requests of HTTP alone.
            await self.router({**scope, "app": self}, receive, send)
            return
        is_strict = scope.get(BASE_URL, "").startswith("https:")
        is_known = scope["method"] in _METHODS
        is_callback = scope["path"].startswith(CALLBACKS_PATH)
        about = {
            "http.request.method": scope["method"] if is_known else "_OTHER",
            # What follows in the path of a callback ends a wait: no trace shows it.
            "url.path": CALLBACKS_PATH if is_callback else scope["path"],
            "url.scheme": scope.get("scheme"),
        }
        name = scope["method"] if is_known else "HTTP"
        given = spans.incoming(Headers(scope=scope))
        with begun(), spans.span(name, given, kind="server", attributes=about) as span:

            async def send_told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set({"http.response.status_code": status})
                    if status >= _SERVER_ERROR:
                        span.fail(str(status))
                    if is_strict:
                        MutableHeaders(scope=message).append(*_STRICT)
                await send(message)

            await super().__call__(scope, receive, send_told)


@cache
def _described() -> type[FastAPI]:
    """Return the class of the applications that describe themselves.

    Its import is a fifth of the application's, and StreamFunction describes nothing.
    """
    from fastapi import FastAPI  # noqa: PLC0415

    class Described(Application, FastAPI):
        pass

    return Described


def _described_by(card: AgentCard) -> FastAPI:
    """Return an application without routes, whose OpenAPI description has the card's texts."""
    return _described()(
        title=card.name,
        description=card.description,
        version=card.version,
        docs_url=None,
        redoc_url=None,
        # Its spans would let the client decide what is recorded, and its logs have texts of errors.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # Relative to the document's own URL, whose stage the application does not know.
        servers=[{"url": "."}],
    )


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the description of the application's routes: of the file, with the card's texts.

    `python -m website reference` writes the file.
    """
    described: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_bytes())
    served = {route.path for route in app.routes if isinstance(route, Route)}
    texts = {"title": app.title, "version": app.version, "description": app.description}
    return {
        **described,
        "info": {name: text for name, text in texts.items() if text or name != "description"},
        "paths": {path: of for path, of in described["paths"].items() if path in served},
    }


def _add_own_routes(app: Starlette, backends: Backends) -> None:
    """Add the paths besides the protocol's.

    They are Starlette's, also where FastAPI is there: its own kind makes a model of the answer, and
    the first of these loads all of pydantic.v1, a tenth of a cold start.
    """
    app.add_route(HEALTH_PATH, _health, methods=["GET"], include_in_schema=False)
    if backends.push is not None:
        keys = KeySet(backends.push.keys, backends.storage.clock)
        app.add_route(JWKS_PATH, keys.answer, ["GET"], include_in_schema=False)


def _add_card_routes(app: Starlette, card_of: Callable[[Request], AgentCard]) -> None:
    began = int(time.time())
    last_modified = formatdate(began, usegmt=True)

    async def card(request: Request) -> Response:
        # It loads the models of 0.3, whose fields the card has as well.
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict  # noqa: PLC0415

        content = whole(agent_card_to_dict(card_of(request)))
        # Weak, and without the signatures: two signatures of one card are different texts.
        unsigned = {name: value for name, value in content.items() if name != "signatures"}
        tag = sha256(json.dumps(unsigned, sort_keys=True).encode()).hexdigest()
        headers = {
            "Cache-Control": f"public, max-age={_CARD_MAX_AGE_S}",
            "ETag": f'W/"{tag}"',
            "Last-Modified": last_modified,
        }
        if _has_seen(request, tag, began):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return JSONResponse(content, headers=headers)

    for path in CARD_PATHS:
        app.router.routes.append(route_of("GET", path, card))
        app.router.routes.append(route_of("HEAD", path, _head_of(card)))


def _has_seen(request: Request, tag: str, began: int) -> bool:
    """Return True if the caller has the card with this tag, which is served since `began`.

    `If-None-Match` names it, or else `If-Modified-Since` a time from then on; where both are sent
    the tag alone counts, and a time that is none is ignored (RFC 9110, sections 13.1.2 and 13.1.3).
    """
    tags = request.headers.get("if-none-match")
    if tags is not None:
        named = {one.strip().removeprefix("W/") for one in tags.split(",")}
        return not {"*", f'"{tag}"'}.isdisjoint(named)
    try:
        since = parsedate_to_datetime(request.headers.get("if-modified-since", ""))
        return since.timestamp() >= began
    except (ValueError, OverflowError):
        return False


def _head_of(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint for HEAD: the headers of its answer to GET, and no body."""

    async def headers_alone(request: Request) -> Response:
        answer = await endpoint(request)
        return Response(status_code=answer.status_code, headers=dict(answer.headers))

    return headers_alone


async def _health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


async def _http_exception(request: Request, error: HTTPException) -> JSONResponse:
    """Answer unknown paths and methods in the form of the protocol's errors."""
    status, headers = error.status_code, dict(error.headers or {})
    allowed = _methods_at(request) if status in _UNSERVED else ()
    if allowed:
        status, headers = HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ", ".join(allowed)}
    name, reason, sentence = _HTTP_ERRORS.get(status, _OTHER_HTTP_ERROR)
    log_refusal(reason)
    response = http_error(status, name, sentence)
    response.headers.update(headers)
    return response


def _methods_at(request: Request) -> list[str]:
    """Return all methods of a path that does not serve the request's.

    Starlette names those of one route; and the routes of tenants take each path of two segments,
    and know nothing of the others.
    """
    asked: dict[str, Any] = {"type": "http", "path": request.scope["path"], "root_path": ""}
    asked["method"] = request.method
    return sorted(set(_others(request.app.routes, asked)))


def _others(routes: Sequence[BaseRoute], asked: dict[str, Any]) -> Iterator[str]:
    """Yield the methods of the routes that have the path, and serve it by other methods."""
    for route in routes:
        match, found = route.matches(asked)
        if isinstance(route, Mount) and match is Match.FULL:
            yield from _others(route.routes, {**asked, **found})
        elif isinstance(route, Route) and match is Match.PARTIAL:
            yield from route.methods or ()
