"""GetTask, ListTasks and CancelTask."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.tasks.head import Operation
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import Agent
from tests.support.scripted_worker import ScriptedWorker

IMMEDIATELY = {"returnImmediately": True}


class TestCancel:
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
        assert await due_tasks(backends.storage, 2**50) == []

    async def test_a_task_that_is_made_again_is_not_canceled(
        self,
        agent_with: Callable[..., Agent],
        backends: Backends,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A cancel ends the task that was asked for, and none that takes its id meanwhile."""
        agent = agent_with(Settings(auth="none", cancel_timeout_s=0.05))
        key = {"Idempotency-Key": "k"}
        sent = await agent.send("go", configuration=IMMEDIATELY, headers=key)
        send, task_id = backends.operations.send, sent.task["id"]

        async def made_again(operation: Operation) -> None:
            monkeypatch.setattr(backends.operations, "send", send)
            await delete_task(backends.storage.for_scope(ANONYMOUS), task_id)
            again = await agent.send("go", configuration=IMMEDIATELY, headers=key)
            assert again.task["id"] == task_id

        monkeypatch.setattr(backends.operations, "send", made_again)
        answer = await agent.call("CancelTask", {"id": task_id})
        assert answer.reason == "TASK_NOT_FOUND"
        assert (await agent.call("GetTask", {"id": task_id})).state == "SUBMITTED"
