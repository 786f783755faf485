"""A worker that dies while its agent waits for credentials, and a message that comes meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from a2a.types import TaskState

from a2a_serverless_tools.contract import Storage
from tests.faults import harness, waiting_agent
from tests.faults.harness import Emulators
from tests.support.messages import said, texts

pytestmark = pytest.mark.emulators


@pytest.mark.parametrize("follows_up", ["before the crash", "after the crash"])
async def test_a_worker_is_killed_while_its_agent_waits(
    emulators: Emulators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows_up: str
) -> None:
    """Another worker asks again in the same turn, then takes the message that came meanwhile."""
    monkeypatch.setattr(harness, "AGENT", f"{waiting_agent.__file__}:agent")
    async with emulators.world(tmp_path) as world:
        await world.start("api")
        victim = await world.start("worker")
        task_id = await world.send("go")
        head = await world.state(task_id, TaskState.TASK_STATE_AUTH_REQUIRED)
        if follows_up == "before the crash":
            await world.send("here", task=head)
        assert await victim.end(signal.SIGKILL) == -signal.SIGKILL
        if follows_up == "after the crash":
            await world.send("here", task=head)
        heir = await world.start("worker")
        await world.noted(task_id, "started on go, 0", times=2)
        world.ledger.note(waiting_agent.LOGGED_IN, task_id)
        end = await world.end(task_id)
        await world.drained()
        assert end.state == TaskState.TASK_STATE_COMPLETED
        assert end.chunks == ["secret", "here"]
        # The follow-up was accepted while the turn was open, so it stands before its question.
        assert said(end.task) == ["go", "here", "log in", "more?"]
        assert texts(end.task, "a") == [f"draft of {heir.pid}"]
        starts = [e for e in world.ledger.entries(task_id) if e.what.startswith("started")]
        assert [(e.pid, e.what) for e in starts] == [
            (victim.pid, "started on go, 0"),
            (heir.pid, "started on go, 0"),
            (heir.pid, "started on here, 1"),
        ]
        assert await Storage(world.storage).load_context(head.context_id) == 2
