"""Requests to a deployment: as a REST API hands them over, and as the adapter passes them on.

`deployed` is one of the two functions that answer clients, behind an API without its routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from a2a.types import AgentCard
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import _from_gateway, lambda_handler, observed
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.simulation.environments import Environments
from tests.support.simulation.gateway import proxy_event, response_of
from tests.support.simulation.web_adapter import WebAdapter, request_of

HOST = "abcdef1234.execute-api.eu-central-1.amazonaws.com"
"""The domain of the API itself, under which its stage is the first segment of a path."""
STAGE = "a2a"

Lines = Mapping[str, str] | Sequence[tuple[str, str]]


def rest_event(
    method: str,
    target: str,
    body: str | None = None,
    headers: Lines = (),
    *,
    stage: str = STAGE,
    domain: str = HOST,
    is_mapped: bool = False,
) -> dict[str, Any]:
    """Return the event of a request: names of headers as sent, the path too, the query decoded."""
    path, _, query = target.partition("?")
    lines = dict(headers).items() if isinstance(headers, Mapping) else headers
    return proxy_event(
        method,
        path,
        query,
        [("Host", domain), ("X-Forwarded-Proto", "https"), *lines],
        body,
        context={
            "domainName": domain,
            "path": path if is_mapped else f"/{stage}{path}",
            "stage": stage,
        },
        resource="/{tenant}/{proxy+}",
    )


def adapted(event: Mapping[str, Any], *, server: str = "http://127.0.0.1:8080") -> httpx.Request:
    """Return the request that the adapter makes of an event."""
    target, headers = request_of(event, {})
    url = httpx.URL(server).copy_with(raw_path=target.encode())
    return httpx.Request(event["httpMethod"], url, headers=headers, content=event["body"])


@contextmanager
def deployed(
    entrypoint: Entrypoint,
    settings: Settings,
    backends: Backends,
    card: AgentCard,
    *,
    extended_card: AgentCard | None = None,
) -> Iterator[ASGIApp]:
    """The application as one of the functions has it, behind an API with a domain of its own.

    Unlike in a deployment, every path and method comes to this function, so that what the two have
    in common can be asked of both.
    """
    app = create_app(settings, backends, card, entrypoint=entrypoint, extended_card=extended_card)
    if entrypoint == "stream":
        yield _streamed(WebAdapter("stream", observed(app), timeout_s=900))
        return
    function = Environments("api", lambda _: lambda_handler(app), limit=8, timeout_s=30)
    try:
        yield _buffered(function)
    finally:
        function.close()


def _buffered(function: Environments) -> ASGIApp:
    async def gateway(scope: Scope, receive: Receive, send: Send) -> None:
        answer = function.invoke(await _event(scope, receive))
        status, headers, content = response_of(await asyncio.wrap_future(answer))
        response = Response(content, status)
        response.raw_headers = headers
        await response(scope, receive, send)

    return gateway


def _streamed(function: WebAdapter) -> ASGIApp:
    async def gateway(scope: Scope, receive: Receive, send: Send) -> None:
        await function.invoke(await _event(scope, receive), receive, send)

    return gateway


async def _event(scope: Scope, receive: Receive) -> dict[str, Any]:
    """The event of a request, whose bytes are text: UTF-8, what is none replaced."""
    request = Request(scope, receive)
    target = scope["raw_path"].decode()
    if scope["query_string"]:
        target = f"{target}?{scope['query_string'].decode()}"
    body = (await request.body()).decode(errors="replace")
    headers = [line for line in request.headers.items() if line[0] != "host"]
    domain = request.headers["host"]
    return rest_event(scope["method"], target, body or None, headers, domain=domain, is_mapped=True)


def staged(app: ASGIApp, stage: str = STAGE) -> ASGIApp:
    """Return the application below the stage of a gateway on this machine; beside it is nothing."""

    async def gateway(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path != f"/{stage}" and not path.startswith(f"/{stage}/"):
            await JSONResponse({"message": "Forbidden"}, 403)(scope, receive, send)
            return
        context = {"domainName": Headers(scope=scope)["host"], "path": path}
        below = {**scope, "path": path.removeprefix(f"/{stage}") or "/"}
        await app(_from_gateway(below, context), receive, send)

    return gateway
