"""Bad input gets the protocol's error with its code, in the binding's form, and no inner text.

Its sentence tells the client what to do, in the names of the JSON that was sent.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard, Artifact, Part, TaskState
from fastapi import FastAPI
from google.protobuf.json_format import ParseDict

from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import JSONRPC, LATER, REST, Agent, Serve, message, read, target
from tests.support.a2a_calls import rpc as call
from tests.support.asgi_streams import live
from tests.support.scripted_worker import ScriptedWorker, Turn

VERSION = {"A2A-Version": "1.0"}
TYPED = {"Content-Type": "application/json"}
JSON = {**VERSION, **TYPED}


def nested(depth: int) -> Any:
    return json.loads('{"a": ' * depth + "1" + "}" * depth)


def listed(depth: int) -> Any:
    return json.loads("[" * depth + '"x"' + "]" * depth)


def assert_error(response: httpx.Response, binding: str, code: int, status: int = 400) -> None:
    """JSON-RPC answers 200 with its code, HTTP+JSON the status; neither shows a traceback."""
    answer = read(response)
    assert "Traceback" not in response.text
    assert response.headers["content-type"] == "application/json"
    if binding == JSONRPC:
        assert (response.status_code, answer.code) == (200, code)
    else:
        assert response.status_code == status
        assert response.json()["error"]["code"] == status
        assert answer.reason


def said_0_3(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"kind": "message", "messageId": "1", "role": role, "parts": parts}


TEXT_0_3 = {"kind": "text", "text": "go"}
NO_PARTS_OF_0_3: list[dict[str, Any]] = [
    *({"kind": "file", "file": file} for file in ({"bytes": "not base64!"}, {})),
    *({"kind": "text", **text} for text in ({}, {"text": 5}, {"text": "\ud800"})),
    {"kind": "picture"},
    {"kind": "data", "data": nested(60)},
    {**TEXT_0_3, "metadata": nested(60)},
]
GET = call("GetTask", {"id": "x"})
GET_0_3 = call("tasks/get", {"id": "x"})


@pytest.mark.parametrize(
    ("version", "envelope", "code"),
    [
        ("1.0", b'{"a": "\xc3\x28"}', -32700),
        ("1.0", b'{"a": 1e999}', -32700),
        ("1.0", b'{"a": ' + b"9" * 5000 + b"}", -32700),
        *(("1.0", body, -32600) for body in ([], [GET], "text", {"jsonrpc": "2.0", "id": 1})),
        ("1.0", GET | {"jsonrpc": "1.0"}, -32600),
        ("1.0", GET | {"method": ["GetTask"]}, -32600),
        ("1.0", GET | {"id": "\ud800"}, -32600),
        ("1.0", GET | {"method": "NoSuchMethod"}, -32601),
        ("1.0", GET | {"params": []}, -32602),
        ("1.0", GET | {"params": {}}, -32602),
        ("1.0", GET | {"params": {"id": 5}}, -32602),
        ("1.0", GET | {"id": None, "more": 1}, -32001),
        ("1.0", call("message/stream", {}), -32009),
        ("2.0", call("tasks/get", {}), -32009),
        ("", None, -32600),
        *(("", GET_0_3 | {"id": wrong}, -32600) for wrong in ([1], 1.5)),
        ("", {"jsonrpc": "2.0", "id": 1, "method": "tasks/get"}, -32602),
        *(("", call("tasks/get", {"id": wrong}), -32602) for wrong in (5, "\ud800")),
        *(("", call("tasks/get", {"id": "x", "historyLength": no}), -32602) for no in ("many", -1)),
        ("", call("tasks/cancel", {"id": "x", "metadata": nested(200)}), -32602),
        ("", call("tasks/resubscribe", []), -32602),
        ("", call("message/send", {"message": {"taskId": "nobody"}}), -32602),
        *(
            ("", call(f"message/{way}", {"message": said_0_3(part)}), -32602)
            for part in NO_PARTS_OF_0_3
            for way in ("send", "stream")
        ),
        ("", call("message/send", {"message": said_0_3(TEXT_0_3, role="agent")}), -32602),
        ("", call("tasks/cancel", {"id": "nobody"}), -32001),
        ("", GET_0_3 | {"id": None, "more": 1}, -32001),
    ],
)
async def test_envelopes(
    client: httpx.AsyncClient, caplog: Any, version: str, envelope: Any, code: int
) -> None:
    """Each kind of wrong JSON-RPC request has its code (JSON-RPC 2.0, section 5.1).

    So in 0.3, in no words of a parser, and no mistake of a client is an error in the log; 5.7: an
    unknown member is none, nor is an id that is null.
    """
    content = envelope if isinstance(envelope, bytes) else json.dumps(envelope).encode()
    headers = {**TYPED, "A2A-Version": version}
    response = await client.post("/", content=content, headers=headers)
    assert_error(response, JSONRPC, code)
    assert "validation error" not in response.text
    assert [r for r in caplog.records if r.levelname in ("ERROR", "CRITICAL")] == []


NO_BASE64 = ["%%%", "é", "Q", "QQ==QQ==", "Q=Q=", "QQ\n"]


async def test_a_file_in_any_base64(agent: Agent) -> None:
    """ProtoJSON takes both alphabets, with or without padding; line breaks are no digits."""
    for raw, shown in (
        *(("", ""), ("QQ==", "QQ=="), ("QQ", "QQ=="), ("/+8=", "/+8="), ("_-8", "/+8=")),
        ("QUFB\r\nQUFB\n\n\n", "QUFBQUFB"),
    ):
        sent: dict[str, Any] = {"parts": [{"raw": raw}], "messageId": repr(raw)}
        task = (await agent.send("", configuration=LATER, **sent)).task
        assert task["history"][0]["parts"] == [{"raw": shown}]


def sent_in_0_3(file: str, *, is_rest: bool) -> tuple[str, dict[str, Any]]:
    """Path and body of a message of A2A 0.3 with a file."""
    if is_rest:
        content = [{"text": "go"}, {"file": {"fileWithBytes": file}}]
        said = {"messageId": "1", "role": "ROLE_USER", "content": content}
        return "/v1/message:send", {"request": said}
    said = said_0_3(TEXT_0_3, {"kind": "file", "file": {"bytes": file}})
    return "/", call("message/send", {"message": said})


def twice(text: str) -> str:
    """What a client of the SDK's 0.3 sends over HTTP+JSON for the base64 `text` of a file."""
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("is_rest", [False, True])
async def test_no_base64(client: httpx.AsyncClient, version: str, *, is_rest: bool) -> None:
    """It is refused by the name of its field; 0.3 has one alphabet, and padding belongs to it."""
    files, field = NO_BASE64, "message.parts.raw"
    if version == "0.3":
        files = [*NO_BASE64, "-_-_", "QQ"]
        files = [*map(twice, files), *NO_BASE64] if is_rest else files
        field = "request.content.file.fileWithBytes" if is_rest else "message.parts.file.bytes"
    for file in files:
        path, body = sent_in_0_3(file, is_rest=is_rest)
        if version == "1.0":
            params = {"message": message(parts=[{"raw": file}])}
            _, path, body = target(REST if is_rest else JSONRPC, "SendMessage", params)
        response = await client.post(path, json=body, headers={"A2A-Version": version})
        assert_error(response, REST if is_rest else JSONRPC, -32602)
        assert read(response).message == f"{field} is not base64.", file


