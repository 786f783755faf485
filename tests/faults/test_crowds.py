"""Many tasks while processes come and go, in order or not."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from a2a.types import TaskState

from tests.faults import processes
from tests.faults.clients import Patient
from tests.faults.crowd import COMPLETED, at_rest, check_attempts, counted, ends, number_of_tasks
from tests.faults.harness import IS_LONG, SETTLE_S, Emulators, World, numbers, until
from tests.faults.processes import Running
from tests.faults.report import Record, check
from tests.faults.webhooks import SETTINGS, ids, states, told_states
from tests.unit.push.receivers import Receiver, Request

pytestmark = pytest.mark.emulators

FLEET = ("worker", "worker", "sweep", "push", "api")


@pytest.mark.timeout(900 if IS_LONG else 300)
async def test_a_rolling_replacement_loses_nothing(
    push_emulators: Emulators, tmp_path: Path, record_property: Record
) -> None:
    """All processes are replaced one by one, by SIGTERM, while tasks are sent and run on them."""
    rounds, tasks = (5, 200) if IS_LONG else (1, 20)
    settings = {processes.DRAIN: "0.5", "A2A_MAX_ATTEMPTS": "10", **SETTINGS}
    with Receiver() as receiver:
        async with push_emulators.world(tmp_path, **settings) as world:
            client = Patient(world.http)
            fleet = [await world.start(kind, concurrency=8) for kind in FLEET]
            is_replaced = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(_keep_sending(client, receiver, tasks, is_replaced))
                for _ in range(rounds):
                    fleet = [await _replace(world, client, old) for old in fleet]
                while not _is_started_twice(world):  # a worker that goes may have no turn just then
                    fleet[0] = await _replace(world, client, fleet[0])
                is_replaced.set()
            sent = sending.result()
            ended = await ends(world, list(sent), within_s=SETTLE_S + tasks)
            starts = len([e for e in world.ledger.entries(what="started") if e.task_id in sent])
            runs = counted(f"all replaced: {starts} starts", ended, numbers(6))
            assert Counter(end.state for end in ended) == {COMPLETED: len(sent)}
            check([runs], record_property)
            assert starts > len(sent), "no turn was given back"
            assert await number_of_tasks(world) == len(sent) + 3 * rounds
            await at_rest(world)
            await _all_told(world, receiver, sent)


async def _keep_sending(
    client: Patient, receiver: Receiver, at_least: int, until_set: asyncio.Event
) -> dict[str, str]:
    """The tasks that were sent, one after the other; one in five has a webhook, of that path."""
    sent: dict[str, str] = {}
    while len(sent) < at_least or not until_set.is_set():
        path = "" if len(sent) % 5 else f"/{len(sent)}"
        answer = await client.send("chunks 6 0.3", webhook=path and receiver.url(path=path))
        sent[answer.task["id"]] = path
        await asyncio.sleep(0.1)
    return sent


def _is_started_twice(world: World) -> bool:
    started = [entry.task_id for entry in world.ledger.entries(what="started")]
    return len(started) > len(set(started))


async def _replace(world: World, client: Patient, old: Running) -> Running:
    """Start another process of the same kind, then end the old one in order."""
    kind = old.name.partition("-")[0]
    if kind == "api":
        return await _replace_api(world, client, old)
    new = await world.start(kind, concurrency=8)
    assert await old.end() == 0, old.said()
    return new


async def _replace_api(world: World, client: Patient, old: Running) -> Running:
    """Replace the API over a blocking send, a stream and a cancel: the new one tells their ends.

    The agents wait until the old one has gone, so that it cannot have told anybody.
    """
    chunks: list[str] = []
    earlier = world.ledger.entries(what="held")

    def held() -> list[str]:
        return [entry.task_id for entry in world.ledger.entries(what="held")[len(earlier) :]]

    deaf = str((await client.send("deaf")).task["id"])
    async with asyncio.TaskGroup() as group:
        blocking = group.create_task(client.send("held 4", blocks=True))
        streaming = group.create_task(client.follow("held 4", chunks))
        await until(lambda: len(set(held())) == 3 and chunks, "blocking send and stream are open")
        before, new = world.http.base_url, await world.start("api")
        after, world.http.base_url = world.http.base_url, before
        group.create_task(client.cancel(deaf))
        await until(lambda: world.is_being_canceled(deaf), "the cancel is open")
        world.http.base_url = after
        assert not blocking.done()
        assert not streaming.done()
        assert await old.end() == 0, old.said()
        # Otherwise the deaf agent returns before it has heard, and its turn fails.
        await world.noted(deaf, "swallowed")
        for task_id in set(held()):
            world.ledger.release(task_id)
    assert blocking.result().state == "COMPLETED"
    (artifact,) = blocking.result().task["artifacts"]
    assert (chunks, artifact["parts"]) == (numbers(4), [{"text": "".join(numbers(4))}])
    assert streaming.result() > 2, "the stream was not cut off"  # beside the card and the send
    assert (await world.end(deaf)).state == TaskState.TASK_STATE_CANCELED
    return new


async def _all_told(world: World, receiver: Receiver, sent: Mapping[str, str]) -> None:
    """Wait until the webhooks were told of every state, and check that each was told in order."""

    def told(path: str) -> list[Request]:
        return [request for request in receiver.requests if request.target == path]

    def are_told(path: str, count: int) -> bool:
        return len(ids(told(path))) >= count

    for task_id, path in sent.items():
        owed = await states(world, task_id) if path else []
        await until(partial(are_told, path, len(owed)), f"{path} is told")
        assert told_states(told(path)) == owed


@pytest.mark.timeout(1800 if IS_LONG else 300)
async def test_tasks_survive_workers_that_are_killed_all_the_time(
    emulators: Emulators, tmp_path: Path, record_property: Record
) -> None:
    """A worker is killed every second; every task ends, none twice, none stuck."""
    tasks, workers, kills, chunks = (2000, 4, None, 4) if IS_LONG else (30, 2, 4, 8)
    order = random.Random(4)  # noqa: S311 - a seeded schedule
    async with emulators.world(tmp_path) as world:
        await world.start("api")
        await world.start("sweep")
        fleet = [await world.start("worker", concurrency=8) for _ in range(workers)]
        killing = asyncio.create_task(_kill(world, fleet, order, kills))
        try:
            texts = [f"chunks {chunks} 0.2", f"steps {chunks} 0.1"]
            sent = await world.send_all(texts * (tasks // 2), 16)
            ended = await ends(world, sent, within_s=SETTLE_S + tasks / 2)
        finally:
            killing.cancel()
            await asyncio.wait([killing])
        assert killing.cancelled() or killing.result() == kills
        starts = Counter(entry.task_id for entry in world.ledger.entries(what="started"))
        assert max(starts.values()) > 1, "no kill has met a running turn"
        runs = counted(f"a kill a second: {starts.total()} starts", ended, numbers(chunks))
        check([runs], record_property)
        check_attempts(ended)
        await world.start("worker")
        await world.drained()


async def _kill(world: World, fleet: list[Running], order: random.Random, kills: int | None) -> int:
    """Kill a random worker a second and put another one in its place; the number of kills."""
    count = 0
    while count != kills:
        await asyncio.sleep(1)
        victim = order.randrange(len(fleet))
        await fleet[victim].end(signal.SIGKILL)
        fleet[victim] = await world.start("worker", concurrency=8)
        count += 1
    return count
