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
from a2a.types import (
    Artifact,
    Message,
    Part,
    SendMessageRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)

from a2a_serverless import steps
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import BeingDeletedError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.activity import Ended, count_ended
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.deletion import DeletionJob, Owner
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage, Observer
from a2a_serverless.storage.dynamodb import typed
from a2a_serverless.storage.layout import HOUR_MS, event_sort, task_partition
from a2a_serverless.storage.listing import _FIRST_COMMITS, ListTasksQuery, list_tasks
from a2a_serverless.storage.signals import signal
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Recorded,
    StatusChanged,
    StepId,
    TurnOpened,
)
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
from benchmarks.meter import Usage, item_bytes
from benchmarks.storage import (
    BATCH,
    CHUNK_BYTES,
    Bench,
    echo_commit,
    echo_items,
    metered,
    seed_tasks,
    store,
)
from tests.contract.test_snapshots import after_turn, stored
from tests.contract.test_snapshots import turn as long_turn
from tests.support.clocks import ManualClock
from tests.support.databases import (
    LONG,
    create_table,
    emulator_client,
    new_clock,
    new_scope,
    on_dynamo,
)
from tests.support.emulators import Emulator
from tests.support.messages import agent_message, artifact, message, request
from tests.support.present import present
from tests.support.queues import is_empty
from tests.support.workers import Agent, answered, complete
from tests.support.workers import Bench as Worker

pytestmark = pytest.mark.emulators

CHUNKS = 400
T = TypeVar("T")


@pytest.fixture
def observer(local_dynamodb: Emulator) -> Iterator[Any]:
    """A client that is not metered."""
    client = emulator_client(local_dynamodb)
    yield client
    client.close()


@pytest.fixture
def bench(local_dynamodb: Emulator, observer: Any) -> Iterator[Bench]:
    """A metered storage in a scope of its own."""
    client = emulator_client(local_dynamodb)
    yield metered(client, observer, clock=new_clock())
    client.close()


def set_clock(storage: DurableStorage, clock: Clock) -> None:
    """Let a storage and its table go by another clock."""
    storage.clock = on_dynamo(storage)._clock = clock


Cost = tuple[Any, ...]
"""Requests, write units and read units."""


def cost(usage: Usage) -> Cost:
    return usage.requests, usage.write_units, usage.read_units


async def paid(bench: Bench, work: Awaitable[T]) -> tuple[T, Cost]:
    """Do some work; return its result and cost."""
    with bench.meter.measure() as usage:
        result = await work
    return result, cost(usage)


async def spent(bench: Bench, *works: Awaitable[object]) -> Cost:
    """Do some works; return what they have cost together."""
    costs = [(await paid(bench, work))[1] for work in works]
    return tuple(sum(each) for each in zip(*costs, strict=True))


async def opened(bench: Bench) -> Head:
    """A task as it was just created."""
    return (await bench.storage.open_task("context", request())).head


async def claimed(bench: Bench) -> Head:
    """A task whose turn is claimed by the token "one"."""
    return await bench.storage.commit(await opened(bench), Commit(token="one", claims=True))


def to(state: TaskState, **options: Any) -> Commit:
    return Commit(entries=(StatusChanged(TaskStatus(state=state)),), **options)


async def test_an_echo_task_in_all(bench: Bench) -> None:
    """Create, worker's load, commit and one GetTask: 4 requests, 18 write and 2 read units."""
    task, creation = await paid(bench, Storage(bench.storage).create_task("context", message()))
    log, load = await paid(bench, bench.storage.read(task.id))
    commit = bench.storage.commit(present(log).head, echo_commit("hello"))
    rest = await spent(bench, commit, bench.storage.load_task(task.id))
    assert tuple(map(sum, zip(creation, load, rest, strict=True))) == (4, 18, 2)


