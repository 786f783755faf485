"""Every route of the application, through the resources that CloudFormation gets."""

import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import BaseRoute, Mount, compile_path
from starlette.routing import Route as AppRoute

from a2a_serverless.http import JSONRPC_PATHS, SUBMIT_PATH
from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless_tools.cloud.routes import Route, Routes
from tests.support.template import Template, routes_of

Json = dict[str, Any]

ENDPOINTS = {"ApiFunction", "StreamFunction"}
STREAMING = (":stream", ":subscribe")
"""The ends of the paths from which HTTP+JSON streams."""

TENANTS = [
    "a2a",  # the stage
    *("acme", "api", "v1", "tasks", "message", "message:send", "message:stream"),
    *("extendedAgentCard", "pushNotificationConfigs", ".well-known", "healthz", "openapi.json"),
    *("{tenant}", "Köln am Rhein", "100%"),
]
TASKS = ["6c0ff5a2-0b1e-4f0c-9d52-0c3b6a0f8f11", "tasks", "message:stream", "a.b_c-d:e"]
MODES = [(falls_back, decodes) for falls_back in (True, False) for decodes in (True, False)]

STATICS = sorted({part for part in TENANTS if part.isascii()} | {"a2a", "card", "x:subscribe"})
PART = st.text("abc:%._-{}", min_size=1, max_size=6)
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


class Served(NamedTuple):
    """A method and a path that the application serves; `pattern` matches concrete paths."""

    method: str
    path: str
    pattern: re.Pattern[str]

    @property
    def streams(self) -> bool:
        """True where an answer may be a stream: HEAD has no body."""
        is_rest = self.path.endswith(STREAMING) and self.method != "HEAD"
        return is_rest or (self.path in JSONRPC_PATHS and self.method == "POST")


def served_by(routes: Sequence[BaseRoute], prefix: str = "") -> Iterator[Served]:
    """Every route of the application in the order in which it looks at them."""
    for route in routes:
        if isinstance(route, Mount):
            yield from served_by(route.routes, prefix + route.path)
        elif isinstance(route, AppRoute):
            path = prefix + route.path
            pattern = compile_path(path)[0]
            yield from (Served(method, path, pattern) for method in sorted(route.methods or ()))


@pytest.fixture(scope="module")
def served(project: Path) -> list[Served]:
    """The routes of the application with everything switched on."""
    settings = Settings(auth="none", older_dialects=True, push_queue="memory")
    card = load_card(project / "functions/api/agent_card.json")
    return list(served_by(create_app(settings, memory_backends(settings), card).routes))


@pytest.fixture(scope="module")
def routes(document: Json, transformed: Json) -> Routes:
    return routes_of(Template({**document, "Resources": transformed}), body="Body")


def asked(path: str) -> Iterator[tuple[str, str]]:
    """Paths of a route: as the application sees them, and percent-encoded by two kinds of clients.

    A client must encode what no path may have; a cautious one encodes colons too.
    """
    values = {"tenant": TENANTS, "id": TASKS, "push_id": ["mine"]}
    names = re.findall(r"\{(\w+)\}", path)
    for chosen in product(*(values[name] for name in names)):
        plain = path
        for name, value in zip(names, chosen, strict=True):
            plain = plain.replace(f"{{{name}}}", value, 1) if name != value else plain
        for kept in ("/:", "/"):
            yield plain, quote(plain, safe=kept)


def answering(served: Sequence[Served], method: str, path: str) -> Served:
    return next(each for each in served if each.method == method and each.pattern.match(path))


def test_the_application_is_asked_for_all(served: list[Served]) -> None:
    """The table has the routes of 1.0, 0.3, 0.1, tenants, submit, and those beside the protocol."""
    paths = {each.path for each in served}
    assert {
        *("/", SUBMIT_PATH, "/message:stream", "/v1/message:stream"),
        *("/{tenant}/tasks/{id}:subscribe", "/v1/tasks/{id}/pushNotificationConfigs/{push_id}"),
        *("/.well-known/agent-card.json", "/.well-known/agent.json", "/.well-known/jwks.json"),
        *("/agentCard", "/extendedAgentCard", "/healthz", "/openapi.json"),
    } <= paths
    assert len(served) >= 45
    assert sum(each.streams for each in served) == 11


