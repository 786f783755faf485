"""The table of operations, the media types of answers, and the work that a large message makes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import CodeType, FrameType
from typing import Any, cast
from unittest.mock import Mock

import httpx
import pytest
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.routes import create_rest_routes
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import (
    Artifact,
    ListTasksResponse,
    Message,
    Part,
    SendMessageRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from fastapi import FastAPI
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value
from starlette.routing import BaseRoute, Mount, Route

from a2a_serverless.http import context, operations
from a2a_serverless.http.operations import (
    _LONG,
    _SHORT_BYTES,
    OPERATIONS,
    DurableRequestHandler,
)
from a2a_serverless.tasks.entries import json_of
from tests.support.a2a_calls import LATER, Agent, message
from tests.support.a2a_calls import rpc as call
from tests.support.scripted_worker import ScriptedWorker


def test_the_methods_are_those_of_the_sdk() -> None:
    """JSON-RPC has every method of 1.0, with its request, and every one of 0.3."""
    assert {one.name: one.request for one in OPERATIONS} == JsonRpcDispatcher.METHOD_TO_MODEL
    adapter = import_module("a2a.compat.v0_3.jsonrpc_adapter").JSONRPC03Adapter
    assert {one.name_0_3 for one in OPERATIONS} - {""} == adapter.METHOD_TO_MODEL.keys()


def test_the_handler_has_the_methods_of_the_sdk() -> None:
    """Every operation that the SDK's interface names is one of the handler's."""
    assert {one.handle.__name__ for one in OPERATIONS} == RequestHandler.__abstractmethods__
    for one in OPERATIONS:
        assert one.handle is getattr(DurableRequestHandler, one.handle.__name__)


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


JSON, A2A, STREAM = "application/json", "application/a2a+json", "text/event-stream"
V1, V0_3 = {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}
SEND = {"message": message("go")}
PARTS_0_3 = [{"kind": "text", "text": "go"}]
SEND_0_3 = {"message": {"messageId": "1", "role": "user", "parts": PARTS_0_3}}
SEND_0_1 = {"message": {"role": "user", "parts": [{"type": "text", "text": "go"}]}}


UNKNOWN = ("GET", "/tasks/unknown", None)
STREAMED = ("POST", "/message:stream", SEND)
ANSWERS: dict[str, list[tuple[str, str, Any, dict[str, str]]]] = {
    A2A: [  # results of HTTP+JSON 1.0, and errors to those that accept nothing else
        ("GET", "/tasks", None, V1),
        ("POST", "/message:send", SEND, {**V1, "Accept": f"{JSON}, {A2A}"}),
        (*UNKNOWN, {**V1, "Accept": A2A}),
        (*UNKNOWN, {**V1, "Accept": f"{A2A}, {JSON};q=0"}),
        ("POST", "/message:stream", {}, {**V1, "Accept": f"{STREAM}, {A2A}"}),
        ("GET", "/nothing", None, {**V1, "Accept": A2A}),
        ("GET", "/tasks", None, {**V1, "Accept": A2A, "X": "x" * 70_000}),
    ],
    JSON: [
        ("POST", "/message:send", SEND, V1),
        ("GET", "/tasks", None, {**V1, "Accept": JSON}),
        (*UNKNOWN, V1),
        (*UNKNOWN, {**V1, "Accept": f"{A2A}, */*;q=0.1"}),
        ("POST", "/", call("GetTask", {"id": "unknown"}), {**V1, "Accept": A2A}),
        ("POST", "/", call("ListTasks", {}), {**V1, "Accept": A2A}),
        ("POST", "/", call("SendMessage", SEND), V1),
        ("GET", "/v1/tasks/unknown", None, {**V0_3, "Accept": A2A}),
        ("POST", "/v1/message:send", SEND_0_3, V0_3),
        ("POST", "/", call("message/send", SEND_0_3), V0_3),
        ("POST", "/", call("tasks/send", SEND_0_1), {}),
        ("GET", "/.well-known/agent-card.json", None, {"Accept": A2A}),
        ("GET", "/.well-known/jwks.json", None, {}),
    ],
    STREAM: [
        (*STREAMED, V1),
        ("POST", "/v1/message:stream", SEND_0_3, V0_3),
        ("POST", "/", call("SendStreamingMessage", SEND), V1),
        ("POST", "/", call("message/stream", SEND_0_3), V0_3),
        ("POST", "/", call("tasks/sendSubscribe", SEND_0_1), {}),
    ],
}


SETTINGS = {"older_dialects": True, "push_queue": "pushes.fifo"}


@pytest.mark.parametrize("expected", ANSWERS)
async def test_media_type(client: httpx.AsyncClient, worker: ScriptedWorker, expected: str) -> None:
    """A stream, the result of HTTP+JSON 1.0 as its caller takes it, and JSON for all else."""
    for verb, path, body, headers in ANSWERS[expected]:
        answer = await client.request(verb, path, json=body, headers=headers)
        media_type = answer.headers["content-type"].partition(";")[0]
        assert media_type == expected, (path, headers)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["text/html", JSON], JSON),
        ([f"{A2A};q=0, {JSON}"], JSON),
        ([f"{A2A}; q=0.00, */*"], JSON),
        ([f"{JSON};q=0, */*"], A2A),
        ([f"{JSON};q=0.001"], JSON),
        ([f"{JSON}-seq"], A2A),
    ],
)
async def test_the_media_types_that_a_caller_accepts(
    client: httpx.AsyncClient, lines: list[str], expected: str
) -> None:
    """Each line of `Accept` counts; a weight of 0 refuses a type; a longer name is another type."""
    headers = [("A2A-Version", "1.0"), *(("Accept", line) for line in lines)]
    assert (await client.get("/tasks", headers=headers)).headers["content-type"] == expected


WORK = (json.loads, json_format.ParseDict, json_format.MessageToDict, json.dumps)
SMALL = 10_000
LARGE = {"rows": ["x" * 1000] * 900}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls that parse and render large JSON and messages of protobuf."""
    names: dict[CodeType, str] = {work.__code__: work.__name__ for work in WORK}
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, result: Any) -> None:
        if event == "return" and frame.f_code in names:
            text = frame.f_locals.get("s", result)
            is_large = not isinstance(text, str | bytes) or len(text) > SMALL
            counts[names[frame.f_code]] += is_large

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize(("entrypoint", "binding"), [("api", "rest"), ("stream", "jsonrpc")])
async def test_a_send_is_parsed_once_and_rendered_once(agent: Agent) -> None:
    """A message of 0.9 MB that comes back in its task's history costs each of the four once."""
    asked = {"message": message(parts=[{"data": LARGE}]), "configuration": LATER}
    with counted() as counts:
        answer = await agent.call("SendMessage", asked)
    assert answer.task["history"][0]["parts"] == [{"data": LARGE}]
    by_client = Counter(dumps=1, loads=1)
    assert counts - by_client == Counter(loads=1, ParseDict=1, MessageToDict=1, dumps=1)


