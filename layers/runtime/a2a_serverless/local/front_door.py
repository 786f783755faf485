"""API Gateway in front of the API function: requests in, Lambda invocations out.

The gateway's limits hold here too, so that what works locally works deployed. Events have the form
of HTTP APIs, payload format 2.0:
https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from a2a_serverless.local.background import surviving
from a2a_serverless.local.environments import Environments

BODY_LIMIT = 10 * 1024 * 1024
"""The most bytes of an HTTP API's request."""
RESPONSE_LIMIT = 6 * 1024 * 1024
"""The most bytes of a buffered Lambda answer."""
INTEGRATION_TIMEOUT_S = 30.0

_TEXT_TYPES = (
    "text/",
    "application/json",
    "application/javascript",
    "application/xml",
)
"""All other bodies arrive in base64, `application/a2a+json` among them."""

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
        response = _refusal(500, "Internal Server Error")
        with surviving("The API function failed.", action="invoke_api"):
            response = await self._answer(event)
        return response  # noqa: RET504 - unchanged if the block has failed

    async def _answer(self, event: dict[str, Any]) -> Response:
        try:
            async with asyncio.timeout(INTEGRATION_TIMEOUT_S):
                answer = await asyncio.wrap_future(self._function.invoke(event))
        except TimeoutError:
            return _refusal(503, "Service Unavailable")
        response = response_of(answer)
        if len(response[2]) > RESPONSE_LIMIT:
            return _refusal(500, "Internal Server Error")
        return response


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


def api_event(scope: MutableMapping[str, Any], body: bytes) -> dict[str, Any]:
    """Return API Gateway's event for a request to the `$default` route and stage."""
    headers = _combined(scope["headers"])
    cookies = [c.strip() for c in headers.pop("cookie", "").split(";") if c.strip()]
    client = (scope.get("client") or ("127.0.0.1", 0))[0]
    query = scope["query_string"].decode("latin-1")
    host = headers.get("host", "localhost")
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": scope["path"],
        "rawQueryString": query,
        "headers": {
            **headers,
            "x-amzn-trace-id": f"Root=1-{int(time.time()):08x}-{secrets.token_hex(12)}",
            "x-forwarded-for": client,
            "x-forwarded-port": host.rpartition(":")[2] if ":" in host else "80",
            "x-forwarded-proto": scope.get("scheme", "http"),
        },
        "requestContext": {
            "accountId": "000000000000",
            "apiId": "local",
            "domainName": host.rpartition(":")[0] or host,
            "domainPrefix": "local",
            "http": {
                "method": scope["method"],
                "path": scope["path"],
                "protocol": f"HTTP/{scope['http_version']}",
                "sourceIp": client,
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": secrets.token_hex(6),
            "routeKey": "$default",
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime()),
            "timeEpoch": time.time_ns() // 1_000_000,
        },
        "isBase64Encoded": False,
    }
    if cookies:
        event["cookies"] = cookies
    if query:
        event["queryStringParameters"] = _joined(parse_qsl(query, keep_blank_values=True))
    if body:
        event |= _body(body, headers.get("content-type", ""))
    return event


def response_of(answer: Any) -> Response:
    """Return status, headers and body of the function's answer.

    Raises:
        TypeError, KeyError, ValueError: the answer does not have the form that API Gateway takes.
    """
    body = answer.get("body") or ""
    content = base64.b64decode(body) if answer.get("isBase64Encoded") else body.encode()
    headers = [
        (name.lower().encode("latin-1"), str(value).encode("latin-1"))
        for name, value in (answer.get("headers") or {}).items()
        if name.lower() not in {"content-length", "transfer-encoding", "connection"}
    ]
    headers += [(b"set-cookie", cookie.encode("latin-1")) for cookie in answer.get("cookies", ())]
    headers.append((b"content-length", str(len(content)).encode()))
    return int(answer["statusCode"]), headers, content


def _combined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return _joined((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return each name once, its values joined by commas, as payload format 2.0 has them."""
    joined: dict[str, str] = {}
    for name, value in pairs:
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined


def _body(body: bytes, content_type: str) -> dict[str, Any]:
    if content_type.lower().startswith(_TEXT_TYPES):
        try:
            return {"body": body.decode(), "isBase64Encoded": False}
        except UnicodeDecodeError:
            pass
    return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
