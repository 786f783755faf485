"""The process that pushes dies by SIGKILL at every named point; receivers miss nothing.

The receivers are as bad as they may be: half of them fail at the first attempt at each event, the
others refuse their first event for good.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from a2a.types import TaskState

from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from tests.faults import traps
from tests.faults.harness import IS_LONG, Emulators, NotReachedError, World, until
from tests.faults.processes import PUSH_WAIT
from tests.faults.recorded import record
from tests.faults.report import Record, Runs, check
from tests.faults.webhooks import SETTINGS, Told, ids, states, told_states
from tests.unit.push.receivers import OK, Receiver, Request, status

pytestmark = pytest.mark.emulators

ROUNDS = 6 if IS_LONG else 1
TASKS = 12 if IS_LONG else 4
TIMES = SETTINGS if IS_LONG else {**SETTINGS, "A2A_PUSH_TIMEOUT_S": "5"}
"""A process that dies while it asks a receiver holds the others up for two of these timeouts."""

STREAM = ["push-stream-received", "push-job-sent"]
"""While no job is there, in this order; the others need jobs, and come in any order."""
SWEPT = "push-postponed"
DELIVERY = sorted(p for p in traps.POINTS if p.startswith("push-") and p not in (*STREAM, SWEPT))

SOME = ("push-after-post", "push-before-dead-letter")
"""Those of the short form, as each kill takes a quarter of a minute."""

SETTLED_S = 180.0
"""Time for what is left after the kills; a machine that runs other tests needs most of it."""

RECORDED = "push: one kill at each point"
"""Under which one of the tasks is recorded."""


@dataclass
class Webhooks:
    """All receivers, told apart by their paths: `/failing/N` and `/refusing/N`."""

    requests: defaultdict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))
    accepted: defaultdict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))
    refused: defaultdict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))
    last_at: float = 0.0

    def answer(self, request: Request) -> bytes:
        path = request.target
        earlier = {known.event_id for known in self.requests[path]}
        self.requests[path].append(request)
        self.last_at = time.time()
        if path.startswith("/failing") and request.event_id not in earlier:
            return status(503)
        if path.startswith("/refusing") and not earlier - {request.event_id}:
            self.refused[path].append(request)
            return status(410)
        self.accepted[path].append(request)
        return OK


@pytest.mark.timeout(3600 if IS_LONG else 600)
async def test_a_kill_loses_no_notification(
    push_emulators: Emulators, tmp_path: Path, record_property: Record
) -> None:
    """Each transition arrives or is a dead letter, in order, under one id, whatever dies where."""
    runs = Runs(name=RECORDED)
    for number in range(ROUNDS):
        await _round(number, push_emulators, tmp_path / str(number), runs)
    check([runs], record_property)


async def _round(number: int, emulators: Emulators, folder: Path, runs: Runs) -> None:
    """Kills at all points, one after the other; in odd rounds while the tasks are under way."""
    points = list(DELIVERY if IS_LONG else SOME)
    random.Random(number).shuffle(points)  # noqa: S311 - a seeded order
    hooks = Webhooks()
    with Receiver(hooks.answer) as receiver:
        async with emulators.world(folder, **TIMES) as world:
            await asyncio.gather(world.start("api"), world.start("worker", concurrency=TASKS))
            tasks = asyncio.gather(*(_task(world, receiver, n) for n in range(TASKS)))
            if number % 2 == 0:
                await tasks
            for point in [*STREAM, *points]:
                runs.runs += 1
                await _kill(world, point, runs)
            owed = [told for both in await tasks for told in both]
            await world.start("push", concurrency=TASKS)
            try:
                await _settled(world, hooks, owed)
            except AssertionError as error:
                runs.stuck += 1
                runs.notes.append(f"{error}: {world.started[-1].said()}")
            runs.recovery_s.append(hooks.last_at - world.killed_at)
            for told in owed:
                _check(told, hooks, runs)
            await _check_letters(world, hooks, runs)
            (last,) = (await list_tasks(world.storage, ListTasksQuery(page_size=1))).tasks
            await record(world, await world.head(last.id), RECORDED)


async def _task(world: World, receiver: Receiver, number: int) -> tuple[Told, Told]:
    """A finished task that had one receiver from its beginning on, another from its question on."""
    failing, refusing = f"/failing/{number}", f"/refusing/{number}"
    task_id = await world.send("ask", webhook=receiver.url(path=failing))
    paused = await world.state(task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
    second = {"taskId": task_id, "id": "second", "url": receiver.url(path=refusing)}
    created = await world.client.call("CreateTaskPushNotificationConfig", second)
    assert created.result["id"] == "second", created
    await world.send("chunks 2 0", task=paused)
    await world.end(task_id)
    later = await states(world, task_id, after=paused.version)
    return Told(failing, await states(world, task_id)), Told(refusing, later)


async def _kill(world: World, point: str, runs: Runs) -> None:
    victim = await world.start("push", point=f"{point}:1")
    try:
        # All receivers are one host: while it is closed after their failures, nothing arrives.
        await world.dies(victim, f"{point}:1", within_s=SETTLED_S)
    except NotReachedError as error:
        runs.unreached += 1
        runs.notes.append(f"{error}: {victim.said()}")


async def _settled(world: World, hooks: Webhooks, owed: list[Told]) -> None:
    """Wait until everybody has been told of the last state, and no job is left."""

    def all_told() -> bool:
        return all(len(ids(hooks.requests[told.path])) >= len(told.states) for told in owed)

    await until(all_told, "told everything", SETTLED_S)
    jobs = partial(world.waiting, world.made.push_queue)
    await until(jobs, "without jobs", SETTLED_S, is_it=(0).__eq__)


def _check(told: Told, hooks: Webhooks, runs: Runs) -> None:
    """Note events that were lost, doubled, first told out of order or never accepted."""
    requests = hooks.requests[told.path]
    state_of = {request.event_id: request.state for request in requests}
    runs.lost += max(0, len(told.states) - len(state_of))
    runs.doubled += max(0, len(state_of) - len(told.states))
    if told_states(requests) != told.states:
        runs.notes.append(f"{told.path} was told of {state_of}, not of {told.states}")
    settled = {r.event_id for r in (*hooks.accepted[told.path], *hooks.refused[told.path])}
    if settled != state_of.keys():
        runs.notes.append(f"{told.path}: {state_of.keys() - settled} never succeeded")


async def _check_letters(world: World, hooks: Webhooks, runs: Runs) -> None:
    """One dead letter for each event that was refused, with neither its URL nor its content."""
    refused = sorted({r.event_id for requests in hooks.refused.values() for r in requests})
    bodies = await _letters(world)
    letters = sorted(json.loads(body)["event_id"] for body in bodies)
    if letters != refused:
        runs.notes.append(f"dead letters for {letters}, refused were {refused}")
    if any("127.0.0.1" in body or "TASK_STATE" in body for body in bodies):
        runs.notes.append(f"a dead letter says too much: {bodies}")


async def _letters(world: World) -> list[str]:
    bodies: list[str] = []
    while True:
        answer: dict[str, Any] = await asyncio.to_thread(
            world.sqs.receive_message,
            QueueUrl=world.made.push_dead_letter_queue,
            MaxNumberOfMessages=10,
            VisibilityTimeout=60,
        )
        if not answer.get("Messages"):
            return bodies
        bodies += [message["Body"] for message in answer["Messages"]]


async def test_a_sweeper_dies_before_a_job(push_emulators: Emulators, tmp_path: Path) -> None:
    """A webhook that waits in the table is put off, without a job: a later sweep sends one."""
    hooks = Webhooks()

    def answer(request: Request) -> bytes:
        hooks.answer(request)
        return status(503, Retry_After="2") if len(hooks.requests[request.target]) == 1 else OK

    with Receiver(answer) as receiver:
        async with push_emulators.world(tmp_path, **SETTINGS, **{PUSH_WAIT: "2"}) as world:
            await asyncio.gather(*(world.start(kind) for kind in ("api", "worker", "push")))
            task_id = await world.send("chunks 1 0", webhook=receiver.url(path="/waits"))
            await world.end(task_id)
            point = f"{SWEPT}:1"
            await world.dies(await world.start("sweep", point=point), point)
            assert len(hooks.requests["/waits"]) == 1
            await world.start("sweep")
            owed = Told("/waits", await states(world, task_id))
            await _settled(world, hooks, [owed])
            assert told_states(hooks.requests["/waits"]) == owed.states


def test_every_push_point_is_killed_at() -> None:
    """The kills cover every point of push that the package has."""
    assert {*STREAM, *DELIVERY, SWEPT} == {p for p in traps.POINTS if p.startswith("push-")}
    assert len(DELIVERY) == 8
