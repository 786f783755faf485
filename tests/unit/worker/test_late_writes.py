"""Random storms of a table whose writes are lost, applied without an answer, or applied late.

Clients, workers and a sweeper of one deployment run under a clock that jumps. A write that is
applied late is applied when its writer has given it up, has written again, or has died: so its
condition alone protects what others have stored meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskPushNotificationConfig

from a2a_serverless.errors import (
    ConcurrencyError,
    ConditionFailedError,
    RepeatedKeyError,
    TaskTerminalStateError,
    UnavailableError,
)
from a2a_serverless.storage.conversation import conversation_queue
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Item, Key, Range, Write
from a2a_serverless.tasks.entries import TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.support.databases import LONG
from tests.support.messages import request, texts
from tests.support.queues import is_empty
from tests.support.workers import S, chunk, status
from tests.unit.worker.shares import House, LaggingTable

SEEDS: Final = range(10 if LONG else 1)
TASKS: Final = 40 if LONG else 20
TALKS: Final = 10
"""The conversations that the tasks belong to: their turns wait for one another."""
AFTERWARDS: Final = [number for number in range(TASKS, TASKS + 20) if number % 4 in (0, 3)]
"""The numbers of the tasks that are sent after the storm: plain ones, one in each conversation."""
CHUNKS: Final = ["0", "1", "2", "3"]
BAD: Final = 0.12
"""The share of the requests that meet a fault, for `BAD_S` seconds."""
BAD_S: Final = 600.0
LATEST_S: Final = 40.0
"""The longest time after which a write is applied that was not answered."""
WITHIN_S: Final = 4 * 3600.0
"""The time in which all has to be at rest after the storm."""

T = TypeVar("T")


class LateTable(LaggingTable):
    """A table some of whose requests have no answer, and some of whose writes are applied late."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(lambda: chance.expovariate(20))
        self._chance = chance
        self.is_bad = True
        self.met = Counter[str]()
        self.late: list[asyncio.Task[None]] = []

    def _meets(self, *faults: str) -> str:
        fault = ""
        if self.is_bad and self._chance.random() < BAD:
            fault = self._chance.choice(faults)
            self.met[fault] += 1
        return fault

    async def load(self, keys: Iterable[Key], **options: Any) -> dict[Key, Item | None]:
        if self._meets("read lost"):
            raise UnavailableError
        return await super().load(keys, **options)

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        if self._meets("read lost"):
            raise UnavailableError
        async for page in super().query(wanted):
            yield page

    async def write(self, *writes: Write, **options: Any) -> None:
        fault = self._meets("write lost", "answer lost", "applied late")
        if fault == "applied late":
            self.late.append(asyncio.ensure_future(self._write_late(writes, options)))
        elif fault != "write lost":
            await super().write(*writes, **options)
        if fault:
            await asyncio.sleep(self._chance.uniform(0, 15))  # `aws.repeat` gives up
            raise UnavailableError

    async def _write_late(self, writes: tuple[Write, ...], options: dict[str, Any]) -> None:
        await asyncio.sleep(self._chance.uniform(0, LATEST_S))
        try:
            await super().write(*writes, **options)
        except ConditionFailedError:
            self.met["applied late, and refused"] += 1
        else:
            self.met["applied late, and stored"] += 1


