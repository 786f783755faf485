"""What storage costs, where a count is exact (benchmarks/storage.py prints the whole table)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar, cast
from uuid import uuid4

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Artifact, Message, Part, SendMessageRequest, Task, TaskPushNotificationConfig

from a2a_serverless import steps
from a2a_serverless.clock import Clock
from a2a_serverless.errors import BeingDeletedError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.activity import Ended, count_ended
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.deletion import DeletionJob, Owner
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage, Observer
from a2a_serverless.storage.dynamodb import typed
from a2a_serverless.storage.layout import HOUR_MS, event_sort
from a2a_serverless.storage.listing import _FIRST_COMMITS, ListTasksQuery, list_tasks
from a2a_serverless.storage.signals import signal
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.entries import ArtifactWritten, Recorded, StepId
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.identity import first_task_id, new_token
from a2a_serverless.tasks.pace import PART_BYTES, commit_units
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless.tasks.waits import Signal, SignalDecision, Until
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker import Remote, current_context
from a2a_serverless.worker.adapter import Presence
from a2a_serverless.worker.failures import MOST_OF_ERROR, MOST_PLACE
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless.worker.turn import ActiveTurn
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.operate.filters import TaskFilter
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.status import status_of
from a2a_serverless_tools.testing import Outcome, StandIn
from a2a_serverless_tools.testing.clock import PacedClock
from benchmarks.meter import Meter, Usage, item_bytes
from benchmarks.storage import (
    BATCH,
    CHUNK_BYTES,
    echo_commit,
    echo_items,
    metered,
    seed_tasks,
    store,
)
from tests.contract.test_snapshots import after_turn
from tests.contract.test_snapshots import turn as long_turn
from tests.support.clocks import ManualClock
from tests.support.commits import (
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
    claim,
    follow_up,
    newest,
    opened,
    status,
    to,
    wrote,
)
from tests.support.databases import LONG, create_table, emulator_client, new_scope, on_dynamo
from tests.support.emulators import Emulator
from tests.support.messages import message, request
from tests.support.present import present
from tests.support.queues import is_empty
from tests.support.workers import Agent, answered, complete
from tests.support.workers import Bench as Worker

pytestmark = pytest.mark.emulators

CHUNKS = 400
T = TypeVar("T")
Cost = tuple[Any, ...]
"""Requests, write units and read units."""


def cost(usage: Usage) -> Cost:
    return usage.requests, usage.write_units, usage.read_units


class Till:
    """Does some work, and notes what it has cost."""

    def __init__(self, storage: DurableStorage, meter: Meter) -> None:
        self.storage, self.measure = storage, meter.measure
        self._costs: list[Cost] = []

    async def __call__(self, work: Awaitable[T]) -> T:
        with self.measure() as usage:
            result = await work
        self._costs.append(cost(usage))
        return result

    def costs(self) -> list[Cost]:
        """Return the cost of each work since the last look."""
        costs, self._costs = self._costs, []
        return costs

    def total(self) -> Cost:
        """Return what they have cost together."""
        return tuple(map(sum, zip(*self.costs(), strict=True)))


@pytest.fixture
def observer(local_dynamodb: Emulator) -> Iterator[Any]:
    """A client that is not metered."""
    client = emulator_client(local_dynamodb)
    yield client
    client.close()


@pytest.fixture
def till(local_dynamodb: Emulator, observer: Any, clock: ManualClock) -> Iterator[Till]:
    """A till for the storage, which is metered."""
    client = emulator_client(local_dynamodb)
    bench = metered(client, observer, clock=clock)
    yield Till(bench.storage, bench.meter)
    client.close()


@pytest.fixture
def storage(till: Till) -> DurableStorage:
    """A storage in a scope of its own."""
    return till.storage


async def claimed(storage: DurableStorage) -> Head:
    """A task whose turn is claimed by the token "one"."""
    return await storage.commit(await opened(storage), claim())


async def test_an_echo_task_in_all(storage: DurableStorage, till: Till) -> None:
    """Create, load, commit, GetTask: 4 requests, 18 write and 2 read units; 15 in a new context."""
    task = await till(Storage(storage).create_task("context", message()))
    log = present(await till(storage.read(task.id)))
    await till(storage.commit(log.head, echo_commit("hello")))
    await till(storage.load_task(task.id))
    assert till.total() == (4, 18, 2)
    for task_id, units in ((first_task_id(storage.scope, "ctx"), 15), ("other", 18)):
        head = await till(opened(storage, task_id=task_id))
        await till(storage.commit(head, echo_commit("hello")))
        assert till.total() == (2, units, 0)


async def test_fences_cost_little(storage: DurableStorage, till: Till, clock: ManualClock) -> None:
    """One request reads all of them, up to forty for one unit, however many messages come."""
    for number in range(10):
        await DeletionJob(storage, Owner(f"{number}" * 16), lag_s=0).step()
    barriers = DeletionBarriers(storage.table, clock)
    with till.measure() as usage:
        for number in range(100):
            with pytest.raises(BeingDeletedError) if number % 2 else nullcontext():
                owner = f"{number % 10}" * 32 if number % 2 else new_scope().digest
                await barriers.check(owner, "context", clock.now_ms())
        clock.advance(DeletionBarriers.FRESH_MS / 1000)
        await barriers.check(new_scope().digest, "context", clock.now_ms())
    assert cost(usage) == (2, 0, 2)


async def test_a_turn_in_line(storage: DurableStorage, till: Till, clock: ManualClock) -> None:
    """5 units to leave it, 6 to wake it, 2 more for its claim, 1 for its end; one request each."""
    for waits in (False, True):
        head = await opened(storage)
        if waits:
            left = present(await till(storage.park(head, "share")))
            clock.advance(1)
            head = present(await till(storage.requeue(left)))
        head = await till(storage.commit(head, claim()))
        ends = Commit(entries=echo_commit("hello").entries, token="one", ends_turn=True)
        await till(storage.commit(head, ends))
    assert till.costs() == [(1, units, 0) for units in (10, 9, 5, 6, 12, 10)]


async def test_a_step_costs_one_commit(storage: DurableStorage, till: Till) -> None:
    """A small record is 1 request and 4 write units; going to sleep 8, waking 5, a signal 8."""
    head = await claimed(storage)
    record = Recorded(StepId("plan", "", 1), "json", b'{"days": 2}')
    head = await till(storage.commit(head, Commit(entries=(record,), token="one")))
    until = storage.clock.now_ms() + 3_600_000
    asleep = AttemptEnd(token="one", reason="asleep", at=1, until=until)
    sleeps = Commit(entries=(record,), token="one", parks=asleep)
    await till(storage.requeue(await till(storage.commit(head, sleeps))))
    step_id = StepId("paid", "", 1)
    waits = Commit(token="one", entries=(Until(until).record(step_id),), parks=asleep)
    head = await storage.commit(await claimed(storage), waits)
    task, given = (head.task_id, head.incarnation), Signal(b"{}", "application/json")
    taken = await till(signal(storage, *task, turn=1, step_id=step_id, given=given))
    assert taken == SignalDecision.TAKE
    assert till.costs() == [(1, 4, 0), (1, 8, 0), (1, 5, 0), (2, 8, 1)]


async def test_what_is_no_commit_is_one_update(storage: DurableStorage, till: Till) -> None:
    """1 write unit, and 1 for each index entry that is put or replaced; a failure is 1 more."""
    for is_paused in (False, True):
        head = await opened(storage)
        if is_paused:
            await storage.commit(head, to(INPUT_REQUIRED))
        await till(storage.request_cancel(head.task_id, by="alice@example.com"))
    assert till.costs() == [(2, 3, 1), (2, 2, 1)]
    head = await opened(storage)
    for token, moved_ms in (("one", 0), ("two", 60_000)):
        head = await storage.commit(head, claim(token))
        end = AttemptEnd(token=token, reason="ValueError", correlation_id="0123456789abcdef")
        due_at = present(head.due_at) + moved_ms if moved_ms else None
        released = await till(storage.change(head, partial(releasing, end=end, due_at=due_at)))
        head = present(released)
    for state in (COMPLETED, FAILED):
        await till(storage.commit(await opened(storage), to(state, token="one", claims=True)))
    assert till.costs() == [(1, units, 0) for units in (1, 3, 9, 10)]


def receiver(task_id: str = "", config_id: str = "") -> TaskPushNotificationConfig:
    """A push configuration as clients send it."""
    return TaskPushNotificationConfig(
        id=config_id, task_id=task_id, url="https://receiver.example/hook", token="t" * 32
    )


async def test_an_inline_configuration_costs_its_item(storage: DurableStorage, till: Till) -> None:
    """3 write units, 1 of them for its index; with a later message a query, too; a move costs 1."""
    head = await till(opened(storage, push=receiver()))
    assert till.costs() == [(1, 12, 0)]
    for push in (None, receiver()):
        head = await storage.commit(head, to(INPUT_REQUIRED))
        head = await till(storage.commit(head, follow_up(push=push)))
    (_, without, _), inline = till.costs()
    assert inline == (2, without + 2, 1)
    head = await opened(storage)
    put = await till(storage.webhooks.put(receiver(head.task_id, "a")))
    await till(storage.webhooks.all(head.task_id))
    await till(storage.webhooks.move(put, replace(put, version=2, index=0)))
    assert till.costs() == [(2, 5, 1), (1, 0, 1), (1, 1, 0)]


async def test_a_chunk_costs_the_same(storage: DurableStorage, till: Till) -> None:
    """400 chunks in batches of 40 are 10 requests; twice the chunks cost twice the units."""
    usages, piece = [], wrote("x" * CHUNK_BYTES)
    for chunks in (CHUNKS, 2 * CHUNKS):
        head = await opened(storage)
        with till.measure() as usage:
            for _ in range(chunks // BATCH):
                head = await storage.commit(head, Commit(entries=(piece,) * BATCH))
        usages.append(usage)
    once, twice = usages
    assert cost(once) == (10, once.write_units, 0)
    assert cost(twice) == (20, 2 * once.write_units, 0)
    assert twice.sent_bytes <= 2.01 * once.sent_bytes
    await till(storage.load_task(head.task_id, 0, include_artifacts=False))
    await till(storage.read(head.task_id, after=head.version, incarnation=head.incarnation))
    assert till.costs() == [(1, 0, 1)] * 2


async def test_a_file_costs_what_a_word_costs(storage: DurableStorage, till: Till) -> None:
    """Its task's commits have the same units for 40 KB and for 10 MB, in messages and artifacts."""
    storage.table.blobs = MemoryBlobs(storage.clock)
    costs = []
    for parts in ([], *([Part(raw=b"x" * size)] for size in (40_000, 10_000_000))):
        said = SendMessageRequest(message=Message(message_id="m", parts=[Part(text="see"), *parts]))
        made = await till(storage.open_task("context", said))
        written = Artifact(artifact_id="a", parts=parts or [Part(text="a word")])
        await till(storage.commit(made.head, Commit(entries=(ArtifactWritten(written),))))
        costs.append(till.costs())
    assert costs == [costs[0]] * 3


