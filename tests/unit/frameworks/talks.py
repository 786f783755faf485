"""Conversations with an agent, turn by turn, over backends in memory."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, product
from typing import Any, Final, Literal, TypeVar, get_args
from unittest import TestCase
from uuid import uuid4

from a2a.helpers import get_data_parts, new_data_part
from a2a.server.agent_execution import AgentExecutor
from a2a.types import Message, Part, Role, SendMessageRequest, Task

from a2a_serverless.tasks.entries import ArtifactWritten, Caller, Recorded, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.questions import ASK
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import Worker
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless.worker.failures import DeadlineError
from a2a_serverless.worker.steps import PAUSE, STATE
from a2a_serverless.worker.turn import ActiveTurn
from tests.support.messages import request
from tests.support.queues import is_empty
from tests.support.workers import Bench, PacedClock, S, status_text

T = TypeVar("T")
LONG: Final = os.environ.get("A2A_FAULTS") == "long"
"""As in `tests.support.databases`, which environments of other frameworks cannot import."""


def executor_of(agent: Worker | AgentExecutor) -> AgentExecutor:
    return WorkerExecutor(agent) if isinstance(agent, Worker) else agent


class Talk:
    """One context in which tasks follow one another; each turn runs to its end at once."""

    def __init__(self, agent: Worker | AgentExecutor, **settings: Any) -> None:
        self.bench = Bench(executor_of(agent), **{"retry_base_s": 0, "max_attempts": 1, **settings})

    def become(self, agent: Worker | AgentExecutor) -> None:
        """Work on with another agent, as after a deployment."""
        self.bench.adapter.agent = executor_of(agent)

    async def say(self, text: str) -> tuple[Head, Task]:
        head = await self.bench.send(text)
        await self._work()
        return head, await self.bench.task(head)

    async def show(self, *parts: Part) -> Task:
        message = Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=parts)
        sent = SendMessageRequest(message=message)
        head = await self.bench.open(
            sent, context_id="ctx", caller=Caller(), scope=self.bench.storage.scope
        )
        await self._work()
        return await self.bench.task(head)

    async def entries(self, head: Head, kind: type[T]) -> list[T]:
        """Those of a kind in a task's log."""
        entries = [one for record in await self.bench.records(head) for one in record.entries]
        return [entry for entry in entries if isinstance(entry, kind)]

    async def told(self, text: str) -> str:
        """What the client reads after one start of an agent that may be started three times."""
        head = await self.bench.send(text)
        await self.bench.work()
        return status_text(await self.bench.task(head))

    async def answer(self, head: Head, answer: str | dict[str, Any] | SendMessageRequest) -> Task:
        if isinstance(answer, SendMessageRequest):
            sent = answer
        elif isinstance(answer, str):
            sent = request(answer)
        else:
            said = Message(message_id="a", role=Role.ROLE_USER, parts=[new_data_part(answer)])
            sent = SendMessageRequest(message=said)
        opened = Commit(entries=(TurnOpened(sent),))
        now = await self.bench.storage.commit(await self.bench.head(head), opened)
        await self.bench.enqueue(now, turn=now.next_turn or now.turn.number)
        await self._work()
        return await self.bench.task(head)

    async def _work(self) -> None:
        """Work on a turn until it ends; one that a death has interrupted is taken up again."""
        while not is_empty(self.bench.operations):
            if not await self.bench.work():
                assert _deaths, "the turn has failed"
                _deaths.clear()


_deaths: list[object] = []
"""The death that the turn has just died."""


End = Literal["before", "after", "handed over"]
ENDS: Final[tuple[End, ...]] = get_args(End)


@contextmanager
def ends_at(record: int, end: End) -> Iterator[list[str]]:
    """Let the attempt end that comes to a record, by number.

    It dies before that is stored or right after, or its turn is handed over with it. Yields the
    names of the steps that are recorded.
    """
    records: Any = ActiveTurn
    store = records._record
    recorded: list[str] = []

    async def die(each: Any) -> None:
        _deaths.append(each)
        each.lease.stop(DeadlineError())
        await asyncio.get_running_loop().create_future()

    async def dying(each: Any, running: Any, entry: Any) -> None:
        recorded.append(entry.id.name)
        is_due = len(recorded) == record
        if is_due and end == "before":
            await die(each)
        if is_due and end == "handed over":
            each._hands_over = lambda _: True
        await store(each, running, entry)
        if is_due and end == "after":
            await die(each)

    records._record = dying
    try:
        yield recorded
    finally:
        records._record = store