async def test_fences_cost_a_process_one_unit_in_two_seconds(bench: Bench) -> None:
    """One request reads all of them, up to forty for one unit, however many messages come."""
    clock = ManualClock(bench.storage.clock.now_ms())
    set_clock(bench.storage, clock)
    for number in range(10):
        await DeletionJob(bench.storage, Owner(f"{number}" * 16), lag_s=0).step()
    barriers = DeletionBarriers(bench.storage.table, clock)
    with bench.meter.measure() as usage:
        for number in range(100):
            with pytest.raises(BeingDeletedError) if number % 2 else nullcontext():
                owner = f"{number % 10}" * 32 if number % 2 else new_scope().digest
                await barriers.check(owner, "context", clock.now_ms())
        clock.advance(DeletionBarriers.FRESH_MS / 1000)
        await barriers.check(new_scope().digest, "context", clock.now_ms())
    assert cost(usage) == (2, 0, 2)


async def worker_of(bench: Bench, agent: Agent, clock: Clock, **settings: Any) -> Worker:
    """A worker whose process has told of itself in this minute."""
    set_clock(bench.storage, clock)
    backends = memory_backends(Settings(), clock)
    worker = Worker(agent, backends=replace(backends, storage=bench.storage), **settings)
    await worker.adapter.presence.tell()
    return worker


async def test_an_answer_behind_a_thousand_records_costs_few_units(
    bench: Bench, observer: Any
) -> None:
    """The API and the worker read a snapshot, and not the log, in both turns behind a question.

    The records are made in memory, and stored in the table as they are.
    """
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
    set_clock(bench.storage, clock)
    bench.storage.table.blobs = before.storage.table.blobs
    storage = bench.storage.for_scope(before.storage.scope)
    worker = Worker(Agent(handle), backends=replace(before.backends, storage=storage))
    for number in range(2):
        with bench.meter.measure() as usage:
            await Tail.open(storage, head.task_id)
            await worker.follow_up(head, "yes")
            assert await worker.work()
        assert usage.read_units <= 20, (number, usage)
    assert (await worker.head(head)).is_terminal
    assert len(ran) == 1000


async def remembered(context: RequestContext, queue: EventQueue) -> None:
    """An agent that loads and stores the state of its conversation."""
    assert isinstance(queue, ActiveTurn)
    await queue.store_state([*(await queue.load_state() or []), "said"])
    await complete(context, queue)


async def test_a_conversation_costs_five_units_a_turn_and_no_request(bench: Bench) -> None:
    """Its line is written with the message and with the ending, and read with the state.

    A second passes between two turns, so what expires later than before is in its index anew.
    """
    costs = []
    for is_serial in (False, True):
        bench.storage.is_serial = is_serial
        clock = PacedClock()
        worker = await worker_of(bench, Agent(remembered), clock)
        for _ in range(2):
            with bench.meter.measure() as usage:
                await clock.pass_time(1)
                await worker.send()
                assert await worker.work()
        costs.append(cost(usage))
    assert costs == [(4, 21, 2), (4, 26, 2)]


async def test_a_turn_in_line_costs_its_leaving_and_its_waking(bench: Bench) -> None:
    """5 units to leave it, 6 to wake it, 2 more for its claim, which is then apart, 1 for its end.

    Each is one request, and the entries in by-line, by-due and by-attention are what they cost
    beside HEAD.
    """
    storage, costs = bench.storage, list[Cost]()
    clock = ManualClock(storage.clock.now_ms())
    set_clock(storage, clock)
    for waits in (False, True):
        head = await opened(bench)
        if waits:
            left, leaving = await paid(bench, storage.park(head, "share"))
            clock.advance(1)
            woken, waking = await paid(bench, storage.requeue(present(left)))
            head, costs = present(woken), [*costs, leaving, waking]
        head, claiming = await paid(bench, storage.commit(head, Commit(token="one", claims=True)))
        ends = Commit(entries=echo_commit("hello").entries, token="one", ends_turn=True)
        costs += [claiming, await spent(bench, storage.commit(head, ends))]
    assert costs == [(1, 10, 0), (1, 9, 0), (1, 5, 0), (1, 6, 0), (1, 12, 0), (1, 10, 0)]