@pytest.mark.parametrize(
    ("file", "is_rest"), [("", True), ("/+8=", True), ("/+8=", False), ("QUFB\nQUFB", False)]
)
async def test_a_file_in_0_3(
    client: httpx.AsyncClient, worker: ScriptedWorker, file: str, *, is_rest: bool
) -> None:
    """A base64 file of 0.3 reaches the agent unchanged."""
    sent = twice(file) if is_rest else file
    path, body = sent_in_0_3(sent, is_rest=is_rest)
    response = await client.post(path, json=body, headers={"A2A-Version": "0.3"})
    assert "error" not in response.json()
    assert worker.started[0].request.message.parts[1].raw == base64.b64decode(file)


async def test_what_is_just_not_too_deep_survives(agent: Agent, worker: ScriptedWorker) -> None:
    """A message that is accepted can be read again by everybody, at any depth."""
    accepted = 0
    for depth in range(30, 50):
        parts = [{"text": "go"}, {"data": nested(depth)}]
        answer = await agent.send("", parts=parts)
        if answer.reason:
            break
        accepted += 1
        read_again = await agent.call("GetTask", {"id": answer.task["id"]})
        assert read_again.state == "COMPLETED"
        assert read_again.task["history"][0]["parts"][1]["data"] == nested(depth)
    assert 0 < accepted < 20


