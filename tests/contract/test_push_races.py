"""Push configurations beside a worker that commits, and beside one another."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConcurrencyError, InvalidArgumentError, UnavailableError
from a2a_serverless.storage.changes import MOST_TRIES, pause_after
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Item, Key, Range, Write
from a2a_serverless.tasks.entries import ArtifactWritten, TurnOpened
from a2a_serverless.tasks.fold import LAST
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.push import MAX_CONFIGS
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.support.databases import LONG, new_clock, new_scope
from tests.support.messages import artifact, message, request
from tests.support.present import present

INTERLEAVINGS = 400 if LONG else 12
PUTTERS = MAX_CONFIGS + 4

PIECE = Commit(entries=(ArtifactWritten(artifact("a", "x"), append=True),))


def config(task_id: str, config_id: str, host: str = "receiver") -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(task_id=task_id, id=config_id, url=f"https://{host}.example/")


def test_puts_at_once_keep_to_the_limit(storage: DurableStorage) -> None:
    """Of more simultaneous puts than a task has room for, exactly as many as fit are stored."""
    task_id = asyncio.run(Storage(storage).create_task("ctx", message())).id

    def put(number: int) -> bool:
        while True:
            try:
                asyncio.run(storage.webhooks.put(config(task_id, f"c{number}")))
            except InvalidArgumentError:
                return False
            except UnavailableError:  # too many others at the same time: try again
                continue
            return True

    with ThreadPoolExecutor(PUTTERS) as threads:
        got_in = list(threads.map(put, range(PUTTERS)))
    assert got_in.count(True) == MAX_CONFIGS
    held = {push.config.id for push in asyncio.run(storage.webhooks.all(task_id))}
    assert held == {f"c{number}" for number, is_in in enumerate(got_in) if is_in}


def test_two_puts_of_one_id(storage: DurableStorage) -> None:
    """Of two simultaneous puts of one id one is stored whole, never a mix of both."""
    task_id = asyncio.run(Storage(storage).create_task("ctx", message())).id
    hosts = ("first", "second")

    def put(host: str) -> None:
        asyncio.run(storage.webhooks.put(config(task_id, "same", host)))

    for _ in range(5):
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(put, hosts))
    (push,) = asyncio.run(storage.webhooks.all(task_id))
    assert push.config in [config(task_id, "same", host) for host in hosts]
    assert (push.version, push.index) == (1, LAST)


async def test_a_busy_worker(storage: DurableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration gets in behind the commits that were made since its read; none is lost."""
    at = (await storage.open_task("ctx", request())).head
    write, ahead = storage.table.write, 0

    async def work() -> None:
        nonlocal at
        commit = replace(PIECE, commit_id=new_token())
        try:
            at = await storage.commit(at, commit)
        except ConcurrencyError:  # a configuration came in between
            at = await storage.commit(present(await storage.head(at.task_id)), commit)

    async def behind(*writes: Write, exactly: bool = False) -> None:
        nonlocal ahead
        if ahead:
            left, ahead = ahead - 1, 0
            await work()
            ahead = left
        await write(*writes, exactly=exactly)

    monkeypatch.setattr(storage.table, "write", behind)
    puts = []
    for number in range(MAX_CONFIGS):
        ahead = 3
        puts.append(await storage.webhooks.put(config(at.task_id, f"c{number}")))
    assert [push.version for push in puts] == [1 + 3 * (n + 1) for n in range(MAX_CONFIGS)]
    assert at.version == puts[-1].version == await Storage(storage).get_version(at.task_id)
    by_id = sorted(puts, key=lambda push: push.config.id)
    assert await storage.webhooks.all(at.task_id) == by_id