async def test_a_long_task_costs_the_same(storage: DurableStorage, till: Till) -> None:
    """Behind 64 KB of log a task is read for 20 units at most, and a snapshot costs an update."""
    storage.table.blobs = MemoryBlobs(storage.clock)
    head: Head | None = None
    for number in range(150 if LONG else 20):
        head = await long_turn(storage, head, f"{number:03}", chunks=3)
        await till(after_turn(storage, head))
        head = await newest(storage, head)
        task = present(await till(storage.load_task(head.task_id)))
        (_, written, _), (requests, _, read) = till.costs()
        assert (written <= 2, requests <= 2, read <= 20) == (True, True, True), number
        assert len(task.artifacts) == number + 1
    await till(storage.read(present(head).task_id))
    assert till.total()[2] > 4.5 * (number + 1)


async def test_the_items_of_a_task_stay_below_a_kilobyte(storage: DurableStorage) -> None:
    """HEAD and commits of a short task leave 200 bytes of a KB free; an error's text takes them."""
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    worker = f"{'f' * 64}:$LATEST 2026/11/22/[$LATEST]{'0' * 32}"
    storage.observer = Observer(trace=lambda: trace)
    head = (await storage.open_task("x" * 36, request(), idempotency_key="key")).head

    async def largest() -> int:
        return max(item_bytes(typed(item)) for item in await storage.items_of(head.task_id))

    texts = "p" * MOST_PLACE, "m" * (MOST_OF_ERROR - MOST_PLACE)
    for (place, text), most in ((("", ""), 824), (texts, 1024)) * 2:
        token = new_token()
        head = await storage.commit(head, claim(token, worker=worker))
        end = AttemptEnd(token=token, reason="UnavailableError", correlation_id="0123456789abcdef")
        end = replace(end, at=storage.clock.now_ms(), place=place, message=text)
        head = present(await storage.change(head, partial(releasing, end=end)))
        assert await largest() < most
    marked = await storage.request_cancel(head.task_id, by="alice@example.com")
    await storage.commit(marked, replace(echo_commit("hello"), token=new_token(), worker=worker))
    assert await largest() < 1024


