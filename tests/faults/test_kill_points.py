"""A process dies by SIGKILL at every named point; what it left behind comes to its end.

Each flow starts the processes, lets one of them die at its point, and starts what is there in its
place. Then the task has to end as documented, with each chunk once, no message, nothing due.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from a2a.types import TaskState

from a2a_serverless.storage.layout import task_partition
from a2a_serverless.storage.table import Range
from tests.faults import harness, processes, traps
from tests.faults.harness import IS_LONG, World, until
from tests.faults.processes import Running
from tests.faults.recorded import record
from tests.faults.report import Record, Runs, check

pytestmark = pytest.mark.emulators

RUNS = 20 if IS_LONG else 1
"""Of each case; the short form has one case of each point."""
AT_ONCE = 4 if IS_LONG else 7
"""Worlds beside each other: most of a run is waiting for a visibility."""

WORK = "chunks 4 0.15"
"""Four chunks, of which a slow worker stores several in one commit."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """How the task has to end, after so many starts of the agent."""

    task_id: str
    state: TaskState = TaskState.TASK_STATE_COMPLETED
    chunks: list[str] = field(default_factory=lambda: harness.numbers(4))
    starts: int


Flow = Callable[[World, str], Awaitable[Expected]]


@dataclass(frozen=True)
class Case:
    """A point with its passage, and what leads there."""

    name: str
    point: str
    flow: Flow
    settings: dict[str, str] = field(default_factory=dict)


async def unanswered(world: World, point: str, *others: str) -> Expected:
    """The client has no answer; the task runs."""
    await world.start("worker")
    for kind in others:
        await world.start(kind)
    api = await world.start("api", point=point)
    task_id = await world.send(WORK, message_id="message-1")
    await world.dies(api, point)
    return Expected(task_id=task_id, starts=1)


async def unsent(world: World, point: str) -> Expected:
    """The turn was never sent: the sweeper sends it."""
    return await unanswered(world, point, "sweep")


async def unsent_follow_up(world: World, point: str) -> Expected:
    """The answer to a question was never sent: the sweeper sends its turn."""
    await world.start("worker")
    await world.start("sweep")
    api = await world.start("api", point=point)
    task_id = await world.send("ask")
    await world.send(WORK, task=await world.state(task_id, TaskState.TASK_STATE_INPUT_REQUIRED))
    await world.dies(api, point)
    return Expected(task_id=task_id, starts=2)


async def unsent_and_repeated(world: World, point: str) -> Expected:
    """The client's retry is no new task, and sends the turn at once: there is no sweeper here."""
    expected = await unanswered(world, point)
    await world.start("api")
    assert await world.send(WORK, message_id="message-1") == expected.task_id
    return expected


async def _api_and_worker(world: World, point: str) -> Running:
    """Start an API, and a worker that dies at the point."""
    await world.start("api")
    return await world.start("worker", point=point)


def dies(starts: int, *, text: str = WORK, receives: int = 0) -> Flow:
    """A flow in which a worker dies in a turn, and another one takes its place.

    `starts`: of the agent in both. `receives`: how often the message was received before.
    """

    async def flow(world: World, point: str) -> Expected:
        await world.start("api")
        task_id = await world.send(text)
        for _ in range(receives):
            await world.receive()
        await world.replaced(await world.start("worker", point=point), point)
        return Expected(task_id=task_id, starts=starts)

    return flow


async def stored_chunk(world: World, point: str) -> Expected:
    """The worker dies in a turn whose first chunk is stored before it goes on to the others."""
    victim = await _api_and_worker(world, point)
    task_id = await world.send("held 4")
    look = partial(world.storage.load_task, task_id)
    await until(look, "the first chunk is stored", is_it=lambda task: task and task.artifacts)
    world.ledger.release(task_id)
    await world.replaced(victim, point)
    return Expected(task_id=task_id, starts=2)


async def handed_over(world: World, point: str) -> Expected:
    """A turn that has left its worker at a record, without a message: the sweeper sends it."""
    victim = await _api_and_worker(world, point)
    task_id = await world.send("steps 4 0.5")
    await world.noted(task_id, "step 0")
    os.kill(victim.pid, signal.SIGTERM)
    await world.dies(victim, point)
    await world.start("sweep")
    await world.start("worker")
    return Expected(task_id=task_id, starts=2)


