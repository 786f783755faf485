"""The gateway of this machine: its routes, events and answers are API Gateway's."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.errors import ConfigurationError
from tests.support.asgi_streams import live
from tests.support.gateway import rest_event
from tests.support.simulation import gateway
from tests.support.simulation.environments import Concurrency, Environments, Handler
from tests.support.simulation.gateway import Gateway
from tests.support.simulation.routes import Routes, refusals
from tests.support.simulation.web_adapter import WebAdapter
from tests.support.template import Template

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1:8000"
BUFFERED, STREAMED = "/tasks", "/message:stream"

Open = Callable[..., Gateway]


@pytest.fixture(scope="module")
def template() -> Template:
    return Template()


def echo(event: dict[str, Any], _: Any) -> dict[str, Any]:
    """Answer with the event itself."""
    return {"statusCode": 200, "body": json.dumps(event)}


async def echo_request(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the request that came through the adapter."""
    message = await receive()
    told = {
        "method": scope["method"],
        "path": scope["path"],
        "raw_path": scope["raw_path"].decode(),
        "query": scope["query_string"].decode(),
        "headers": [[name.decode(), value.decode()] for name, value in scope["headers"]],
        "body": message["body"].decode(),
    }
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(told).encode()})


@pytest.fixture
def open_gateway(template: Template) -> Iterator[Open]:
    """Makes a gateway whose functions are the given handler and application."""
    with ExitStack() as closing:

        def open_(
            handler: Handler = echo,
            app: ASGIApp = echo_request,
            *,
            stage: str = "",
            concurrency: Concurrency | None = None,
            **limits: Any,
        ) -> Gateway:
            function = Environments(
                "ApiFunction", lambda _: handler, limit=4, timeout_s=30, concurrency=concurrency
            )
            closing.callback(function.close)
            adapter = WebAdapter("StreamFunction", app, timeout_s=315, concurrency=concurrency)
            return Gateway(
                Routes.of(template),
                refusals(template),
                buffered={function.name: function},
                streamed={adapter.name: adapter},
                stage=stage,
                **limits,
            )

        yield open_


def client_of(gateway: Gateway) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(gateway, client=("198.51.100.7", 1))
    return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}")


def shape(value: Any) -> Any:
    """The names in an event, at every depth but that of what the client has sent."""
    if not isinstance(value, Mapping):
        return None
    sent = re.compile("eaders$|arameters$")
    return {name: None if sent.search(name) else shape(inner) for name, inner in value.items()}


def check_refusal(response: httpx.Response, template: Template, kind: str) -> None:
    """An answer of the gateway's own, as the template has it."""
    refusal = refusals(template)[kind]
    assert response.status_code == refusal.status
    assert response.json() == json.loads(refusal.body)
    assert response.headers["content-type"] == "application/json"
    for name, value in refusal.headers.items():
        assert response.headers[name] == value


def fail(*_: Any) -> Any:
    raise LookupError("secret")


async def fail_at_once(*_: Any) -> None:
    raise LookupError("secret")


async def test_an_event_has_the_form_of_a_rest_apis(open_gateway: Open) -> None:
    """An event has the fields of a deployment's sample, and all values of repeated names."""
    sample = json.loads((ROOT / "events" / "api-rest-get-task.json").read_text())
    async with client_of(open_gateway()) as client:
        answer = await client.get(
            "/tasks?status=a&status=b%20c&page=1", headers=[("Accept", "x/1"), ("Accept", "x/2")]
        )
        variable = (await client.get("/a%20b/tasks")).json()
    event = answer.json()

    assert shape(event) == shape(sample)
    assert shape(event) == shape(rest_event("GET", "/tasks"))
    assert event["multiValueQueryStringParameters"] == {"status": ["a", "b c"], "page": ["1"]}
    assert event["queryStringParameters"] == {"status": "b c", "page": "1"}
    assert event["headers"]["accept"] == "x/2"
    assert event["multiValueHeaders"]["accept"][-2:] == ["x/1", "x/2"]
    assert event["requestContext"]["identity"]["sourceIp"] == "198.51.100.7"
    assert (variable["path"], variable["pathParameters"]) == ("/a%20b/tasks", {"tenant": "a b"})


async def test_a_body_is_text(open_gateway: Open) -> None:
    """A body is passed on as text, and bytes that are no text are lost, as in a deployment."""
    async with client_of(open_gateway()) as client:
        text = (await client.post("/tasks", json={"ü": 1})).json()
        binary = (await client.post("/tasks", content=b"a\xff")).json()
        none = (await client.post("/tasks")).json()
        streamed = (await client.post(STREAMED, content=b"a\xff")).json()

    assert (text["isBase64Encoded"], json.loads(text["body"])) == (False, {"ü": 1})
    assert (binary["isBase64Encoded"], binary["body"]) == (False, "a\ufffd")
    assert none["body"] is None
    assert streamed["body"] == "a\ufffd"


