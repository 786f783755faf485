"""Numbers: what a client sends reaches the agent, and comes back, as the number that it is."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard, AgentExtension, StreamResponse, TaskPushNotificationConfig
from google.protobuf.json_format import ParseDict

from a2a_serverless.http.app import create_app
from a2a_serverless.push.notifications import owed
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.push import CONFIG_ID_OF_0_1, Push
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless_tools.cli.answers import Answer
from a2a_serverless_tools.cli.export import _task
from a2a_serverless_tools.console.parts import shown_parts
from a2a_serverless_tools.operate.inspector import event_lines

EXACT = 2**53
EDGES = [0, -0.0, 1, -3.0, EXACT - 1, -EXACT, EXACT, EXACT + 2, 1e16, 2**63, -(2**63), 1e20]
EDGES += [0.1, 1e-7, 5e-324, 1e21, 1.5e300, sys.float_info.max]


DATA: dict[str, Any] = {
    "edges": EDGES,
    "text": "3.0",
    "yes": True,
    "deep": [{"k": [7.0, {"k": EDGES}], "m": 12.5}, [[-9e3, 0.25], 1234567]],
}
"""Whole and broken numbers at several depths."""


class Echo(Worker):
    """Says what it was given, in each way that takes JSON."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    async def handle(self, ctx: TaskContext) -> None:
        (data,) = ctx.data_parts
        self.given.append((data, ctx.metadata))
        await ctx.progress(3, 10)
        await ctx.emit_artifact("given", data=data, metadata=ctx.metadata)
        await ctx.request_input("Well?", data) if "asks" in data else await ctx.complete_json(data)


def parts_of(value: Any) -> Iterator[Any]:
    """The value, and all that is in it."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from parts_of(each)


def check(text: str, *sent: Any) -> None:
    """The JSON of a text holds what was sent; each of its numbers is in its shortest form."""

    def broken(token: str) -> float:
        number = float(token)
        assert token == repr(number), token
        assert not number.is_integer() or abs(number) >= 1e21, token
        return number

    found = list(parts_of(json.loads(text, parse_float=broken)))
    for value in sent:
        assert value in found, text[:2000]


def check_ints(value: Any) -> None:
    """An agent has an int for each whole number within 2^53."""
    for each in parts_of(value):
        assert not isinstance(each, float) or not each.is_integer() or abs(each) > EXACT, each


def forms(data: dict[str, Any]) -> Mapping[str, tuple[str, str, dict[str, Any]]]:
    """Path, version and body of a send in each version and binding, in one piece and streamed."""
    new = {"role": "ROLE_USER", "parts": [{"data": data}], "metadata": data}
    part = {"kind": "data", "type": "data", "data": data}
    old = {"kind": "message", "role": "user", "parts": [part], "metadata": data}

    made = {
        "1.0 rest": ("/message:send", "1.0", new),
        "1.0 rest stream": ("/message:stream", "1.0", new),
        "1.0 SendMessage": ("/", "1.0", new),
        "1.0 SendStreamingMessage": ("/", "1.0", new),
        "0.3 rest": ("/v1/message:send", "0.3", old),
        "0.3 rest stream": ("/v1/message:stream", "0.3", old),
        "0.3 message/send": ("/", "0.3", old),
        "0.3 message/stream": ("/", "0.3", old),
        "0.1 tasks/send": ("/", "", old),
        "0.1 tasks/sendSubscribe": ("/", "", old),
    }
    asked: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for name, (path, version, said) in made.items():
        body: dict[str, Any] = {"message": {**said, "messageId": name}}
        if version == "":
            body |= {"id": name.replace("/", "-").replace(" ", "-"), "sessionId": "c"}
        if path == "/":
            body = {"jsonrpc": "2.0", "id": 1, "method": name.split()[1], "params": body}
        asked[name] = (path, version, body)
    return asked


SETTINGS = Settings(auth="none", blocking_limit_s=20, older_dialects=True)


@pytest.fixture
def agent() -> Echo:
    return Echo()


@pytest.fixture
def backends() -> Backends:
    return memory_backends(SETTINGS)


@pytest.fixture
async def client(agent: Echo, backends: Backends) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the agent, which works."""
    card = AgentCard(name="Echo", version="1", default_input_modes=["application/json"])
    card.capabilities.streaming = True
    told = AgentExtension(uri="urn:limits")
    told.params.update({"maxBytes": 100_000_000, "share": 0.5})
    card.capabilities.extensions.append(told)
    transport = httpx.ASGITransport(create_app(SETTINGS, backends, card))
    adapter = WorkerAdapter(backends, WorkerExecutor(agent), SETTINGS)
    serving = asyncio.create_task(adapter.serve(concurrency=2))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_numbers_in_and_out(agent: Echo, client: httpx.AsyncClient) -> None:
    """In each version and binding, in one piece and streamed, as data and as metadata."""
    for name, (path, version, body) in forms(DATA).items():
        headers = {"A2A-Version": version} if version else {}
        answer = await client.post(path, json=body, headers=headers)
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        text = f"[{','.join(lines)}]" if lines else answer.text
        check(text, DATA, *([{"done": 3, "total": 10}] if lines else []))
        given, metadata = agent.given.pop()
        assert (given, metadata) == (DATA, DATA), name
        check_ints([given, metadata])


