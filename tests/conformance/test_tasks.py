"""GetTask, ListTasks and CancelTask as A2A 1.0.1 asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import ServedAgent

IMMEDIATELY = {"returnImmediately": True}

pytestmark = pytest.mark.usefixtures("worker")


class TestGetting:
    async def test_a_task(self, agent: ServedAgent) -> None:
        """3.1.3: as the send has answered it; 3.3.1: as often as it is asked for."""
        sent = (await agent.send("go")).task
        first = await agent.call("GetTask", {"id": sent["id"]})
        second = await agent.call("GetTask", {"id": sent["id"]})
        assert first.task == second.task == sent

    async def test_an_unknown_task(self, agent: ServedAgent) -> None:
        """3.1.3: TaskNotFoundError for an unknown task, also by an id that no key can hold."""
        for task_id in ("nobody", "a b", "x" * 2000):
            assert (await agent.call("GetTask", {"id": task_id})).reason == "TASK_NOT_FOUND"

    async def test_history_length(self, agent: ServedAgent) -> None:
        """3.2.4: unset is no limit, 0 leaves the field out, n is at most the n newest."""
        paused = await agent.send("ask")
        done = await agent.send("go", taskId=paused.task["id"])
        for asked, kept in ((None, 3), (0, None), (1, 1), (50, 3)):
            params = {"id": done.task["id"]} | ({} if asked is None else {"historyLength": asked})
            history = (await agent.call("GetTask", params)).task.get("history")
            assert (None if history is None else len(history)) == kept


class TestListing:
    @staticmethod
    async def ids(agent: ServedAgent, **query: Any) -> list[str]:
        answer = await agent.call("ListTasks", query)
        return [task["id"] for task in answer.result["tasks"]]

    async def test_an_empty_list_has_all_its_fields(self, agent: ServedAgent) -> None:
        """3.1.4: tasks, nextPageToken, pageSize and totalSize are always there."""
        assert (await agent.call("ListTasks", {})).result == {
            "tasks": [],
            "nextPageToken": "",
            "pageSize": 50,
            "totalSize": 0,
        }

    async def test_pages(self, agent: ServedAgent) -> None:
        """3.1.4: a cursor leads through all of them, and totalSize counts before paging."""
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
        """3.1.5: the answer is the canceled Task; what the agent says last is its end."""
        sent = await agent.send("obey", configuration=IMMEDIATELY)
        canceled = await agent.call("CancelTask", {"id": sent.task["id"]})
        assert canceled.state == "CANCELED"
        assert canceled.task["status"]["message"]["parts"] == [{"text": "Stopped."}]
        assert (await agent.call("GetTask", {"id": sent.task["id"]})).task == canceled.task

    async def test_a_canceled_task(self, agent: ServedAgent) -> None:
        """3.3.1: a second cancel changes nothing; 3.1.5: its task is no longer cancelable."""
        task_id = (await agent.send("ask")).task["id"]
        first = await agent.call("CancelTask", {"id": task_id})
        assert (await agent.call("CancelTask", {"id": task_id})).reason == "TASK_NOT_CANCELABLE"
        assert (await agent.call("GetTask", {"id": task_id})).task == first.task