class Waiting(MemoryTable):
    """Dictionaries whose requests each wait for a while, which is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(INDEXES)
        self._random = random.Random(seed)  # noqa: S311 - a seeded schedule

    async def _wait(self) -> None:
        for _ in range(self._random.randrange(1, 9)):
            await asyncio.sleep(0)

    async def load(self, keys: Iterable[Key], **options: Any) -> dict[Key, Item | None]:
        await self._wait()
        return await super().load(keys, **options)

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        await self._wait()
        async for page in super().query(wanted):
            yield page

    async def write(self, *writes: Write, exactly: bool = False) -> None:
        await self._wait()
        await super().write(*writes, exactly=exactly)


class Race:
    """A worker, followers and registrars of one task, whose requests go in a seeded order.

    `woken` has what a reader found that was woken by a commit: the ids of the configurations.
    """

    def __init__(self, seed: int) -> None:
        self.storage = DurableStorage(Waiting(seed), scope=new_scope(), clock=new_clock())
        self.tasks, self.task_id = Storage(self.storage), ""
        self.woken: dict[int, set[str]] = {}
        self.put: dict[str, tuple[int, int]] = {}

    async def run(self) -> None:
        """Let everybody run to his end, and check what each configuration is owed."""
        opened = await self.storage.open_task("ctx", request(), push=config("", "inline"))
        self.task_id = opened.head.task_id
        await self.tasks.update_task(self.task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
        self.woken = {1: {"inline"}, 2: {"inline"}}
        puts = [self._put(name) for name in "aba"]
        await asyncio.gather(self._answer(), self._add(), self._add(), *puts)
        pushes = await self.storage.webhooks.all(self.task_id)
        assert {push.config.id for push in pushes} == {"inline", "with-answer", "a", "b"}
        assert sorted(self.woken) == list(range(1, len(self.woken) + 1))
        for push in pushes:
            owed = [version for version in self.woken if version > push.version]
            assert all(push.config.id in self.woken[version] for version in owed), push
            before, after = self.put.get(push.config.id, (0, len(self.woken)))
            assert before <= push.version <= after

    async def _add(self) -> None:
        """Commit, and let a reader be woken by it."""
        for _ in range(2):
            await self._wake(await self.tasks.update_task(self.task_id))

    async def _answer(self) -> None:
        """Open the next turn with a configuration, as often as it takes."""
        commit = Commit(entries=(TurnOpened(request("answer")),), push=config("", "with-answer"))
        while True:
            head = present(await self.storage.head(self.task_id))
            try:
                after = await self.storage.commit(head, commit)
            except ConcurrencyError:
                continue
            await self._wake(after.version)
            return

    async def _wake(self, version: int) -> None:
        found = await self.storage.webhooks.all(self.task_id)
        self.woken[version] = {push.config.id for push in found}

    async def _put(self, config_id: str) -> None:
        before = present(await self.tasks.get_version(self.task_id))
        await self.storage.webhooks.put(config(self.task_id, config_id))
        after = present(await self.tasks.get_version(self.task_id))
        known = self.put.get(config_id, (before, after))
        # The first one to be stored makes the cursor, whichever began first.
        self.put[config_id] = (min(known[0], before), max(known[1], after))


async def test_a_commit_is_before_the_cursor_or_delivered() -> None:
    """In any order, a reader that a commit behind the cursor wakes finds the configuration."""
    races = [Race(seed) for seed in range(INTERLEAVINGS)]
    for race in races:
        await race.run()
    assert len({race.put["a"] for race in races}) > 3


async def test_a_worker_wins_against_any_number_of_puts() -> None:
    """Its commits are tried again at once, and puts that have lost wait: both get on."""
    clock = SystemClock()
    storage = DurableStorage(Waiting(7), scope=new_scope(), clock=clock)
    head = (await storage.open_task("ctx", request())).head
    lost: list[int] = []
    stored = Counter[int]()

    async def put(number: int) -> None:
        while True:
            await storage.webhooks.put(config(head.task_id, f"c{number}"))
            stored[number] += 1

    async def commit() -> None:
        for attempt in range(1, MOST_TRIES + 1):
            now = present(await storage.head(head.task_id))
            try:
                await storage.commit(now, PIECE)
            except ConcurrencyError:
                await pause_after(clock, attempt)
            else:
                lost.append(attempt - 1)
                return
        pytest.fail(f"lost {MOST_TRIES} races behind {len(lost)} commits")

    putters = [asyncio.ensure_future(put(number)) for number in range(8)]
    while len(lost) < 100 or len(stored) < len(putters):
        await commit()
    for putter in putters:
        putter.cancel()
    await asyncio.gather(*putters, return_exceptions=True)
    assert max(lost) < 16  # puts that try again at once make it lose 19
