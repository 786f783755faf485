"""The format before and after it was prepared for newer releases, on one table and one queue."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import Task, TaskState
from google.protobuf.json_format import ParseDict

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.layout import BY_ID
from a2a_serverless.storage.log import HOUR_MS, Log
from a2a_serverless.tasks.events import events_of
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.tasks.head import Head
from a2a_serverless_tools.contract.storage import Storage
from tests.e2e.releases import BEFORE_FORMAT, NoReleaseError, Release, unpack
from tests.e2e.upgrades import Process, Upgrade, Version, upgrading
from tests.faults.harness import End, World, numbers
from tests.support.a2a_calls import REST, Agent
from tests.support.databases import add_index, drop_index
from tests.support.emulators import Emulator

pytestmark = [pytest.mark.emulators, pytest.mark.timeout(300)]

HELD = 30
"""Tasks of the first three workers, and as many as each of the last ones holds at once."""
OTHERS = 160
PAUSED = 10
IN_FLIGHT = HELD + OTHERS + PAUSED
CHUNKS = 4
CANCELED = 10
"""Of the tasks that the old worker holds, of those that the new one holds, and of the waiting."""
AT_ONCE = 16
TEXTS = (f"stumbles {CHUNKS}", *[f"gated {CHUNKS}"] * 4)
SETTINGS = {"A2A_MAX_ATTEMPTS": "20", "A2A_RETRY_CAP_S": "0.5"}
"""Attempts enough for a machine so busy that deliveries run out; and short waits between them."""
BOTH: tuple[Version, Version] = ("old", "new")


@pytest.fixture(scope="module")
def before_format(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The last release without the prepared format; without history the test is not run."""
    try:
        return unpack(BEFORE_FORMAT, tmp_path_factory.mktemp("before-format"))
    except NoReleaseError as error:
        pytest.skip(str(error))


@dataclass
class Clients:
    """Callers of an API of each release, by turns."""

    world: World
    agents: dict[Version, Agent]
    accepted_by: dict[str, Version] = field(default_factory=dict)

    async def send(self, texts: Sequence[str], heads: Sequence[Head] = ()) -> list[str]:
        """A task for each text, or a message to each of the tasks that wait."""
        sends = [self._send(number, texts[number], heads) for number in range(len(texts))]
        return await at_once(sends)

    async def _send(self, number: int, text: str, heads: Sequence[Head]) -> str:
        version = BOTH[number % 2]
        ids: dict[str, Any] = {"messageId": uuid.uuid4().hex}
        if heads:
            ids |= {"taskId": heads[number].task_id, "contextId": heads[number].context_id}
        answer = await self.agents[version].send(
            text, configuration={"returnImmediately": True}, **ids
        )
        assert answer.response.status_code == 200, answer
        task_id = str(answer.task["id"])
        self.accepted_by.setdefault(task_id, version)
        return task_id

    async def cancel(self, tasks: Sequence[str]) -> None:
        """Cancel tasks, half of them by each release."""

        async def one(version: Version, task_id: str) -> None:
            answer = await self.agents[version].call("CancelTask", {"id": task_id})
            assert answer.state == "CANCELED", answer

        await at_once([one(BOTH[number % 2], task) for number, task in enumerate(tasks)])

    async def listed(self, version: Version) -> dict[str, Task]:
        """All tasks as the API of a release lists them; the older one shows empty fields too."""
        found: dict[str, Task] = {}
        token = ""
        while True:
            query = {"pageSize": 100, "includeArtifacts": True, "pageToken": token}
            answer = await self.agents[version].call("ListTasks", query)
            assert answer.response.status_code == 200, answer
            found |= {task["id"]: ParseDict(task, Task()) for task in answer.result["tasks"]}
            if not (token := answer.result.get("nextPageToken", "")):
                return found


