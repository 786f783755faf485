"""API Gateway in front of the functions: requests in, Lambda invocations out.

`local/routes.py` reads the routes and the gateway's own answers from template.yaml. The gateway's
limits apply here too, so that what works locally also works deployed. Events have the form of REST
APIs:
https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html

Answers differ from a deployment's in one point: API Gateway renames some headers of a function's
answer to `x-amzn-Remapped-…`, among them `WWW-Authenticate`. Here they keep their names, so that a
client understands that it is asked for credentials.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from a2a_serverless_tools.cloud.routes import Route, Routes
from a2a_serverless_tools.local.background import surviving
from tests.support.simulation.environments import Environments, ThrottledError
from tests.support.simulation.routes import Refusal
from tests.support.simulation.throttle import Throttle
from tests.support.simulation.web_adapter import WebAdapter

logger = logging.getLogger(__name__)

BODY_LIMIT: Final = 10 * 1024 * 1024
"""The most bytes of a request to a REST API."""
HEADER_LIMIT: Final = 10_240
"""The most bytes of a request's line and headers together."""
PAYLOAD_LIMIT: Final = 6 * 1024 * 1024
"""The most bytes of an event, and of an answer in one piece, as JSON."""
_OF_IAM_CALLERS: Final = (
    "accessKey",
    "accountId",
    "apiKey",
    "caller",
    "cognitoAuthenticationProvider",
    "cognitoAuthenticationType",
    "cognitoIdentityId",
    "cognitoIdentityPoolId",
    "principalOrgId",
    "user",
    "userArn",
)
"""Members of an event's `identity` that are null, because no caller is authenticated by IAM."""
IDLE_LIMIT_S: Final = 300.0
"""The longest silence in a streamed answer, in seconds."""

_NO_STAGE: Final = "local"
"""The stage's name in events if no path has a stage."""

Response = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body of an answer."""

Pairs = Iterable[tuple[str, str]]

_HOP_BY_HOP: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})


class Gateway:
    """An ASGI application that passes each request to the function of its route."""

    def __init__(
        self,
        routes: Routes,
        refusals: Mapping[str, Refusal],
        *,
        buffered: Mapping[str, Environments],
        streamed: Mapping[str, WebAdapter],
        stage: str = "",
        throttle: Throttle | None = None,
    ) -> None:
        self._routes = routes
        self._refusals = refusals
        self._buffered = buffered
        self._streamed = streamed
        self._stage = stage
        self._prefix = f"/{stage}" if stage else ""
        self._throttle = throttle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"API Gateway's REST API knows no {scope['type']}.")
        whole_path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        path = whole_path.removeprefix(self._prefix) or "/"
        if not whole_path.startswith(self._prefix) or not path.startswith("/"):
            return await _send(send, _forbidden())
        if _line_and_headers(scope) > HEADER_LIMIT:
            return await _send(send, self._refusal("DEFAULT_4XX"))
        route = self._routes.find(scope["method"], path)
        if route is None:
            return await _send(send, self._refusal("MISSING_AUTHENTICATION_TOKEN"))
        if self._throttle is not None and not self._throttle.takes(route):
            what = f"{route.method} of {route.resource}"
            logger.warning("%s gets too many requests.", what, extra={"action": "throttled"})
            return await _send(send, self._refusal("THROTTLED"))
        body = await _read(receive)
        context = {"path": whole_path, "stage": self._stage or _NO_STAGE}
        event = None if body is None else event_of(scope, path, body, route, context)
        if event is None or _size(event) > PAYLOAD_LIMIT:
            return await _send(send, self._refusal("REQUEST_TOO_LARGE"))
        if route.streams:
            return await self._stream(route, event, receive, send)
        return await _send(send, await self._answer(route, event))

    async def _answer(self, route: Route, event: dict[str, Any]) -> Response:
        """Return the answer of a function that answers in one piece, or the gateway's own."""
        with surviving(f"{route.function} failed.", action="invoke"):
            try:
                async with asyncio.timeout(route.timeout_s) as limit:
                    invoked = self._buffered[route.function].invoke(event)
                    answer = await asyncio.wrap_future(invoked)
            except ThrottledError as error:
                logger.warning("%s", error, extra={"action": "throttled"})
            except TimeoutError:
                if limit.expired():
                    return self._refusal("INTEGRATION_TIMEOUT")
                raise
            else:
                return response_of(answer)
        return self._refusal("DEFAULT_5XX")

    async def _stream(
        self, route: Route, event: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        """Pass a function's answer on while it comes; cut it off if the function breaks it off."""
        has_begun = False
        now = asyncio.get_running_loop().time

        async def pass_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)
            if not silence.expired():
                silence.reschedule(now() + IDLE_LIMIT_S)

        refusal = "DEFAULT_5XX"
        with surviving(f"{route.function} failed.", action="invoke"):
            try:
                async with (
                    asyncio.timeout(route.timeout_s) as limit,
                    asyncio.timeout(IDLE_LIMIT_S) as silence,
                ):
                    await self._streamed[route.function].invoke(event, receive, pass_on)
            except ThrottledError as error:
                logger.warning("%s", error, extra={"action": "throttled"})
            except TimeoutError:
                if not (limit.expired() or silence.expired()):
                    raise
                refusal = "INTEGRATION_TIMEOUT"
        if not has_begun:
            await _send(send, self._refusal(refusal))

    def _refusal(self, kind: str) -> Response:
        """Return one of the gateway's own answers."""
        refusal = self._refusals[kind]
        return _json(refusal.status, refusal.body, refusal.headers)


