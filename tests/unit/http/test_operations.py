"""The table of operations, beside what the official SDK's server has."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import pytest
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.routes import create_rest_routes
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from fastapi import FastAPI
from starlette.routing import BaseRoute, Mount, Route

from a2a_serverless.http.operations import OPERATIONS, DurableRequestHandler


def test_the_methods_are_those_of_the_sdk() -> None:
    """JSON-RPC has every method of 1.0, with its request, and every one of 0.3."""
    assert {one.name: one.request for one in OPERATIONS} == JsonRpcDispatcher.METHOD_TO_MODEL
    adapter = import_module("a2a.compat.v0_3.jsonrpc_adapter").JSONRPC03Adapter
    assert {one.name_0_3 for one in OPERATIONS} - {""} == adapter.METHOD_TO_MODEL.keys()


def test_the_handler_has_the_methods_of_the_sdk() -> None:
    """Every operation that the SDK's interface names is one of the handler's."""
    assert {one.handle.__name__ for one in OPERATIONS} == RequestHandler.__abstractmethods__
    assert all(
        one.handle is getattr(DurableRequestHandler, one.handle.__name__) for one in OPERATIONS
    )


@pytest.mark.parametrize("below", ["", "/{tenant}", "/v1"])
def test_the_routes_are_those_of_the_sdk(app: FastAPI, below: str) -> None:
    """HTTP+JSON has every route of 1.0, with and without a tenant, and every one of 0.3."""
    theirs = create_rest_routes(cast("Any", object()), enable_v0_3_compat=True)
    served = routes_of(app.routes)
    missing = {one for one in routes_of(theirs) if one[1].startswith(below)} - served
    assert not missing


def routes_of(routes: list[BaseRoute], below: str = "") -> set[tuple[str, str]]:
    """Method and path of each route; HEAD comes with GET."""
    found: set[tuple[str, str]] = set()
    for route in routes:
        if isinstance(route, Mount):
            found |= routes_of(route.routes, below + route.path)
        elif isinstance(route, Route):
            found |= {(verb, below + route.path) for verb in (route.methods or set()) - {"HEAD"}}
    return found
