"""API Gateway's rules, on small route tables."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless_tools.local.template import Template, TemplateError
from tests.support.simulation.routes import Routes, refusals, request_limits

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
        ("GET", "/", "Root", "/", {}),
        ("GET", "", "Root", "/", {}),
        ("PATCH", "/users/me", "Me", "/users/me", {}),
        ("patch", "/users/me/", "Me", "/users/me", {}),
        ("GET", "/users/abc", "User", "/users/{user}", {"user": "abc"}),
        ("PUT", "/users/abc", "AnyUser", "/users/{user}", {"user": "abc"}),
        ("GET", "/things/real", "Real", "/things/real", {}),
        ("GET", "/things/a/b", "Things", "/things/{proxy+}", {"proxy": "a/b"}),
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
    assert route.streams is (function == "Me")
    assert route.timeout_s == 29


@pytest.mark.parametrize(
    ("method", "path", "together"),
    [
        ("GET", "/users/me", "User"),
        ("POST", "/things/real", "Things"),
        ("GET", "/things/real/b", "Things"),
    ],
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


def test_names_may_be_compared_as_they_come() -> None:
    """Without decoding, an encoded name is the value of a variable as it came."""
    route = TABLE.find("GET", "/users/%6De", decodes=False)
    assert route is not None
    assert route.path_parameters == {"user": "%6De"}


@pytest.mark.parametrize(
    ("paths", "named"),
    [
        ({"/{a}": anything("A"), "/{b}/c": anything("B")}, r"/\{a\} and /\{b\} are two variables"),
        ({"/{a}": anything("A"), "/{b+}": anything("B")}, r"/\{a\} and /\{b\+\} are two variables"),
        ({"/a": {"get": {}}}, "/a has a method that calls no function"),
    ],
)
def test_tables_that_api_gateway_would_not_take(paths: Json, named: str) -> None:
    """A table that API Gateway would not take is refused with the names of its resources."""
    with pytest.raises(TemplateError, match=named):
        Routes(paths)


@pytest.mark.parametrize("mode", ["STREAM", "BUFFERED"])
def test_a_stream_is_one_in_mode_and_uri(mode: str) -> None:
    """A method that is a stream in its mode or its uri alone is an error of the template."""
    operation = calls("A", streams=mode != "STREAM")
    operation["x-amazon-apigateway-integration"]["responseTransferMode"] = mode
    with pytest.raises(TemplateError, match="/a has a method whose responseTransferMode and uri"):
        Routes({"/a": {"get": operation}})


def test_a_template_without_the_api() -> None:
    """A template without the API, or without a part of it, raises an error that names the part."""
    with pytest.raises(TemplateError, match="no RestApi"):
        Routes.of(Template({}))
    with pytest.raises(TemplateError, match="RestApi has no DefinitionBody"):
        Routes.of(Template({"Resources": {"RestApi": {"Properties": {}}}}))
    with pytest.raises(TemplateError, match="no RestApi"):
        refusals(Template({}))
    with pytest.raises(TemplateError, match="no GatewayResponses of MISSING_AUTHENTICATION_TOKEN"):
        refusals(Template({"Resources": {"RestApi": {"Properties": {}}}}))


def limited(**settings: Json) -> Template:
    """A template whose API has settings for paths."""
    methods = [{"ResourcePath": path, **setting} for path, setting in settings.items()]
    return Template({"Resources": {"RestApi": {"Properties": {"MethodSettings": methods}}}})


def test_limits_of_requests_are_the_templates() -> None:
    """Limits are those set for all methods; what is not set there is an account's default."""
    every: Json = {"HttpMethod": "*"}
    both: Json = {"ThrottlingRateLimit": "2.5", "ThrottlingBurstLimit": 7}
    assert request_limits(limited(**{"/*": {**every, **both}})) == (2.5, 7)
    assert request_limits(limited(**{"/tasks": {**every, **both}})) == (10_000, 5_000)
    assert request_limits(limited(**{"/*": every, "/": {**every, **both}})) == (10_000, 5_000)
    assert request_limits(limited()) == (10_000, 5_000)
    with pytest.raises(TemplateError, match="not a number"):
        request_limits(limited(**{"/*": {**every, "ThrottlingRateLimit": "many"}}))