def canceled(task_id: str, *, starts: int = 1) -> Expected:
    return Expected(task_id=task_id, state=TaskState.TASK_STATE_CANCELED, chunks=[], starts=starts)


async def request_of_paused(world: World, point: str) -> Expected:
    """No worker looks at a paused task: the sweeper ends it at the deadline."""
    api = await world.start("api", point=point)
    head = await world.paused()
    await world.start("sweep")
    assert await world.cancel(head.task_id) is None
    await world.dies(api, point)
    return canceled(head.task_id)


async def request_of_running(world: World, point: str) -> Expected:
    """The worker sees the request without any message."""
    api = await world.start("api", point=point)
    await world.start("worker")
    task_id = await world.send("silent")
    await world.state(task_id, TaskState.TASK_STATE_WORKING)
    assert await world.cancel(task_id) is None
    await world.dies(api, point)
    return canceled(task_id)


async def nobody_waits(world: World, point: str) -> Expected:
    """The API promised an end and died, and there is no worker: the sweeper keeps the promise."""
    api = await world.start("api", point=point)
    task_id = await world.send(WORK)
    assert await world.cancel(task_id) is None
    await world.dies(api, point)
    await world.start("sweep")
    await world.state(task_id, TaskState.TASK_STATE_CANCELED)
    await world.start("worker")
    return canceled(task_id, starts=0)


async def cancel_operation(world: World, point: str) -> Expected:
    """The cancel of a paused task is delivered again to the next worker."""
    await world.start("api")
    head = await world.paused()
    return await _canceled(world, head.task_id, await world.start("worker", point=point), point)


async def running_agent(world: World, point: str) -> Expected:
    """The worker dies while its agent is being cancelled; the next one starts no agent."""
    victim = await _api_and_worker(world, point)
    task_id = await world.send("silent")
    await world.state(task_id, TaskState.TASK_STATE_WORKING)
    return await _canceled(world, task_id, victim, point)


async def _canceled(world: World, task_id: str, victim: Running, point: str) -> Expected:
    canceling = asyncio.create_task(world.cancel(task_id))
    await world.replaced(victim, point)
    answer = await canceling
    assert getattr(answer, "state", None) == "CANCELED", answer
    return canceled(task_id)


async def leaving(world: World, point: str) -> Expected:
    """A turn that was left is not forgotten: the end of the one before it wakes it."""
    await world.start("api")
    holder = await world.start("worker", concurrency=1)
    first = await _held(world)
    victim = await world.start("worker", point=point)
    second = await world.send(WORK, context_id=TALK)
    await world.replaced(victim, point)
    await _released(world, first)
    assert holder.process.is_alive()
    return Expected(task_id=second, starts=1)


async def passing_on(world: World, point: str) -> Expected:
    """The delivery of the turn that ended comes again, and its conversation is passed on then."""
    return Expected(task_id=await _dies_after_the_first(world, point), starts=1)


async def waking(world: World, point: str) -> Expected:
    """A turn that was woken and not sent is sent by the sweeper."""
    second = await _dies_after_the_first(world, point)
    await world.start("sweep")
    return Expected(task_id=second, starts=1)


TALK = "a-conversation"


async def _held(world: World) -> str:
    first = await world.send("held 2", context_id=TALK)
    await world.noted(first, "held")
    return first


async def _parked(world: World, task_id: str, why: str) -> None:
    look = partial(world.head, task_id)
    await until(look, f"{task_id} is {why}", is_it=lambda head: head.turn.parked == why)


async def _released(world: World, task_id: str) -> None:
    world.ledger.release(task_id)
    await world.state(task_id, TaskState.TASK_STATE_COMPLETED)


async def _dies_after_the_first(world: World, point: str) -> str:
    """Let a worker die after the end of a turn behind which another one is left; return its id."""
    await world.start("api")
    victim = await world.start("worker", point=point, concurrency=1)
    first = await _held(world)
    await world.start("worker")
    second = await world.send(WORK, context_id=TALK)
    await _parked(world, second, "conversation")
    await _released(world, first)
    await world.dies(victim, point)
    return second


