"""How much one request may be, how many there may be, and what is said about it."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from a2a_serverless.http import middleware
from a2a_serverless.http.errors import log_refusal
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, memory_backends
from tests.support.a2a_calls import JSONRPC, LATER, REST, Agent, Serve, message, read, rpc
from tests.support.clocks import ManualClock
from tests.support.observed import Line, logged
from tests.support.scripted_worker import ScriptedWorker

KEY = "a-key-of-more-than-twenty-characters"
OTHER = "another-key-of-twenty-or-more-characters"
SETTINGS = {"max_body_bytes": 100_000, "max_header_bytes": 4096, "max_parts": 5}
SETTINGS |= {"max_part_bytes": 1000, "max_history": 3}
TYPED = {"Content-Type": "application/json"}
OF_1_0 = {"A2A-Version": "1.0", **TYPED}


def problem(response: httpx.Response, status: int, binding: str) -> str:
    """The message of a refusal outside of the protocol's errors, in the binding's form."""
    body = response.json()
    assert response.status_code == status
    if binding == JSONRPC:
        assert (body["jsonrpc"], body["id"], body["error"]["code"]) == ("2.0", None, -32600)
    else:
        assert body["error"]["code"] == status
    assert read(response).reason == "INVALID_REQUEST"
    return str(body["error"]["message"])


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_long_headers(agent: Agent) -> None:
    """431: one long header, or many; 414 for path and query together, before anything else."""
    many = {f"X-{number}": "x" * 40 for number in range(100)}
    for headers in ({"X-API-Key": "x" * 4096}, {"A2A-Extensions": "x" * 4096}, many):
        answer = await agent.call("ListTasks", {}, headers)
        said = problem(answer.response, 431, agent.binding)
        assert said == "The headers are longer than 4096 bytes."
    assert (await agent.call("ListTasks", {}, {"X": "x" * 3000})).reason == ""
    for url in ("/tasks/" + "x" * 5000, "/tasks?pageToken=" + "x" * 5000):
        response = await agent.client.get(url, headers={"A2A-Version": "1.0"})
        assert problem(response, 414, REST) == "The path and query are longer than 4096 bytes."


@pytest.mark.parametrize("length", ["announced", "not said"])
@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_long_bodies(agent: Agent, length: str) -> None:
    """413, before the body is read where its length is announced, else as soon as it is reached."""
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 10_000
            yield b" " * 10_000

    path = "/" if agent.binding == JSONRPC else "/message:send"
    content: Any = b" " * 1_000_000 if length == "announced" else body()
    response = await agent.client.post(path, content=content, headers=OF_1_0)
    said = problem(response, 413, agent.binding)
    assert said == "The body is longer than 100000 bytes."


async def test_a_length_that_is_none(client: httpx.AsyncClient) -> None:
    """A wrong Content-Length is ignored: the body itself is counted and gets 413."""
    for length in ("-1", "x", ""):
        headers = {**OF_1_0, "Content-Length": length}
        response = await client.post("/message:send", content=b"x" * 200_000, headers=headers)
        assert response.status_code == 413


LONG = "message.parts[0]", "A part may have at most 1000 bytes."


@pytest.mark.parametrize(
    ("parts", "field", "problem"),
    [
        ([{"text": "x"}] * 6, "message.parts", "A message may have at most 5 parts."),
        ([{"text": "x"}, {"text": "x" * 1001}], "message.parts[1]", LONG[1]),
        ([{"raw": base64.b64encode(bytes(1001)).decode(), "mediaType": "image/png"}], *LONG),
        ([{"text": "x", "metadata": {"x": "x" * 1001}}], *LONG),
        ([{"data": ["x" * 1001]}], *LONG),
        ([{"url": "x" * 1001}], *LONG),
    ],
    ids=["many", "text", "raw", "metadata", "data", "url"],
)
async def test_parts(agent: Agent, parts: list[dict[str, Any]], field: str, problem: str) -> None:
    """Invalid params that name the part and the limit; nothing was made of the message."""
    for method in ("SendMessage", "SendStreamingMessage"):
        answer = await agent.call(method, {"message": message(parts=parts)})
        assert (answer.reason, answer.message) == ("INVALID_PARAMS", problem)
        assert f'"{field}"' in answer.response.text
    assert (await agent.call("ListTasks", {})).result["totalSize"] == 0
    within = [*([{"text": "x"}] * 4), {"text": "x" * 990}]
    assert (await agent.send("go", parts=within, configuration=LATER)).reason == ""


async def test_history_is_bounded(agent: Agent, worker: ScriptedWorker) -> None:
    """No answer shows more than the last messages, though nothing is lost of what is stored."""
    task_id = (await agent.send("ask")).task["id"]
    for _ in range(2):
        await agent.send("ask", taskId=task_id)
    for more in ({}, {"historyLength": 2**31 - 1}):
        got = await agent.call("GetTask", {"id": task_id, **more})
        listed = await agent.call("ListTasks", more)
        sent = await agent.send("ask", taskId=task_id, configuration=more)
        of_0_3 = await agent.client.post("/", json=rpc("tasks/get", {"id": task_id, **more}))
        over_rest = await agent.client.get(f"/v1/tasks/{task_id}", params=more)
        shown = [got.task, listed.result["tasks"][0], sent.task]
        for task in (*shown, of_0_3.json()["result"], over_rest.json()):
            assert len(task["history"]) == 3
    assert len((await agent.call("CancelTask", {"id": task_id})).task["history"]) == 3


class TestRate:
    """Requests of one caller per second; by the clock of the backends."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def backends(self, settings: Settings, clock: ManualClock) -> Backends:
        return memory_backends(settings, clock)

    @pytest.fixture
    def settings(self) -> Settings:
        keys = SecretStr(f"alice={KEY},bob={OTHER}")
        return Settings(auth="api-key", api_keys=keys, requests_per_s=2)

    async def test_it_is_each_callers_own(self, agent: Agent, clock: ManualClock) -> None:
        """429 with the wait until the bucket fills; others go on, and a wrong key uses none."""
        alice, bob = {"X-API-Key": KEY}, {"X-API-Key": OTHER}
        for _ in range(10):
            await agent.call("ListTasks", {}, {"X-API-Key": f"{KEY}x"})
        for _ in range(4):
            assert (await agent.call("ListTasks", {}, alice)).reason == ""
        refused = await agent.call("ListTasks", {}, alice)
        assert refused.response.status_code == 429
        assert refused.response.headers["retry-after"] == "1"
        assert refused.reason == "RATE_LIMIT_EXCEEDED"
        assert refused.message == "You have sent more than 2 requests per second."
        assert (await agent.call("ListTasks", {}, bob)).reason == ""
        clock.advance(0.5)
        assert (await agent.call("ListTasks", {}, alice)).reason == ""
        assert (await agent.call("ListTasks", {}, alice)).response.status_code == 429

    async def test_so_many_callers_are_remembered(
        self, agent: Agent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Beyond that the one who was away longest starts anew, so that memory has an end."""
        monkeypatch.setattr(middleware._Rate, "MAX_BUCKETS", 1)
        alice, bob = {"X-API-Key": KEY}, {"X-API-Key": OTHER}
        for key in (*[alice] * 4, bob, *[alice] * 4):
            assert (await agent.call("ListTasks", {}, key)).reason == ""
        assert (await agent.call("ListTasks", {}, alice)).reason == "RATE_LIMIT_EXCEEDED"

    async def test_where_nobody_is_known_all_are_one(self, serve: Serve) -> None:
        """Without authentication all requests share one limit; health checks are not counted."""
        ask = serve(auth="none").client.get
        for _ in range(10):
            assert (await ask("/healthz")).status_code == 200
        asked = [await ask("/tasks", headers=OF_1_0) for _ in range(5)]
        assert [answer.status_code for answer in asked] == [200, 200, 200, 200, 429]
        assert (await ask("/healthz")).status_code == 200

    async def test_a_slow_rate(self, serve: Serve, clock: ManualClock) -> None:
        """Below one per second there is always room for one, and the wait is said in seconds."""
        slow = serve(requests_per_s=0.1)
        key = {"X-API-Key": KEY}
        assert (await slow.call("ListTasks", {}, key)).reason == ""
        refused = (await slow.call("ListTasks", {}, key)).response
        assert refused.headers["retry-after"] == "10"
        clock.advance(10)
        assert (await slow.call("ListTasks", {}, key)).reason == ""


NOBODY = {"id": "nobody"}
REFUSALS: list[tuple[str, str, str, Any, dict[str, str]]] = [
    ("HeadersTooLarge", "GET", "/tasks", b"", {**OF_1_0, "X": "x" * 5000}),
    ("UriTooLong", "GET", "/tasks/" + "x" * 5000, b"", OF_1_0),
    ("BodyTooLarge", "POST", "/message:send", b" " * 200_000, OF_1_0),
    ("InvalidRequest", "POST", "/message:send", b"{", OF_1_0),
    ("InvalidParams", "POST", "/message:send", b"{}", OF_1_0),
    ("ContentTypeNotSupported", "POST", "/", b"{}", {"Content-Type": "text/plain"}),
    ("TaskNotFound", "GET", "/tasks/nobody", b"", OF_1_0),
    ("TaskNotFound", "POST", "/", rpc("GetTask", NOBODY), OF_1_0),
    ("TaskNotFound", "POST", "/", rpc("tasks/get", NOBODY), TYPED),
    ("VersionNotSupported", "GET", "/tasks", b"", {}),
    ("VersionNotSupported", "GET", "/v1/tasks/nobody", b"", OF_1_0),
    ("VersionNotSupported", "POST", "/", rpc("SendStreamingMessage", {}), TYPED),
    ("VersionNotSupported", "POST", "/", rpc("tasks/get", {}), OF_1_0),
    ("VersionNotSupported", "POST", "/", rpc("message/send", {}), {"A2A-Version": "9"}),
    ("MethodNotFound", "POST", "/", rpc("NoSuchMethod", {}), OF_1_0),
    ("MethodNotFound", "POST", "/", rpc("tasks/send", {}), TYPED),
    ("InvalidRequest", "POST", "/", rpc("GetTask", {}, jsonrpc="1.0"), OF_1_0),
    ("InvalidRequest", "POST", "/", rpc("tasks/get", {}, id=True), TYPED),
    ("JSONParse", "POST", "/", b"{", OF_1_0),
    ("UnknownPath", "GET", "/nothing", b"", OF_1_0),
    ("UnknownMethod", "DELETE", "/tasks", b"", OF_1_0),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda it: it[0])
async def test_every_refusal_is_logged_with_its_reason(
    client: httpx.AsyncClient, caplog: Any, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    """Limits, bad input and unknown tasks alike: a word that a machine reads, once, and counted."""
    reason, verb, path, content, headers = refusal
    counted: list[str] = []
    monkeypatch.setattr(metrics, "count", lambda name, reason: counted.append(f"{name} {reason}"))
    body = json.dumps(content).encode() if isinstance(content, dict) else content
    with caplog.at_level(logging.INFO, "a2a_serverless"):
        await client.request(verb, path, content=body or None, headers=headers)
    said = [vars(record) for record in caplog.records if vars(record).get("action") == "refused"]
    assert [(line["levelname"], line["reason"]) for line in said] == [("INFO", reason)]
    assert counted == [f"RequestsRefused {reason}"]


# -- one correlation id for all lines of a request -------------------------------------------


def ids(lines: list[Line]) -> list[str]:
    return [line["correlation_id"] for line in lines]


@pytest.mark.parametrize("is_inside", [True, False])
async def test_the_client_reads_the_id_of_all_lines(
    agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch, *, is_inside: bool
) -> None:
    """Wherever the request fails: in an operation, or before it."""

    async def explode(*_: object, **__: object) -> None:
        log_refusal("Before")
        raise RuntimeError("boom")

    owner = type(backends.storage) if is_inside else middleware._Admission
    monkeypatch.setattr(owner, "open_task" if is_inside else "_admitted", explode)
    with logged() as lines:
        answer = (await agent.send()).response
    assert (answer.status_code, "boom" in answer.text) == (500, False)
    (read,) = re.findall(r"Correlation id: ([0-9a-f]{16})\.", answer.text)
    assert [line["action"] for line in lines[:2]] == ["refused", lines[1]["action"]]
    assert set(ids(lines)) == {read}


async def test_a_cancel_that_the_api_ends_has_one_line(serve: Serve) -> None:
    """The line at the turn's end, as a worker writes it, under the id of the cancel's request."""
    agent = serve(cancel_timeout_s=0.05)
    task = (await agent.send(configuration=LATER)).task
    with logged() as lines:
        await agent.call("CancelTask", {"id": task["id"]})
    assert [line["action"] for line in lines] == ["send_cancel", "turn_ended", "cancel_forced"]
    _, ended, _ = lines
    assert len({*ids(lines)}) == 1
    known = {"task_id": task["id"], "context_id": task["contextId"], "turn": 1}
    known |= {"state": "canceled", "attempts": 0, "commits": 1}
    assert {name: ended[name] for name in known} == known
    assert ended["total_ms"] >= 50