IN_0_3 = {"A2A-Version": "0.3"}


def read_0_3(binding: str, task_id: str, *, stream: bool = False) -> tuple[str, str, Any]:
    """How a client of 0.3 gets a task, or subscribes to it: method, path and body."""
    if binding == JSONRPC:
        method = "tasks/resubscribe" if stream else "tasks/get"
        return "POST", "/", call(method, {"id": task_id})
    return "GET", f"/v1/tasks/{task_id}{':subscribe' if stream else ''}", None


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_lists_of_any_depth_in_0_3(
    agent: Agent, binding: str, worker: ScriptedWorker
) -> None:
    """A client of 0.3 reads each list that 1.0 accepts, or is told how to get it."""
    refused = 0
    for depth in range(44, 52):
        answer = await agent.send("", parts=[{"text": "go"}, {"data": listed(depth)}])
        if answer.reason:
            assert depth > 47
            break
        task_id = answer.task["id"]
        verb, path, body = read_0_3(binding, task_id)
        got = await agent.client.request(verb, path, json=body, headers=IN_0_3)
        verb, path, body = read_0_3(binding, task_id, stream=True)
        opening = {**IN_0_3, "Last-Event-ID": "1.0.abcdef"}
        streamed = await agent.client.request(verb, path, json=body, headers=opening)
        if got.status_code == 200:
            assert all(json.dumps(listed(depth)) in one.text for one in (got, streamed))
        else:
            refused += 1
            told = f"Task {task_id} has a list that is nested too deeply for HTTP+JSON of A2A 0.3"
            assert got.status_code == 400
            assert all(told in one.text for one in (got, streamed))
    assert answer.reason
    assert refused == (0 if binding == JSONRPC else 1)


async def test_an_agents_list_in_0_3(backends: Backends, client: httpx.AsyncClient) -> None:
    """An artifact that cannot be written in 0.3 ends a stream with the protocol's error."""

    async def write(turn: Turn, worker: ScriptedWorker) -> None:
        data = ParseDict({"data": listed(48)}, Part())
        await turn.commit(ArtifactWritten(Artifact(artifact_id="deep", parts=[data])))
        await turn.status(TaskState.TASK_STATE_COMPLETED)

    said = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "go"}]}
    async with ScriptedWorker(backends, write).running():
        for path in ("/v1/message:stream", "/v1/message:send"):
            body = {"message": {**said, "messageId": path}}
            answer = await client.post(path, json=body, headers=IN_0_3)
            assert "has a list that is nested too deeply" in answer.text
            assert "unknown exception" not in answer.text


@pytest.mark.parametrize("name", ["raw", "url"])
async def test_null_beside_a_parts_content(agent: Agent, worker: ScriptedWorker, name: str) -> None:
    """Clients that write null for what they leave out have said one thing: it reaches the agent."""
    part = {"text": None, "raw": None, "url": None, name: "QUFB", "data": None, "metadata": None}
    answer = await agent.send("", parts=[{"text": "go", "data": None}, part, {"data": None}])
    assert answer.state == "COMPLETED"
    first, second, third = worker.started[0].request.message.parts
    assert first.text == "go"
    assert second.WhichOneof("content") == name
    assert third.WhichOneof("content") == "data"