async def _sweeper_dies(world: World, point: str) -> None:
    """Let a sweeper die at the point, and start the next one."""
    await world.dies(await world.start("sweep", point=point), point)
    await world.start("sweep")


async def postponed(world: World, point: str) -> Expected:
    """A turn whose look was put off and that was not sent is sent at its next look."""
    await world.start("worker")
    head = await world.create(WORK)
    await _sweeper_dies(world, point)
    return Expected(task_id=head.task_id, starts=1)


async def woken(world: World, point: str) -> Expected:
    """A turn that has slept and was woken without a message is sent at its next look."""
    await world.start("api")
    await world.start("worker")
    task_id = await world.send("naps 1")
    await _parked(world, task_id, "asleep")
    await _sweeper_dies(world, point)
    return Expected(task_id=task_id, starts=2)


async def dead_letter(world: World, point: str) -> Expected:
    """A dead letter that is handled twice ends its task, whose attempts are used up, once."""
    await world.start("api")
    task_id = await world.send(WORK)
    await world.use_up(task_id)
    await _dies_at_a_letter(world, point)
    await world.state(task_id, TaskState.TASK_STATE_FAILED)
    await world.start("worker")  # drops the copies that the sweeper has sent meanwhile
    return Expected(task_id=task_id, state=TaskState.TASK_STATE_FAILED, chunks=[], starts=0)


async def resent_letter(world: World, point: str) -> Expected:
    """A dead letter with attempts left makes its turn due, twice here; the turn runs once."""
    await world.start("api")
    task_id = await world.send(WORK)
    await _dies_at_a_letter(world, point)
    await world.start("worker")
    return Expected(task_id=task_id, starts=1)


async def _dies_at_a_letter(world: World, point: str) -> None:
    """Let the only operation become a dead letter, at which the first sweeper dies."""

    async def is_dead() -> bool:
        if await world.waiting(world.made.dead_letter_queue) == 0:
            await world.receive(must=False)
        return await world.waiting(world.made.dead_letter_queue) == 1

    await until(is_dead, "the operation is a dead letter")
    await _sweeper_dies(world, point)


async def collecting(world: World, point: str) -> Expected:
    """The next deletion leaves nothing of a context, also not what a dead attempt has stored."""
    await world.start("api")
    victim = await world.start("worker", point="blob-stored:1")
    doomed = [await world.send("file 4 1", context_id=TALK) for _ in range(2)]
    await world.dies(victim, "blob-stored:1")
    await world.start("worker")
    kept = await world.send("file 4")
    for task_id in (*doomed, kept):
        await world.state(task_id, TaskState.TASK_STATE_COMPLETED)
    whose = ("--scope", world.storage.scope.digest, "--context", TALK)
    assert len([file for task_id in doomed for file in world.stored(task_id)]) > len(doomed)
    await world.dies(await world.start("purge", *whose, point=point), point)
    purge = await world.start("purge", *whose)
    assert await purge.ended(harness.SETTLE_S) == 0, purge.said()
    for task_id in doomed:
        partition = task_partition(world.storage.scope.digest, task_id)
        assert not await world.storage.table.all(Range(partition=partition))
        assert not world.stored(task_id)
    return Expected(task_id=kept, starts=1)


PATIENT = {"A2A_CANCEL_TIMEOUT_S": "20"}
"""A wait so long that the API does not end the task before the next worker does."""

SERIAL = {"A2A_CONVERSATIONS": "serial"}
SOON = {"A2A_WAITING_S": "1"}

