"""GetTask, ListTasks and CancelTask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import TaskState
from fastapi import FastAPI

from a2a_serverless.errors import ConcurrencyError, UnavailableError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.contract.storage import Storage
from tests.support.a2a_calls import Agent, message
from tests.support.asgi_streams import live
from tests.support.scripted_worker import ScriptedWorker

IMMEDIATELY = {"returnImmediately": True}


class TestGet:
    async def test_a_task_is_read_from_any_process(
        self, agent: Agent, agent_with: Callable[..., Agent], worker: ScriptedWorker
    ) -> None:
        """Another application on the same backends answers GetTask with the same task."""
        sent = await agent.send("go")
        elsewhere = agent_with(Settings(auth="none"))
        assert (await elsewhere.call("GetTask", {"id": sent.task["id"]})).task == sent.task

    @pytest.mark.parametrize(("length", "kept"), [(0, 0), (2, 2), (50, 3)])
    async def test_history_length(
        self, agent: Agent, worker: ScriptedWorker, length: int, kept: int
    ) -> None:
        """A historyLength of 0 returns no messages, one of n the last n (3.2.4)."""
        asked = await agent.send("ask")
        await agent.send("go", taskId=asked.task["id"])
        answer = await agent.call("GetTask", {"id": asked.task["id"], "historyLength": length})
        assert len(answer.task.get("history", [])) == kept

    async def test_an_unknown_task(self, agent: Agent) -> None:
        """TaskNotFoundError, also for an id that no key could hold (3.1.3)."""
        for task_id in ("nobody", "a b", "x" * 2000):
            answer = await agent.call("GetTask", {"id": task_id})
            assert answer.reason == "TASK_NOT_FOUND"
            assert answer.code in (0, -32001)
            assert answer.response.status_code in (200, 404)

    async def test_a_negative_history_length(self, agent: Agent, worker: ScriptedWorker) -> None:
        """A negative historyLength is refused with InvalidParams (3.2.4)."""
        sent = await agent.send("go")
        answer = await agent.call("GetTask", {"id": sent.task["id"], "historyLength": -1})
        assert answer.reason == "INVALID_PARAMS"


class TestList:
    @pytest.mark.parametrize("text", ["go", "ask"])
    async def test_a_task_has_the_same_fields_everywhere(
        self, agent: Agent, app: FastAPI, worker: ScriptedWorker, text: str
    ) -> None:
        """In a list, on its own, and at the begin of a stream: what is empty is left out."""
        task = (await agent.send(text)).task
        got = (await agent.call("GetTask", {"id": task["id"]})).task
        listed = await agent.call("ListTasks", {"includeArtifacts": True, "historyLength": 100})
        assert listed.result["tasks"] == [got]
        body = {"message": message("go", taskId=task["id"], messageId="message-2")}
        if text == "ask":
            async with live(app, "POST", "/message:stream", body=body) as response:
                events = [event.data async for event in response.events()]
            opening = events[0]["task"]
            assert set(opening) == set(got)
            assert set(opening["history"][0]) == set(got["history"][0])

    async def test_a_page_says_what_it_is(self, agent: Agent) -> None:
        """Its own fields are there when they are empty, too (3.1.4)."""
        answer = await agent.call("ListTasks", {})
        assert answer.result == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}

    async def test_pages_hold_all_tasks_newest_first(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """Cursor by cursor every task comes once; the first page counted them (3.1.4)."""
        ids = [(await agent.send("go")).task["id"] for _ in range(5)]
        listed: list[str] = []
        token: str | None = ""
        while token is not None:
            page = await agent.call("ListTasks", {"pageSize": 2, "pageToken": token})
            assert page.result["totalSize"] == 5
            assert page.result["pageSize"] == 2
            listed += [task["id"] for task in page.result["tasks"]]
            token = page.result["nextPageToken"] or None
        assert listed == ids[::-1]

    async def test_artifacts_are_left_out_unless_asked_for(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """Without includeArtifacts the field is not there at all."""
        await agent.send("go")
        plain = (await agent.call("ListTasks", {})).result["tasks"][0]
        whole = (await agent.call("ListTasks", {"includeArtifacts": True})).result
        assert "artifacts" not in plain
        assert len(whole["tasks"][0]["artifacts"]) == 1

    async def test_filters(self, agent: Agent, worker: ScriptedWorker) -> None:
        """Context, state and the time of the last status AND together; the time is inclusive."""
        asked = await agent.send("ask", contextId="ours")
        done = await agent.send("go", contextId="ours", messageId="message-2")
        await agent.send("go", contextId="theirs")
        at = done.task["status"]["timestamp"]
        for filters, expected in (
            ({"contextId": "ours"}, [done, asked]),
            ({"contextId": "ours", "status": "TASK_STATE_INPUT_REQUIRED"}, [asked]),
            ({"contextId": "ours", "statusTimestampAfter": at}, [done]),
        ):
            answer = await agent.call("ListTasks", filters)
            assert [t["id"] for t in answer.result["tasks"]] == [e.task["id"] for e in expected]

    @pytest.mark.parametrize(
        "query",
        [
            {"pageSize": 0},
            {"pageSize": 101},
            {"historyLength": -1},
            {"pageToken": "garbage"},
            {"status": "TASK_STATE_RUNNING"},
            {"status": 99},
        ],
    )
    async def test_what_cannot_be_listed(self, agent: Agent, query: dict[str, Any]) -> None:
        """InvalidParams; an unknown state does not list every task."""
        answer = await agent.call("ListTasks", query)
        assert answer.reason == "INVALID_PARAMS"
        assert answer.code in (0, -32602)


class TestCancel:
    async def test_the_agent_ends_its_task(self, agent: Agent, worker: ScriptedWorker) -> None:
        """A running agent is told, and what it says at the end is the task's end (3.1.5)."""
        sent = await agent.send("obey", configuration=IMMEDIATELY)
        answer = await agent.call("CancelTask", {"id": sent.task["id"]})
        assert answer.state == "CANCELED"
        assert answer.task["status"]["message"]["parts"] == [{"text": "Stopped."}]

    async def test_an_agent_that_ignores_it_is_left_out(
        self,
        agent: Agent,
        agent_with: Callable[..., Agent],
        backends: Backends,
        worker: ScriptedWorker,
    ) -> None:
        """After the cancel's time the API commits canceled; what the agent writes is refused."""
        sent = await agent.send("ignore", configuration=IMMEDIATELY)
        hasty = agent_with(Settings(auth="none", cancel_timeout_s=0.1))
        answer = await hasty.call("CancelTask", {"id": sent.task["id"]})
        assert answer.state == "CANCELED"
        assert not await backends.storage.is_cancelled(sent.task["id"])

    async def test_a_paused_task_is_canceled(self, agent: Agent, worker: ScriptedWorker) -> None:
        """A task at input-required is canceled by a worker."""
        asked = await agent.send("ask")
        answer = await agent.call("CancelTask", {"id": asked.task["id"]})
        assert answer.state == "CANCELED"

    async def test_a_queued_task_is_canceled_without_a_worker(
        self, agent_with: Callable[..., Agent]
    ) -> None:
        """Without any worker the API cancels the task at the cancel's deadline."""
        agent = agent_with(Settings(auth="none", cancel_timeout_s=0.05))
        sent = await agent.send("go", configuration=IMMEDIATELY)
        answer = await agent.call("CancelTask", {"id": sent.task["id"]})
        assert answer.state == "CANCELED"

    async def test_a_queue_that_fails_does_not_stop_it(
        self,
        agent_with: Callable[..., Agent],
        backends: Backends,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A cancel whose operation cannot be sent is done at the deadline."""

        async def refuse(*_: Any, **__: Any) -> None:
            raise UnavailableError

        monkeypatch.setattr(backends.operations, "send", refuse)
        agent = agent_with(Settings(auth="none", cancel_timeout_s=0.05))
        sent = await agent.send("go", configuration=IMMEDIATELY)
        answer = await agent.call("CancelTask", {"id": sent.task["id"]})
        assert answer.state == "CANCELED"

    async def test_writers_in_between_are_rebased_over(
        self,
        agent_with: Callable[..., Agent],
        backends: Backends,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A commit that slips in before the forced end does not prevent it."""
        agent = agent_with(Settings(auth="none", cancel_timeout_s=0.05))
        sent = await agent.send("go", configuration=IMMEDIATELY)
        original = DurableStorage.commit
        losses = iter(range(3))

        async def race(self: DurableStorage, head: Head, commit: Commit) -> Head:
            if next(losses, None) is not None:
                raise ConcurrencyError(current_version=head.version + 1)
            return await original(self, head, commit)

        monkeypatch.setattr(DurableStorage, "commit", race)
        answer = await agent.call("CancelTask", {"id": sent.task["id"]})
        assert answer.state == "CANCELED"

    @pytest.mark.parametrize("text", ["go", "fail", "obey"])
    async def test_an_ended_task_cannot_be_canceled(
        self, agent: Agent, worker: ScriptedWorker, text: str
    ) -> None:
        """TaskNotCancelableError for every terminal state, canceled included."""
        sent = await agent.send(text, configuration=IMMEDIATELY if text == "obey" else {})
        if text == "obey":
            await agent.call("CancelTask", {"id": sent.task["id"]})
        answer = await agent.call("CancelTask", {"id": sent.task["id"]})
        assert answer.reason == "TASK_NOT_CANCELABLE"
        assert answer.code in (0, -32002)

    async def test_an_unknown_task(self, agent: Agent) -> None:
        """A cancel of an unknown task is refused with TaskNotFoundError."""
        answer = await agent.call("CancelTask", {"id": "nobody"})
        assert answer.reason == "TASK_NOT_FOUND"

    async def test_a_task_that_ends_by_itself_stays_as_it_is(
        self, agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Success is not guaranteed: a task that completes meanwhile is returned completed."""
        sent = await agent.send("go", configuration=IMMEDIATELY)

        async def complete(*_: Any, **__: Any) -> None:
            state = TaskState.TASK_STATE_COMPLETED
            await Storage(backends.storage).update_task(sent.task["id"], state)

        monkeypatch.setattr(backends.operations, "send", complete)
        answer = await agent.call("CancelTask", {"id": sent.task["id"]})
        assert answer.state == "COMPLETED"


@pytest.mark.parametrize(
    ("method", "params", "reason"),
    [
        (
            "CreateTaskPushNotificationConfig",
            {"taskId": "nobody", "url": "https://example.com"},
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
        ),
        ("GetExtendedAgentCard", {}, "UNSUPPORTED_OPERATION"),
    ],
)
async def test_what_the_card_does_not_offer(
    agent: Agent, method: str, params: dict[str, Any], reason: str
) -> None:
    """Push configurations and an extended card are refused as section 3.3.4 says."""
    assert (await agent.call(method, params)).reason == reason


async def test_an_inline_push_configuration_is_refused(agent: Agent) -> None:
    """Without push a configuration in a message is refused with an error, not dropped."""
    configuration = {"taskPushNotificationConfig": {"url": "https://example.com"}}
    answer = await agent.send("go", configuration=configuration)
    assert answer.reason == "PUSH_NOTIFICATION_NOT_SUPPORTED"
