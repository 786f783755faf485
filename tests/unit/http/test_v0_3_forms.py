"""HTTP+JSON of 0.3 in the forms of its SDKs: bodies, the end of a turn, errors, deletion."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.support.a2a_calls import JSONRPC, REST, rpc
from tests.support.asgi_streams import live
from tests.support.scripted_worker import ScriptedWorker

URL = "https://receiver.example/hook"
PARTS = [{"kind": "text", "text": "go"}]
KINDS = {"kind": "message", "messageId": "m-1", "role": "user"}


SETTINGS = {"push_queue": "push", "push_allowed_hosts": "receiver.example"}
OF_0_3 = {"A2A-Version": "0.3"}


async def post(client: httpx.AsyncClient, path: str, body: Any) -> httpx.Response:
    return await client.post(f"/v1{path}", json=body, headers=OF_0_3)


async def call(client: httpx.AsyncClient, method: str, params: Any) -> Any:
    return (await client.post("/", json=rpc(method, params))).json()["result"]


@pytest.mark.parametrize(
    ("message", "configuration"),
    [
        ({**KINDS, "parts": PARTS}, "pushNotificationConfig"),
        ({**KINDS, "parts": [{"text": "go"}]}, ""),
        ({**KINDS, "role": "ROLE_USER", "parts": PARTS}, "pushNotification"),
        ({"messageId": "m-1", "role": "ROLE_USER", "content": [{"text": "go"}]}, ""),
    ],
    ids=["kinds", "no kinds", "role of 1.0", "content"],
)
async def test_a_message_has_parts_or_content(
    client: httpx.AsyncClient, worker: ScriptedWorker, message: Any, configuration: str
) -> None:
    """Both get the same answer and history; the configuration has the name of either binding."""
    push = {configuration: {"id": "mine", "url": URL}} if configuration else {}
    body = {"message": message, "configuration": {"blocking": True, **push}}
    task = (await post(client, "/message:send", body)).json()["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["history"][0]["content"] == [{"text": "go"}]
    path = f"/v1/tasks/{task['id']}/pushNotificationConfigs"
    listed = (await client.get(path, headers=OF_0_3)).json()
    shown = [each["pushNotificationConfig"]["url"] for each in listed.get("configs", [])]
    assert shown == ([URL] if configuration else [])


NO_CONTENT = "message.content is missing: in HTTP+JSON of A2A 0.3 it has the parts of the message."
FILE = {"kind": "file", "file": {"bytes": "%%%"}}


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"messageId": "m-1", "role": "ROLE_USER"}, NO_CONTENT),
        ({**KINDS, "parts": "go"}, "message.parts is not as A2A 0.3 has it."),
        ({**KINDS, "parts": [{"kind": "text"}]}, "message.parts[0] is not as A2A 0.3 has it."),
        ({**KINDS, "parts": [FILE]}, "message.parts.file.bytes is not base64."),
        (
            {"messageId": "m-1", "role": "ROLE_USER", "content": [{"file": {"name": "a"}}]},
            "A file must have either fileWithUri or fileWithBytes.",
        ),
    ],
)
async def test_what_is_no_message(client: httpx.AsyncClient, message: Any, sentence: str) -> None:
    """400, by the name of the field that the client has sent."""
    answer = await post(client, "/message:send", {"message": message})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, sentence)


@pytest.mark.parametrize("form", ["JavaScript", "Python"])
async def test_push_has_two_forms(client: httpx.AsyncClient, task_id: str, form: str) -> None:
    """A push configuration in either SDK's form is set, shown without its secret, and deleted."""
    configs = f"/tasks/{task_id}/pushNotificationConfigs"
    name, own = f"{configs}/mine", {"id": "mine", "url": URL}
    config = {"name": name[1:], "pushNotificationConfig": {**own, "token": "secret"}}
    body: dict[str, Any] = config
    if form == "Python":
        body = {"parent": f"tasks/{task_id}", "configId": "mine", "config": config}
    made = await post(client, configs, body)
    assert made.status_code == 200, made.text
    shown = (await client.get(f"/v1{name}", headers=OF_0_3)).json()
    assert shown == made.json() == {"name": name[1:], "pushNotificationConfig": own}
    listed = await client.get(f"/v1{configs}", headers=OF_0_3)
    assert listed.json() == {"configs": [shown]}
    deleted = await client.delete(f"/v1{name}", headers=OF_0_3)
    assert (deleted.status_code, deleted.json()) == (200, {})
    listed = await client.get(f"/v1{configs}", headers=OF_0_3)
    assert listed.json().get("configs", []) == []