async def test_a_step_costs_one_commit(bench: Bench) -> None:
    """A small record is 1 request and 4 write units; going to sleep 8, waking 5, a signal 8.

    HEAD and the commit cost 2 each; a new due time costs 2 in by-due, and what a turn waits for 1
    in by-attention and 1 in by-line. A wake is no commit: 1 unit, 2 in by-due, 1 out of each other.
    A signal reads the log.
    """
    storage, head = bench.storage, await claimed(bench)
    record = Recorded(StepId("plan", "", 1), "json", b'{"days": 2}')
    head, step = await paid(bench, storage.commit(head, Commit(entries=(record,), token="one")))
    until = storage.clock.now_ms() + 3_600_000
    asleep = AttemptEnd(token="one", reason="asleep", at=1, until=until)
    sleeps = Commit(entries=(record,), token="one", parks=asleep)
    head, sleep = await paid(bench, storage.commit(head, sleeps))
    wake = await spent(bench, storage.requeue(head))
    assert [step, sleep, wake] == [(1, 4, 0), (1, 8, 0), (1, 5, 0)]
    step_id = StepId("paid", "", 1)
    waits = Commit(token="one", entries=(Until(until).record(step_id),), parks=asleep)
    head = await storage.commit(await claimed(bench), waits)
    task, given = (head.task_id, head.incarnation), Signal(b"{}", "application/json")
    given_to = signal(storage, *task, turn=1, step_id=step_id, given=given)
    assert await paid(bench, given_to) == (SignalDecision.TAKE, (2, 8, 1))


async def test_a_short_sleep_costs_nothing(bench: Bench) -> None:
    """It is recorded with the step behind it, in the same request and the same units.

    A turn of no steps costs a worker two requests: the log, and the commit of all that was done.
    """
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
        worker = await worker_of(bench, Agent(slept), clock)
        head = await worker.send()
        with bench.meter.measure() as usage:
            working = asyncio.create_task(worker.work())
            while not working.done():
                await (clock.pass_time(0.01) if clock.agent_wakes_at else asyncio.sleep(0.001))
        log = present(await bench.storage.read(head.task_id))
        records = [e for r in log.records for e in r.entries if isinstance(e, Recorded)]
        assert len(records) == steps_of + (4 if sleeps else 0)
        costs.append(cost(usage))
    assert costs[0] == (2, 9, 1)
    assert costs[1] == costs[2]


async def test_what_the_first_page_needs_costs_little(bench: Bench) -> None:
    """A worker writes 1 unit a minute, and the ends in a batch of the stream 1 unit together.

    The page itself takes 6 requests of the table, and a read unit for each forty entries of the
    last day.
    """
    storage, clock = bench.storage, ManualClock(bench.storage.clock.now_ms())
    set_clock(storage, clock)
    presence = Presence(storage.table, clock)
    ends = [Ended(at=clock.now_ms(), state="completed", took_ms=n, waited_ms=n) for n in range(40)]
    with bench.meter.measure() as telling:
        for _ in range(60):
            await presence.tell()
            clock.advance(1)
    with bench.meter.measure() as counting:
        await count_ended(storage.table, ends, clock.now_ms())
    for number in range(40):
        head = (await storage.open_task("context", request())).head
        failed = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_FAILED))
        await storage.commit(head, Commit(entries=(failed,)))
        clock.advance(1 if number % 10 == 0 else 0)
    inspector = Inspector(storage, Settings(), place="the table")
    with bench.meter.measure() as looking:
        status = await status_of(inspector)
    assert status.day.failed >= 40
    assert (cost(telling), cost(counting)) == ((1, 1, 0), (1, 1, 0))
    assert (looking.requests, looking.read_units < 40) == (7, True)


async def test_a_cancel_before_the_start_costs_no_read_more(bench: Bench) -> None:
    """HEAD says it, which is read with the log; the end finds nothing to remove."""
    agent = Agent(complete)
    worker = await worker_of(bench, agent, SystemClock())
    head = await worker.send()
    await bench.storage.request_cancel(head.task_id)
    # The log, HEAD as it is now, the end.
    assert await paid(bench, worker.work()) == (True, (3, 9, 2))
    assert agent.started == []


