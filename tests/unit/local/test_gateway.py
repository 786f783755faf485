"""The gateway of this machine: its routes, events and answers are API Gateway's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_serverless_tools.cloud.routes import Routes
from tests.support.gateway import rest_event
from tests.support.simulation.environments import Environments, Handler
from tests.support.simulation.gateway import Gateway
from tests.support.simulation.routes import refusals, routes_of
from tests.support.template import Template

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1:8000"

Open = Callable[..., Gateway]


@pytest.fixture(scope="module")
def template() -> Template:
    return Template()


def echo(event: dict[str, Any], _: Any) -> dict[str, Any]:
    """Answer with the event itself."""
    return {"statusCode": 200, "body": json.dumps(event)}


@pytest.fixture
def open_gateway(template: Template) -> Iterator[Open]:
    """Makes a gateway whose function is the given handler."""
    with ExitStack() as closing:

        def open_(handler: Handler = echo) -> Gateway:
            function = Environments("ApiFunction", lambda _: handler, limit=4, timeout_s=30)
            closing.callback(function.close)
            buffered = {function.name: function}
            return Gateway(routes_of(template), refusals(template), buffered=buffered, streamed={})

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
        response = await client.get("/tasks")

    assert (response.status_code, response.content) == (418, b"AAE=")
    assert response.headers.get_list("x-kind") == ["green", "black"]
    assert response.headers["content-length"] == "4"
    assert response.headers["www-authenticate"] == "Bearer"


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
        ("PUT", "/users/abc", "AnyUser", "/users/{user}", {"user": "abc"}),
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
