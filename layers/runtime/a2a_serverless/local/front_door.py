"""API Gateway in front of the API function: requests in, Lambda invocations out.

The gateway's limits hold here too, so that what works locally works deployed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from a2a_serverless.local.api_events import api_event, response_of
from a2a_serverless.local.environments import Environments

logger = logging.getLogger(__name__)

BODY_LIMIT = 10 * 1024 * 1024
"""The most bytes of an HTTP API's request."""
RESPONSE_LIMIT = 6 * 1024 * 1024
"""The most bytes of a buffered Lambda answer."""
INTEGRATION_TIMEOUT_S = 30.0

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Response = tuple[int, list[tuple[bytes, bytes]], bytes]


class FrontDoor:
    """An ASGI application that passes every request to a Lambda function as an event."""

    def __init__(self, function: Environments) -> None:
        self._function = function

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"API Gateway's HTTP API knows no {scope['type']}.")
        body = await _read(receive)
        if body is None:
            response = _refusal(413, "Request Entity Too Large")
        else:
            response = await self._respond(api_event(scope, body))
        status, headers, content = response
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _respond(self, event: dict[str, Any]) -> Response:
        try:
            async with asyncio.timeout(INTEGRATION_TIMEOUT_S):
                answer = await asyncio.wrap_future(self._function.invoke(event))
            response = response_of(answer)
        except TimeoutError:
            return _refusal(503, "Service Unavailable")
        except Exception:
            logger.exception("The API function failed.", extra={"action": "invoke_api"})
            return _refusal(500, "Internal Server Error")
        return (
            response
            if len(response[2]) <= RESPONSE_LIMIT
            else _refusal(500, "Internal Server Error")
        )


async def _read(receive: Receive) -> bytes | None:
    """Return the request's body, None if it is longer than API Gateway takes."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(chunks)
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > BODY_LIMIT:
            return None
        if not message.get("more_body", False):
            return b"".join(chunks)


def _refusal(status: int, message: str) -> Response:
    """Return an answer of API Gateway's own."""
    content = json.dumps({"message": message}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    return status, headers, content
