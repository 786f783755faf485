"""SendMessage, GetTask, ListTasks and CancelTask as A2A 1.0.1 asks for them, by its sections."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.conftest import ServedAgent
from tests.support.a2a_calls import JSONRPC, message
from tests.support.scripted_worker import ScriptedWorker

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?Z"

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
    """3.2.2, 7.6.1: until an end or a pause; 5.6.1: times have a Z; 3.1.3: a read is the same."""
    for text, state, said in (
        ("go", "COMPLETED", "Done."),
        ("fail", "FAILED", "It did not work."),
        ("ask", "INPUT_REQUIRED", "Which one?"),
        ("auth", "AUTH_REQUIRED", "Log in, please."),
    ):
        answer = await agent.send(text)
        assert answer.state == state
        assert re.fullmatch(TIME, answer.task["status"]["timestamp"])
        assert answer.task["status"]["message"]["parts"] == [{"text": said}]
        if text == "go":
            assert answer.task["artifacts"][0]["parts"] == [{"text": "Once upon a time."}]
        for _ in range(2):
            assert (await agent.call("GetTask", {"id": answer.task["id"]})).task == answer.task


async def test_an_unknown_task(agent: ServedAgent) -> None:
    """3.1.1, 3.1.3, 3.4.2: TaskNotFoundError, by any id: no client chooses a new task's."""
    for task_id in ("my-own-id", "no such/task", "a b", "x" * 2000):
        assert (await agent.send("go", taskId=task_id)).reason == "TASK_NOT_FOUND"
        if "/" not in task_id:
            assert (await agent.call("GetTask", {"id": task_id})).reason == "TASK_NOT_FOUND"
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
        read = await agent.call("GetTask", {"id": told.task["id"], **configuration})
        history = told.task.get("history")
        assert history == read.task.get("history")
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


class TestListing:
    @staticmethod
    async def ids(agent: ServedAgent, **query: Any) -> list[str]:
        answer = await agent.call("ListTasks", query)
        return [task["id"] for task in answer.result["tasks"]]

    async def test_pages(self, agent: ServedAgent) -> None:
        """3.1.4: a cursor leads through all; all fields are there; totalSize counts them before."""
        empty = {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}
        assert (await agent.call("ListTasks", {})).result == empty
        made = [(await agent.send("go")).task["id"] for _ in range(5)]
        seen: list[str] = []
        token = ""
        while True:
            query = {"pageSize": 2} | ({"pageToken": token} if token else {})
            page = (await agent.call("ListTasks", query)).result
            assert (page["pageSize"], page["totalSize"]) == (2, 5)
            seen += [task["id"] for task in page["tasks"]]
            token = page["nextPageToken"]
            if not token:
                break
        assert seen == made[::-1]

    async def test_a_context_that_the_service_has_made(self, agent: ServedAgent) -> None:
        """3.1.4: its first task is listed with the later ones, by the time of their status."""
        first = (await agent.send("ask")).task
        context = first["contextId"]
        second = (await agent.send("go", contextId=context)).task
        assert await self.ids(agent, contextId=context) == [second["id"], first["id"]]
        await agent.send("go", taskId=first["id"])
        assert await self.ids(agent, contextId=context) == [first["id"], second["id"]]
        page = (await agent.call("ListTasks", {"contextId": context, "pageSize": 1})).result
        assert (len(page["tasks"]), page["totalSize"]) == (1, 2)

    async def test_filters(self, agent: ServedAgent) -> None:
        """3.1.4: lists filter by context, status and time, and by all of them at once."""
        paused = (await agent.send("ask", contextId="ours")).task
        done = (await agent.send("go", contextId="theirs")).task
        asked = "TASK_STATE_INPUT_REQUIRED"
        after = done["status"]["timestamp"]
        assert await self.ids(agent, contextId="ours") == [paused["id"]]
        assert await self.ids(agent, status=asked) == [paused["id"]]
        assert await self.ids(agent, statusTimestampAfter=after) == [done["id"]]
        assert await self.ids(agent, contextId="theirs", status=asked) == []

    async def test_artifacts_are_left_out_unless_asked_for(self, agent: ServedAgent) -> None:
        """3.1.4, 3.2.4: then the field is absent; the history length holds for each task."""
        await agent.send("go", taskId=(await agent.send("ask")).task["id"])
        (task,) = (await agent.call("ListTasks", {"historyLength": 1})).result["tasks"]
        assert len(task["history"]) == 1
        without = (await agent.call("ListTasks", {})).result["tasks"][0]
        among = (await agent.call("ListTasks", {"includeArtifacts": True})).result["tasks"][0]
        assert "artifacts" not in without
        assert len(among["artifacts"]) == 1


class TestCanceling:
    async def test_a_running_task(self, agent: ServedAgent) -> None:
        """3.1.5, 3.3.1: the answer is the Task, with its agent's last words, and stays so."""
        sent = await agent.send("obey", configuration=IMMEDIATELY)
        canceled = await agent.call("CancelTask", {"id": sent.task["id"]})
        assert canceled.state == "CANCELED"
        assert canceled.task["status"]["message"]["parts"] == [{"text": "Stopped."}]
        paused = (await agent.send("ask")).task["id"]
        for told in (canceled, await agent.call("CancelTask", {"id": paused})):
            named = {"id": told.task["id"]}
            assert (await agent.call("CancelTask", named)).reason == "TASK_NOT_CANCELABLE"
            assert (await agent.call("GetTask", named)).task == told.task