async def at_once(calls: Sequence[Any]) -> list[Any]:
    """What the calls return, some of them at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(call: Any) -> Any:
        async with room:
            return await call

    return list(await asyncio.gather(*map(one, calls)))


@asynccontextmanager
async def clients_of(upgrade: Upgrade) -> AsyncIterator[Clients]:
    """An API of each release, and their callers."""
    apis = {version: upgrade.api(version) for version in BOTH}
    agents: dict[Version, Agent] = {}
    for version, api in apis.items():
        url = await api.says(r"A2A at (\S+),")
        http = httpx.AsyncClient(base_url=url, trust_env=False, timeout=60)
        agents[version] = Agent(http, REST)
    try:
        yield Clients(upgrade.world, agents)
    finally:
        for agent in agents.values():
            await agent.client.aclose()


async def test_tasks_in_flight_keep_their_format(
    dynamodb_local: Emulator, fauxqs: Emulator, before_format: Release, tmp_path: Path
) -> None:
    """200 tasks in flight, on a table without the new index: none is lost, doubled or unreadable.

    Both APIs accept them. 30 go from an old worker to a new one and back, each killed in the middle
    of its turns; then workers of both run side by side, some attempts fail, and tasks are canceled
    by both. The generation that is stored, and that is counted again, is the number of events.
    """
    async with (
        upgrading(dynamodb_local, fauxqs, before_format, tmp_path, **SETTINGS) as upgrade,
        asyncio.timeout(200),
    ):
        world = upgrade.world
        drop_index(world.dynamodb, world.made.table, BY_ID)
        worker = upgrade.worker("old", concurrency=HELD)
        async with clients_of(upgrade) as clients:
            paused = await clients.send(["ask"] * PAUSED)
            heads = [await world.state(one, TaskState.TASK_STATE_INPUT_REQUIRED) for one in paused]
            first = await clients.send(texts_of(HELD))
            assert set(await upgrade.holds(worker, HELD)) == set(first)
            for version in ("new", "old"):
                worker = replaced(upgrade, worker, version)
                assert set(await upgrade.holds(worker, HELD)) == set(first)
            beside = upgrade.worker("new", concurrency=HELD)
            others = await clients.send(texts_of(OTHERS))
            await clients.send(texts_of(PAUSED), list(reversed(heads)))
            running = await upgrade.holds(beside, HELD)
            assert not world.ledger.entries(what="passes"), "a task is not in flight"
            waiting = [task for task in others if task not in running]
            canceled = [*first[:CANCELED], *running[:CANCELED], *waiting[-CANCELED:]]
            await clients.cancel(canceled)
            last = replaced(upgrade, worker, "old")
            await last.says("turns at a time")
            upgrade.open_gate()

            tasks = [*paused, *first, *others]
            assert len(tasks) == IN_FLIGHT
            ends = dict(zip(tasks, await at_once([world.end(one) for one in tasks]), strict=True))
            for task_id, end in ends.items():
                is_as_asked(end, is_canceled=task_id in canceled)
                is_counted(end.log)
            await world.drained()
            passed = [upgrade.count(one, "passes") for one in (beside, last)]
            assert min(passed) >= CANCELED, "both releases have worked"
            assert world.ledger.entries(what="stumbled")
            await are_shown_alike(clients, ends)
            await are_found_as_stored(clients, ends)


def texts_of(count: int) -> list[str]:
    return [TEXTS[number % len(TEXTS)] for number in range(count)]


def replaced(upgrade: Upgrade, worker: Process, version: Version) -> Process:
    """Kill a worker in the middle of its turns, and start one of a release in its place."""
    os.kill(worker.pid, signal.SIGKILL)
    return upgrade.worker(version, concurrency=HELD)


def is_as_asked(end: End, *, is_canceled: bool) -> None:
    """A task has each chunk once; a canceled one, which never passed the gate, at most the first.

    Its commits were read with the meaning that their writers gave them: nothing is unknown.
    """
    if is_canceled:
        assert end.state == TaskState.TASK_STATE_CANCELED
        assert end.chunks in ([], numbers(1))
    else:
        assert end.state == TaskState.TASK_STATE_COMPLETED, end.said
        assert end.chunks == numbers(CHUNKS)
    assert not end.log.needs_newer


def is_counted(log: Log) -> None:
    """The generation is the number of events: counted anew, on HEAD and in each commit's base.

    A turn that a new worker has claimed last, and ended, left it on HEAD.
    """
    fold, events = Fold(log.head.task_id, log.head.context_id), 0
    for record in log.records:
        assert record.base in (None, events)
        fold.add(record)
        events += sum(1 for _ in events_of(record, fold))
    assert log.fold().generation == events
    assert log.counted().head.generation == events
    assert log.head.generation in (None, events)
    if log.head.state == TaskState.TASK_STATE_COMPLETED and last_claim(log).worker:
        assert log.head.generation == events


def last_claim(log: Log) -> Record:
    """The first commit of the attempt that came last."""
    *_, token = (record.token for record in log.records if record.token is not None)
    return next(record for record in log.records if record.token == token)


async def are_shown_alike(clients: Clients, ends: dict[str, End]) -> None:
    """Both APIs list all tasks alike, and neither stumbles over the item of a conversation."""
    await Storage(clients.world.storage).update_context("context", {"seen": True})
    old, new = [await clients.listed(version) for version in BOTH]
    assert old.keys() == ends.keys()
    assert old == new


async def are_found_as_stored(clients: Clients, ends: dict[str, End]) -> None:
    """Without the index a search says so; once added, it has what the new API has accepted."""
    world, heads = clients.world, [end.head for end in ends.values()]
    with pytest.raises(ConfigurationError):
        await world.storage.find(heads[0].task_id)
    await asyncio.to_thread(add_index, world.dynamodb, world.made.table, BY_ID)
    found = {
        (head.scope, head.task_id)
        for hour in {head.created_at // HOUR_MS * HOUR_MS for head in heads}
        for head in (await world.storage.created_in(hour, limit=IN_FLIGHT)).heads
    }
    new = [head for head in heads if clients.accepted_by[head.task_id] == "new"]
    assert found == {(head.scope, head.task_id) for head in new}
    assert await world.storage.find(new[0].task_id) == [(new[0].scope, new[0].task_id)]