OF_0_3 = {"message": {"messageId": "1", "role": 1, "content": [{"text": "go"}]}}
BODIES: dict[str, Any] = {
    "/": call("SendMessage", {"message": message()}),
    **{path: {"message": message()} for path in ("/message:send", "/message:stream")},
    **dict.fromkeys(("/v1/message:send", "/v1/message:stream"), OF_0_3),
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_mark_and_a_name_twice(app: FastAPI, worker: ScriptedWorker, path: str) -> None:
    """Every binding reads both alike: the mark is skipped, and of a name the last value counts."""
    text = json.dumps(BODIES[path])
    twice = f'{{"{"params" if path == "/" else "message"}": 5, {text[1:]}'
    headers = {"A2A-Version": "0.3"} if path.startswith("/v1") else VERSION
    for content in ("\ufeff" + text, twice):
        async with live(app, "POST", path, body=content.encode(), headers=headers) as response:
            answer = (await response.body()).decode()
        assert response.status == 200, answer
        assert "TASK_STATE_COMPLETED" in answer


async def test_json_by_any_name(client: httpx.AsyncClient) -> None:
    """Parameters do not count, the protocol's own type is taken, and saying nothing is fine."""
    body = json.dumps({"message": message(), "configuration": LATER})
    types = ("application/json; charset=utf-8", "application/a2a+json")
    for typed in (*({"Content-Type": it} for it in types), {}):
        response = await client.post("/message:send", content=body, headers=VERSION | typed)
        assert response.status_code == 200, typed


async def test_parts_of_a_type_that_the_card_includes(agent: Agent, worker: ScriptedWorker) -> None:
    """Ranges and parameters are understood (3.1.1)."""
    for media_type in ("text/plain; charset=utf-8", "image/png"):
        answer = await agent.send("", parts=[{"text": "go", "mediaType": media_type}])
        assert answer.state == "COMPLETED"
    answer = await agent.send("", parts=[{"text": "go", "mediaType": "video/mp4"}])
    assert answer.reason == "CONTENT_TYPE_NOT_SUPPORTED"


@pytest.mark.parametrize("method", ["message/send", "tasks/get"])
async def test_extensions_in_0_3(card: AgentCard, serve: Serve, method: str) -> None:
    """A missing one has 1.0's code, as 0.3 has none; active ones are in `X-A2A-Extensions`."""
    card.capabilities.extensions.add(uri="urn:must", required=True)
    client = serve().client
    refused = await client.post("/", json=call(method, {"id": "x"}))
    headers = {"A2A-Version": "0.3", "X-A2A-Extensions": "urn:must"}
    taken = await client.post("/", json=call("tasks/get", {"id": "x"}), headers=headers)
    assert_error(refused, JSONRPC, -32008)
    assert_error(taken, JSONRPC, -32001)
    assert taken.headers["X-A2A-Extensions"] == "urn:must"
    assert "A2A-Extensions" not in taken.headers


# -- what a refusal tells ------------------------------------------------------------------------


async def test_an_unknown_enum_value(agent: Agent) -> None:
    """The values that there are are named; the one that stands for none is no choice."""
    answer = await agent.call("SendMessage", {"message": message(role="KING")})
    told = "message.role has an unknown value: it is one of ROLE_USER, ROLE_AGENT."
    assert answer.message == told
    listed = await agent.call("ListTasks", {"status": "DONE"})
    assert "status has an unknown value: it is one of TASK_STATE_SUBMITTED, " in listed.message
    assert "UNSPECIFIED" not in listed.message


TWO = [{"text": "a", "url": "b"}]


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("message", "go", "message must be an object."),
        ("message.parts", "go", "message.parts must be a list."),
        ("message.parts", [{"text": 5}], "message.parts.text must be a string of Unicode."),
        ("message.parts", TWO, "has text and url: it may have one of them."),
        ("message.messageId", ["1"], "message.messageId must be a string"),
        ("message.metadata", [], "message.metadata must be an object."),
        ("configuration.historyLength", "many", "must be a whole number of at most 32 bits."),
        ("configuration.returnImmediately", 1, "must be true or false."),
        ("ListTasks.pageSize", "abc", "pageSize must be a whole number of at most 32 bits."),
        ("ListTasks.statusTimestampAfter", "2026-01-31", "statusTimestampAfter must be a time"),
        ("ListTasks.historyLength", -1, "historyLength must be 0 or more."),
        ("GetTask.historyLength", "abc", "historyLength"),
        ("GetTask.historyLength", -1, "historyLength must be 0 or more."),
    ],
)
async def test_a_field_of_another_type(agent: Agent, place: str, value: Any, sentence: str) -> None:
    """It is named as JSON has it, with what it must be."""
    holder, _, name = place.rpartition(".")
    method, params = "SendMessage", dict[str, Any](message=message(), configuration={})
    if holder in ("ListTasks", "GetTask"):
        method, params = holder, {name: value} | ({"id": "x"} if holder == "GetTask" else {})
    else:
        (params[holder] if holder else params)[name] = value
        sentence = sentence if sentence.startswith(holder or name) else f"{place} {sentence}"
    answer = await agent.call(method, params)
    assert answer.reason == "INVALID_PARAMS"
    assert sentence in answer.message