def proxy_event(
    method: str,
    path: str,
    query: str,
    headers: Pairs,
    body: str | None,
    *,
    context: Mapping[str, Any],
    resource: str,
    path_parameters: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return API Gateway's event for a request."""
    listed = _listed(headers)
    queries = _listed(parse_qsl(query, keep_blank_values=True))
    return {
        "resource": resource,
        "path": path,
        "httpMethod": method,
        "headers": _last(listed),
        "multiValueHeaders": listed,
        "queryStringParameters": _last(queries) or None,
        "multiValueQueryStringParameters": queries or None,
        "pathParameters": dict(path_parameters or {}) or None,
        "stageVariables": None,
        "requestContext": _request_context(method, resource, listed, context),
        "body": body,
        "isBase64Encoded": False,
    }


def _request_context(
    method: str,
    resource: str,
    headers: Mapping[str, Sequence[str]],
    context: Mapping[str, Any],
) -> dict[str, Any]:
    """Return an event's `requestContext`, with what `context` adds to it."""
    lines = {name.lower(): values[-1] for name, values in headers.items()}
    now = time.time()
    return {
        "accountId": "000000000000",
        "apiId": "local",
        "deploymentId": "local",
        "domainPrefix": str(context["domainName"]).partition(".")[0],
        "extendedRequestId": secrets.token_urlsafe(11),
        "httpMethod": method,
        "identity": {
            **dict.fromkeys(_OF_IAM_CALLERS),
            "sourceIp": lines.get("x-forwarded-for", "").rpartition(",")[2].strip(),
            "userAgent": lines.get("user-agent"),
        },
        "protocol": "HTTP/1.1",
        "requestId": str(uuid.uuid4()),
        "requestTime": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now)),
        "requestTimeEpoch": int(now * 1000),
        "resourceId": "local",
        "resourcePath": resource,
        **context,
    }


def event_of(
    scope: Scope, path: str, body: bytes, route: Route, context: Mapping[str, str]
) -> dict[str, Any]:
    """Return the event of a request to this machine. Body bytes that are no text are lost."""
    sent = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name.decode("latin-1") not in _HOP_BY_HOP
    ]
    lines = dict(sent)
    host = lines.get("host", "localhost")
    hops = [lines.get("x-forwarded-for", ""), (scope.get("client") or ("127.0.0.1", 0))[0]]
    trace = f"Root=1-{int(time.time()):08x}-{secrets.token_hex(12)}"
    added = {
        "x-amzn-trace-id": lines.get("x-amzn-trace-id", trace),
        "x-forwarded-for": ", ".join(hop for hop in hops if hop),
        "x-forwarded-port": host.rpartition(":")[2] if ":" in host else "80",
        "x-forwarded-proto": scope.get("scheme", "http"),
    }
    headers = [(name, value) for name, value in sent if name not in added]
    return proxy_event(
        scope["method"],
        path,
        scope["query_string"].decode("latin-1"),
        [*headers, *added.items()],
        body.decode("utf-8", "replace") or None,
        context={"domainName": host, **context},
        resource=route.resource,
        path_parameters=route.path_parameters,
    )


def response_of(answer: Any) -> Response:
    """Return status, headers and body of the function's answer.

    A body in base64 stays as it is: the API has no binary types.
    """
    if _size(answer) > PAYLOAD_LIMIT:
        raise ValueError(f"the answer is longer than {PAYLOAD_LIMIT} bytes")
    content = (answer.get("body") or "").encode()
    listed: dict[str, Sequence[str]] = {
        name.lower(): [str(value)] for name, value in (answer.get("headers") or {}).items()
    }
    for name, values in (answer.get("multiValueHeaders") or {}).items():
        listed[name.lower()] = values
    headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, values in listed.items()
        for value in values
        if name not in _HOP_BY_HOP
    ]
    headers.append((b"content-length", str(len(content)).encode()))
    return int(answer["statusCode"]), headers, content


async def _read(receive: Receive) -> bytes | None:
    """Return the request's body; None if it is longer than API Gateway accepts."""
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


async def _send(send: Send, response: Response) -> None:
    status, headers, content = response
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _forbidden() -> Response:
    """Return the answer to a path that is of no stage, and so of no API."""
    return _json(HTTPStatus.FORBIDDEN, json.dumps({"message": "Forbidden"}), {})


def _json(status: int, body: str, headers: Mapping[str, str]) -> Response:
    content = body.encode()
    lines = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        **{name.lower(): value for name, value in headers.items()},
    }
    return status, [(name.encode(), value.encode()) for name, value in lines.items()], content


def _line_and_headers(scope: Scope) -> int:
    line = len(scope["path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) for name, value in scope["headers"])


def _size(payload: Any) -> int:
    return len(json.dumps(payload, ensure_ascii=False).encode())


def _listed(pairs: Pairs) -> dict[str, list[str]]:
    listed: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in pairs:
        listed[name].append(value)
    return dict(listed)


def _last(listed: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: values[-1] for name, values in listed.items()}
