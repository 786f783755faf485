"""Requests to a deployment: as a REST API hands them over, and as the adapter passes them on.

`front` is the API by template.yaml with both functions behind it, on this machine; `deployed` is
one of the two behind an API without its routes.
"""

import asyncio
import json
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import httpx
from a2a.types import AgentCard
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2a_serverless.http.app import create_app
from a2a_serverless.http.context import INVOCATION_HEADER
from a2a_serverless.http.function import CONTEXT_HEADER, lambda_handler, observed
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.asgi_streams import scope_of
from tests.support.handlers import event_file
from tests.support.simulation.environments import Environments
from tests.support.template import Template, refusals, routes_of

HOST = "abcdef1234.execute-api.eu-central-1.amazonaws.com"
"""The domain of the API itself, under which its stage is the first segment of a path."""
STAGE = "a2a"
PAYLOAD_LIMIT: Final = 6 * 1024 * 1024
"""The most bytes of an event, and of an answer in one piece, as JSON."""

Lines = Mapping[str, str] | Sequence[tuple[str, str]]
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body."""
Function = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
"""Answers an event, while the answer comes."""


def rest_event(
    method: str,
    target: str,
    body: str | None = None,
    headers: Lines = (),
    *,
    stage: str = STAGE,
    domain: str = HOST,
    scheme: str = "https",
    is_mapped: bool = False,
) -> dict[str, Any]:
    """Return the event of a request: names of headers as sent, the path too, the query decoded."""
    path, _, query = target.partition("?")
    own = [("Host", domain), ("X-Forwarded-Proto", scheme)]
    lines = _listed([*own, *(headers.items() if isinstance(headers, Mapping) else headers)])
    queries = _listed(parse_qsl(query, keep_blank_values=True))
    event = event_file("api-rest-get-task")
    context = event["requestContext"]
    context |= {"domainName": domain, "httpMethod": method, "requestId": str(uuid.uuid4())}
    context |= {"path": path if is_mapped else f"/{stage}{path}", "stage": stage}
    return event | {
        "path": path,
        "httpMethod": method,
        "headers": _last(lines),
        "multiValueHeaders": lines,
        "queryStringParameters": _last(queries) or None,
        "multiValueQueryStringParameters": queries or None,
        "body": body,
    }


def _listed(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    listed: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in pairs:
        listed[name].append(value)
    return dict(listed)


def _last(listed: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: values[-1] for name, values in listed.items()}


class WebAdapter:
    """A function that is an application behind the Lambda Web Adapter.

    Its answers are passed on while they come. On AWS an environment serves one request at a time;
    here all environments share the application.
    """

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


def request_of(event: Mapping[str, Any], invoked: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return target and headers of the request that the adapter makes from an event.

    Of a repeated header the last value is kept. Two headers are always the adapter's own, even if
    the client has sent them: the event's context, and that of the invocation.
    """
    query = urlencode(event["multiValueQueryStringParameters"] or {}, doseq=True)
    headers = {name.lower(): value for name, value in event["headers"].items()}
    headers[CONTEXT_HEADER] = json.dumps(event["requestContext"])
    headers[INVOCATION_HEADER] = json.dumps(invoked)
    return event["path"] + (f"?{query}" if query else ""), headers


def adapted(event: Mapping[str, Any], *, server: str = "http://127.0.0.1:8080") -> httpx.Request:
    """Return the request that the adapter makes of an event."""
    target, headers = request_of(event, {})
    url = httpx.URL(server).copy_with(raw_path=target.encode())
    return httpx.Request(event["httpMethod"], url, headers=headers, content=event["body"])


def response_of(answer: Any) -> Answer:
    """Return status, headers and body of a function's answer in one piece.

    A body in base64 stays as it is: the API has no binary types.
    """
    assert _size(answer) <= PAYLOAD_LIMIT
    content = (answer.get("body") or "").encode()
    listed = {name.lower(): [str(value)] for name, value in (answer.get("headers") or {}).items()}
    several = answer.get("multiValueHeaders") or {}
    listed |= {name.lower(): values for name, values in several.items()}
    listed["content-length"] = [str(len(content))]
    headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, values in listed.items()
        for value in values
    ]
    return int(answer["statusCode"]), headers, content


def _size(payload: Any) -> int:
    return len(json.dumps(payload, ensure_ascii=False).encode())


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
    make = partial(create_app, settings, backends, card, extended_card=extended_card)
    with _function(entrypoint, partial(make, entrypoint=entrypoint)) as function:

        async def gateway(scope: Scope, receive: Receive, send: Send) -> None:
            event = await _event(scope, receive, scope["raw_path"], is_mapped=True)
            await function(event, receive, send)

        yield gateway


@contextmanager
def front(settings: Settings, backends: Backends, card: AgentCard) -> Iterator[ASGIApp]:
    """The API as template.yaml has it, below its stage, with both functions behind it.

    Its limits of requests in a second, and of a request's headers, are not here.
    """
    template = Template(parameters={"CorsOrigins": settings.cors_origins})
    routes, own = routes_of(template), refusals(template)

    async def gateway(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].removeprefix(f"/{STAGE}".encode())
        route = routes.find(scope["method"], path.decode("latin-1"))
        if route is None:
            refusal = own["MISSING_AUTHENTICATION_TOKEN"]
        else:
            event = await _event(scope, receive, path, scheme=scope["scheme"])
            if _size(event) <= PAYLOAD_LIMIT:
                return await functions[route.function](event, receive, send)
            refusal = own["REQUEST_TOO_LARGE"]
        answer = {"statusCode": refusal.status, "headers": refusal.headers, "body": refusal.body}
        return await _send(send, response_of(answer))

    make = partial(create_app, settings, backends, card)
    with (
        _function("api", partial(make, entrypoint="api")) as api,
        _function("stream", partial(make, entrypoint="stream")) as stream,
    ):
        functions = {"ApiFunction": api, "StreamFunction": stream}
        yield gateway


@contextmanager
def _function(entrypoint: Entrypoint, make: Callable[[], Any]) -> Iterator[Function]:
    """A function that is an application: in environments, or behind the adapter."""
    if entrypoint == "stream":
        yield WebAdapter(observed(make()), timeout_s=900).invoke
        return
    environments = Environments("api", lambda _: lambda_handler(make()), limit=100, timeout_s=30)

    async def answer(event: dict[str, Any], _: Receive, send: Send) -> None:
        invoked = await asyncio.wrap_future(environments.invoke(event))
        await _send(send, response_of(invoked))

    with closing(environments):
        yield answer


async def _event(scope: Scope, receive: Receive, path: bytes, **options: Any) -> dict[str, Any]:
    """The event of a request, whose bytes are text: UTF-8, what is none replaced."""
    request = Request(scope, receive)
    target = path.decode()
    if scope["query_string"]:
        target = f"{target}?{scope['query_string'].decode()}"
    body = (await request.body()).decode(errors="replace")
    headers = [line for line in request.headers.items() if line[0] != "host"]
    domain = request.headers["host"]
    return rest_event(scope["method"], target, body or None, headers, domain=domain, **options)


async def _send(send: Send, answer: Answer) -> None:
    status, headers, content = answer
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