async def test_a_commits_units_are_known_before(storage: DurableStorage, observer: Any) -> None:
    """A turn's pace counts what DynamoDB Local says of its items, to two units for each part."""
    head = await opened(storage)
    for size in (0, 500, 10_000, PART_BYTES - 10, PART_BYTES + 10_000, 3_000_000):
        entries = (wrote("x" * size), status(WORKING, "y" * 3000))
        head = await storage.commit(head, claim("a" * 32, *entries, worker="host 1"))
        start = event_sort(head.incarnation, head.version)
        consumed, items = 0.0, await storage.items_of(head.task_id, start)
        for item in items:
            item["PK"] += "-plain"
            put = {"TableName": on_dynamo(storage).name, "Item": typed(item)}
            answer = observer.put_item(**put, ReturnConsumedCapacity="INDEXES")
            consumed += 2 * answer["ConsumedCapacity"]["Table"]["CapacityUnits"]
        body = sum(len(item.get("body", b"")) for item in items)
        counted = commit_units(body, len(head.status or b""))
        assert abs(counted - consumed) <= 2 * len(items), (size, counted, consumed)


MOST_LOOKED_AT = 40
"""The read units that a page pays beside those of the tasks that it shows: 1,336 index entries."""

OF_A_LIST = 6000 if LONG else 2000
"""Tasks of one caller, in one context."""