def ends_of(records: int) -> Iterator[tuple[int, End]]:
    """Yield each of so many records with one of the ends in turn; in LONG with each end."""
    numbers = range(1, records + 1)
    yield from product(numbers, ENDS) if LONG else zip(numbers, cycle(ENDS), strict=False)


async def killed_everywhere(
    play: Callable[[list[str]], Awaitable[T]], *, in_flight: int = 1, all_paid: bool = True
) -> list[str]:
    """Play with a death or a hand-over at each record; return the recorded steps' names.

    `play` notes each paid call in its list, and returns what clients and the next task see. It has
    to be the same as without an end. A call is made once; twice, if it was in flight at a death:
    at most `in_flight`, without the one that is recorded. Unless `all_paid`, some records are of
    no call.
    """
    calls: list[str] = []
    with ends_at(0, "before") as recorded:
        expected = await play(calls)
    assert recorded
    with nothing_is_reported():
        for number, end in ends_of(len(recorded)):
            again: list[str] = []
            with ends_at(number, end):
                assert await play(again) == expected, (number, end)
            twice = list(again)
            for call in calls:
                twice.remove(call)
            before = end == "before"
            least, most = before and all_paid, in_flight - (not before)
            assert least <= len(twice) <= most, (number, end, again)
    return recorded


@contextmanager
def nothing_is_reported() -> Iterator[None]:
    """Check that asyncio reports no exception as lost."""
    with TestCase().assertNoLogs("asyncio", "ERROR"):
        yield
        gc.collect()


async def starts(talk: Talk) -> int:
    """How often a turn is started until it ends."""
    number = 1
    while not await talk.bench.work():
        number += 1
    _deaths.clear()
    return number


async def started_over(agent: Worker | AgentExecutor | Talk, record: int) -> Task:
    """A task whose turn dies right after a record, and starts over when its agent differs."""
    talk = agent if isinstance(agent, Talk) else Talk(agent, max_attempts=3)
    head = await talk.bench.send("go")
    with ends_at(record, "after"):
        number = await starts(talk)
    assert number == 3, number
    return await talk.bench.task(head)


Make = Callable[[Callable[[], str], Callable[[], None]], Worker | AgentExecutor]


async def longer_than_a_worker(make: Make) -> tuple[Task, int]:
    """A task whose turn needs two workers, and how often the turn was started.

    `make` makes the agent, given a function that returns the time, and one that takes 400 s of the
    900 of a worker; the agent calls the second one three times, after its prompt.
    """
    clock, starts = PacedClock(), 0

    def work() -> None:
        clock._now += 400

    executor = executor_of(make(lambda: f"It is {clock.now_ms()}", work))
    bench = Bench(executor, clock=clock, retry_base_s=0, visibility_s=5400, max_attempts=3)
    head = await bench.send("go")
    while not is_empty(bench.operations):
        starts += 1
        assert starts <= 6
        await bench.work(deadline=clock.monotonic() + 900)
    return await bench.task(head), starts


async def differs_each_time(make: Make, what: str) -> None:
    """Check the end of such a turn if its prompt has the time of day."""
    task, starts = await longer_than_a_worker(make)
    told = status_text(task)
    assert told.startswith(f"The agent's code has run again and {what}, and the turn has"), told
    assert "a random number, from a step, or turn the adapter's steps off (`steps=False`)." in told
    assert starts == 6, starts  # of each beginning the first is handed over, and the second differs


async def idle(_: Any) -> None:
    """What a tool does if a test has no work for it."""


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


async def chunks(agent: Worker | AgentExecutor, text: str = "go") -> list[str]:
    """The chunks in which a task's first turn sends its answer."""
    talk = Talk(agent)
    head, _ = await talk.say(text)
    written = await talk.entries(head, ArtifactWritten)
    return ["".join(part.text for part in entry.artifact.parts) for entry in written]


async def commits(agent: Worker | AgentExecutor, text: str = "go") -> tuple[int, int]:
    """The commits of a task's first turn, and the steps that they record."""
    talk = Talk(agent)
    head, _ = await talk.say(text)
    recorded = [one.id.name for one in await talk.entries(head, Recorded)]
    steps = [name for name in recorded if name not in {STATE, PAUSE, ASK}]
    return len(await talk.bench.records(head)), len(steps)
