"""A person is deleted while she sends: what is refused, and that nothing of her is left."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import UnavailableError
from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.storage import deletion
from a2a_serverless.storage.deletion import _BARRIER_MS, DeletionJob, Owner
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage
from a2a_serverless.storage.layout import FENCE, INDEXES, context_key
from a2a_serverless.storage.table import Item, Range
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import Backends, table_backends
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless.worker.turn import ActiveTurn
from tests.support.a2a_calls import client_of, message
from tests.support.clocks import ManualClock
from tests.support.memory import LaggingTable
from tests.support.messages import storyteller
from tests.support.workers import Agent, Bench, chunk, complete

SECRET = "the passport of alice"
LATE_S = 9.9
RECEIVERS = "192.0.2.7"
"""An address: each send with a webhook would look a name up, in real time."""
KEYS = {"alice": "alice-has-a-key-of-her-own", "bob": "bob-has-a-key-of-his-own-x"}
TENANTS = ("", "acme", "umbrella")
ALICE = Owner(Scope.of("", "alice").principal)


async def remembered(context: RequestContext, queue: EventQueue) -> None:
    """An agent that keeps what it is told, and says it again."""
    assert isinstance(queue, ActiveTurn)
    text = context.get_user_input()
    await queue.store_state([*(await queue.load_state() or []), text])
    await queue.enqueue_event(chunk(context, text, append=False))
    await complete(context, queue)


class World:
    """An API with two callers, and a worker, on a table whose indexes lag behind."""

    def __init__(self, clock: ManualClock, client: httpx.AsyncClient, backends: Backends) -> None:
        self.clock = clock
        self.client = client
        self.backends = backends
        self.bench = Bench(Agent(remembered), backends=backends, clock=clock)
        self.sent = 0

    @property
    def table(self) -> LaggingTable:
        assert isinstance(self.backends.storage.table, LaggingTable)
        return self.backends.storage.table

    async def send(self, user: str, tenant: str = "", text: str = "", **fields: Any) -> Any:
        """Send a message with a file and a webhook."""
        content = b64encode(f"a picture of {user}".encode()).decode()
        file = {"raw": content, "filename": f"{user}.pdf", "mediaType": "application/pdf"}
        parts = [{"text": text or f"the passport of {user}"}, file]
        self.sent += 1
        said = message(messageId=f"m-{user}-{self.sent}", parts=parts, **fields)
        push = {"url": f"https://{RECEIVERS}/{user}", "token": f"token-of-{user}"}
        configuration = {"returnImmediately": True, "taskPushNotificationConfig": push}
        headers = {"X-API-Key": KEYS[user], "A2A-Version": "1.0"}
        path = f"/{tenant}/message:send" if tenant else "/message:send"
        body = {"message": said, "configuration": configuration}
        return await self.client.post(path, json=body, headers=headers)

    async def work(self) -> None:
        """Run all that is queued."""
        while [one for one in self.table.stored() if one.get("messages", "[]") != "[]"]:
            self.clock.advance(LATE_S)  # or the queue looks for what its index does not show yet
            await self.bench.work()

    def left(self) -> str:
        """All of alice and her talks that is stored, by a scan, but barriers and queued ids."""
        scopes = [Scope.of(tenant, "alice").digest for tenant in TENANTS]
        own = ["alice", ALICE.name, *(context_key(scope, "talk") for scope in scopes)]
        queued = [repr(one) for one in self.table.stored() if one["PK"].startswith("QUEUE#")]
        assert not [one for one in queued if "alice" in one]
        texts = [repr(one) for one in self.table.stored() if one["PK"] != FENCE]
        found = [one for one in texts if one not in queued and any(word in one for word in own)]
        return "\n".join(found)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
def world(clock: ManualClock) -> World:
    keys: Any = ",".join(f"{name}={key}" for name, key in KEYS.items())
    push: Any = {"push_queue": "pushes.fifo", "push_allowed_hosts": RECEIVERS}
    settings = Settings(auth="api-key", api_keys=keys, conversations="serial", **push)
    backends = table_backends(settings, LaggingTable(INDEXES, clock, late_s=LATE_S), clock)
    card = storyteller(inputs=("text/plain", "application/pdf"), pushes=True)
    return World(clock, client_of(create_app(settings, backends, card)), backends)


async def test_what_a_fenced_caller_reads(world: World) -> None:
    """One sentence with the longest wait; a dead deletion holds nobody for longer than that."""
    await world.send("alice")
    await DeletionJob(world.backends.storage, ALICE).step()
    world.clock.advance(DeletionBarriers.KEPT_MS / 1000)
    refused = await world.send("alice", "acme")
    wait_s = _BARRIER_MS // 1000 - DeletionBarriers.KEPT_MS // 1000
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "The operator is deleting what this message would belong to, and nothing of it was kept:"
        f" send it again later, after at most {wait_s} seconds."
    )
    assert (await world.send("bob", "acme")).status_code == 200
    world.clock.advance(wait_s)
    assert (await world.send("alice", "acme")).status_code == 200


async def test_a_person_is_deleted_while_she_sends(world: World) -> None:
    """In three tenants, with states, webhooks and files: nothing is left, and the other stays."""
    for tenant in TENANTS:
        for _ in range(2):
            assert (await world.send("alice", tenant, contextId="talk")).status_code == 200
    assert (await world.send("bob")).status_code == 200
    await world.work()
    assert all(kind in world.left() for kind in ("CONTEXT", "PUSH", "EVENT"))
    job, codes = DeletionJob(world.backends.storage, ALICE), list[int]()
    is_over, answers = asyncio.Event(), asyncio.Queue[int]()

    async def sending(tenant: str) -> None:
        while not is_over.is_set():
            answers.put_nowait((await world.send("alice", tenant, contextId="talk")).status_code)
            await world.clock.sleep(0.3)

    async def sent_thrice() -> None:
        codes.extend([await answers.get() for _ in range(3)])

    senders = [asyncio.create_task(sending(tenant)) for tenant in TENANTS]
    await sent_thrice()
    began = world.clock.now_ms()
    while not (await job.step(limit=20)).is_done:
        await sent_thrice()
    at_end, took_ms = world.left(), world.clock.now_ms() - began
    is_over.set()
    first, last = codes[:3], codes[-3:]
    await asyncio.gather(*senders)
    assert (set(first), set(last)) == ({200}, {400})  # the API goes by what it has read last
    assert at_end == ""
    assert took_ms < 60_000
    world.clock.advance(DeletionBarriers.KEPT_MS / 1000)
    assert (await world.send("bob", text="still here")).status_code == 200
    await world.work()
    world.clock.advance(600)  # queues forget the last numbers of their groups
    queued = [one for one in world.table.stored() if one["PK"].startswith("QUEUE#")]
    assert ALICE.name not in repr(queued)  # what she has sent since the end is new, and stays
    assert (await world.send("alice", text="begins anew")).status_code == 200


async def held_up(world: World, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> Any:
    """A send whose process is held up before its write until the whole deletion is over."""
    opening = DurableStorage.open_task

    async def late(storage: DurableStorage, *args: Any, **options: Any) -> Any:
        job = DeletionJob(world.backends.storage, ALICE)
        now_ms = world.clock.now_ms()
        while not (await job.step()).is_done:
            await world.clock.sleep(1)
        with monkeypatch.context() as patched:  # the request was accepted before
            patched.setattr(storage.clock, "now_ms", lambda: now_ms)
            opened = await opening(storage, *args, **options)
        then()
        return opened

    with monkeypatch.context() as patched:
        patched.setattr(DurableStorage, "open_task", late)
        return await world.send("alice", contextId="talk")


async def test_a_creation_that_was_held_up_is_taken_back(world: World, monkeypatch: Any) -> None:
    """It is stored after the end of the deletion, and its creator deletes it again."""
    answer = await held_up(world, monkeypatch, Mock())
    assert answer.status_code == 400
    assert world.left() == ""
    assert (await world.send("alice", contextId="talk")).status_code == 200


async def test_a_sweep_takes_back_what_a_dead_one_stored(world: World, monkeypatch: Any) -> None:
    """Its creator dies after the write: the sweep that finds the turn overdue deletes the task."""
    answer = await held_up(world, monkeypatch, Mock(side_effect=UnavailableError))
    assert answer.status_code == 500
    assert SECRET in world.left()
    world.clock.advance(world.backends.storage.timing.waiting_s + LATE_S)
    report = await Sweeper(world.backends.storage, world.backends.operations).sweep()
    assert (report.passed, report.sent) == (1, 0)
    assert world.left() == ""


async def test_an_interrupted_deletion_is_continued(world: World) -> None:
    """Another process goes on with a barrier of its own, and waits anew; the old one lapses."""
    for tenant in TENANTS:
        await world.send("alice", tenant)
    world.clock.advance(LATE_S)
    await DeletionJob(world.backends.storage, ALICE).step(limit=2)
    second = DeletionJob(world.backends.storage, ALICE)
    began = world.clock.now_ms()
    while not (await second.step(limit=3)).is_done:
        await world.clock.sleep(0.5)
    assert world.clock.now_ms() - began >= DeletionBarriers.KEPT_MS + LaggingTable.lag_s * 1000
    assert world.left() == ""
    barriers = await world.table.all(Range(partition=FENCE))
    assert [set(one) for one in barriers] == [{"PK", "SK", "until", "expires_at"}] * 2
    world.clock.advance(DeletionBarriers.KEPT_MS / 1000)
    assert (await world.send("alice")).status_code == 400
    world.clock.advance(_BARRIER_MS / 1000)
    assert (await world.send("alice")).status_code == 200


async def test_no_process_goes_by_what_it_read_for_longer_than_five_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one call reads again the others go by what was read, until that is too old."""
    clock, table = world.clock, world.table
    barriers, scope = DeletionBarriers(table, clock), Scope.of("", "alice").digest
    assert await barriers.until(scope, "talk") == 0
    await DeletionJob(world.backends.storage, ALICE).step()
    until = clock.now_ms() + _BARRIER_MS
    clock.advance(1.999)
    assert await barriers.until(scope, "talk") == 0
    clock.advance(1)
    hangs, reading, read = asyncio.Event(), asyncio.Event(), table.all

    async def slow(wanted: Range) -> list[Item]:
        reading.set()
        await hangs.wait()
        return await read(wanted)

    with monkeypatch.context() as patched:
        patched.setattr(table, "all", slow)
        held_up = asyncio.create_task(barriers.until(scope, "talk"))
        await reading.wait()
    assert await barriers.until(scope, "talk") == 0
    clock.advance(2)
    assert await barriers.until(scope, "talk") == 0
    clock.advance(0.001)
    assert await barriers.until(scope, "talk") == until
    hangs.set()
    assert await held_up == until


async def test_many_tenants_take_longer_than_a_barrier(world: World, monkeypatch: Any) -> None:
    """A step over all of them renews the barrier on the way."""
    for tenant in TENANTS:
        await world.send("alice", tenant)
    world.clock.advance(LATE_S)
    deleting = deletion.delete_data

    async def slow(storage: DurableStorage, *args: Any, **options: Any) -> Any:
        world.clock.advance(_BARRIER_MS * 0.8 / 1000)
        return await deleting(storage, *args, **options)

    monkeypatch.setattr(deletion, "delete_data", slow)
    job = DeletionJob(world.backends.storage, ALICE)
    steps = [await job.step() for _ in range(2)]
    assert [step.is_done for step in steps] == [False, True]
    assert world.left() == ""
