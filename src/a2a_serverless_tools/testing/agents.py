"""Stand-ins for the agents that an agent calls: functions in the place of a network."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, cast

from a2a.types import Artifact, Message, Role, SendMessageRequest, StreamResponse, Task, TaskState

from a2a_serverless.clock import Clock
from a2a_serverless.tasks.entries import copied
from a2a_serverless.tasks.head import INTERRUPTED
from a2a_serverless.tasks.identity import new_id
from a2a_serverless.worker.context import HistoryMessage, history_message
from a2a_serverless_tools.testing.run import Said, parts_of

State = Literal["completed", "failed", "rejected", "canceled", "input_required", "auth_required"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the task of a called agent comes to, and after how many seconds of the test's clock.

    >>> def books(said):
    ...     return Outcome("hard or soft?", "input_required") if "book" in said.text else "sent"

    Args:
        said: the text or the parts: of its artifact, or of its message if the state is another one
            than `completed`.
        state: as in `reply.state`.
        after_s: how long it works before.
    """

    said: Said
    state: State = "completed"
    after_s: float = field(default=0, kw_only=True)


Called = Callable[[HistoryMessage], Said | Outcome]
"""A called agent: returns the text that it completes with, or its Outcome."""


@dataclass(slots=True)
class _Work:
    """A task of a called agent."""

    task: Task
    outcome: Outcome
    due_ms: float


class StandIn:
    """An agent in a test, in the place of one that is called by its name or URL.

    A message that is sent again counts once.

    >>> with AgentBench(Shop, agents={"books": lambda said: "a book"}) as bench:
    ...     bench.send("tea")
    ...     assert [each.text for each in bench.agents["books"].said] == ["a book on tea"]
    """

    def __init__(self, name: str, function: Called, clock: Clock) -> None:
        self.name = name
        self.said: list[HistoryMessage] = []
        """The messages that it has got."""
        self.canceled: list[str] = []
        """The tasks that were canceled, by their ids."""
        self._function, self._clock = function, clock
        self._tasks: dict[str, _Work] = {}
        self._by_message: dict[str, str] = {}

    @asynccontextmanager
    async def connected(self, _name: str, _headers: Mapping[str, str]) -> AsyncIterator[StandIn]:
        """Yield itself: the client of the agent, as the runtime asks for it.

        >>> async with stand_in.connected("books", {}) as client:
        ...     task = await client.look(task_id)
        """
        yield self

    async def send(
        self,
        request: SendMessageRequest,
        *,
        may_be_there: bool = False,  # noqa: ARG002 - it knows each message by its id
    ) -> Task:
        """Take a message; return its task.

        >>> task = await client.send(request)
        """
        message = request.message
        if message.message_id not in self._by_message:
            seen = history_message(message)
            self.said.append(seen)
            made = self._function(seen)
            outcome = made if isinstance(made, Outcome) else Outcome(made)
            task = Task(id=message.task_id or new_id(), context_id=message.context_id)
            due_ms = self._clock.now_ms() + outcome.after_s * 1000
            self._tasks[task.id] = _Work(task, outcome, due_ms)
            self._by_message[message.message_id] = task.id
        return await self.look(self._by_message[message.message_id])

    async def look(self, task_id: str) -> Task:
        """Return a task as it is now.

        >>> task = await client.look(task_id)
        """
        work = self._tasks[task_id]
        task, parts = copied(work.task), parts_of(work.outcome.said)
        if task_id in self.canceled:
            task.status.state = TaskState.TASK_STATE_CANCELED
        elif self._clock.now_ms() < work.due_ms:
            task.status.state = TaskState.TASK_STATE_WORKING
        elif work.outcome.state == "completed":
            task.status.state = TaskState.TASK_STATE_COMPLETED
            task.artifacts.append(Artifact(artifact_id="answer", parts=parts))
        else:
            name = f"TASK_STATE_{work.outcome.state.upper()}"
            task.status.state = cast("TaskState", TaskState.Value(name))
            message = Message(message_id=new_id(), role=Role.ROLE_AGENT, parts=parts)
            task.status.message.CopyFrom(message)
        return task

    async def follow(self, task_id: str) -> AsyncGenerator[StreamResponse, None]:
        """Yield a task as it is now: it does not stream.

        >>> async for event in client.follow(task_id):
        ...     print(event.task.status.state)
        """
        yield StreamResponse(task=await self.look(task_id))

    async def register(self, task_id: str, url: str) -> bool:  # noqa: ARG002 - no network
        """Return False: it sends no notifications.

        >>> await client.register(task_id, callback.url)
        """
        return False

    async def cancel(self, task_id: str) -> None:
        """Cancel a task, unless it has ended.

        >>> await client.cancel(task_id)
        """
        state = (await self.look(task_id)).status.state
        if state == TaskState.TASK_STATE_WORKING or state in INTERRUPTED:
            self.canceled.append(task_id)