async def test_each_page_of_each_list_costs_in_proportion(
    storage: DurableStorage, till: Till, clock: ManualClock, observer: Any
) -> None:
    """Of thousands of tasks, whatever is asked, a page costs six requests and what it looks at."""
    await storage.commit((await storage.open_task("context", request())).head, to(INPUT_REQUIRED))
    clock.advance(2 * OF_A_LIST / 1000)
    await asyncio.to_thread(seed_tasks, storage, observer, OF_A_LIST)
    times = [(clock.now_ms() - ago) / 1000 for ago in (1500, 1900)]
    asked: list[dict[str, Any]] = [{}, {"status": INPUT_REQUIRED}]
    asked += [
        {"status_timestamp_after": datetime.fromtimestamp(at, UTC).isoformat()} for at in times
    ]
    for filters in [*asked, *({"context_id": "context", **more} for more in asked)]:
        is_rare = "status" in filters
        query = ListTasksQuery(page_size=1, **filters)
        shown, number = list[Task](), 0
        while number < (OF_A_LIST if is_rare else 4):
            page = await till(list_tasks(storage, query))
            shown += page.tasks
            number += 1
            most = MOST_LOOKED_AT if number == 1 or is_rare else 8
            requests, written, read = till.total()
            assert (requests <= 6, written) == (True, 0), (filters, number)
            assert read <= most + 2 * len(page.tasks), (filters, number, read)
            assert page.total_size == 1000
            query = query.model_copy(update={"page_token": page.next_page_token})
            if not page.next_page_token:
                break
        assert number <= OF_A_LIST // 500
        expected = 1 if is_rare else number
        assert len({task.id for task in shown}) == len(shown) == expected


async def test_a_long_task_on_a_page(storage: DurableStorage, till: Till, observer: Any) -> None:
    """A task of many commits costs a page two queries; none where nothing of its log is shown."""
    await asyncio.to_thread(seed_tasks, storage, observer, 10)
    head = await opened(storage)
    for _ in range(_FIRST_COMMITS):
        head = await storage.commit(head, Commit(entries=(wrote("x"),)))
    for query, requests in [
        (ListTasksQuery(), 8),
        (ListTasksQuery(history_length=0, include_artifacts=True), 8),
        (ListTasksQuery(history_length=0), 5),
    ]:
        page = await till(list_tasks(storage, query))
        assert (len(page.tasks), till.total()[0]) == (11, requests)


