"""The application as Lambda runs it, with the address by which the gateway has found it.

API Gateway gives the address in the `requestContext` of its events. A client can write no part of
that: the domain is the one by which the gateway has found the API, and the stage stands before the
path. Behind the Lambda Web Adapter the context is a header, which the adapter sets for every
request; only `observed` reads it. Everywhere else it is a client's header like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.app import Application, add_protocol, create_app
from a2a_serverless.http.card import load_card, load_extended_card
from a2a_serverless.http.context import BASE_URL, INVOCATION_HEADER, from_header
from a2a_serverless.http.errors import RequestRefusedError, response_of
from a2a_serverless.http.middleware import check_addresses
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.logs import begun, log_context
from a2a_serverless.settings import load_settings
from a2a_serverless.tasks.identity import is_unicode
from a2a_serverless.wiring import aws_backends

if TYPE_CHECKING:
    from mangum.types import ASGI

_EVERY_TYPE = [""]
"""Mangum passes an answer on as text if its media type contains one of these: here, always.

All answers of the application are text. A REST API without binary types would pass base64 on to the
client undecoded.
"""

CONTEXT_HEADER = "x-amzn-request-context"
"""The header in which the Lambda Web Adapter passes an event's `requestContext` on, in JSON."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost"})
_REQUEST_ID = re.compile(r"[0-9a-fA-F-]{1,64}")

_LambdaHandler = Callable[[dict[str, Any], Any], dict[str, Any]]


def app_from_environment(entrypoint: Entrypoint, *, folder: Path) -> Starlette:
    """Return the application of a function that is configured by `A2A_*` variables.

    Args:
        entrypoint: see `create_app`. No request for the description reaches `stream`, which does
            without FastAPI.
        folder: where a relative A2A_CARD and A2A_EXTENDED_CARD are looked for.

    Raises:
        ConfigurationError: a variable or the card is missing or wrong.
    """
    settings = load_settings()
    card = load_card(settings.card, folder=folder)
    extended = load_extended_card(settings, folder=folder)
    backends = aws_backends(settings)
    if entrypoint == "stream":
        return add_protocol(Application(), settings, backends, card, entrypoint, extended)
    return create_app(settings, backends, card, entrypoint=entrypoint, extended_card=extended)


def lambda_handler(app: ASGIApp) -> _LambdaHandler:
    """Return the handler of the events of a REST API.

    The application sees paths without the stage; the address that its card names has the stage.
    """
    from mangum import Mangum  # noqa: PLC0415 - StreamFunction has no use for it

    adapter = Mangum(_as_served(app), lifespan="off", text_mime_types=_EVERY_TYPE)

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        try:
            with log_context(request_id=getattr(context, "aws_request_id", None)):
                try:
                    _check(event)
                except RequestRefusedError as error:
                    with begun():
                        return _refused(error, event)
                return adapter(event, context)
        finally:
            # Lambda freezes the process after the answer: what is not written by then may be lost.
            metrics.flush()
            spans.flush(spans.ANSWER_S)

    return handler


def _check(event: Mapping[str, Any]) -> None:
    """Refuse an event that Mangum cannot turn into a request.

    Raises:
        RequestRefusedError: it has a malformed header of an address, or a text that is not Unicode.
    """
    headers = [*_lines(event.get("headers")), *_lines(event.get("multiValueHeaders"))]
    fields = [*headers, *_lines(event.get("multiValueQueryStringParameters"))]
    texts = [_path(event), event.get("body") or "", *(text for field in fields for text in field)]
    if not all(map(is_unicode, texts)):
        message = "The request is not Unicode: send path, query, headers and body in UTF-8."
        raise RequestRefusedError("NotUnicode", 400, message)
    check_addresses(headers)


def _path(event: Mapping[str, Any]) -> str:
    path: str = event.get("path") or event.get("rawPath", "/")  # `rawPath`: of an HTTP API
    return path


def _refused(error: RequestRefusedError, event: Mapping[str, Any]) -> dict[str, Any]:
    response = response_of(error, _path(event))
    return {
        "statusCode": response.status_code,
        "headers": dict(response.headers),
        "multiValueHeaders": {},
        "body": bytes(response.body).decode(),
        "isBase64Encoded": False,
    }


def _lines(fields: Mapping[str, str | Sequence[str]] | None) -> Iterator[tuple[str, str]]:
    """Yield name and value of each of an event's headers, or of its query's parameters."""
    for name, values in (fields or {}).items():
        for value in [values] if isinstance(values, str) else values:
            yield name, value


def observed(app: ASGIApp) -> ASGIApp:
    """Return the application with logs, metrics and address, for use behind the Lambda Web Adapter.

    The environment is frozen as soon as the answer is complete, so the metrics are written with the
    answer's end.
    """

    async def observing(scope: Scope, receive: Receive, send: Send) -> None:
        request_id = None
        if scope["type"] == "http":
            given = Headers(scope=scope)
            request_id = _request_id(given)
            # The application does not see this header, because it tells more about the caller.
            name = CONTEXT_HEADER.encode()
            headers = [header for header in scope["headers"] if header[0].lower() != name]
            context = from_header(given, CONTEXT_HEADER)
            scope = _from_gateway({**scope, "headers": headers}, context)
        try:
            with log_context(request_id=request_id):
                await app(scope, receive, send)
        finally:
            # Lambda may freeze the process after the answer: what is not written by then may be
            # lost.
            metrics.flush()
            spans.flush(spans.ANSWER_S)

    return observing


def _request_id(headers: Mapping[str, str]) -> str | None:
    """Return the id of the request's invocation, from a header of the Lambda Web Adapter."""
    found = str(from_header(headers, INVOCATION_HEADER).get("request_id", ""))
    return found if _REQUEST_ID.fullmatch(found) else None


def _as_served(app: ASGIApp) -> ASGI:
    """Return the application for scopes of Mangum; change them to those that a server makes."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        event = scope["aws.event"]
        raw_path = event.get("path") or scope["path"]
        scope = _from_gateway({**scope, "raw_path": raw_path.encode()}, event["requestContext"])
        await app(scope, receive, send)

    return served


def _from_gateway(scope: Scope, context: Mapping[str, Any]) -> Scope:
    """Return the scope of a request with the address that its `requestContext` names, if it does.

    The path in the context begins with the stage; the scope's path does not. On a custom domain
    that is mapped at its root the two paths are the same.

    The gateway of a deployment speaks https. The only other gateway is the local stack's: a domain
    that is this machine itself has the scheme `http`, and no client reaches a deployment under it.
    """
    domain, path = context.get("domainName"), context.get("path")
    if not isinstance(domain, str) or not isinstance(path, str) or not domain:
        return scope
    scheme = "http" if domain.partition(":")[0] in _LOOPBACK else "https"
    stage = _before(scope["path"], unquote(path))
    return {**scope, BASE_URL: f"{scheme}://{domain}{stage}"}


def _before(path: str, whole: str) -> str:
    """Return what stands before `path` in `whole`; a `/` at the end of either does not count."""
    path, whole = path.rstrip("/"), whole.rstrip("/")
    return whole.removesuffix(path) if whole.endswith(path) else ""
