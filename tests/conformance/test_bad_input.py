"""Bad input to every function: the code and the reason that A2A 1.0.1 gives (5.4, 9.5, 11.6)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from a2a.types import AgentCard

from tests.conformance.conftest import ServedAgent
from tests.support.a2a_calls import JSONRPC, details, message, read, target

HEADERS = {"A2A-Version": "1.0", "Content-Type": "application/json"}
REQUIRED = "urn:test:required"
TEN_MB = 10_000_000

pytestmark = pytest.mark.usefixtures("worker")


def nested(depth: int) -> Any:
    return json.loads('{"a": ' * depth + "1" + "}" * depth)


@dataclass(frozen=True)
class Case:
    """A request that is wrong in one thing, and its answer in both bindings."""

    code: int
    status: int
    reason: str
    params: Any = field(default_factory=lambda: {"message": message("go")})
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    method: str = "SendMessage"
    has_field: bool = False
    """Whether what is wrong is one field."""


def invalid(params: Any, method: str = "SendMessage", *, has_field: bool = True) -> Case:
    return Case(-32602, 400, "INVALID_PARAMS", params, method=method, has_field=has_field)


def unread(body: bytes) -> Case:
    """HTTP+JSON has no reason of its own for what is no JSON."""
    return Case(-32700, 400, "INVALID_REQUEST", body=body)


def untyped(content_type: str) -> Case:
    headers = {"Content-Type": content_type}
    return Case(-32005, 415, "CONTENT_TYPE_NOT_SUPPORTED", headers=headers)


def unversioned(version: str) -> Case:
    return Case(-32009, 400, "VERSION_NOT_SUPPORTED", headers={"A2A-Version": version})


CASES = {
    "no message": invalid({}),
    "no messageId": invalid({"message": message(messageId="")}),
    "no role": invalid({"message": message(role="ROLE_UNSPECIFIED")}),
    "no parts": invalid({"message": message(parts=[])}),
    "a part without content": invalid({"message": message(parts=[{}])}),
    "a part of a name alone": invalid({"message": message(parts=[{"filename": "a"}])}),
    "a part of two contents": invalid({"message": message(parts=[{"text": "a", "url": "b"}])}),
    "no base64": invalid({"message": message(parts=[{"raw": "not base64!"}])}),
    "a lone surrogate": invalid({"message": message(parts=[{"text": "\ud800"}])}),
    "data of 46 levels": invalid(
        {"message": message(parts=[{"data": nested(46)}])}, has_field=False
    ),
    "metadata of 300 levels": invalid({"message": message(metadata=nested(300))}, has_field=False),
    "metadata of 46 levels": invalid({"message": message(metadata=nested(46))}, has_field=False),
    "metadata that is a list": invalid({"message": message(), "metadata": []}),
    "a role that is no text": invalid({"message": message(role="\ud800")}, has_field=False),
    "a configuration that is a list": invalid({"message": message(), "configuration": ["x"]}),
    "a body of 100,000 levels": unread(b"[" * 100_000),
    "no JSON": unread(b'{"message": '),
    "nothing": unread(b""),
    "not a number": unread(b'{"a": NaN}'),
    "another encoding": unread(json.dumps({"message": message("go")}).encode("utf-16-le")[1:]),
    "10 MB": Case(-32600, 413, "INVALID_REQUEST", body=b'"' + b"x" * (TEN_MB - 2) + b'"'),
    "plain text": untyped("text/plain"),
    "a form": untyped("application/x-www-form-urlencoded"),
    "XML": untyped("application/xml; charset=utf-8"),
    "a media type that is not taken": Case(
        -32005,
        400,
        "CONTENT_TYPE_NOT_SUPPORTED",
        {"message": message(parts=[{"text": "a", "mediaType": "video/mp4"}])},
    ),
    "the agent's role": invalid({"message": message(role="ROLE_AGENT")}),
    "an unknown role": invalid({"message": message(role="ROLE_KING")}),
    "a role by an unknown number": invalid({"message": message(role=9)}),
    "a role by true": invalid({"message": message(role=True)}),
    "a role that is a list": invalid({"message": message(role=["ROLE_USER"])}),
    "an unknown state": invalid({"status": "TASK_STATE_RUNNING"}, "ListTasks"),
    "a state in another case": invalid({"status": "task_state_working"}, "ListTasks"),
    "a field of another type": invalid({"message": message(parts="text")}),
    "a negative length": invalid({"message": message(), "configuration": {"historyLength": -1}}),
    "a length beyond 32 bits": invalid(
        {"message": message(), "configuration": {"historyLength": 2**31}}
    ),
    "a context of 513 bytes": invalid({"message": message(contextId="x" * 513)}),
    "version 2": unversioned("2.0"),
    "version 1.1": unversioned("1.1"),
    "no version": unversioned(""),
    "no version at all": unversioned("latest"),
}
"""Bytes that are no UTF-8 are not among them: a REST API makes text of a body, whatever it is. A
server of one's own refuses them (`tests/unit/http/test_bad_input.py`)."""


@pytest.fixture
def card(card: AgentCard) -> AgentCard:
    card.capabilities.extensions.add(uri=REQUIRED, required=True)
    return card


async def send(agent: ServedAgent, case: Case, **declared: str) -> Any:
    verb, path, body = target(agent.binding, case.method, case.params)
    content = case.body
    if content is None and body is not None:
        content = json.dumps(body).encode()
    headers = {**HEADERS, **declared, **case.headers}
    return await agent.client.request(verb, path, content=content, headers=headers)


async def test_bad_input(agent: ServedAgent) -> None:
    """3.3.2, 9.5: it is refused before anything happens, in the binding's form, with the field."""
    for name, case in CASES.items():
        response = await send(agent, case, **{"A2A-Extensions": REQUIRED})
        answer, body = read(response), response.json()
        assert response.headers["content-type"] == "application/json", name
        assert "Traceback" not in response.text, name
        assert "BadRequest" in details(response) or not case.has_field, name
        if agent.binding == JSONRPC:
            status = 413 if case.status == 413 else 200
            found = response.status_code, answer.code, body["jsonrpc"]
            assert (name, *found) == (name, status, case.code, "2.0")
        else:
            found = response.status_code, body["error"]["code"], answer.reason
            assert (name, *found) == (name, case.status, case.status, case.reason)
    listed = await agent.call("ListTasks", {}, {"A2A-Extensions": REQUIRED})
    assert listed.result["totalSize"] == 0


async def test_unknown_fields_are_no_bad_input(agent: ServedAgent) -> None:
    """5.7: unknown fields on any level of bodies and queries are ignored."""
    params = {"message": message("go", surprise=[1], parts=[{"text": "go", "mood": {}}]), "x": 1}
    answer = await agent.call("SendMessage", params, {"A2A-Extensions": REQUIRED})
    assert answer.state == "COMPLETED"
    listed = await agent.call("ListTasks", {"surprise": "1"}, {"A2A-Extensions": REQUIRED})
    assert listed.result["totalSize"] == 1