@pytest.mark.parametrize(("falls_back", "decodes"), MODES)
def test_every_route_reaches_a_function(
    served: list[Served], routes: Routes, *, falls_back: bool, decodes: bool
) -> None:
    """No request of the application's is answered by API Gateway, whatever its tenant's name is."""
    unrouted = [
        (each.method, encoded)
        for each in served
        for _, encoded in asked(each.path)
        if function_of(routes.find(each.method, encoded, falls_back=falls_back, decodes=decodes))
        not in ENDPOINTS
    ]
    assert unrouted == []


def function_of(route: Route | None) -> str:
    return "" if route is None else route.function


@pytest.mark.parametrize("falls_back", [True, False])
def test_each_stream_is_streamed(served: list[Served], routes: Routes, *, falls_back: bool) -> None:
    """What the application answers with a stream goes to StreamFunction, in stream mode.

    If API Gateway compared encoded paths, `message%3Astream` would be answered in one piece.
    """
    seen, buffered = set(), set()
    for each in served:
        for plain, encoded in asked(each.path):
            if not answering(served, each.method, plain).streams:
                continue
            route = routes.find(each.method, encoded, falls_back=falls_back)
            assert route is not None
            assert (route.function, route.streams) == ("StreamFunction", True), encoded
            assert route.timeout_s == 900
            seen.add((each.method, each.path))
            other = routes.find(each.method, encoded, falls_back=falls_back, decodes=False)
            if not (other and other.streams):
                buffered.add(encoded)
    assert seen >= {(each.method, each.path) for each in served if each.streams}
    assert buffered
    assert all("message%3Astream" in path for path in buffered)


BUFFERED = (
    *("POST /acme/message:send", "GET /acme/tasks", "HEAD /tasks/1", "GET /healthz", "OPTIONS /"),
    *("DELETE /v1/tasks/1/pushNotificationConfigs/mine", "GET /.well-known/agent-card.json"),
    *("GET /acme/extendedAgentCard", "OPTIONS /acme/tasks/1:subscribe", "GET /no/such/path"),
)


def test_what_never_streams_is_buffered(routes: Routes) -> None:
    """ApiFunction answers them in one piece, within API Gateway's 29 seconds."""
    for asked_for in BUFFERED:
        route = routes.find(*asked_for.split())
        assert route is not None
        assert (route.function, route.streams, route.timeout_s) == ("ApiFunction", False, 29)


@settings(suppress_health_check=[HealthCheck.too_slow])  # beside busy processes it is
@given(
    method=st.sampled_from(METHODS),
    parts=st.lists(st.sampled_from(STATICS) | PART, max_size=6),
)
def test_no_path_is_a_dead_end(routes: Routes, method: str, parts: list[str]) -> None:
    """Every method and path leads to a function, so that the application answers it."""
    assert function_of(routes.find(method, "/" + "/".join(map(quote, parts)))) in ENDPOINTS


def test_every_resource_answers_every_method(transformed: Json) -> None:
    """Every resource has ANY, also one on the way to another, so that API Gateway never answers.

    A part of a path is a name or a variable, and never both, as API Gateway takes it.
    """
    paths = transformed["RestApi"]["Properties"]["Body"]["paths"]
    assert all("x-amazon-apigateway-any-method" in item for item in paths.values())
    assert {path.rpartition("/")[0] or "/" for path in paths} <= paths.keys()
    legal = re.compile(r"[A-Za-z0-9._:-]+|\{[A-Za-z0-9._-]+\+?\}")
    parts = {part for path in paths for part in path.split("/") if part}
    assert {part for part in parts if not legal.fullmatch(part)} == set()


def test_the_table_is_as_written(template: Template, routes: Routes, served: list[Served]) -> None:
    """SAM's transform changes no route: the local stack reads template.yaml itself."""
    written = routes_of(template)
    for each in served:
        for _, encoded in asked(each.path):
            assert written.find(each.method, encoded) == routes.find(each.method, encoded)


# -- which resource takes a request ------------------------------------------------------------


def calls(function: str, *, streams: bool = False) -> Json:
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