CASES = {
    "api": [
        Case("after create, before send", "after-create:1", unsent),
        Case("the same, of a follow-up", "after-create:2", unsent_follow_up),
        Case("the same, client repeats", "after-create:1", unsent_and_repeated),
        Case("after send", "after-send:1", unanswered),
    ],
    "worker": [
        Case("after receive, before visibility", "after-receive:1", dies(1)),
        Case("after the first commit's claim", "after-claim:1", dies(2)),
        Case("after a claim of its own", "after-claim:1", dies(1, receives=1)),
        Case("file emitted, not stored", "before-blob:1", dies(2, text="file 4")),
        Case("file stored, not committed", "blob-stored:1", dies(2, text="file 4")),
        Case("snapshot stored, not named", "snapshot-stored:1", dies(1, text="much 4")),
        Case("between two commits", "between-commits:1", stored_chunk),
        Case("before a later commit", "between-commits:2", dies(2, text="chunks 4 0.4")),
        Case("after last commit, before ack", "before-ack:1", dies(1)),
        Case("after failure, before nack", "before-nack:1", dies(2, text="failing 1")),
        Case("handed over, not sent", "after-hand-over:1", handed_over, SOON),
    ],
    "cancel": [
        Case("cancel asked, not sent: paused", "after-cancel-request:1", request_of_paused),
        Case("cancel asked, not sent: running", "after-cancel-request:1", request_of_running),
        Case("cancel sent, nobody waits", "after-cancel-send:1", nobody_waits),
        Case("cancel operation received", "cancel-received:1", cancel_operation, PATIENT),
        Case("agent being cancelled", "canceling:1", running_agent, PATIENT),
    ],
    "conversation": [
        Case("turn parked, before ack", "after-leave:1", leaving, SERIAL),
        Case("turn ended, next not started", "before-next-turn:1", passing_on, SERIAL),
        Case("next turn requeued, not sent", "after-requeue:1", waking, SERIAL | SOON),
    ],
    "deletion": [
        Case("files of one task of two deleted", "blobs-deleted:1", collecting),
        Case("files deleted, not the items", "blobs-deleted:2", collecting),
        Case("items deleted, not HEAD", "items-deleted:1", collecting),
    ],
    "upkeep": [
        Case("sweeper: postponed, not sent", "after-postpone:1", postponed, SOON),
        Case(
            "sweeper: sleep over, not sent", "after-postpone:1", woken, SOON | {processes.PARK: "1"}
        ),
        Case("dead letter: ended, not deleted", "after-dead-letter:1", dead_letter),
        Case("dead letter: made due, not deleted", "after-dead-letter:1", resent_letter),
    ],
}


def test_every_point_is_killed_at() -> None:
    """No named point is without a case; those of push are in test_push_kills.py."""
    points = {case.point.partition(":")[0] for cases in CASES.values() for case in cases}
    assert points == {point for point in traps.POINTS if not point.startswith("push-")}


@pytest.mark.timeout(3600 if IS_LONG else 300)
@pytest.mark.parametrize("victims", CASES)
async def test_a_kill_loses_doubles_and_holds_up_nothing(
    victims: str, emulators: harness.Emulators, tmp_path: Path, record_property: Record
) -> None:
    """After a kill at any point the task ends as documented, with each chunk once."""
    firsts = {case.point.partition(":")[0]: case for case in reversed(CASES[victims])}
    cases = CASES[victims] if IS_LONG else [*firsts.values()]
    rows = [Runs(name=case.name) for case in cases]
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case, runs: Runs, folder: Path) -> None:
        async with slots, emulators.world(folder, **case.settings) as world:
            await _run(case, world, runs)

    async with asyncio.TaskGroup() as group:
        for (case, runs), number in product(zip(cases, rows, strict=True), range(RUNS)):
            group.create_task(one(case, runs, tmp_path / f"{case.name}-{number}"))
    check(rows, record_property)


async def _run(case: Case, world: World, runs: Runs) -> None:
    runs.runs += 1
    try:
        expected = await case.flow(world, case.point)
        end = await world.end(expected.task_id)
        await world.drained()
        await record(world, end.head, case.name)
    except AssertionError as error:
        is_missed = isinstance(error, harness.NotReachedError)
        runs.unreached += is_missed
        runs.stuck += not is_missed
        runs.notes.append(f"{error}; {_said(world)}")
        return
    runs.recovery_s.append(time.time() - world.killed_at)
    lost, doubled = harness.lost_and_doubled(end.chunks, expected.chunks)
    runs.lost += lost
    runs.doubled += doubled
    if end.state != expected.state:
        runs.notes.append(f"{end.task.status}; {_said(world)}")
    starts = world.ledger.count(expected.task_id, "started")
    if starts != expected.starts:
        runs.notes.append(f"{starts} starts of the agent; {_said(world)}")


def _said(world: World) -> str:
    return " | ".join(f"{running.name}: {running.said()}" for running in world.started)