HEADS = 100_000 if LONG else 300
"""Tasks of the console's lists; with `make faults` as many as a large deployment has."""

OF_ONE_MS = 4_000_000_000_000 - 4_000_000_000_000 % HOUR_MS
OF_ALL_MS = OF_ONE_MS + HOUR_MS
"""The beginnings of hours in which no other test has tasks."""


@pytest.mark.parametrize("is_of_all", [False, True], ids=["of-one-caller", "of-all"])
async def test_each_page_of_a_long_list_costs_the_same(
    storage: DurableStorage, till: Till, observer: Any, *, is_of_all: bool
) -> None:
    """The console's pages have each task once, and cost a query a shard and a batch of HEADs."""
    begin_ms, scope = (OF_ALL_MS if is_of_all else OF_ONE_MS), storage.scope.digest
    set_clock(storage, ManualClock(begin_ms + HEADS))
    heads = [echo_items(scope, at_ms=begin_ms + number)[0] for number in range(HEADS)]
    await asyncio.to_thread(store, observer, heads)  # a list reads nothing else of a task
    lists = Inspector(storage, Settings(), place="the table").lists
    created = datetime.fromtimestamp(begin_ms / 1000, UTC).isoformat()
    which = TaskFilter(created=created) if is_of_all else TaskFilter(scope=scope)
    listed, after = list[str](), ""
    while not listed or after:
        page = await till(lists.page(which, after=after))
        listed += [row.head.task_id for row in page.rows]
        after = page.after
    costs = till.costs()
    requests, units = Counter(made for made, _, _ in costs), [read for *_, read in costs]
    assert (len(listed), len(set(listed))) == (HEADS, HEADS)
    assert {written for _, written, _ in costs} == {0}
    assert requests[5] >= HEADS / 50
    assert sum(requests.values()) <= requests[5] + 1  # the one that finds no more reads no HEAD
    assert max(requests) == 5
    assert max(units) <= units[0] + 2


async def test_the_first_page(storage: DurableStorage, till: Till, clock: ManualClock) -> None:
    """A worker writes 1 unit a minute, a batch of ends 1; the page takes 7 requests."""
    presence = Presence(storage.table, clock)
    ends = [Ended(at=clock.now_ms(), state="completed", took_ms=n, waited_ms=n) for n in range(40)]
    for _ in range(60):
        await till(presence.tell())
        clock.advance(1)
    assert till.total() == (1, 1, 0)
    await till(count_ended(storage.table, ends, clock.now_ms()))
    assert till.total() == (1, 1, 0)
    for number in range(40):
        await storage.commit(await opened(storage), to(FAILED))
        clock.advance(1 if number % 10 == 0 else 0)
    seen = await till(status_of(Inspector(storage, Settings(), place="the table")))
    assert seen.day.failed >= 40
    requests, _, read = till.total()
    assert (requests, read < 40) == (7, True)


def set_clock(storage: DurableStorage, clock: Clock) -> None:
    """Let a storage and its table go by another clock."""
    storage.clock = on_dynamo(storage)._clock = clock


async def worker_of(storage: DurableStorage, agent: Agent, clock: Clock, **settings: Any) -> Worker:
    """A worker whose process has told of itself in this minute."""
    set_clock(storage, clock)
    backends = memory_backends(Settings(), clock)
    worker = Worker(agent, backends=replace(backends, storage=storage), **settings)
    await worker.adapter.presence.tell()
    return worker


async def test_an_answer_costs_few_units(
    storage: DurableStorage, till: Till, observer: Any
) -> None:
    """Behind a question API and worker read a snapshot, in both turns, and not the log."""
    ran: list[str] = []

    async def work(name: str) -> str:
        ran.append(name)
        return f"{name:100}"

    async def handle(context: RequestContext, queue: EventQueue) -> None:
        for number in range(1000):
            await steps.step("work", work, f"{number}", key=f"{number}")
        for number in range(2):
            await steps.ask("Sure?", id=f"{number}")
        await complete(context, queue)

    clock = PacedClock()
    before = Worker(Agent(handle), clock=clock)
    head = await before.send()
    assert await before.work()
    items = await before.storage.items_of(head.task_id)
    assert len(items) > 1000
    await asyncio.to_thread(store, observer, [typed(item) for item in items])
    set_clock(storage, clock)
    storage.table.blobs = before.storage.table.blobs
    storage = storage.for_scope(before.storage.scope)
    worker = Worker(Agent(handle), backends=replace(before.backends, storage=storage))
    for number in range(2):
        await till(Tail.open(storage, head.task_id))
        await till(worker.follow_up(head, "yes"))
        assert await till(worker.work())
        assert till.total()[2] <= 20, number
    assert (await worker.head(head)).is_terminal
    assert len(ran) == 1000