async def test_an_answer_is_unpacked(open_gateway: Open) -> None:
    """Status, headers and body come out as an HTTP response; base64 stays as it is."""

    def handler(_: dict[str, Any], __: Any) -> dict[str, Any]:
        return {
            "statusCode": 418,
            "headers": {"X-Kind": "tea", "content-length": "999", "WWW-Authenticate": "Bearer"},
            "multiValueHeaders": {"x-kind": ["green", "black"]},
            "body": "AAE=",
            "isBase64Encoded": True,
        }

    async with client_of(open_gateway(handler)) as client:
        response = await client.get(BUFFERED)

    assert (response.status_code, response.content) == (418, b"AAE=")
    assert response.headers.get_list("x-kind") == ["green", "black"]
    assert response.headers["content-length"] == "4"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_the_adapter_says_address_and_invocation(open_gateway: Open) -> None:
    """A streaming application gets both contexts as headers, and never those of a client."""
    forged = {"x-amzn-request-context": '{"domainName": "evil"}', "x-amzn-lambda-context": "{}"}
    async with client_of(open_gateway()) as client:
        sent = [*forged.items(), ("x-kind", "first"), ("x-kind", "last")]
        told = (await client.post("/t%3A/message:stream?a=1&a=b%20c", headers=sent)).json()
    headers = dict(told["headers"])
    context = json.loads(headers["x-amzn-request-context"])
    invocation = json.loads(headers["x-amzn-lambda-context"])

    assert len(headers) == len(told["headers"])
    assert headers["x-kind"] == "last"
    assert (context["domainName"], context["path"]) == (HOST, "/t%3A/message:stream")
    assert set(invocation) >= {"request_id", "deadline", "env_config", "invoked_function_arn"}
    assert invocation["deadline"] - context["requestTimeEpoch"] == pytest.approx(315_000, abs=2000)
    assert (told["path"], told["raw_path"]) == ("/t:/message:stream", "/t%3A/message:stream")
    assert told["query"] == "a=1&a=b+c"


async def test_the_stage_is_in_no_path_of_the_application(open_gateway: Open) -> None:
    """Below a stage stands the API; beside it is nothing, and its path is in the context alone."""
    async with client_of(open_gateway(stage="a2a")) as client:
        event = (await client.get("/a2a/tasks")).json()
        streamed = (await client.post("/a2a/message:stream")).json()
        root = (await client.get("/a2a")).json()
        beside = [await client.get(path) for path in ("/tasks", "/a2ab/tasks", "/")]

    assert (event["path"], event["requestContext"]["path"]) == ("/tasks", "/a2a/tasks")
    assert event["requestContext"]["stage"] == "a2a"
    assert streamed["path"] == "/message:stream"
    assert root["path"] == "/"
    assert [(each.status_code, each.json()) for each in beside] == [
        (403, {"message": "Forbidden"})
    ] * 3


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"statusCode": "x"},
        {"statusCode": 200, "body": "x" * gateway.PAYLOAD_LIMIT},
        {"statusCode": 200, "body": object()},
    ],
)
async def test_an_unusable_answer_is_the_gateways_own(
    open_gateway: Open, template: Template, answer: object
) -> None:
    """An answer without a status, or beyond Lambda's 6 MB, is the gateway's own."""
    async with client_of(open_gateway(lambda *_: answer)) as client:
        check_refusal(await client.get(BUFFERED), template, "DEFAULT_5XX")


