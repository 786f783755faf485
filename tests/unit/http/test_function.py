"""The application as a Lambda handler of a REST API's events."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from a2a_serverless.http.function import _LambdaHandler, lambda_handler
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.support.a2a_calls import LATER, message
from tests.support.gateway import rest_event

JSON = {"A2A-Version": "1.0", "Content-Type": "application/json"}


pytestmark = pytest.mark.usefixtures("loop")


@pytest.fixture
def handler(app: FastAPI) -> _LambdaHandler:
    return lambda_handler(app)


def listed(handler: _LambdaHandler, path: str, **how: Any) -> int:
    """How many tasks a path lists."""
    answer = handler(rest_event("GET", path, None, JSON, **how), None)
    assert answer["statusCode"] == 200, answer
    return int(json.loads(answer["body"])["totalSize"])


@pytest.mark.parametrize(
    ("stage", "is_mapped"), [("a2a", False), ("prod", True), ("tasks", False), ("v1", True)]
)
def test_a_tenant_is_not_the_stage(handler: _LambdaHandler, stage: str, *, is_mapped: bool) -> None:
    """The stage is no part of a path; the tenant of its name has its own tasks, as others have."""
    tenants = [stage, "acme"] if stage not in ("tasks", "v1") else ["acme"]
    how: dict[str, Any] = {"stage": stage, "is_mapped": is_mapped}
    body = json.dumps({"message": message("go"), "configuration": LATER})
    for tenant in tenants:
        sent = handler(rest_event("POST", f"/{tenant}/message:send", body, JSON, **how), None)
        assert sent["statusCode"] == 200, sent
        assert listed(handler, f"/{tenant}/tasks", **how) == 1
    assert listed(handler, "/tasks", **how) == 0


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with what the server says about the request."""
    body = await Request(scope, receive).body()
    told = {name: scope[name] for name in ("path", "root_path")}
    told |= {name: scope[name].decode() for name in ("raw_path", "query_string")}
    await JSONResponse(told | {"body": body.decode("utf-8", "replace")})(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server that says what it reads."""
    with HttpServer(echo, bind(0), lifespan=False) as server:
        yield int(server.url.rpartition(":")[2])


def from_uvicorn(port: int, target: str) -> Any:
    """The answer of a server to a request whose target nothing has changed on its way."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"GET {target} HTTP/1.1\r\nHost: agents.example\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        with connection.makefile("rb") as answer:
            return json.loads(answer.read().rpartition(b"\r\n\r\n")[2])


TARGETS = (
    "/ /tasks/a%2Fb /tasks/a%3Asubscribe /a%20b/tasks /a+b/tasks /%C3%A9/tasks /%ff/tasks"
    " /100%25/tasks /%252F/tasks /a2a/a2a//tasks/ /tasks?contextId= /tasks?a=1&a=2&b=3"
    " /tasks?pageToken=a%2Bb%26c%3D%25&status=x"
)


@pytest.mark.parametrize("target", TARGETS.split())
def test_paths_are_those_that_a_server_reads(port: int, target: str) -> None:
    """A path is decoded once, and beside it as it was sent; a query has the same meaning."""
    answer = lambda_handler(echo)(rest_event("GET", target), None)
    assert json.loads(answer["body"]) == from_uvicorn(port, target)


@pytest.mark.parametrize("media_type", ["application/a2a+json", "text/plain"])
def test_bodies_are_text(media_type: str) -> None:
    """Without binary types a body arrives as text, whatever its type; no body is an empty one."""
    headers = {"Content-Type": media_type}
    for body, read in (("{'é': '👩'}", "{'é': '👩'}"), ("", ""), (None, "")):
        answer = lambda_handler(echo)(rest_event("POST", "/", body, headers), None)
        assert json.loads(answer["body"])["body"] == read


def test_a_header_that_is_repeated(handler: _LambdaHandler) -> None:
    """Repeated headers become one value, so that two versions are refused as an unknown one."""
    headers = [("A2A-Version", "0.3"), ("A2A-Version", "1.0")]
    answer = handler(rest_event("GET", "/tasks", None, headers), None)
    assert answer["statusCode"] == 400
    assert "0.3, 1.0" in answer["body"]


def test_no_type_is_binary() -> None:
    """A body is sent as text, also under a media type that the adapter does not know."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("é", media_type="application/of-tomorrow")(scope, receive, send)

    answer = lambda_handler(app)(rest_event("GET", "/"), None)
    assert (answer["body"], answer["isBase64Encoded"]) == ("é", False)
