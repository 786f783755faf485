"""Answers that are given in one piece, and how long they may be."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from a2a.types import AgentCard, Artifact, ListTasksResponse, Part, Task, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Value

from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import lambda_handler
from a2a_serverless.http.operations import Entrypoint, _sent_bytes, _shown_page
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.tasks.blobs import Blob
from a2a_serverless.tasks.entries import Replied, StatusChanged
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.contract import ArtifactWrite, Storage
from tests.support.a2a_calls import JSONRPC, REST, Agent, Serve, client_of, message
from tests.support.gateway import deployed, rest_event
from tests.support.messages import agent_message, artifact, request
from tests.support.scripted_worker import ScriptedWorker, Turn

LAMBDA_TAKES = 6 * 1024 * 1024
JSON = {"A2A-Version": "1.0"}
QUOTES = '"' * 2_900_000
"""Each becomes four bytes of what Lambda sends."""


@pytest.fixture
def call(backends: Backends, card: AgentCard, settings: Settings) -> Iterator[Serve]:
    """Makes an agent of either function."""
    with ExitStack() as stack:

        def make(entrypoint: Entrypoint, binding: str = REST) -> Agent:
            app = stack.enter_context(deployed(entrypoint, settings, backends, card))
            return Agent(client_of(app), binding)

        yield make


async def large_task(backends: Backends, text: str, *, context: str = "c") -> str:
    """A completed task with one artifact, older than the next one: by that lists are sorted."""
    storage = Storage(backends.storage)
    task = await storage.create_task(context, request().message)
    written = ArtifactWrite(artifact("a", text))
    await storage.update_task(task.id, TaskState.TASK_STATE_COMPLETED, artifacts=[written])
    clock = backends.storage.clock
    ended_at = clock.now_ms()
    while clock.now_ms() == ended_at:
        await clock.sleep(0.001)
    return task.id


@pytest.mark.long
def test_lists_of_large_tasks_fit_into_what_lambda_sends(
    loop: Any, settings: Settings, backends: Backends, card: AgentCard, monkeypatch: Any
) -> None:
    """15 tasks of 2.9 MB come page by page, in answers that Lambda takes and little memory."""
    made = [loop.run_until_complete(large_task(backends, "x" * 2_900_000)) for _ in range(15)]
    handler = lambda_handler(create_app(settings, backends, card, entrypoint="api"))
    listed, token = [], ""
    read, get = list[str](), MemoryBlobs.get

    async def reading(blobs: MemoryBlobs, blob: Blob) -> bytes | None:
        read.append(blob.owner.task_id)
        return await get(blobs, blob)

    monkeypatch.setattr(MemoryBlobs, "get", reading)
    tracemalloc.start()
    while True:
        path = f"/tasks?pageSize=100&includeArtifacts=true&pageToken={token}"
        answer = handler(rest_event("GET", path, None, JSON), None)
        assert answer["statusCode"] == 200
        assert len(json.dumps(answer)) < LAMBDA_TAKES
        page = json.loads(answer["body"])
        assert page["totalSize"] == 15
        listed += [task["id"] for task in page["tasks"]]
        token = page["nextPageToken"]
        if not token:
            break
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert listed == read == made[::-1]
    assert peak < 60_000_000


@pytest.mark.parametrize(("entrypoint", "binding"), [("api", REST), ("stream", JSONRPC)])
async def test_a_page_ends_where_its_answer_would_be_too_long(
    call: Serve, backends: Backends, entrypoint: Entrypoint, binding: str
) -> None:
    """A page ends where its answer would be too long as JSON, and goes on with its token."""
    agent = call(entrypoint, binding)
    made = [await large_task(backends, '"' * 800_000) for _ in range(3)]
    asked: dict[str, Any] = {"pageSize": 100, "includeArtifacts": True}
    for expected in made[:0:-1]:
        page = (await agent.call("ListTasks", asked)).result
        assert [task["id"] for task in page["tasks"]] == [expected]
        asked["pageToken"] = page["nextPageToken"]
    plain = await agent.call("ListTasks", {"pageSize": 100})
    assert [task["id"] for task in plain.result["tasks"]] == made[::-1]


@pytest.mark.parametrize("entrypoint", ["api", "stream"])
async def test_a_task_above_a_page(call: Serve, backends: Backends, entrypoint: Entrypoint) -> None:
    """A page whose task fits into no answer is refused with what to ask for, which works."""
    agent = call(entrypoint)
    behind, large = await large_task(backends, "x"), await large_task(backends, QUOTES)
    asked = {"includeArtifacts": True}
    refused = await agent.call("ListTasks", asked)
    assert (refused.reason, refused.response.status_code) == ("INVALID_PARAMS", 400)
    assert refused.message == (
        f"Task {large} alone is larger than an answer may be: list this page again without"
        " artifacts, with a smaller history length and a page size of 1, and get the task by its"
        " id."
    )
    alone = (await agent.call("ListTasks", {"pageSize": 1})).result
    assert [task["id"] for task in alone["tasks"]] == [large]
    rest = await agent.call("ListTasks", {**asked, "pageToken": alone["nextPageToken"]})
    assert [task["id"] for task in rest.result["tasks"]] == [behind]
    got = await call("stream").call("GetTask", {"id": large})
    assert len(got.task["artifacts"][0]["parts"][0]["text"]) == len(QUOTES)


async def test_a_task_that_is_too_long_for_an_answer_in_one_piece(
    call: Serve, backends: Backends, worker: ScriptedWorker
) -> None:
    """ApiFunction says where to get it, and that it has done what it was asked all the same."""
    storage = Storage(backends.storage)
    task = await storage.create_task("c", request().message)
    large = ArtifactWrite(artifact("a", QUOTES))
    asks = TaskState.TASK_STATE_INPUT_REQUIRED
    await storage.update_task(task.id, asks, artifacts=[large])
    named, said = {"id": task.id}, {"message": message("ask", taskId=task.id)}
    for method, params, sentence in (
        ("GetTask", named, "get it by its id with a smaller historyLength, or over JSON"),
        ("SendMessage", said, "the message was accepted; get the task by its id."),
        ("CancelTask", named, "it has ended; get it by its id with a smaller history"),
    ):
        refused = await call("api").call(method, params)
        assert (refused.reason, refused.response.status_code) == ("INVALID_PARAMS", 400)
        assert sentence in refused.message
    got = (await call("stream").call("GetTask", named)).task
    assert [said["messageId"] for said in got["history"]][1] == "message-1"
    assert got["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_reply_that_is_too_long_for_a_sends_answer(call: Serve, backends: Backends) -> None:
    """A reply that is too long for the answer of a send is the message of the task's status."""

    async def reply(turn: Turn, _: ScriptedWorker) -> None:
        said = agent_message(QUOTES[:1_900_000])  # which are stored twice
        completed = TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=said)
        await turn.commit(Replied(said), StatusChanged(completed))

    async with ScriptedWorker(backends, reply).running():
        refused = await call("api").call("SendMessage", {"message": message()})
    assert refused.reason == "INVALID_PARAMS"
    task_id = re.findall("Task (.*) alone .* accepted; get the task by its id.", refused.message)[0]
    got = await call("stream").call("GetTask", {"id": task_id})
    assert got.task["status"]["message"]["parts"] == [{"text": QUOTES[:1_900_000]}]


