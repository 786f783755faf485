"""Every AWS call that a function makes anywhere in the suite, held against its permissions.

A call belongs to a function when it is made while that function handles an event. What a call
needs is what AWS says it is authorised as; what the event sources and the runtime call by
themselves never passes boto3 and is listed in `tests/support/permissions.py`.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import pytest
from botocore.client import BaseClient
from fastapi import FastAPI

from a2a_serverless.push.function import PushFunction
from a2a_serverless.storage.keys import PARTITION
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper

Permission = tuple[str, str, str]
"""Function, action and resource, by their names in the template."""

KEYS: Final = PARTITION
"""The partition of the published keys: to write it is a permission of its own."""

_OF_ITEMS = ("BatchWriteItem", "DeleteItem", "PutItem", "UpdateItem")
WRITES: Final = frozenset(f"dynamodb:{name}" for name in _OF_ITEMS)

_ON_S3: Final[Mapping[str, tuple[str, ...]]] = {
    "CopyObject": ("GetObject", "PutObject"),
    "DeleteObjects": ("DeleteObject",),
    "ListObjectsV2": ("ListBucket",),
}
"""What these are authorised as; all others have the name of their permission."""

ENTRYPOINTS: Final = {"api": "ApiFunction", "stream": "StreamFunction"}

ENTRANCES: Final[Mapping[str, tuple[tuple[type, str], ...]]] = {
    "WorkerFunction": ((WorkerFunction, "handle"), (WorkerAdapter, "process")),
    "SweeperFunction": ((Sweeper, "sweep"), (DeadLetters, "handle")),
    "PushFunction": ((PushFunction, "handle"),),
}
"""The methods behind which everything is the function's own doing."""

_function: ContextVar[str | None] = ContextVar("function", default=None)
_recorded: dict[Permission, str] = {}


def recorded() -> dict[Permission, str]:
    """What the functions have needed in this process so far, each with the first test that did."""
    return _recorded


@contextmanager
def recording() -> Iterator[None]:
    """Record the calls of every function until the block ends."""
    patch = pytest.MonkeyPatch()
    patch.setattr(BaseClient, "_make_api_call", _noted(BaseClient._make_api_call))  # type: ignore[attr-defined]
    patch.setattr(FastAPI, "__call__", _by_entrypoint(FastAPI.__call__))
    for function, methods in ENTRANCES.items():
        for owner, name in methods:
            patch.setattr(owner, name, _inside(function, getattr(owner, name)))
    try:
        yield
    finally:
        patch.undo()


def needed(service: str, operation: str, request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The actions, each with its resource, as which AWS authorises a request."""
    match service, operation:
        case "dynamodb", "TransactWriteItems":
            for item in request["TransactItems"]:
                kind, action = next(iter(item.items()))
                yield f"dynamodb:{kind}Item", _written(f"dynamodb:{kind}Item", action)
        case "dynamodb", "BatchGetItem":
            yield f"dynamodb:{operation}", "TaskTable"
        case "dynamodb", "BatchWriteItem":
            writes = (one for several in request["RequestItems"].values() for one in several)
            for write in writes:
                yield f"dynamodb:{operation}", _written("dynamodb:BatchWriteItem", *write.values())
        case "dynamodb", _:
            yield f"dynamodb:{operation}", _written(f"dynamodb:{operation}", request)
        case "sqs", "GetQueueUrl":
            return  # a deployed function is given URLs; names are for local use
        case "sqs", _:
            yield f"sqs:{operation.removesuffix('Batch')}", _queue(request["QueueUrl"])
        case "s3", _:
            names = _ON_S3.get(operation, (operation,))
            yield from ((f"s3:{name}", "BlobBucket") for name in names)
        case "secretsmanager", _:
            yield f"secretsmanager:{operation}", _secret(str(request["SecretId"]).lower())
        case _:
            yield f"{service}:{operation}", "?"


def _secret(name: str) -> str:
    """The secret that a name means in the template; tests name theirs alike."""
    if "agent" in name:
        return "AgentSecretArn"
    return "SigningSecret" if "sign" in name else "ApiKeys"


def of_keys(table: str) -> str:
    """The published keys of a table, as the resource of a permission."""
    return f"{table}[{KEYS}]"


def _written(action: str, request: Mapping[str, Any]) -> str:
    """The table of a request, or its published keys where it is one of those that is written."""
    item = request.get("Key") or request.get("Item") or {}
    is_key = action in WRITES and item.get("PK", {}).get("S") == KEYS
    return of_keys(_table(request)) if is_key else _table(request)


def _table(request: Mapping[str, Any]) -> str:
    index = request.get("IndexName")
    return f"TaskTable/index/{index}" if index else "TaskTable"


def _queue(url: str) -> str:
    """The queue that a URL means in the template; tests name theirs alike."""
    name = url.rsplit("/", 1)[-1]
    if "undecodable" in name:
        return "UndecodableQueue"
    if "quarantine" in name:
        return "QuarantineQueue"
    is_push, is_dead = "push" in name, "dead" in name
    if is_dead:
        return "PushDeadLetterQueue" if is_push else "DeadLetterQueue"
    return "PushQueue" if is_push else "OperationsQueue"


def _noted(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def noted(client: Any, operation: str, request: Mapping[str, Any]) -> Any:
        function = _function.get()
        if function is not None:
            service = client.meta.service_model.service_name
            for action, resource in needed(service, operation, request):
                test = os.environ.get("PYTEST_CURRENT_TEST", "?").partition(" ")[0]
                _recorded.setdefault((function, action, resource), test)
        return call(client, operation, request)

    return noted


def _inside(function: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` as that function's doing, whether it is a coroutine or not.

    A coroutine's body runs in the context of the task that awaits it: the variable is set there.
    """
    if not inspect.iscoroutinefunction(method):
        return _doing_of(function)(method)

    @functools.wraps(method)
    async def run(*args: Any, **kwargs: Any) -> Any:
        with _doing_of(function):
            return await method(*args, **kwargs)

    return run


@contextmanager
def _doing_of(function: str | None) -> Iterator[None]:
    token = _function.set(function)
    try:
        yield
    finally:
        _function.reset(token)


def _by_entrypoint(call: Callable[..., Any]) -> Callable[..., Any]:
    """An application's requests as the doing of the function whose entrypoint it is."""

    @functools.wraps(call)
    async def run(app: FastAPI, scope: Any, receive: Any, send: Any) -> None:
        # Named one by one: what can be called without arguments is a factory to uvicorn.
        with _doing_of(ENTRYPOINTS.get(getattr(app.state, "entrypoint", ""))):
            await call(app, scope, receive, send)

    return run
