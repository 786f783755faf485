"""Conversations with an agent, turn by turn, over backends in memory."""

from __future__ import annotations

from typing import Any

from a2a.helpers import get_data_parts, new_data_part
from a2a.server.agent_execution import AgentExecutor
from a2a.types import Message, Part, Role, SendMessageRequest, Task

from a2a_serverless.tasks.entries import TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.messages import request
from tests.support.workers import Bench, S, status_text


class Talk:
    """One context in which tasks follow one another; each turn runs to its end at once."""

    def __init__(self, agent: Worker | AgentExecutor, *, max_attempts: int = 1) -> None:
        executor = WorkerExecutor(agent) if isinstance(agent, Worker) else agent
        self.bench = Bench(executor, retry_base_s=0, max_attempts=max_attempts)

    def become(self, agent: Worker) -> None:
        """Work on with another agent, as after a deployment."""
        self.bench.adapter.agent = WorkerExecutor(agent)

    async def say(self, text: str) -> tuple[Head, Task]:
        """A message that begins a task."""
        head = await self.bench.send(text)
        assert await self.bench.work()
        return head, await self.bench.task(head)

    async def told(self, text: str) -> str:
        """What the client reads after one start of an agent that may be started three times."""
        head = await self.bench.send(text)
        await self.bench.work()
        return status_text(await self.bench.task(head))

    async def answer(self, head: Head, answer: str | dict[str, Any]) -> Task:
        """The answer to a task's question."""
        if isinstance(answer, str):
            sent = request(answer)
        else:
            said = Message(message_id="a", role=Role.ROLE_USER, parts=[new_data_part(answer)])
            sent = SendMessageRequest(message=said)
        opened = Commit(entries=(TurnOpened(sent),))
        now = await self.bench.storage.commit(await self.bench.head(head), opened)
        await self.bench.enqueue(now, turn=now.next_turn or now.turn)
        assert await self.bench.work()
        return await self.bench.task(head)


def waits(told: str, what: str) -> None:
    """Check that a turn waits until a fault has passed."""
    assert told.startswith(f"The agent waits for a service that it calls ({what})"), told


def fails(told: str, text: str) -> None:
    """Check that a task has failed after one start, with this sentence."""
    assert told.startswith(f"{text} Correlation id: "), told


def question(task: Task) -> Any:
    """What a task asks: its data, or its text."""
    assert task.status.state == S.TASK_STATE_INPUT_REQUIRED, task
    parts: list[Part] = list(task.status.message.parts)
    data = get_data_parts(parts)
    return data[0] if data else parts[0].text


def answered(task: Task) -> Any:
    """What a completed task has answered: its data, or the text of its artifact."""
    assert task.status.state == S.TASK_STATE_COMPLETED, task
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    data = get_data_parts(parts)
    return data[0] if data else "".join(part.text for part in parts)