def a_value(depth: int = 3) -> Value:
    value = Value()
    value.struct_value.update({"a": None, "b": [True, {}, [], 0.1], "\x01": '"\\'})
    for _ in range(depth):
        inner, value = value, Value()
        value.list_value.values.extend([inner, inner])
    return value


@pytest.mark.parametrize(
    "part",
    [
        *(Part(text=text * 300) for text in ("x", '"\\', "\x01\x1f", "🦊ä")),
        Part(raw=b"\xff" * 500),
        Part(data=a_value()),
        Part(),
        Part(url="https://x", filename="f", media_type="text/plain"),
    ],
    ids=lambda part: part.WhichOneof("content") or "empty",
)
def test_the_size_of_an_answer_is_that_of_the_answer(part: Part) -> None:
    """The size counted for a task is what it adds to the answer, at most 20 times its protobuf."""
    state = TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED)
    task = Task(id="t", status=state, artifacts=[Artifact(artifact_id="a", parts=[part] * 20)])

    def answered(tasks: list[Task]) -> int:
        answer = _shown_page(ListTasksResponse(tasks=tasks))
        body = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        return len(json.dumps({"body": body}, ensure_ascii=False).encode())

    assert answered([task] * 3) - answered([task] * 2) == _sent_bytes(task)
    assert _sent_bytes(task) <= 20 * task.ByteSize()


@pytest.mark.parametrize(("values", "is_refused"), [(49_000, True), (10_000, False)])
async def test_many_values_block_no_loop(call: Serve, values: int, *, is_refused: bool) -> None:
    """As many values as a body may hold take less than two seconds; more are refused."""
    agent = call("stream", JSONRPC)
    parts: list[dict[str, Any]] = [{}] * (values - 100)  # the other fields have a few values, too
    start = time.process_time()
    answer = await agent.call("SendMessage", {"message": message(parts=parts)})
    assert time.process_time() - start < 2
    assert answer.reason == "INVALID_PARAMS"  # there may not be so many parts, either
    assert ("more than 10000 values: send them in a file" in answer.message) is is_refused
