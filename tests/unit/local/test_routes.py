"""API Gateway's rules, by which the routes of template.yaml are shown, on a small route table."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless.errors import ConfigurationError
from tests.support.simulation.routes import Routes

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
