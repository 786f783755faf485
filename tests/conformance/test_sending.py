"""SendMessage as A2A 1.0.1 asks for it; numbers are sections of the specification."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import ServedAgent
from tests.support.a2a_calls import JSONRPC, message
from tests.support.scripted_worker import ScriptedWorker

IMMEDIATELY = {"returnImmediately": True}

pytestmark = pytest.mark.usefixtures("worker")


async def test_the_answer_is_a_message(agent: ServedAgent) -> None:
    """3.1.1, 3.4.1: or a Message, which names the context that was made for it."""
    answer = await agent.send("reply please")
    assert list(answer.result) == ["message"]
    assert answer.result["message"]["role"] == "ROLE_AGENT"
    assert answer.result["message"]["parts"] == [{"text": "Hello."}]
    assert answer.result["message"]["contextId"]


async def test_a_send_waits_for_an_end_or_a_pause(agent: ServedAgent) -> None:
    """3.2.2, 7.6.1: until a terminal or an interrupted state; it has status and artifacts."""
    for text, state, said in (
        ("go", "COMPLETED", "Done."),
        ("fail", "FAILED", "It did not work."),
        ("ask", "INPUT_REQUIRED", "Which one?"),
        ("auth", "AUTH_REQUIRED", "Log in, please."),
    ):
        answer = await agent.send(text)
        assert answer.state == state
        assert answer.task["status"]["message"]["parts"] == [{"text": said}]
        if text == "go":
            assert answer.task["artifacts"][0]["parts"] == [{"text": "Once upon a time."}]


async def test_an_unknown_task_takes_no_message(agent: ServedAgent) -> None:
    """3.1.1, 3.4.2: TaskNotFoundError; a client cannot choose the id of a new task."""
    for task_id in ("my-own-id", "no such/task", "x" * 3000):
        assert (await agent.send("go", taskId=task_id)).reason == "TASK_NOT_FOUND"
    assert (await agent.call("ListTasks", {})).result["totalSize"] == 0


async def test_a_context_alone_opens_a_task_in_it(agent: ServedAgent) -> None:
    """3.4.1, 3.4.3: the client's context is kept, and a new task is made in it."""
    first = await agent.send("go", contextId="ours", messageId="m-1")
    second = await agent.send("go", contextId="ours", messageId="m-2")
    assert first.task["contextId"] == second.task["contextId"] == "ours"
    assert first.task["id"] != second.task["id"]


async def test_history_length(agent: ServedAgent) -> None:
    """3.2.4: unset is no limit, 0 leaves the field out, n is at most the n newest."""
    for asked, kept in ((None, 3), (0, None), (1, 1), (2, 2), (99, 3)):
        paused = await agent.send("ask")
        configuration = {} if asked is None else {"historyLength": asked}
        told = await agent.send("go", taskId=paused.task["id"], configuration=configuration)
        history = told.task.get("history")
        assert (None if history is None else len(history)) == kept
        if history:
            assert history[-1]["parts"] == [{"text": "go"}]


async def test_a_turn_reaches_the_agent_whole(agent: ServedAgent, worker: ScriptedWorker) -> None:
    """3.4.3, 4.1.4: output modes, referenced tasks and metadata come to the agent as sent."""
    params = {
        "message": message("go", referenceTaskIds=["t-1", "t-2"], metadata={"a": 1}),
        "configuration": {"acceptedOutputModes": ["text/plain", "image/png"]},
        "metadata": {"b": True},
    }
    await agent.call("SendMessage", params)
    request = worker.started[0].request
    assert list(request.message.reference_task_ids) == ["t-1", "t-2"]
    assert list(request.configuration.accepted_output_modes) == ["text/plain", "image/png"]
    assert request.message.metadata["a"] == 1
    assert request.metadata["b"] is True


async def test_every_kind_of_part_comes_back_as_sent(agent: ServedAgent) -> None:
    """4.1.6: text, url, raw and data, with their names, types and metadata."""
    parts: list[dict[str, Any]] = [
        {"text": "go"},
        {"url": "https://example.com/a.txt", "filename": "a.txt", "mediaType": "text/plain"},
        {"raw": "AAECAw==", "filename": "a.bin"},
        {"data": {"number": 1.5, "list": [1, None, {"deep": True}]}},
        {"data": [1, 2]},
        {"data": "text"},
        {"text": "go", "metadata": {"lang": "eo"}},
    ]
    answer = await agent.send("", parts=parts)
    assert answer.task["history"][0]["parts"] == parts


async def test_times_are_utc(agent: ServedAgent) -> None:
    """5.6.1: times are ISO 8601 with a Z, to the millisecond at most."""
    stamp = (await agent.send("go")).task["status"]["timestamp"]
    assert stamp.endswith("Z")
    assert len(stamp) <= len("2026-01-01T00:00:00.000Z")


async def test_the_jsonrpc_envelope(agent: ServedAgent) -> None:
    """9.1: the answer repeats the request's id, and has a result or an error."""
    if agent.binding != JSONRPC:
        pytest.skip("of JSON-RPC alone")
    for request_id in (1, "one", None):
        body = {"jsonrpc": "2.0", "id": request_id, "method": "GetTask", "params": {"id": "x"}}
        answer = (await agent.client.post("/", json=body, headers={"A2A-Version": "1.0"})).json()
        assert answer["id"] == request_id
        assert answer["jsonrpc"] == "2.0"
        assert ("result" in answer) != ("error" in answer)
