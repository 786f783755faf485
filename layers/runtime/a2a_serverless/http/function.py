"""The application as Lambda runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from mangum import Mangum
from mangum.types import ASGI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.address import from_adapter, from_gateway
from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card, load_extended_card
from a2a_serverless.http.context import request_id
from a2a_serverless.http.errors import RefusedError, response_of
from a2a_serverless.http.handler import Entrypoint
from a2a_serverless.http.middleware import malformed
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.observability.logs import log_context
from a2a_serverless.settings import load_settings
from a2a_serverless.tasks.identity import is_unicode
from a2a_serverless.wiring import aws_backends

_EVERY_TYPE = [""]
"""Mangum passes an answer on as text if its media type contains one of these: here, always.

All answers of the application are text. A REST API without binary types would pass base64 on to the
client undecoded.
"""

LambdaHandler = Callable[[dict[str, Any], Any], dict[str, Any]]


def app_from_environment(entrypoint: Entrypoint, *, folder: Path) -> FastAPI:
    """Return the application of a function that is configured by `A2A_*` variables.

    Args:
        entrypoint: see `create_app`.
        folder: where a relative A2A_CARD and A2A_EXTENDED_CARD are looked for.

    Raises:
        ConfigurationError: a variable or the card is missing or wrong.
    """
    settings = load_settings()
    card = load_card(settings.card, folder=folder)
    extended_card = load_extended_card(settings, folder=folder)
    return create_app(
        settings, aws_backends(settings), card, entrypoint=entrypoint, extended_card=extended_card
    )


def lambda_handler(app: ASGIApp) -> LambdaHandler:
    """Return the handler of the events of a REST API.

    The application sees paths without the stage; the address that its card names has the stage.
    """
    adapter = Mangum(_as_served(app), lifespan="off", text_mime_types=_EVERY_TYPE)

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        try:
            with log_context(request_id=getattr(context, "aws_request_id", None)):
                refusal = _refusal(event)
                return adapter(event, context) if refusal is None else refusal
        finally:
            metrics.flush()

    return handler


def _refusal(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer to an event that Mangum cannot turn into a request; None to any other.

    That is an event with a malformed header of an address, or with a text that is not Unicode.
    """
    headers = [*_lines(event.get("headers")), *_lines(event.get("multiValueHeaders"))]
    fields = [*headers, *_lines(event.get("multiValueQueryStringParameters"))]
    path: str = event.get("path") or event.get("rawPath", "/")  # `rawPath`: of an HTTP API
    texts = [path, event.get("body") or "", *(text for field in fields for text in field)]
    if all(map(is_unicode, texts)):
        error = malformed(headers)
    else:
        message = "The request is not Unicode: send path, query, headers and body in UTF-8."
        error = RefusedError("NotUnicode", 400, message)
    if error is None:
        return None
    response = response_of(error, path)
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
    # The adapter names each request's trace: no request belongs to the trace of the server's start.
    os.environ.pop(tracing.INVOCATION, None)
    app = from_adapter(app)

    async def observing(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        try:
            with log_context(request_id=request_id(headers)):
                await app(scope, receive, send)
        finally:
            metrics.flush()

    return observing


def _as_served(app: ASGIApp) -> ASGI:
    """Return the application for scopes of Mangum; change them to those that a server makes."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        event = scope["aws.event"]
        raw_path = event.get("path") or scope["path"]
        scope = from_gateway({**scope, "raw_path": raw_path.encode()}, event["requestContext"])
        await app(scope, receive, send)

    return served