NO_ROLE = "message.role has an unknown value: it is one of 'agent' or 'user'."
SAID_0_3 = {"messageId": "1", "role": "user", "parts": [{"kind": "text", "text": "a"}, {}]}


@pytest.mark.parametrize(
    ("message_of_0_3", "sentence"),
    [
        ({}, "message.messageId is missing."),
        (SAID_0_3 | {"parts": [], "role": "king"}, NO_ROLE),
        (SAID_0_3 | {"parts": [], "messageId": 5}, "message.messageId is not as A2A 0.3 has"),
        (SAID_0_3, "message.parts[1] is not as A2A 0.3 has it."),
        ("go", "message is not as A2A 0.3 has it."),
    ],
)
async def test_fields_in_0_3(client: httpx.AsyncClient, message_of_0_3: Any, sentence: str) -> None:
    """A client of 0.3 learns the first field that is wrong, by its place in the JSON."""
    asked = call("message/send", {"message": message_of_0_3})
    answer = await client.post("/", json=asked, headers={"A2A-Version": "0.3"})
    error = answer.json()["error"]
    assert error["code"] == -32602
    assert error["message"].startswith(sentence)


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({"message": {"role": "ROLE_USER", "parts": [{"text": "go"}]}}, "message.messageId"),
        ({"message": {"messageId": "m-1", "role": "ROLE_USER"}}, "message.parts"),
        ({"message": {"parts": [{"text": "go"}]}}, "message.messageId, message.role"),
    ],
)
async def test_a_missing_field(agent: Agent, params: dict[str, Any], fields: str) -> None:
    """Every one is named as JSON has it, in the sentence and in the error's details."""
    answer = await agent.call("SendMessage", params)
    assert answer.message == f"Required and missing or empty: {fields}."
    assert all(f'"{field}"' in answer.response.text for field in fields.split(", "))


async def test_a_version_that_is_missing(client: httpx.AsyncClient) -> None:
    """A client of 1.0 that names no version learns which header to send."""
    over_jsonrpc = await client.post("/", json=call("ListTasks", {}))
    told = "The operation is one of A2A 1.0; without A2A-Version a request is of 0.3: "
    for answer in (over_jsonrpc, await client.get("/tasks")):
        assert answer.json()["error"]["message"] == told + "send A2A-Version: 1.0."


@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        *(("GET", path, "") for path in ("/nothing", "/tasks/a/b", "/acme/tasks/", "/v1/tasks/x/")),
        ("DELETE", "/tasks", "GET"),
        ("PUT", "/tasks/one", "GET"),
        ("TRACE", "/tasks/one:cancel", "GET, POST"),
        ("PATCH", "/acme/tasks/one", "GET"),
        ("PUT", "/acme/tasks/one/pushNotificationConfigs", "GET, POST"),
        ("PUT", "/.well-known/agent-card.json", "GET"),
    ],
)
async def test_unknown_paths(client: httpx.AsyncClient, verb: str, path: str, allowed: str) -> None:
    """It says where the paths are, also with a slash at its end; a header has the methods."""
    answer = await client.request(verb, path, headers={"A2A-Version": "1.0"})
    said = answer.json()["error"]["message"]
    if not allowed:
        told = "Nothing is served at this path: the agent card names the interfaces."
        assert (answer.status_code, said) == (404, told)
        return
    assert answer.status_code == 405
    methods = {method.strip() for method in answer.headers["allow"].split(",")} - {"HEAD"}
    assert methods == set(allowed.split(", "))
    assert "Allow" in said


async def test_a_task_that_has_ended(agent: Agent, worker: ScriptedWorker) -> None:
    """A message to it says how to go on, a subscription where its events are."""
    task = (await agent.send("go")).task
    again = await agent.send("more", taskId=task["id"], messageId="message-2")
    ended = "The task is in terminal state: TASK_STATE_COMPLETED. "
    assert again.message == ended + "Send the message without taskId: it starts a new task."
    followed = await agent.call("SubscribeToTask", {"id": task["id"]})
    assert followed.message == ended + "It has no more events: get it instead."


async def test_a_task_that_works(agent: Agent, worker: ScriptedWorker, task_id: str) -> None:
    """A second message at once says when to send it."""
    again = await agent.send("more", taskId=task_id, messageId="message-2")
    assert "does not wait for a message: send it when the task asks for input" in again.message
    worker.gate.set()