async def remembered(context: RequestContext, queue: EventQueue) -> None:
    """An agent that loads and stores the state of its conversation."""
    assert isinstance(queue, ActiveTurn)
    await queue.store_state([*(await queue.load_state() or []), "said"])
    await complete(context, queue)


async def test_a_conversation_costs_five_units_a_turn(storage: DurableStorage, till: Till) -> None:
    """Its line is written with the message and with the ending, and read with the state."""
    costs = []
    for is_serial in (False, True):
        storage.is_serial, clock = is_serial, PacedClock()
        worker = await worker_of(storage, Agent(remembered), clock)
        for _ in range(2):
            till.costs()
            await clock.pass_time(1)  # what expires later than before is in its index anew
            await till(worker.send())
            assert await till(worker.work())
        costs.append(till.total())
    assert costs == [(4, 21, 2), (4, 26, 2)]


async def test_a_short_sleep_costs_nothing(storage: DurableStorage, till: Till) -> None:
    """It is recorded with the step behind it, by one request; a turn of no steps costs two."""
    costs = []
    for steps_of, sleeps in ((0, 0), (5, 0), (5, 2)):

        async def slept(
            context: RequestContext, queue: EventQueue, of: int = steps_of, sleeps: int = sleeps
        ) -> None:
            for number in range(of):
                await steps.step("look", len, str(number))
                for _ in range(sleeps if number < of - 1 else 0):
                    await steps.sleep(0.01)
            await complete(context, queue)

        clock = PacedClock()
        worker = await worker_of(storage, Agent(slept), clock)
        head = await worker.send()
        with till.measure() as usage:
            working = asyncio.create_task(worker.work())
            while not working.done():
                await (clock.pass_time(0.01) if clock.agent_wakes_at else asyncio.sleep(0.001))
        entries = [entry for record in await worker.records(head) for entry in record.entries]
        records = [entry for entry in entries if isinstance(entry, Recorded)]
        assert len(records) == steps_of + (4 if sleeps else 0)
        costs.append(cost(usage))
    assert costs[0] == (2, 9, 1)
    assert costs[1] == costs[2]


async def test_an_hours_call_costs_a_hundred_units(local_dynamodb: Emulator, observer: Any) -> None:
    """It is read for ten seconds, and then the turn sleeps between two reads."""
    clock, name, works_s = (
        PacedClock(),
        f"tasks-{uuid4()}",
        3_550,
    )  # a sweeper sees the tasks of all
    create_table(observer, name)
    bench = metered(emulator_client(local_dynamodb), observer, name)
    books = StandIn("books", lambda _: Outcome("a book", after_s=works_s), clock)

    async def calls(context: RequestContext, queue: EventQueue) -> None:
        assert isinstance(queue, ActiveTurn)
        queue.agents = {"books": cast("Remote", books)}
        reply = await current_context().call_agent("books", "tea")
        assert reply.text == "a book"
        await complete(context, queue)

    agent = Agent(calls)
    worker = await worker_of(bench.storage, agent, clock, public_url="https://agent.example")
    head = await worker.send()
    written = 0
    with answered(clock) as during:
        while not (head := await worker.head(head)).is_terminal:
            with bench.meter.measure() as usage:
                if is_empty(worker.operations):
                    await clock.pass_time(60)
                    if head.due_at is not None and head.due_at <= clock.now_ms():
                        await Sweeper(worker.storage, worker.operations, clock=clock).sweep()
                else:
                    await during(worker.work())
            commits = usage.kinds["TransactWriteItems EVENT, HEAD"]
            written += 4 * commits + usage.kinds["PutItem HEAD"]
    assert works_s <= clock.monotonic() < works_s + 900
    assert len(agent.started) <= 10
    assert written <= 105
