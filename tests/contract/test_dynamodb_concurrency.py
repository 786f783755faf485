"""Many writers of one task on DynamoDB Local: threads, and every order of their requests."""

from __future__ import annotations

import asyncio
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from a2a.types import TaskState

from a2a_serverless.errors import ConcurrencyError, TaskTerminalStateError
from a2a_serverless.storage.durable import CreateResult, DurableStorage
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.fold import Log, task_of_head
from a2a_serverless.tasks.head import TERMINAL
from a2a_serverless_tools.contract import Storage
from tests.contract.schedules import play
from tests.support.clocks import ManualClock
from tests.support.databases import LONG, Database, new_clock, new_scope
from tests.support.faulty import Faults
from tests.support.messages import agent_message, chunk, message, request, said, texts
from tests.support.present import present

pytestmark = pytest.mark.emulators

INTERLEAVINGS = 1000 if LONG else 20
THREADS = 64


def test_64_threads_create_with_one_key(database: Database) -> None:
    """64 creations with one key make one task, which all of them get, also under conflicts."""
    storage = database.storage()
    Faults(seed=3, rate=0.3).attach(database.client)

    def create(number: int) -> CreateResult:
        return asyncio.run(storage.open_task("ctx", request(str(number)), idempotency_key="key"))

    with ThreadPoolExecutor(THREADS) as threads:
        opened = list(threads.map(create, range(THREADS)))
    winners = [number for number, one in enumerate(opened) if one.created]
    assert len(winners) == 1
    assert {one.head.incarnation for one in opened} == {opened[0].head.incarnation}
    task = present(asyncio.run(storage.load_task(opened[0].head.task_id)))
    assert said(task) == [str(winners[0])]


def test_threads_append_to_one_task(database: Database) -> None:
    """Blind writes of many threads all get in, each once, in one unbroken order."""
    storage = database.storage()
    task_id = asyncio.run(Storage(storage).create_task("ctx", message())).id

    def append(number: int) -> int:
        return asyncio.run(
            Storage(storage).update_task(task_id, artifacts=[chunk("a", str(number))])
        )

    with ThreadPoolExecutor(8) as threads:
        written = list(threads.map(append, range(32)))
    assert sorted(written) == list(range(2, 34))
    task = present(asyncio.run(storage.load_task(task_id)))
    in_order = sorted(range(32), key=lambda number: written[number])
    assert texts(task, "a") == [str(number) for number in in_order]


class Race:
    """Writers that end a task in their own ways, and others that add to it, in a seeded order."""

    def __init__(self, database: Database, clock: ManualClock, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a seeded schedule
        self._database, self._seed = database, seed
        self.storage = database.storage(scope=new_scope(), clock=clock)
        self.chunks: list[str] = []
        self.ended: list[TaskState] = []
        self.versions: list[int] = []
        self.order: list[int] = []

    async def run(self) -> Log:
        """Let all writers run to their end; the task's log."""
        task_id = (await Storage(self.storage).create_task("ctx", message())).id
        writers = [self._end(task_id, state) for state in sorted(TERMINAL)]
        writers += [self._append(task_id, str(number)) for number in range(3)]
        writers += [self._work(task_id)]
        self._random.shuffle(writers)
        self.order = await play(self._database, self.storage, self._seed, writers)
        return present(await self.storage.read(task_id))

    def _end(self, task_id: str, state: TaskState) -> Any:
        async def end(view: DurableStorage) -> None:
            expected = (
                await Storage(view).get_version(task_id) if self._random.random() < 0.5 else None
            )
            try:
                version = await Storage(view).update_task(
                    task_id, state, status_message=agent_message("end"), expected_version=expected
                )
            except (TaskTerminalStateError, ConcurrencyError):
                return
            self.ended.append(state)
            self.versions.append(version)

        return end

    def _append(self, task_id: str, name: str) -> Any:
        async def append(view: DurableStorage) -> None:
            for number in range(3):
                text = f"{name}.{number}"
                self.versions.append(
                    await Storage(view).update_task(task_id, artifacts=[chunk(name, text)])
                )
                self.chunks.append(text)

        return append

    def _work(self, task_id: str) -> Any:
        async def work(view: DurableStorage) -> None:
            for text in ("w.0", "w.1"):
                try:
                    version = await Storage(view).update_task(
                        task_id, TaskState.TASK_STATE_WORKING, artifacts=[chunk("w", text)]
                    )
                except TaskTerminalStateError:
                    return
                self.versions.append(version)
                self.chunks.append(text)

        return work


def check(race: Race, log: Log) -> None:
    """The first terminal state won, versions have no gap, HEAD agrees with the events."""
    states = [
        entry.status.state
        for record in log.records
        for entry in record.entries
        if isinstance(entry, StatusChanged)
    ]
    # Writers that expect a version may all lose: then the task does not end.
    ends = [place for place, state in enumerate(states) if state in TERMINAL]
    assert ends in ([], [len(states) - 1])
    assert race.ended == [states[place] for place in ends]
    assert [record.version for record in log.records] == list(range(1, log.head.version + 1))
    assert sorted(race.versions) == list(range(2, log.head.version + 1))
    fold = log.fold()
    task = fold.task(0, include_artifacts=False)
    assert task == task_of_head(log.head)
    assert task.status.state == log.head.state == states[-1]
    stored = {name: [part.text for part in it.parts] for name, it in fold.artifacts.items()}
    assert sorted(itertools.chain(*stored.values())) == sorted(race.chunks)
    for name, own in stored.items():
        assert own == sorted(own)
        assert "".join(texts(fold.task(), name)) == "".join(own)


async def test_interleavings(database: Database) -> None:
    """In every order of requests a task has one end, no gap, no lost and no repeated chunk."""
    races = [Race(database, new_clock(), seed) for seed in range(INTERLEAVINGS)]
    for race in races:
        check(race, await race.run())
    assert {state for race in races for state in race.ended} == set(TERMINAL)
    assert len({tuple(race.order) for race in races}) > INTERLEAVINGS * 0.99
