"""The application as Lambda runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from mangum import Mangum
from mangum.types import ASGI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card, load_extended_card
from a2a_serverless.http.context import request_id
from a2a_serverless.http.handler import Entrypoint
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.observability.logs import log_context
from a2a_serverless.settings import load_settings
from a2a_serverless.wiring import aws_backends

TEXT_TYPES = ["text/", "application/json", "application/a2a+json", "text/event-stream"]
"""Types of bodies that API Gateway passes on as they are; all others are sent in base64."""

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
    """Return the handler of API Gateway's events, for any stage.

    A named stage is the first segment of every path; the application sees the path without it and
    knows it as its root path.
    """
    adapters: dict[str, Mangum] = {}

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        base = _base_path(event)
        if base not in adapters:
            adapters[base] = Mangum(
                _below(app, base),
                lifespan="off",
                api_gateway_base_path=base or "/",
                text_mime_types=TEXT_TYPES,
            )
        try:
            with log_context(request_id=getattr(context, "aws_request_id", None)):
                return adapters[base](event, context)
        finally:
            metrics.flush()

    return handler


def observed(app: ASGIApp) -> ASGIApp:
    """Return the application with logs and metrics, for use behind the Lambda Web Adapter.

    An environment is frozen as soon as the answer is complete: metrics are written with its end.
    """
    # The adapter names the trace of each request; none belongs to the trace of the server's start.
    os.environ.pop(tracing.INVOCATION, None)

    async def observing(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        try:
            with log_context(request_id=request_id(headers)):
                await app(scope, receive, send)
        finally:
            metrics.flush()

    return observing


def _base_path(event: dict[str, Any]) -> str:
    request = event.get("requestContext", {})
    stage, path = request.get("stage", "$default"), request.get("http", {}).get("path", "")
    in_stage = path == f"/{stage}" or path.startswith(f"/{stage}/")
    return f"/{stage}" if in_stage else ""


def _below(app: ASGIApp, base: str) -> ASGI:
    async def rooted(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "root_path": base, "path": scope["path"] or "/"}, receive, send)

    return rooted