async def test_numbers_for_operators(
    agent: Echo, client: httpx.AsyncClient, backends: Backends, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists, webhooks of 1.0 and 0.1, export, console and command line have the same numbers."""
    sent = forms(DATA)["1.0 rest"][2]
    task = (await client.post("/message:send", json=sent, headers={"A2A-Version": "1.0"})).json()
    task_id = task["task"]["id"]
    listed = "/tasks?includeArtifacts=true"
    check((await client.get(listed, headers={"A2A-Version": "1.0"})).text, DATA)
    shown_card = (await client.get("/.well-known/agent-card.json")).text
    check(shown_card, {"maxBytes": 10**8, "share": 0.5})

    log = await backends.storage.for_scope(ANONYMOUS).read(task_id)
    assert isinstance(log, Log)
    for config_id in ("mine", CONFIG_ID_OF_0_1):
        config = TaskPushNotificationConfig(id=config_id, task_id=task_id)
        push = Push(scope="", incarnation=log.head.incarnation, config=config, version=0)
        bodies = [event.body(push, event.content).decode() for event in owed(log, push, "all")]
        check(f"[{','.join(bodies)}]", DATA, {"done": 3, "total": 10})
    check(json.dumps(_task(log, 0)), DATA)
    check(json.dumps([event for _, event in event_lines(log)]), DATA, {"done": 3, "total": 10})
    shown = log.fold().task()
    (part,) = shown_parts(shown.artifacts[0].parts)
    check(part.text, DATA)

    response = ParseDict(task, StreamResponse())
    for as_json in (True, False):
        Answer(as_json=as_json).take(response)
        check(capsys.readouterr().out.splitlines()[0], DATA)


@pytest.mark.parametrize(
    ("form", "number"), [("1.0 rest", "-1e400"), ("0.3 message/send", "1" + 5000 * "0")]
)
async def test_a_number_beyond_a_double(client: httpx.AsyncClient, form: str, number: str) -> None:
    """It is refused with a sentence, which has the way out; nothing is stored."""
    path, version, body = forms({"n": "N"})[form]
    headers = {"A2A-Version": version, "Content-Type": "application/json"}
    text = json.dumps(body).replace('"N"', number)
    answer = await client.post(path, content=text, headers=headers)
    assert (
        "A number is larger than a double can be, which is 1.8e308: send it as a text."
        in answer.text
    )
    assert not (await client.get("/tasks", headers={"A2A-Version": "1.0"})).json()["tasks"]
