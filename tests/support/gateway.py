"""Requests to a deployment: as a REST API hands them over, and as the adapter passes them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.address import from_gateway
from a2a_serverless.local.gateway import proxy_event
from a2a_serverless.local.web_adapter import request_of

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
    """Return the event of a request: names of headers as sent, the path too, the query decoded.

    Args:
        method: the request's verb.
        target: the path below the stage, and the query.
        body: text; there are no binary types.
        headers: those beside `Host` and what API Gateway adds.
        stage: the stage's name.
        domain: that of the request.
        is_mapped: True if the domain is one's own, whose root is the stage.
    """
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


def adapted(event: Mapping[str, Any]) -> httpx.Request:
    """Return the request that the adapter makes of an event."""
    target, headers = request_of(event, {})
    url = httpx.URL(scheme="http", host="127.0.0.1", port=8080, raw_path=target.encode())
    return httpx.Request(event["httpMethod"], url, headers=headers, content=event["body"])


def staged(app: ASGIApp, stage: str = STAGE) -> ASGIApp:
    """Return the application below the stage of a gateway on this machine; beside it is nothing."""

    async def gateway(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path != f"/{stage}" and not path.startswith(f"/{stage}/"):
            await JSONResponse({"message": "Forbidden"}, 403)(scope, receive, send)
            return
        context = {"domainName": Headers(scope=scope)["host"], "path": path}
        below = {**scope, "path": path.removeprefix(f"/{stage}") or "/"}
        await app(from_gateway(below, context), receive, send)

    return gateway
