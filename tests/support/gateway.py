"""Requests as a REST API hands them to a function, and as the Lambda Web Adapter passes them on.

https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.address import from_gateway

HOST = "abcdef1234.execute-api.eu-central-1.amazonaws.com"
"""The domain of the API itself, under which its stage is the first segment of a path."""
STAGE = "a2a"

Lines = Mapping[str, str] | Sequence[tuple[str, str]]

_SAMPLE = json.loads(
    (Path(__file__).parents[2] / "events" / "api-rest-get-task.json").read_text(encoding="utf-8")
)


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
    listed = _listed([*{"Host": domain, "X-Forwarded-Proto": "https"}.items(), *lines])
    queries = _listed(parse_qsl(query, keep_blank_values=True))
    event: dict[str, Any] = deepcopy(_SAMPLE)
    event |= {
        "resource": "/{tenant}/{proxy+}",
        "path": path,
        "httpMethod": method,
        "headers": _last(listed),
        "multiValueHeaders": listed,
        "queryStringParameters": _last(queries) or None,
        "multiValueQueryStringParameters": queries or None,
        "pathParameters": None,
        "body": body,
    }
    event["requestContext"] |= {
        "domainName": domain,
        "httpMethod": method,
        "path": path if is_mapped else f"/{stage}{path}",
        "stage": stage,
    }
    return event


def adapted(event: Mapping[str, Any]) -> httpx.Request:
    """Return the request that the adapter makes of an event: the last value of each header."""
    context = json.dumps(event["requestContext"])
    headers = {name.lower(): value for name, value in event["headers"].items()}
    headers |= {"x-amzn-request-context": context, "x-amzn-lambda-context": "{}"}
    query = urlencode(event["multiValueQueryStringParameters"] or {}, doseq=True)
    raw_path = event["path"].encode() + (f"?{query}".encode() if query else b"")
    url = httpx.URL(scheme="http", host="127.0.0.1", port=8080, raw_path=raw_path)
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


def _listed(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    listed = defaultdict(list)
    for name, value in pairs:
        listed[name].append(value)
    return dict(listed)


def _last(listed: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: values[-1] for name, values in listed.items()}