@pytest.mark.parametrize("target", [BUFFERED, STREAMED])
async def test_a_long_request_is_refused(
    open_gateway: Open, template: Template, target: str
) -> None:
    """API Gateway takes 10 MB, Lambda 6 MB as an event; the function is not asked."""
    async with client_of(open_gateway(fail, fail_at_once)) as client:
        for length in (gateway.PAYLOAD_LIMIT, gateway.BODY_LIMIT + 1):
            response = await client.post(target, content=b"x" * length)
            check_refusal(response, template, "REQUEST_TOO_LARGE")
        quotes = await client.post(target, content=b'"' * (gateway.PAYLOAD_LIMIT // 2))
        check_refusal(quotes, template, "REQUEST_TOO_LARGE")


async def test_long_headers_are_refused(open_gateway: Open, template: Template) -> None:
    """API Gateway takes 10,240 bytes of request line and headers together."""
    async with client_of(open_gateway()) as client:
        taken = await client.get(BUFFERED, headers={"x-long": "x" * 9_000})
        refused = await client.get(BUFFERED, headers={"x-long": "x" * 10_240})
        check_refusal(refused, template, "DEFAULT_4XX")
    assert taken.status_code == 200


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway waits 50 ms for every answer."""
    find = Routes.find

    def find_quick(self: Routes, method: str, path: str) -> Any:
        route = find(self, method, path)
        return route and replace(route, timeout_s=0.05)

    monkeypatch.setattr(Routes, "find", find_quick)


async def test_a_slow_function_is_given_up(
    open_gateway: Open, template: Template, in_a_hurry: None
) -> None:
    """API Gateway gives up on a function after the route's time limit, which is the template's."""
    go_on = threading.Event()

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    async with client_of(open_gateway(lambda *_: go_on.wait(10), never)) as client:
        check_refusal(await client.get(BUFFERED), template, "INTEGRATION_TIMEOUT")
        check_refusal(await client.post(STREAMED), template, "INTEGRATION_TIMEOUT")
    go_on.set()


async def first_then(send: Send, then: Callable[[], Any]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    await then()
    await send({"type": "http.response.body", "body": b"last"})


async def test_a_stream_is_cut_off_at_the_time_limit(open_gateway: Open, in_a_hurry: None) -> None:
    """A stream that has begun is cut off at the time limit, without an end."""
    never = asyncio.Event()
    async with live(
        open_gateway(app=lambda _, __, send: first_then(send, never.wait)), "POST", STREAMED
    ) as response:
        assert [chunk async for chunk in response.chunks()] == [b"first"]


Json = dict[str, Any]


def calls(function: str, *, streams: bool = False) -> Json:
    """A method that calls a function."""
    version, action = ("2021-11-15", "response-streaming-invocations")
    if not streams:
        version, action = ("2015-03-31", "invocations")
    uri = f"arn:aws:apigateway:here:lambda:path/{version}/functions/{function}/{action}"
    mode = {"responseTransferMode": "STREAM"} if streams else {}
    integration = {"type": "aws_proxy", "uri": uri, "timeoutInMillis": 29000, **mode}
    return {"x-amazon-apigateway-integration": integration}


def anything(function: str) -> Json:
    """A resource that calls a function whatever the method is."""
    return {"x-amazon-apigateway-any-method": calls(function)}


TABLE = Routes(
    {
        "/": {"get": calls("Root")},
        "/users/me": {"patch": calls("Me", streams=True)},
        "/users/{user}": {"get": calls("User"), **anything("AnyUser")},
        "/things/real": {"get": calls("Real")},
        "/things/{proxy+}": anything("Things"),
    }
)


@pytest.mark.parametrize(
    ("method", "path", "function", "resource", "values"),
    [
        ("GET", "", "Root", "/", {}),
        ("patch", "/users/me/", "Me", "/users/me", {}),
        ("GET", "/users/abc", "User", "/users/{user}", {"user": "abc"}),
        ("PUT", "/users/abc", "AnyUser", "/users/{user}", {"user": "abc"}),
        ("GET", "/things/real", "Real", "/things/real", {}),
        ("GET", "/things/real/b", "Things", "/things/{proxy+}", {"proxy": "real/b"}),
        ("GET", "/users/a%2Fb", "User", "/users/{user}", {"user": "a/b"}),
        ("PATCH", "/users/%6De", "Me", "/users/me", {}),
    ],
)
def test_the_nearest_resource_takes_a_request(
    method: str, path: str, function: str, resource: str, values: Json
) -> None:
    """A name before a variable, a method of its own before ANY; an encoded slash parts nothing."""
    route = TABLE.find(method, path)
    assert route is not None
    assert (route.function, route.resource, route.path_parameters) == (function, resource, values)
    assert (route.streams, route.timeout_s) == (function == "Me", 29)


@pytest.mark.parametrize(
    ("method", "path", "together"),
    [("GET", "/users/me", "User"), ("GET", "/things/real/b", "Things")],
)
def test_path_and_method_are_settled_together_or_not(method: str, path: str, together: str) -> None:
    """A method that the nearest resource lacks goes to a more general one, if `falls_back`."""
    found = TABLE.find(method, path)
    assert found is not None
    assert found.function == together
    assert TABLE.find(method, path, falls_back=False) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/"), ("GET", "/users"), ("GET", "/users//"), ("GET", "/things"), ("GET", "/none")],
)
def test_what_nobody_takes(method: str, path: str) -> None:
    """A greedy variable takes one part at least, no variable takes an empty one."""
    assert TABLE.find(method, path) is None


@pytest.mark.parametrize("mode", ["STREAM", "BUFFERED"])
def test_a_stream_is_one_in_mode_and_uri(mode: str) -> None:
    """A method that is a stream in its mode or its uri alone is an error of the template."""
    operation = calls("A", streams=mode != "STREAM")
    operation["x-amazon-apigateway-integration"]["responseTransferMode"] = mode
    said = "/a has a method whose responseTransferMode and uri"
    with pytest.raises(ConfigurationError, match=said):
        Routes({"/a": {"get": operation}})
