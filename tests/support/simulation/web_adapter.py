"""The Lambda Web Adapter: API Gateway's events in, requests to an application out.

Its answers are passed on while they come. On AWS an environment serves one request at a time; here
all environments share the application.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message, Receive, Send

from a2a_serverless.http.context import INVOCATION_HEADER
from a2a_serverless.http.function import CONTEXT_HEADER
from tests.support.asgi_streams import scope_of


class WebAdapter:
    """A function that is an application behind the adapter."""

    def __init__(self, app: ASGIApp, *, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def invoke(self, event: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer an event; pass the answer to `send` while it comes."""
        deadline = int((time.time() + self._timeout_s) * 1000)
        body = (event["body"] or "").encode(errors="replace")
        unread = [body]

        async def receive_body_first() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        target, headers = request_of(event, {"deadline": deadline})
        headers["content-length"] = str(len(body))
        scope = scope_of(event["httpMethod"], target, headers)
        await self._app(scope, receive_body_first, send)


def request_of(
    event: Mapping[str, Any], invocation: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    """Return target and headers of the request that the adapter makes from an event.

    Of a repeated header the last value is kept. Two headers are always the adapter's own, even if
    the client has sent them: the event's context, and that of the invocation.
    """
    query = urlencode(event["multiValueQueryStringParameters"] or {}, doseq=True)
    headers = {name.lower(): value for name, value in event["headers"].items()}
    headers[CONTEXT_HEADER] = json.dumps(event["requestContext"])
    headers[INVOCATION_HEADER] = json.dumps(invocation)
    return event["path"] + (f"?{query}" if query else ""), headers
