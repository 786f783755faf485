"""A way to a server that adds headers to requests, for clients that have no credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

_BETWEEN_TWO = {b"connection", b"keep-alive", b"transfer-encoding"}
"""Headers of one connection, which are not passed on."""


def key_proxy(target: str, added: Mapping[str, str]) -> Starlette:
    """Return an application that passes requests on to `target`, and answers while they come.

    Args:
        target: the server's URL, without a path.
        added: headers of every request, in place of those of the same name.
    """
    extra = [(name.lower().encode(), value.encode()) for name, value in added.items()]
    replaced = _BETWEEN_TWO | {b"host"} | {name for name, _ in extra}

    @asynccontextmanager
    async def connected(_: Starlette) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
        no_limits = httpx.Timeout(None)  # the client has its own
        async with httpx.AsyncClient(timeout=no_limits, trust_env=False) as client:
            yield {"client": client}

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        request = httpx.Request(
            scope["method"],
            httpx.URL(target).copy_with(raw_path=path),
            headers=[pair for pair in scope["headers"] if pair[0] not in replaced] + extra,
            content=await Request(scope, receive).body(),
        )
        client: httpx.AsyncClient = scope["state"]["client"]
        answer = await client.send(request, stream=True)
        passed_on = StreamingResponse(_body(answer), status_code=answer.status_code)
        passed_on.raw_headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.lower() not in _BETWEEN_TWO
        ]
        await passed_on(scope, receive, send)

    return Starlette(routes=[Mount("/", serve)], lifespan=connected)


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