@dataclass(kw_only=True)
class Storm(House):
    """One deployment in a storm, and what its clients want of it."""

    places: int = 6
    visibility_s: int = 30
    is_serial: bool = True
    deaths: float = 0.05
    heads: dict[int, Head] = field(default_factory=dict)
    """The tasks by the numbers of their messages."""

    def _table(self) -> LateTable:
        self.late = LateTable(self.chance)
        return self.late

    async def play(self) -> None:
        """Let the storm pass, and all come to rest."""
        await asyncio.gather(*(self._client(number) for number in range(TASKS)))
        await self.clock.sleep(BAD_S)
        self.late.is_bad = False
        await self._rest()
        # Once more in each conversation: what the storm has left of the others is in nobody's way.
        await asyncio.gather(*(self._client(number) for number in AFTERWARDS))
        await self._rest()
        await asyncio.gather(*self.late.late, return_exceptions=True)
        await self._check()

    async def _work(self, context: RequestContext, queue: EventQueue) -> None:
        """Ask a question in the first turn of some tasks; say four chunks in the last one."""
        if "ask" in context.get_user_input():
            await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "what?"))
            return
        for text in CHUNKS:
            await queue.enqueue_event(chunk(context, text))
            await self.clock.sleep(self.chance.uniform(0, 4))
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))

    async def _client(self, number: int) -> None:
        """Send one task's messages, each until it is answered; cancel some tasks."""
        await self.clock.sleep(self.chance.uniform(0, 120))
        asks = number % 4 == 1
        opened = await self._until_answered(
            lambda: self.storage.open_task(
                f"talk {number % TALKS}",
                request("ask" if asks else "work"),
                idempotency_key=f"first {number}",
            )
        )
        head = self.heads[number] = opened.head
        if head.turn.parked == "":
            await self._woken(head)
        hook = TaskPushNotificationConfig(id="a", task_id=head.task_id, url="https://hook.example/")
        await self._until_answered(lambda: self.storage.webhooks.put(hook))
        if asks:
            await self._answer(head, number)
        elif number % 4 == 2:
            await self.clock.sleep(self.chance.uniform(0, 20))
            await self._until_answered(lambda: self.storage.request_cancel(head.task_id))

    async def _answer(self, head: Head, number: int) -> None:
        """Answer a task's question."""
        commit = Commit(entries=(TurnOpened(request("work")),), idempotency_key=f"second {number}")

        async def answered() -> Head | None:
            found = await self.storage.head(head.task_id)
            assert found is not None
            if found.turn.number > 1:  # an earlier try was stored, and not answered
                return found
            if found.state != S.TASK_STATE_INPUT_REQUIRED:
                raise ConcurrencyError
            return await self.storage.commit(found, commit)

        found = await self._until_answered(answered)
        if found is not None and found.turn.is_open:
            await self._woken(found)

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> Any:
        while True:
            try:
                return await call()
            except (UnavailableError, ConcurrencyError):
                await self.clock.sleep(self.chance.uniform(0.5, 5))
            except (RepeatedKeyError, TaskTerminalStateError):
                return None

    # -- what has to hold ------------------------------------------------------------------------

    async def _rest(self) -> None:
        ends_at = self.clock.monotonic() + WITHIN_S
        while not await self.at_rest() and self.clock.monotonic() < ends_at:
            await self.clock.sleep(30)

    async def at_rest(self) -> bool:
        """Whether each task has ended, and no message is on the queue."""
        found = [await self.storage.head(head.task_id) for head in self.heads.values()]
        return is_empty(self.queue) and all(
            head is not None and head.is_terminal and not head.turn.is_open for head in found
        )

    async def _check(self) -> None:
        assert await self.at_rest(), [
            (number, await self.storage.head(head.task_id)) for number, head in self.heads.items()
        ]
        for number, opened in self.heads.items():
            log = await self.storage.read(opened.task_id)
            task = await self.storage.load_task(opened.task_id)
            assert log is not None
            assert task is not None
            assert [one.version for one in log.records] == list(range(1, log.head.version + 1))
            assert log.head.due_at is None
            ends = {S.TASK_STATE_COMPLETED}
            if number % 4 == 2:
                ends |= {S.TASK_STATE_CANCELED}
            assert log.head.state in ends, log.head
            said = texts(task, "a")
            if log.head.state == S.TASK_STATE_COMPLETED:
                assert "".join(said) == "".join(CHUNKS), (number, said)
            turns = sum(isinstance(e, TurnOpened) for one in log.records for e in one.entries)
            assert turns == (2 if number % 4 == 1 else 1)
            assert [push.config.id for push in await self.storage.webhooks.all(task.id)] == ["a"]
        listed = await list_tasks(self.storage, ListTasksQuery(page_size=100))
        assert {task.id for task in listed.tasks} == {one.task_id for one in self.heads.values()}
        assert len(listed.tasks) == TASKS + TALKS
        for talk in range(TALKS):
            assert (await conversation_queue(self.storage, f"talk {talk}")).positions == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_of_late_writes_loses_nothing(seed: int) -> None:
    """Each task ends once, as it should, each chunk is there once, and nothing waits."""
    storm = Storm(seed=seed)
    storm.run(lambda _: storm.play())
    met = storm.late.met
    assert met.keys() == {
        *("read lost", "write lost", "answer lost", "applied late"),
        *("applied late, and refused", "applied late, and stored"),
    }
