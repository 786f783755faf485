"""What a refusal tells its client to do, in the names of the JSON that was sent."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.a2a_calls import Agent, message, rpc
from tests.support.scripted_worker import ScriptedWorker


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
OF_0_3 = {"messageId": "1", "role": "user", "parts": [{"kind": "text", "text": "a"}, {}]}


@pytest.mark.parametrize(
    ("message_of_0_3", "sentence"),
    [
        ({}, "message.messageId is missing."),
        (OF_0_3 | {"parts": [], "role": "king"}, NO_ROLE),
        (OF_0_3 | {"parts": [], "messageId": 5}, "message.messageId is not as A2A 0.3 has"),
        (OF_0_3, "message.parts[1] is not as A2A 0.3 has it."),
        ("go", "message is not as A2A 0.3 has it."),
    ],
)
async def test_fields_in_0_3(client: httpx.AsyncClient, message_of_0_3: Any, sentence: str) -> None:
    """A client of 0.3 learns the first field that is wrong, by its place in the JSON."""
    call = rpc("message/send", {"message": message_of_0_3})
    answer = await client.post("/", json=call, headers={"A2A-Version": "0.3"})
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
    call = rpc("ListTasks", {})
    for answer in (await client.post("/", json=call), await client.get("/tasks")):
        assert answer.json()["error"]["message"] == (
            "The operation is one of A2A 1.0; without A2A-Version a request is of 0.3:"
            " send A2A-Version: 1.0."
        )


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