@pytest.mark.parametrize(
    ("verb", "path", "status", "code"),
    [
        ("GET", "/tasks/unknown", 404, -32001),
        ("POST", "/tasks/unknown:cancel", 404, -32001),
        ("POST", "/message:send", 400, -32602),
        ("POST", "/message:stream", 400, -32602),
        ("GET", "/nothing/at/all", 404, None),
        ("PUT", "/message:send", 405, None),
        ("GET", "/tasks", 400, None),
        ("GET", f"/tasks/{'x' * 40_000}", 414, None),
    ],
)
async def test_an_error_has_its_code_at_its_top(
    client: httpx.AsyncClient, verb: str, path: str, status: int, code: int | None
) -> None:
    """JSON-RPC's code, above the form of 1.0, whoever refuses; 1.0's `/v1/` is a tenant's path."""
    content = b'{"message": {"content": 1}}' if verb == "POST" else None
    typed = {"Content-Type": "application/json"}
    answer = await client.request(verb, f"/v1{path}", content=content, headers=typed)
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, status)
    assert body["code"] == code if code else isinstance(body["code"], int)
    assert body["message"] == body["error"]["message"]
    if code is None:
        named = await client.request(verb, f"/v1{path}", headers={"A2A-Version": "1.0"})
        assert "code" not in named.json()


async def test_a_number_with_an_exponent(client: httpx.AsyncClient, task_id: str) -> None:
    """1.0 reads it, 0.3 does not: it is refused, and breaks nothing."""
    answer = await client.get(f"/v1/tasks/{task_id}?historyLength=1e3")
    assert answer.status_code == 400
    assert answer.json()["message"] == "historyLength is not a whole number."
    path, headers = f"/tasks/{task_id}?historyLength=1e1", {"A2A-Version": "1.0"}
    assert (await client.get(path, headers=headers)).status_code == 200


async def test_no_history_is_asked_for(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    """0 is none in both bindings, also in the answer to a message over JSON-RPC."""
    message, none = {**KINDS, "parts": PARTS}, {"historyLength": 0}
    sent = await call(client, "message/send", {"message": message, "configuration": none})
    got = await call(client, "tasks/get", {"id": sent["id"], **none})
    read = (await client.get(f"/v1/tasks/{sent['id']}?historyLength=0")).json()
    assert [len(one.get("history", ())) for one in (sent, got, read)] == [0] * 3


async def test_over_jsonrpc_an_error_has_no_details_of_1_0(client: httpx.AsyncClient) -> None:
    """0.3 has none: its data are the fields that are wrong, or nothing; also what is unread."""
    long = b'"' + b"x" * 5_000_000 + b'"'
    for version, method in (("0.3", "message/send"), ("1.0", "SendMessage")):
        headers = {"A2A-Version": version, "Content-Type": "application/json"}
        refused = await client.post("/", json=rpc(method, {}), headers=headers)
        unread = await client.post("/", content=long, headers=headers)
        assert (unread.status_code, set(unread.json())) == (413, {"jsonrpc", "id", "error"})
        for error in (refused.json()["error"], unread.json()["error"]):
            if version == "0.3":
                assert set(error) == {"code", "message"}
            else:
                assert all("@type" in detail for detail in error["data"])


async def test_what_is_empty_has_its_name_of_0_3(client: httpx.AsyncClient) -> None:
    """A task and its configuration are called otherwise in 1.0."""
    empty = rpc("tasks/pushNotificationConfig/delete", {"id": "", "pushNotificationConfigId": ""})
    refused = (await client.post("/", json=empty)).json()["error"]
    assert refused["message"] == "Required and missing or empty: id, pushNotificationConfigId."


async def events_of(app: FastAPI, binding: str, text: str) -> list[Any]:
    """The status updates of a stream of 0.3, with what says that they are one taken off."""
    message: Any = {**KINDS, "messageId": f"m-{text}", "parts": [{"kind": "text", "text": text}]}
    path, body = "/v1/message:stream", dict[str, Any](message=message)
    if binding == JSONRPC:
        path, body = "/", rpc("message/stream", body)
    async with live(app, "POST", path, body=body, headers=OF_0_3) as response:
        events = [event.data async for event in response.events()]
    if binding == JSONRPC:
        found = [event["result"] for event in events]
        return [event for event in found if event["kind"] == "status-update"]
    return [event["statusUpdate"] for event in events if "statusUpdate" in event]


@pytest.mark.parametrize("text", ["go", "ask"])
@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_what_is_final(app: FastAPI, binding: str, worker: ScriptedWorker, text: str) -> None:
    """Only the last status of a turn is final, whether the task has ended or waits."""
    *before, last = await events_of(app, binding, text)
    assert last["final"]
    assert not any(status.get("final") for status in before)
