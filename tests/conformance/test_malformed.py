"""500 malformed requests in each dialect: its own form of an error, with a sentence, and no 5xx.

They are made of what clients have sent (`tests/foreign/recorded`) by the grammar of `malformed.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard

from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from tests.conformance.malformed import Malformed, malformed
from tests.support.a2a_calls import Agent
from tests.support.recorded_clients import DIALECTS, Request, recorded

NUMBER = 500
SEED = 20_261_123

SENTENCE = re.compile(r"\S+ .*[^ ]\.", re.DOTALL)
INNER = ("Traceback", "validation error", "Failed to parse", "pydantic", "google.", "Error:")
"""What parsers and libraries say."""

OWN_CODES = {-32700, -32600, -32601, -32602}
"""JSON-RPC's own; an internal error, -32603, is none of a client's."""
CODES = {
    "1.0": OWN_CODES | set(range(-32009, -32000)),
    "0.3": OWN_CODES | set(range(-32007, -32000)),
    "0.1": OWN_CODES | set(range(-32005, -32000)),
}


@pytest.fixture(scope="module")
def right() -> dict[str, list[Request]]:
    """The recorded requests of each dialect."""
    requests = [r for client in recorded().values() for r in client if not r.is_refused]
    return {dialect: [r for r in requests if r.dialect == dialect] for dialect in DIALECTS}


@pytest.fixture
async def client(dialect: str, card: AgentCard) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(
        auth="none",
        blocking_limit_s=0.01,
        stream_limit_s=0.01,
        push_queue="pushes.fifo",
        push_allowed_hosts="receiver.example,localhost,127.0.0.1",
        older_dialects=dialect.startswith("0.1"),
    )
    app = create_app(settings, memory_backends(settings), card, entrypoint="stream")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.mark.long(but=1)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_malformed_requests(
    client: httpx.AsyncClient, dialect: str, right: dict[str, list[Request]]
) -> None:
    """Each is refused in the dialect's own form; nothing is stored, and nothing breaks."""
    agent = Agent(client)
    task = (await agent.send("wait", configuration={"returnImmediately": True})).task["id"]
    mine = {f"task-{number}": task for number in range(1, 100)}
    requests = [request.with_ids(mine) for request in right[dialect]]
    found = []
    for wrong in malformed(dialect, requests, NUMBER, SEED):
        response = await client.request(
            wrong.method, wrong.path, content=wrong.content, headers=wrong.headers
        )
        try:
            check(dialect, wrong, response)
        except AssertionError as error:
            found.append(f"{wrong}\n{response.status_code} {response.text[:500]}\n{error}")
    assert not found, "\n\n".join([f"{len(found)} of {NUMBER}", *found[:10]])
    assert (await agent.call("ListTasks", {})).result["totalSize"] == 1


def check(dialect: str, wrong: Malformed, response: httpx.Response) -> None:
    """Raise AssertionError for an answer that is no error of the dialect."""
    version, binding = dialect.split()
    assert response.status_code < 500
    body = content_of(response)
    if binding == "JSON-RPC":
        assert response.status_code == 200
        sentence = sentence_of_jsonrpc(version, body, wrong.request_id)
    else:
        sentence = sentence_of_rest(version, body, response.status_code)
    assert SENTENCE.fullmatch(sentence), sentence
    assert not [words for words in INNER if words in sentence], sentence


def content_of(response: httpx.Response) -> Any:
    """The answer, or the only event of a stream that refuses."""
    if response.headers["content-type"].startswith("text/event-stream"):
        [data] = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
        return json.loads(data)
    assert response.headers["content-type"] == "application/json"
    return response.json()


def sentence_of_jsonrpc(version: str, body: Any, request_id: str | int | None) -> str:
    """The message of an error of JSON-RPC; only 1.0 has typed details."""
    assert set(body) == {"jsonrpc", "id", "error"}
    assert body["jsonrpc"] == "2.0"
    if request_id is not None:
        assert body["id"] == request_id
    error = body["error"]
    assert {"code", "message"} <= set(error) <= {"code", "message", "data"}
    assert error["code"] in CODES[version]
    data = error.get("data")
    if version == "1.0":
        assert data is None or all("@type" in detail for detail in data)
        if error["code"] not in OWN_CODES:
            assert data[0]["domain"] == "a2a-protocol.org"
    else:
        assert data is None or isinstance(data, dict)
    return str(error["message"])


def sentence_of_rest(version: str, body: Any, status: int) -> str:
    """The message of an error of HTTP+JSON; 0.3 has it at its top as well."""
    own = {"error"} if version == "1.0" else {"error", "code", "message"}
    assert set(body) == own
    error = body["error"]
    assert {"code", "status", "message"} <= set(error) <= {"code", "status", "message", "details"}
    assert error["code"] == status
    assert 400 <= status < 500
    if version == "0.3":
        assert body["message"] == error["message"]
        assert body["code"] in CODES["0.3"] | {status}
    return str(error["message"])