async def test_what_is_no_commit_is_one_update(bench: Bench) -> None:
    """1 write unit, and 1 for each index entry that is replaced or put.

    A request to cancel reads HEAD before; a release, or a release that moves the due time too; a
    failure, which is one unit more than another end.
    """
    storage = bench.storage
    for is_paused, units in ((False, 3), (True, 2)):
        head = await opened(bench)
        if is_paused:
            await storage.commit(head, to(TaskState.TASK_STATE_INPUT_REQUIRED))
        request_cancel = storage.request_cancel(head.task_id, by="alice@example.com")
        assert await spent(bench, request_cancel) == (2, units, 1)
    head = await opened(bench)
    for token, moved_ms, units in (("one", 0, 1), ("two", 60_000, 3)):
        head = await storage.commit(head, Commit(token=token, claims=True))
        end = AttemptEnd(token=token, reason="ValueError", correlation_id="0123456789abcdef")
        due_at = present(head.due_at) + moved_ms if moved_ms else None
        released, release = await paid(
            bench, storage.change(head, partial(releasing, end=end, due_at=due_at))
        )
        assert release == (1, units, 0)
        head = present(released)
    ends = (TaskState.TASK_STATE_COMPLETED, 9), (TaskState.TASK_STATE_FAILED, 10)
    for state, units in ends:
        end_of_all = storage.commit(await opened(bench), to(state, token="one", claims=True))
        assert await spent(bench, end_of_all) == (1, units, 0)


def items_of(observer: Any, storage: DurableStorage, head: Head) -> list[dict[str, Any]]:
    """All items of a task."""
    answer = observer.query(
        TableName=on_dynamo(storage).name,
        KeyConditionExpression="PK = :task",
        ExpressionAttributeValues={":task": {"S": task_partition(head.scope, head.task_id)}},
    )
    found: list[dict[str, Any]] = answer["Items"]
    return found


def receiver(task_id: str = "", config_id: str = "") -> TaskPushNotificationConfig:
    """A push configuration as clients send it."""
    return TaskPushNotificationConfig(
        id=config_id, task_id=task_id, url="https://receiver.example/hook", token="t" * 32
    )


async def test_an_inline_push_configuration_costs_its_item(bench: Bench) -> None:
    """An inline configuration costs 3 write units, one of which for the index that counts it.

    With a later message it costs a query too. Another one is put by 2 requests, once; a wake is a
    query, and a delivery's move 1 unit.
    """
    storage, asks = bench.storage, to(TaskState.TASK_STATE_INPUT_REQUIRED)
    opening = storage.open_task("context", request(), push=receiver())
    made, inline = await paid(bench, opening)
    assert inline == (1, 12, 0)
    head = await storage.commit(made.head, asks)
    answer = Commit(entries=(TurnOpened(request("answer")),))
    head, without = await paid(bench, storage.commit(head, answer))
    head = await storage.commit(head, replace(asks, commit_id="again"))
    again = replace(answer, commit_id="next", push=receiver())
    # The index has it already.
    assert await spent(bench, storage.commit(head, again)) == (2, without[1] + 2, 1)
    head = await opened(bench)
    push, put = await paid(bench, storage.webhooks.put(receiver(head.task_id, "a")))
    wake = await spent(bench, storage.webhooks.all(head.task_id))
    move = await spent(bench, storage.webhooks.move(push, replace(push, version=2, index=0)))
    assert (put, wake, move) == ((2, 5, 1), (1, 0, 1), (1, 1, 0))


