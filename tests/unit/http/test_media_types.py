"""Which Content-Type each answer has, by the one rule of docs/clients.md."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from a2a_serverless.settings import Settings
from tests.support.a2a_calls import message
from tests.support.scripted_worker import ScriptedWorker

JSON, A2A, STREAM = "application/json", "application/a2a+json", "text/event-stream"
V1, V0_3 = {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}
SEND = {"message": message("go")}
SEND_0_3 = {
    "message": {"messageId": "1", "role": "user", "parts": [{"kind": "text", "text": "go"}]}
}
SEND_0_1 = {"message": {"role": "user", "parts": [{"type": "text", "text": "go"}]}}


def call(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


ANSWERS = {
    "a result of HTTP+JSON 1.0": (("GET", "/tasks", None, V1), A2A),
    "to a caller that sends JSON": (("POST", "/message:send", SEND, V1), JSON),
    "to one that accepts JSON": (("GET", "/tasks", None, {**V1, "Accept": JSON}), JSON),
    "to one that accepts both": (
        ("POST", "/message:send", SEND, {**V1, "Accept": f"{JSON}, {A2A}"}),
        A2A,
    ),
    "an error of HTTP+JSON 1.0": (("GET", "/tasks/unknown", None, V1), JSON),
    "an unknown path": (("GET", "/nothing", None, {**V1, "Accept": A2A}), JSON),
    "a stream of HTTP+JSON 1.0": (("POST", "/message:stream", SEND, V1), STREAM),
    "a result of HTTP+JSON 0.3": (("POST", "/v1/message:send", SEND_0_3, V0_3), JSON),
    "an error of HTTP+JSON 0.3": (("GET", "/v1/tasks/unknown", None, V0_3), JSON),
    "a stream of HTTP+JSON 0.3": (("POST", "/v1/message:stream", SEND_0_3, V0_3), STREAM),
    "a result over JSON-RPC 1.0": (("POST", "/", call("SendMessage", SEND), V1), JSON),
    "to one that accepts the other": (
        ("POST", "/", call("ListTasks", {}), {**V1, "Accept": A2A}),
        JSON,
    ),
    "an error over JSON-RPC 1.0": (("POST", "/", call("GetTask", {"id": "x"}), V1), JSON),
    "a stream over JSON-RPC 1.0": (("POST", "/", call("SendStreamingMessage", SEND), V1), STREAM),
    "a result over JSON-RPC 0.3": (("POST", "/", call("message/send", SEND_0_3), V0_3), JSON),
    "a stream over JSON-RPC 0.3": (("POST", "/", call("message/stream", SEND_0_3), V0_3), STREAM),
    "a result of 0.1": (("POST", "/", call("tasks/send", SEND_0_1), {}), JSON),
    "a stream of 0.1": (("POST", "/", call("tasks/sendSubscribe", SEND_0_1), {}), STREAM),
    "the card": (("GET", "/.well-known/agent-card.json", None, {"Accept": A2A}), JSON),
    "the keys": (("GET", "/.well-known/jwks.json", None, {}), JSON),
}


@pytest.fixture
def settings() -> Settings:
    return Settings(auth="none", blocking_limit_s=20, older_dialects=True, push_queue="pushes.fifo")


@pytest.mark.parametrize(("asked", "expected"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_the_media_type_of(
    client: httpx.AsyncClient, worker: ScriptedWorker, asked: Any, expected: str
) -> None:
    """A stream, the result of HTTP+JSON 1.0 as its caller takes it, and JSON for all else."""
    verb, path, body, headers = asked
    answer = await client.request(verb, path, json=body, headers=headers)
    assert answer.headers["content-type"].partition(";")[0] == expected


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
