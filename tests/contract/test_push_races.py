"""Push configurations beside a worker that commits, beside one another, and under faults."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import (
    ConcurrencyError,
    InvalidArgumentError,
    TaskNotFoundError,
    UnavailableError,
)
from a2a_serverless.storage.changes import MOST_TRIES, pause_after
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Item, Range, Write
from a2a_serverless.storage.webhooks import _PUTS
from a2a_serverless.tasks.entries import ArtifactWritten, TurnOpened
from a2a_serverless.tasks.fold import LAST
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.push import MAX_CONFIGS, Push
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.contract.schedules import play
from tests.support.clocks import ManualClock
from tests.support.databases import (
    LONG,
    Database,
    new_clock,
    new_scope,
)
from tests.support.faulty import Faults, apply_and_drop, refuse
from tests.support.messages import artifact, message, request
from tests.support.present import present

INTERLEAVINGS = 400 if LONG else 12
PUTTERS = MAX_CONFIGS + 4

PIECE = Commit(entries=(ArtifactWritten(artifact("a", "x"), append=True),))


def config(task_id: str, config_id: str, host: str = "receiver") -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(task_id=task_id, id=config_id, url=f"https://{host}.example/")


# -- threads -----------------------------------------------------------------------------------


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


def test_a_put_beside_a_worker_without_pause(storage: DurableStorage) -> None:
    """A configuration gets in while commits follow one another, and no commit is lost to it."""
    head = asyncio.run(storage.open_task("ctx", request())).head
    started, done = threading.Event(), threading.Event()

    async def work() -> int:
        at = head
        while not done.is_set():
            try:
                at = await storage.commit(at, replace(PIECE, commit_id=new_token()))
            except ConcurrencyError:  # a configuration came in between
                at = await newest()
            started.set()
        return at.version

    async def newest() -> Head:
        return present(await storage.head(head.task_id))

    with ThreadPoolExecutor(1) as threads:
        worker = threads.submit(lambda: asyncio.run(work()))
        try:
            assert started.wait(10)
            puts = [
                asyncio.run(storage.webhooks.put(config(head.task_id, f"c{number}")))
                for number in range(MAX_CONFIGS)
            ]
        finally:
            done.set()
        committed = worker.result(10)
    cursors = [push.version for push in puts]
    assert cursors == sorted(cursors)
    assert cursors[0] >= 2
    assert cursors[-1] <= committed
    assert asyncio.run(Storage(storage).get_version(head.task_id)) == committed
    assert asyncio.run(storage.webhooks.all(head.task_id)) == sorted(
        puts, key=lambda p: p.config.id
    )


# -- every order of requests -------------------------------------------------------------------


@dataclass
class Race:
    """A worker, followers and registrars of one task, whose requests go in a seeded order.

    `woken` has what a reader found that was woken by a commit: the ids of the configurations.
    """

    database: Database
    seed: int
    clock: ManualClock = field(default_factory=new_clock)
    woken: dict[int, set[str]] = field(default_factory=dict)
    put: dict[str, tuple[int, int]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    async def run(self) -> None:
        """Let everybody run to his end, and check what each configuration is owed."""
        storage = self.database.storage(scope=new_scope(), clock=self.clock)
        opened = await storage.open_task("ctx", request(), push=config("", "inline"))
        task_id = opened.head.task_id
        self.woken[1] = {"inline"}
        await Storage(storage).update_task(task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
        self.woken[2] = {"inline"}
        players = [self._answer, self._add, self._add, self._put("a"), self._put("b")]
        players.append(self._put("a"))
        writers = [partial(player, task_id=task_id) for player in players]
        self.order = await play(self.database, storage, self.seed, writers)
        pushes = await storage.webhooks.all(task_id)
        assert {push.config.id for push in pushes} == {"inline", "with-answer", "a", "b"}
        assert sorted(self.woken) == list(range(1, len(self.woken) + 1))
        for push in pushes:
            owed = [version for version in self.woken if version > push.version]
            assert all(push.config.id in self.woken[version] for version in owed), push
        for push in pushes:
            before, after = self.put.get(push.config.id, (0, len(self.woken)))
            assert before <= push.version <= after

    async def _add(self, view: DurableStorage, task_id: str) -> None:
        """Commit, and let a reader be woken by it."""
        for _ in range(2):
            await self._wake(view, task_id, await Storage(view).update_task(task_id))

    async def _answer(self, view: DurableStorage, task_id: str) -> None:
        """Open the next turn with a configuration, as often as it takes."""
        commit = Commit(entries=(TurnOpened(request("answer")),), push=config("", "with-answer"))
        while True:
            head = present(await view.head(task_id))
            try:
                after = await view.commit(head, commit)
            except ConcurrencyError:
                continue
            await self._wake(view, task_id, after.version)
            return

    async def _wake(self, view: DurableStorage, task_id: str, version: int) -> None:
        self.woken[version] = {push.config.id for push in await view.webhooks.all(task_id)}

    def _put(self, config_id: str) -> Callable[..., Any]:
        async def put(view: DurableStorage, task_id: str) -> None:
            before = await Storage(view).get_version(task_id)
            await view.webhooks.put(config(task_id, config_id))
            after = present(await Storage(view).get_version(task_id))
            assert before is not None
            known = self.put.get(config_id, (before, after))
            # The first one to be stored makes the cursor, whichever began first.
            self.put[config_id] = (min(known[0], before), max(known[1], after))

        return put


@pytest.mark.emulators
async def test_a_commit_is_before_the_cursor_or_delivered(database: Database) -> None:
    """In any order, a reader that a commit behind the cursor wakes finds the configuration."""
    races = [Race(database, seed) for seed in range(INTERLEAVINGS)]
    for race in races:
        await race.run()
    assert len({tuple(race.order) for race in races}) == INTERLEAVINGS
    cursors = {race.put["a"] for race in races}
    assert len(cursors) > 3


class InTurns(MemoryTable):
    """Dictionaries whose requests take as long as a seed says."""

    random = random.Random(7)  # noqa: S311 - a seeded schedule

    async def _pass(self) -> None:
        for _ in range(self.random.randrange(1, 9)):
            await asyncio.sleep(0)

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        await self._pass()
        async for page in super().query(wanted):
            yield page

    async def write(self, *writes: Write, exactly: bool = False) -> None:
        await self._pass()
        await super().write(*writes, exactly=exactly)


async def test_a_worker_wins_against_any_number_of_puts() -> None:
    """Its commits are tried again at once, and puts that have lost wait: both get on."""
    clock = SystemClock()
    storage = DurableStorage(InTurns(INDEXES), scope=new_scope(), clock=clock)
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


# -- faults ------------------------------------------------------------------------------------


@pytest.fixture
def faulty(database: Database, client: Any, clock: ManualClock) -> DurableStorage:
    """A storage on a client that does not try again."""
    return replace(database, client=client).storage(clock=clock)


@pytest.mark.emulators
async def test_moves_and_puts_under_faults(faulty: DurableStorage, client: Any) -> None:
    """With failing requests and lost answers each move is done once and reported as done."""
    task = await Storage(faulty).create_task("ctx", message())
    other = await Storage(faulty).create_task("ctx", message())
    faults = Faults(seed=5, rate=0.4)
    faults.attach(client, "TransactWriteItems", "PutItem", "UpdateItem", "BatchWriteItem")
    push = await faulty.webhooks.put(config(task.id, "a"))
    for index in range(60):
        after = replace(push, version=2, index=index, failures=index % 3)
        moved = present(await faulty.webhooks.move(push, after))
        assert await faulty.webhooks.get(task.id, "a") == moved == after
        assert await faulty.webhooks.move(push, after) is None
        push = moved
    for number in range(MAX_CONFIGS):
        await faulty.webhooks.put(config(other.id, f"c{number}"))
        await faulty.webhooks.put(config(other.id, f"c{number}", "replaced"))
    assert [p.config for p in await faulty.webhooks.all(other.id)] == [
        config(other.id, f"c{number}", "replaced") for number in range(MAX_CONFIGS)
    ]
    for number in range(MAX_CONFIGS):
        await faulty.webhooks.delete(other.id, f"c{number}")
    assert await faulty.webhooks.all(other.id) == []
    assert len(faults.met) == 6


def once(client: Any, event: str, action: Callable[..., Any]) -> None:
    """Run `action` in place of the first request that meets `event`."""
    done: list[bool] = []

    def hook(**arguments: Any) -> Any:
        if done:
            return None
        done.append(True)
        return action(**arguments)

    client.meta.events.register(event, hook)


@pytest.mark.emulators
async def test_an_unanswered_put_that_is_forgotten(faulty: DurableStorage, client: Any) -> None:
    """A put that was applied and whose repetition is refused is put again, with its cursor."""
    task = await Storage(faulty).create_task("ctx", message())
    tokens: list[str] = []

    def forget_token(params: dict[str, Any], **_: Any) -> None:
        tokens.append(params.pop("ClientRequestToken"))  # botocore puts a fresh one

    once(client, "before-send.dynamodb.TransactWriteItems", lambda request, **_: lose(request))
    client.meta.events.register("provide-client-params.dynamodb.TransactWriteItems", forget_token)
    put = await faulty.webhooks.put(config(task.id, "a"))
    assert len(tokens) == 3
    assert await faulty.webhooks.all(task.id) == [put]
    assert (put.version, put.index) == (1, LAST)


def lose(request: Any) -> None:
    """Apply a request and lose its answer."""
    apply_and_drop(request)


@pytest.mark.emulators
async def test_a_slow_reader_does_not_take_a_cursor_back(
    faulty: DurableStorage, database: Database, client: Any
) -> None:
    """A put whose answer a delivery overtakes leaves the cursor where the delivery has moved it."""
    healthy = database.storage(scope=faulty.scope, clock=faulty.clock)
    task = await Storage(healthy).create_task("ctx", message())
    loop = asyncio.get_running_loop()
    moved: list[Push] = []

    async def deliver() -> None:
        (push,) = await healthy.webhooks.all(task.id)
        moved.append(replace(push, version=2, index=0))
        assert await healthy.webhooks.move(push, moved[0])

    def overtaken(**_: Any) -> None:
        asyncio.run_coroutine_threadsafe(deliver(), loop).result(10)

    once(client, "after-call.dynamodb.TransactWriteItems", overtaken)
    put = await faulty.webhooks.put(config(task.id, "a"))
    assert moved == await healthy.webhooks.all(task.id)
    assert moved[0].config == put.config


@pytest.mark.emulators
async def test_an_unanswered_move_that_was_overtaken(
    faulty: DurableStorage, database: Database, client: Any
) -> None:
    """A move whose answer was lost is reported as refused if another move came after it."""
    healthy = database.storage(scope=faulty.scope, clock=faulty.clock)
    task = await Storage(healthy).create_task("ctx", message())
    push = await healthy.webhooks.put(config(task.id, "a"))
    mine = replace(push, index=0, version=2)
    loop = asyncio.get_running_loop()

    def answer_lost(request: Any, **_: Any) -> None:
        try:
            apply_and_drop(request)
        finally:
            moved = healthy.webhooks.change(push, lambda now: replace(now, index=1))
            assert asyncio.run_coroutine_threadsafe(moved, loop).result(10)

    once(client, "before-send.dynamodb.PutItem", answer_lost)
    assert await faulty.webhooks.move(push, mine) is None
    assert await healthy.webhooks.get(task.id, "a") == replace(mine, index=1)


@pytest.mark.emulators
async def test_a_put_that_always_loses_gives_up(
    faulty: DurableStorage, database: Database, client: Any
) -> None:
    """Against others who put all the time it ends, with an error that says try again."""
    healthy = database.storage(scope=faulty.scope, clock=faulty.clock)
    head = (await healthy.open_task("ctx", request())).head
    loop = asyncio.get_running_loop()
    tries: list[bool] = []

    def overtaken(**_: Any) -> None:
        tries.append(True)
        other = healthy.webhooks.put(config(head.task_id, "other"))
        asyncio.run_coroutine_threadsafe(other, loop).result(10)

    client.meta.events.register("before-send.dynamodb.TransactWriteItems", overtaken)
    with pytest.raises(UnavailableError):
        await faulty.webhooks.put(config(head.task_id, "a"))
    assert len(tries) == _PUTS
    assert [push.config.id for push in await healthy.webhooks.all(head.task_id)] == ["other"]


@pytest.mark.emulators
@pytest.mark.parametrize("is_used_again", [False, True])
async def test_a_put_that_meets_the_tasks_deletion(
    faulty: DurableStorage, database: Database, client: Any, *, is_used_again: bool
) -> None:
    """A put beside its task's deletion finds no task, or is stored for a new task of the id."""
    healthy = database.storage(scope=faulty.scope, clock=faulty.clock)
    old = (await healthy.open_task("ctx", request(), task_id="t")).head
    loop = asyncio.get_running_loop()

    async def delete() -> None:
        await delete_task(healthy, "t")
        if is_used_again:
            await healthy.open_task("ctx", request(), task_id="t")

    def deleted(**_: Any) -> Any:
        asyncio.run_coroutine_threadsafe(delete(), loop).result(10)
        return refuse("ThrottlingException")

    once(client, "before-send.dynamodb.TransactWriteItems", deleted)
    if is_used_again:
        put = await faulty.webhooks.put(config("t", "a"))
        assert put.incarnation != old.incarnation
        assert await healthy.webhooks.all("t") == [put]
    else:
        with pytest.raises(TaskNotFoundError):
            await faulty.webhooks.put(config("t", "a"))
        assert await healthy.webhooks.all("t") == []