async def test_a_chunk_costs_the_same_in_a_long_artifact(bench: Bench) -> None:
    """400 chunks in batches of 40 are 10 requests; twice the chunks cost twice the units."""
    usages, head = [], await opened(bench)
    piece = ArtifactWritten(artifact("answer", "x" * CHUNK_BYTES), append=True)
    for chunks in (CHUNKS, 2 * CHUNKS):
        head = await opened(bench)
        with bench.meter.measure() as usage:
            for _ in range(chunks // BATCH):
                head = await bench.storage.commit(head, Commit(entries=(piece,) * BATCH))
        usages.append(usage)
    once, twice = usages
    assert (once.requests, twice.requests) == (10, 20)
    assert twice.write_units == 2 * once.write_units
    assert twice.sent_bytes <= 2.01 * once.sent_bytes
    assert (once.read_units, twice.read_units) == (0, 0)
    short = bench.storage.load_task(head.task_id, 0, include_artifacts=False)
    later = bench.storage.read(head.task_id, after=head.version, incarnation=head.incarnation)
    for reading in (short, later):
        found, read = await paid(bench, reading)
        assert found is not None
        assert read == (1, 0, 1)


async def test_a_file_costs_what_a_word_costs(bench: Bench) -> None:
    """Its task's commits have the same units for 40 KB and for 10 MB, in messages and artifacts.

    The table of these tests has no store of its own: here it has one in memory.
    """
    bench.storage.table.blobs = MemoryBlobs(bench.storage.clock)

    async def cost_of(*parts: Part) -> tuple[Cost, Cost]:
        said = SendMessageRequest(message=Message(message_id="m", parts=[Part(text="see"), *parts]))
        made, creation = await paid(bench, bench.storage.open_task("context", said))
        written = Artifact(artifact_id="a", parts=parts or [Part(text="a word")])
        commit = Commit(entries=(ArtifactWritten(written),))
        return creation, await spent(bench, bench.storage.commit(made.head, commit))

    word = await cost_of()
    for size in (40_000, 10_000_000):
        assert await cost_of(Part(raw=b"x" * size)) == word


async def test_a_long_task_costs_the_same_at_every_turn(bench: Bench) -> None:
    """Behind 64 KB of log a task is read for 20 units at most, and a snapshot costs an update.

    Turns of 18 KB: 20 in the suite, 150 with A2A_FAULTS=long. Without snapshots the last read costs
    4.6 units for each turn.
    """
    bench.storage.table.blobs = MemoryBlobs(bench.storage.clock)
    head: Head | None = None
    read: list[float] = []
    for number in range(150 if LONG else 20):
        head = await long_turn(bench.storage, head, f"{number:03}", chunks=3)
        assert (await spent(bench, after_turn(bench.storage, head)))[1] <= 2
        head = await stored(bench.storage, head)
        task, (requests, _, units) = await paid(bench, bench.storage.load_task(head.task_id))
        assert requests <= 2
        read.append(units)
        assert len(present(task).artifacts) == number + 1
    assert max(read) <= 20
    whole = await spent(bench, bench.storage.read(present(head).task_id))
    assert whole[2] > 4.5 * len(read)


MOST_LOOKED_AT = 40
"""The read units that a page pays beside those of the tasks that it shows: 1,336 index entries."""

OF_A_LIST = 6000 if LONG else 2000
"""Tasks of one caller, in one context."""


async def test_each_page_of_each_list_costs_in_proportion(bench: Bench, observer: Any) -> None:
    """Of thousands of tasks in a context, six requests are enough, whatever is asked.

    By context, by a rare state, by times that nobody has asked for: a page of one task costs its
    HEAD and the index entries that it looks at, which are bounded.
    """
    rare = (await bench.storage.open_task("context", request())).head
    await Storage(bench.storage).update_task(rare.task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
    bench.storage.clock = ManualClock(bench.storage.clock.now_ms() + 2 * OF_A_LIST)
    await asyncio.to_thread(seed_tasks, bench.storage, observer, OF_A_LIST)
    now_ms = bench.storage.clock.now_ms()
    since = [datetime.fromtimestamp((now_ms - ago) / 1000, UTC).isoformat() for ago in (1500, 1900)]
    asked: list[dict[str, Any]] = [{}, *({"status_timestamp_after": one} for one in since)]
    asked += [{"status": TaskState.TASK_STATE_INPUT_REQUIRED}]
    for filters in [*asked, *({"context_id": "context", **more} for more in asked)]:
        is_rare = "status" in filters
        query = ListTasksQuery(page_size=1, **filters)
        shown, number = list[Task](), 0
        while number < (OF_A_LIST if is_rare else 4):
            with bench.meter.measure() as usage:
                page = await list_tasks(bench.storage, query)
            shown += page.tasks
            number += 1
            is_first = query.page_token is None
            most = MOST_LOOKED_AT if is_first or is_rare else 8
            assert usage.requests <= 6, (filters, number, usage)
            assert usage.write_units == 0
            assert usage.read_units <= most + 2 * len(page.tasks), (filters, number, usage)
            assert page.total_size == 1000
            query = query.model_copy(update={"page_token": page.next_page_token})
            if not page.next_page_token:
                break
        assert number <= OF_A_LIST // 500
        expected = 1 if is_rare else number
        assert len({task.id for task in shown}) == len(shown) == expected


async def test_a_follow_up_in_a_context_costs_a_new_place_in_it(bench: Bench) -> None:
    """The first task of a context that the service makes has none: 15 units in all; others 18."""
    costs, first = [], first_task_id(bench.storage.scope, "context")
    for task_id in (first, "other"):
        opening = bench.storage.open_task("context", request(), task_id=task_id)
        made, creation = await paid(bench, opening)
        rest = await spent(bench, bench.storage.commit(made.head, echo_commit("hello")))
        costs.append([*map(sum, zip(creation, rest, strict=True))])
    assert costs == [[2, 15, 0], [2, 18, 0]]


async def test_a_long_task_on_a_page_is_read_by_itself(bench: Bench, observer: Any) -> None:
    """A task of many commits costs a page two queries: its newest items, and those before them.

    It costs none where the page shows nothing of its log.
    """
    await asyncio.to_thread(seed_tasks, bench.storage, observer, 10)
    head = await opened(bench)
    for _ in range(_FIRST_COMMITS):
        piece = ArtifactWritten(artifact("answer", "x"), append=True)
        head = await bench.storage.commit(head, Commit(entries=(piece,)))
    for query, requests in [
        (ListTasksQuery(), 8),
        (ListTasksQuery(history_length=0, include_artifacts=True), 8),
        (ListTasksQuery(history_length=0), 5),
    ]:
        page, (made, _, _) = await paid(bench, list_tasks(bench.storage, query))
        assert (len(page.tasks), made) == (11, requests)


HEADS = 100_000 if LONG else 300
"""Tasks of the console's lists; with `make faults` as many as a large deployment has."""

OF_ONE_MS = 4_000_000_000_000 - 4_000_000_000_000 % HOUR_MS
OF_ALL_MS = OF_ONE_MS + HOUR_MS
"""The beginnings of hours in which no other test has tasks."""


@pytest.mark.parametrize("is_of_all", [False, True], ids=["of-one-caller", "of-all"])
async def test_each_page_of_a_long_list_costs_the_same(
    bench: Bench, observer: Any, record_property: Any, *, is_of_all: bool
) -> None:
    """The console's pages of 50, from the newest to the oldest: each task once, and none counted.

    A page is a query a shard and a batch of HEADs.
    """
    storage, begin_ms = bench.storage, (OF_ALL_MS if is_of_all else OF_ONE_MS)
    scope = storage.scope.digest
    set_clock(storage, ManualClock(begin_ms + HEADS))
    heads = [echo_items(scope, at_ms=begin_ms + number)[0] for number in range(HEADS)]
    await asyncio.to_thread(store, observer, heads)  # a list reads nothing else of a task
    lists = Inspector(storage, Settings(), place="the table").lists
    created = datetime.fromtimestamp(begin_ms / 1000, UTC).isoformat()
    which = TaskFilter(created=created) if is_of_all else TaskFilter(scope=scope)
    listed: list[str] = []
    costs: list[Cost] = []
    after = ""
    while not costs or after:
        page, of_page = await paid(bench, lists.page(which, after=after))
        listed += [row.head.task_id for row in page.rows]
        costs.append(of_page)
        after = page.after
    requests = Counter(made for made, _, _ in costs)
    units = [read for *_, read in costs]
    record_property("pages", f"{len(costs)}, requests {requests}, read units {max(units)}")
    assert (len(listed), len(set(listed))) == (HEADS, HEADS)
    assert {written for _, written, _ in costs} == {0}
    assert requests[5] >= HEADS / 50
    assert sum(requests.values()) <= requests[5] + 1  # the one that finds no more reads no HEAD
    assert max(requests) == 5
    assert max(units) <= units[0] + 2


async def test_the_items_of_a_task_stay_below_a_kilobyte(bench: Bench, observer: Any) -> None:
    """HEAD and commits of a short task leave 200 bytes of the first KB free, for longer content.

    Through a failed attempt, a restart, a cancel and the end, with all that is stored about them on
    Lambda: the process's name, the trace, the user who cancels. The place and the text of an error
    take that room and no more.
    """
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    worker = f"{'f' * 64}:$LATEST 2026/11/22/[$LATEST]{'0' * 32}"
    storage = bench.storage
    storage.observer = Observer(trace=lambda: trace)
    head = (await storage.open_task("x" * 36, request(), idempotency_key="key")).head
    texts = "p" * MOST_PLACE, "m" * (MOST_OF_ERROR - MOST_PLACE)
    for (place, text), most in ((("", ""), 824), (texts, 1024)) * 2:
        claim = Commit(token=new_token(), claims=True, worker=worker)
        head = await storage.commit(head, claim)
        assert head.turn.token is not None
        end = AttemptEnd(
            token=head.turn.token,
            reason="UnavailableError",
            correlation_id="0123456789abcdef",
            at=storage.clock.now_ms(),
            place=place,
            message=text,
        )
        assert await storage.change(head, partial(releasing, end=end))
        assert max(map(item_bytes, items_of(observer, storage, head))) < most
        released = present(await storage.head(head.task_id))
        head = released
    await storage.request_cancel(head.task_id, by="alice@example.com")
    marked = present(await storage.head(head.task_id))
    assert marked.cancel is not None
    ended = replace(echo_commit("hello"), token=new_token(), worker=worker)
    await storage.commit(marked, ended)
    assert max(map(item_bytes, items_of(observer, storage, head))) < 1024


async def test_a_commits_units_are_known_before_it_is_made(bench: Bench, observer: Any) -> None:
    """A turn's pace counts what DynamoDB Local says of the same items, put one by one, twice.

    At most two units more or less for each part: keys and attributes are counted by their usual
    size.
    """
    storage = bench.storage
    head = (await storage.open_task("context", request())).head
    place = on_dynamo(storage).name
    for size in (0, 500, 10_000, PART_BYTES - 10, PART_BYTES + 10_000, 3_000_000):
        said = TaskStatus(state=TaskState.TASK_STATE_WORKING, message=agent_message("y" * 3000))
        entries = (ArtifactWritten(artifact("a", "x" * size)), StatusChanged(said))
        claim = Commit(entries=entries, token="a" * 32, claims=True, worker="host 1")
        head = await storage.commit(head, claim)
        start = event_sort(head.incarnation, head.version)
        consumed, items = 0.0, await storage.items_of(head.task_id, start)
        for item in items:
            item["PK"] += "-plain"
            answer = observer.put_item(
                TableName=place, Item=typed(item), ReturnConsumedCapacity="INDEXES"
            )
            consumed += 2 * answer["ConsumedCapacity"]["Table"]["CapacityUnits"]
        body = sum(len(item.get("body", b"")) for item in items)
        counted = commit_units(body, len(head.status or b""))
        assert abs(counted - consumed) <= 2 * len(items), (size, counted, consumed)


async def test_a_question_costs_what_the_end_of_a_turn_does(bench: Bench) -> None:
    """So do its answer and the turn behind it: no more than `request_input` and the next turn."""
    costs = []
    for is_asked in (False, True):

        async def pauses(
            context: RequestContext, queue: EventQueue, *, is_asked: bool = is_asked
        ) -> None:
            ctx = current_context()
            if is_asked:
                await ctx.ask("Which account?")
            elif not ctx.history:
                await ctx.request_input("Which account?")
                return
            await complete(context, queue)

        worker = await worker_of(bench, Agent(pauses), PacedClock())
        head = await worker.send()
        asking = await spent(bench, worker.work())
        answering = await spent(bench, worker.follow_up(head, "b"))
        costs.append([asking, answering, await spent(bench, worker.work())])
        assert (await worker.head(head)).is_terminal
    assert costs[0] == costs[1]


async def test_an_agent_that_is_called_for_an_hour_costs_a_hundred_units(
    local_dynamodb: Emulator, observer: Any
) -> None:
    """It is read for ten seconds, and then the turn sleeps between two reads.

    The units are those of the table alone: a commit of small items is 4, a wake 1. The table is its
    own: a sweeper sees the tasks of all.
    """
    clock, name, works_s = PacedClock(), f"tasks-{uuid4()}", 3_550
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
    worker = await worker_of(bench, agent, clock, public_url="https://agent.example")
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


"""Less than an hour by what was looked before the turn sleeps: so the notification wakes it."""