SHOW = {one.name: one.show for one in OPERATIONS}


@pytest.mark.parametrize("messages", [0, 1, _LONG - 1, _LONG, 40])
@pytest.mark.parametrize("extra", [0, _SHORT_BYTES])
def test_what_was_shown_before_is_shown_as_it_was(messages: int, extra: int) -> None:
    """Each time as protobuf prints it, by GetTask and in a page, however long its history is."""
    parts = [Part(text="x" * extra), Part(data=json_format.ParseDict({"n": 3}, Value()))]
    history = [Message(message_id=f"{number}", parts=parts) for number in range(messages)]
    task = Task(id="t", history=history, artifacts=[Artifact(artifact_id="a", parts=parts)])
    for state in (TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED):
        task.status.state = state
        for metadata in ({}, {"a": {"whole": 2}}):
            task.metadata.update(metadata)
            for _ in range(2):
                assert SHOW["GetTask"](task) == json_of(task)
                page = SHOW["ListTasks"](ListTasksResponse(tasks=[task]))
                assert (page or {})["tasks"] == [json_of(task)]


EMPTY = Part(text="", metadata={})
HOSTILE = {
    "parts": Message(message_id="1", parts=[Part(text="")] * 160),
    "metadata of a part": Message(message_id="1", parts=[EMPTY]),
    "metadata": Message(message_id="1", metadata={}),
    "data": Message(message_id="1", parts=[Part(data=json_format.ParseDict({"a": []}, Value()))]),
    "messages": Task(id="t", history=[Message()] * 160),
    "artifacts": Task(id="t", artifacts=[Artifact()] * 160),
}


@pytest.mark.parametrize("shown", HOSTILE.values(), ids=HOSTILE)
def test_what_takes_many_times_its_bytes_is_not_kept(shown: Message | Task) -> None:
    """A caller fills no memory with JSON: only a few texts without metadata are kept."""
    kind, content = cast("Any", type(shown)), shown.SerializeToString()
    assert len(content) <= _SHORT_BYTES
    assert operations._kept_json(kind, content) is None
    assert operations._shown_again(shown) == json_of(shown)


def test_required_fields_are_looked_for_outside_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data and metadata require nothing, however many values they have."""
    look = Mock(side_effect=validate_proto_required_fields)
    monkeypatch.setattr(context, "validate_proto_required_fields", look)
    sent = message(metadata=LARGE, parts=[{"data": LARGE, "metadata": LARGE}])
    asked = json_format.ParseDict({"message": sent, "metadata": LARGE}, SendMessageRequest())
    context.check_required(asked)
    assert look.call_args.args[0].ByteSize() < SMALL < asked.ByteSize()
    with pytest.raises(InvalidParamsError, match=r"missing or empty: message\.$"):
        context.check_required(SendMessageRequest())
