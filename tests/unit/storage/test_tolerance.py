"""What a newer release has stored, or damage left, hides no task and runs nothing twice."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest
from a2a.types import Artifact, Part, Task, TaskPushNotificationConfig, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from a2a_serverless.errors import ConcurrencyError, NewerReleaseError, UnreadableTaskError
from a2a_serverless.http.app import create_app
from a2a_serverless.push.client import Outcome
from a2a_serverless.push.deliverer import Budget, Deliverer
from a2a_serverless.push.function import PushStream
from a2a_serverless.push.jobs import PushBackends, PushJob
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import delete_context, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb import _Typed, plain
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    MetadataMerged,
    StatusChanged,
    Unknown,
    encode_entries,
)
from a2a_serverless.tasks.fold import Cursor, incarnation_tag
from a2a_serverless.tasks.head import FORMAT, Head, Operation
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper, SweepReport
from a2a_serverless_tools.operate.finding import created_in, find_tasks
from tests.support import newer
from tests.support.a2a_calls import JSONRPC, REST, Agent, Answer
from tests.support.asgi_streams import live
from tests.support.clocks import ManualClock
from tests.support.databases import LONG, Dictionaries, Stored, moto_database
from tests.support.memory import memory_keys
from tests.support.messages import artifact, request, storyteller
from tests.support.present import present
from tests.support.queues import MemoryQueue, left, take
from tests.support.workers import Agent as Executor
from tests.support.workers import Bench, PacedClock, chunk, complete, params_of

S = TaskState
SENTENCE: Final = str(NewerReleaseError())
IMMEDIATELY: Final = {"returnImmediately": True}
INTERNAL: Final = -32603
PLACES: Final = ("waiting", "claimed", "paused", "ended")
FEW = settings(
    max_examples=50 if LONG else 3, deadline=None, suppress_health_check=list(HealthCheck)
)


class Receiver:
    """A push client whose receivers take everything."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Receiver]:
        yield self

    async def post(self, *_: object, timeout_s: float) -> Outcome:
        return Outcome(meaning="delivered", reason="", status=200)


@dataclass
class World:
    """Four tasks on a table of their own, each in another stage, and all that reads them."""

    database: Stored
    clock: ManualClock
    storage: DurableStorage
    settings: Settings
    queue: TableQueue[Operation]
    heads: dict[str, Head]

    async def open(self) -> None:
        """Make the tasks."""
        for place in PLACES:
            hook = TaskPushNotificationConfig(id="hook", url="https://example.com/hook")
            said = request("what shall we do")
            opened = await self.storage.open_task("c", said, task_id=place, push=hook)
            self.heads[place] = await self._to(place, opened.head)
        await self.storage.contexts.put("c", context_write({"k": 1}))

    async def _to(self, place: str, head: Head) -> Head:
        if place == "waiting":
            return head
        said = ArtifactWritten(artifact("a", "x"))
        head = await self.storage.commit(head, Commit(entries=(said,), token="t", claims=True))
        states = {"paused": S.TASK_STATE_INPUT_REQUIRED, "ended": S.TASK_STATE_COMPLETED}
        if place not in states:
            return head
        end = StatusChanged(TaskStatus(state=states[place]))
        return await self.storage.commit(head, Commit(entries=(end,), token="t"))

    async def newest(self, place: str) -> Head:
        return present(await self.storage.head(place))

    def set_head(self, head: Head | str, values: _Typed) -> None:
        """Change attributes of a task's HEAD."""
        own = self.heads[head] if isinstance(head, str) else head
        newer.set_attributes(self.database, newer.head_key(own), values)

    # -- actors ------------------------------------------------------------------------------

    def bench(self, agent: Executor, **options: Any) -> Bench:
        """A worker on the world's table and queue."""
        return Bench(agent, clock=PacedClock(), backends=self.backends, **options)

    async def refuses_to_run(self, head: Head, *, receives: int = 1) -> None:
        """A worker gives the turn back each time, and starts nothing."""
        agent = Executor(complete)
        bench = self.bench(agent)
        await bench.enqueue(head)
        for _ in range(receives):
            assert await bench.work() is False
            self.clock.advance(31)
        assert agent.started == []

    async def bury(self, head: Head, *, max_attempts: int = 3, copy_number: int = 0) -> str:
        """What becomes of the dead letter of a turn's run."""
        retry = RetryPolicy(max_attempts=max_attempts)
        letters = DeadLetters(self.storage, self.queue, retry=retry)
        operation = Operation.to_run(params_of(head, copy_number=copy_number))
        return await letters.handle(operation.model_dump_json())

    async def sweep(self, **options: int) -> SweepReport:
        return await Sweeper(self.storage, self.queue, clock=self.clock).sweep(**options)

    # -- readers -----------------------------------------------------------------------------

    async def read_all(self) -> None:
        """Read every task in every way; each answers."""
        for place in PLACES:
            await self._read(self.heads[place])
        for history in (None, 0):
            query = ListTasksQuery(history_length=history, include_artifacts=history is None)
            await self._lists(query)
            await self._lists(query.model_copy(update={"context_id": "c"}))
        keys = [(self.storage.scope.digest, place) for place in PLACES]
        looks = await self.storage.look(keys)
        assert all(looks[task] is not None for task in keys)
        later = self.clock.now_ms() + 10**9
        due = {one.task_id for one in await due_tasks(self.storage, later)}
        assert due == {"waiting", "claimed"}
        assert len((await created_in(self.storage, self.clock.now_ms())).found) == len(PLACES)

    async def _read(self, head: Head) -> None:
        place = head.task_id
        log = present(await self.storage.read(place))
        assert len(log.records) == log.head.version
        assert await self.storage.load_task(place) is not None
        tail = await Tail.open(self.storage, place)
        assert isinstance(tail.snapshot().event, Task)
        cursor = Cursor(1, 0, incarnation_tag(head.incarnation))
        resumed, _ = await Tail.resume(self.storage, place, cursor)
        async for event in resumed.events(until=lambda _: True, deadline=0):
            assert event.cursor > cursor
        assert len(await self.storage.webhooks.all(place)) == 1
        assert await find_tasks(self.storage, place) == [(head.scope, place)]

    async def _lists(self, query: ListTasksQuery) -> None:
        found = await list_tasks(self.storage, query)
        assert {task.id for task in found.tasks} == set(PLACES)
        assert found.total_size == len(PLACES)

    async def push_all(self) -> None:
        """Pass every commit on, and deliver all jobs but those of a newer release's tasks."""
        jobs = MemoryQueue(PushJob, clock=self.clock)
        records = [_record(item, n) for n, item in enumerate(self.database.items())]
        assert await PushStream(self.storage, jobs, "all").process(records) == []
        receiver: Any = Receiver()
        push = PushBackends(jobs=jobs, keys=memory_keys(self.clock))
        deliverer = Deliverer(self.storage, push, self.settings)
        deliverer.client = receiver
        while (record := take(jobs)) is not None:
            handle = jobs.decode_record(record)
            log = present(await self.storage.read(handle.message.task_id))
            assert await deliverer.deliver(handle, Budget(5)) is not log.needs_newer

    async def answers(self) -> None:
        """Read, show and push all."""
        await self.read_all()
        await self.show_all()
        await self.push_all()

    # -- over HTTP ---------------------------------------------------------------------------

    @asynccontextmanager
    async def http(self, binding: str) -> AsyncIterator[Agent]:
        app = create_app(self.settings, self.backends, storyteller(), entrypoint="stream")
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield Agent(client, binding)

    @property
    def backends(self) -> Backends:
        return Backends(storage=self.storage, operations=self.queue)

    async def show_all(self) -> None:
        """Get, list and stream over HTTP."""
        for binding in (JSONRPC, REST):
            async with self.http(binding) as agent:
                for place in PLACES:
                    shown = await agent.call("GetTask", {"id": place})
                    assert shown.task["id"] == place, shown.response.text
                listed = await agent.call("ListTasks", {"includeArtifacts": True})
                assert {task["id"] for task in listed.result["tasks"]} == set(PLACES)

    async def subscribe(self, place: str) -> list[Any]:
        """The events of a stream that opens before the task's second event."""
        app = create_app(self.settings, self.backends, storyteller(), entrypoint="stream")
        last = str(Cursor(1, 0, incarnation_tag(self.heads[place].incarnation)))
        headers = {"A2A-Version": "1.0", "Last-Event-ID": last}
        async with live(app, "POST", f"/tasks/{place}:subscribe", headers=headers) as response:
            assert response.status == 200
            return [event async for event in response.events()]


def _record(item: _Typed, number: int) -> Mapping[str, Any]:
    """The record of the table's stream about an item that was put."""
    keys = {name: item[name] for name in ("PK", "SK")}
    change = {"Keys": keys, "NewImage": item, "SequenceNumber": str(number)}
    return {"eventName": "INSERT", "eventSource": "aws:dynamodb", "dynamodb": change}


def in_worlds(
    *, on_moto: bool = False, **drawn: st.SearchStrategy[Any]
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run a test with a few drawn values, each time in a world of its own."""

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        async def in_world(**values: Any) -> None:
            clock = ManualClock()
            with moto_database() if on_moto else nullcontext(Dictionaries(clock)) as database:
                await test(await a_world(database, clock), **values)

        @FEW
        @given(**drawn)
        def examples(**values: Any) -> None:
            asyncio.run(in_world(**values))

        examples.__doc__ = test.__doc__
        return examples

    return decorate


@pytest.fixture
async def world() -> World:
    clock = ManualClock()
    return await a_world(Dictionaries(clock), clock)


async def a_world(database: Stored, clock: ManualClock) -> World:
    """A world of its own, with its tasks."""
    given_settings = Settings(auth="none", cancel_timeout_s=1, blocking_limit_s=1, stream_limit_s=1)
    storage = database.storage(scope=ANONYMOUS, clock=clock, timing=given_settings.timing())
    queue = MemoryQueue(Operation, clock=clock)
    own = World(database, clock, storage, given_settings, queue, {})
    await own.open()
    return own


def is_answer(answer: Answer) -> bool:
    """Whether a request got an answer that is not the service's own fault."""
    return answer.response.status_code < 500 and answer.code != INTERNAL


# -- attributes ------------------------------------------------------------------------------


NEWER_HEADS = st.one_of(
    newer.STATES.map(lambda state: {"state": {"S": state}}),
    newer.NEEDS.map(lambda needs: {"needs": {"N": str(needs)}}),
)


@pytest.mark.long
@in_worlds(on_moto=True, attributes=newer.ATTRIBUTES)
async def test_unknown_attributes_change_nothing(world: World, attributes: _Typed) -> None:
    """Unknown attributes, of any type and on any item, change nothing, and they stay."""
    marked = await world.storage.request_cancel("claimed")
    for item in world.database.items():
        key = {name: item[name] for name in ("PK", "SK")}
        newer.set_attributes(world.database, key, attributes)
    await world.answers()
    assert await world.storage.contexts.load("c") == ({"k": 1}, 1)
    assert await world.newest("claimed") == marked
    claim = Commit(token="n", claims=True)
    await world.storage.commit(await world.newest("waiting"), claim)
    kept = newer.stored(world.database, newer.head_key(world.heads["waiting"]))
    assert plain(attributes) == {name: plain(kept)[name] for name in attributes}


@in_worlds(
    place=st.sampled_from(PLACES), more=newer.BODIES, is_newest=st.booleans(), values=NEWER_HEADS
)
async def test_what_a_newer_release_wrote_hides_no_task(
    world: World, place: str, more: bytes, values: _Typed, *, is_newest: bool
) -> None:
    """Whatever entries, states and formats: readers, streams and webhooks serve all tasks."""
    head = world.heads[place]
    version = head.version if is_newest else 1
    newer.append_to_body(world.database, newer.event_key(head, version), more)
    await world.answers()
    assert await world.subscribe(place)
    world.set_head(place, values)
    await world.answers()


@in_worlds(place=st.sampled_from(PLACES), body=st.binary(max_size=40))
async def test_a_damaged_commit_hides_no_task(world: World, place: str, body: bytes) -> None:
    """All readers answer with any damage to a commit, even if the opening message is lost."""
    key = newer.event_key(world.heads[place])
    newer.set_attributes(world.database, key, {"body": {"B": body}})
    await world.answers()


# -- entries ---------------------------------------------------------------------------------


@in_worlds(entry=newer.UNKNOWN)
async def test_a_worker_skips_what_may_be_skipped(world: World, entry: Unknown) -> None:
    """A critical entry: no attempt, no commit, the delivery comes again. Else the turn is done."""
    head = world.heads["waiting"]
    body = encode_entries([entry])
    newer.append_to_body(world.database, newer.event_key(head), body)
    agent = Executor(complete)
    bench = world.bench(agent)
    await bench.enqueue(head)
    assert await bench.work() is not entry.is_critical
    after = await world.newest("waiting")
    assert len(agent.started) == (not entry.is_critical)
    if entry.is_critical:
        assert (after.version, after.turn.attempts) == (head.version, head.turn.attempts)
        assert left(world.queue)
    else:
        assert after.state == S.TASK_STATE_COMPLETED
    log = present(await world.storage.read("waiting"))
    assert log.records[0].entries[-1] == entry


# -- HEAD: states, formats -------------------------------------------------------------------


@in_worlds(place=st.sampled_from(["waiting", "claimed", "paused"]), values=NEWER_HEADS)
async def test_a_newer_task_is_not_written(world: World, place: str, values: _Typed) -> None:
    """A message and a cancel get one sentence, in both bindings, and write nothing."""
    head = world.heads[place]
    world.set_head(head, values)
    before = newer.stored(world.database, newer.head_key(head))
    for binding in (JSONRPC, REST):
        async with world.http(binding) as agent:
            sent = await agent.send(
                f"by {binding}", taskId=place, messageId=binding, configuration=IMMEDIATELY
            )
            canceled = await agent.call("CancelTask", {"id": place})
        for answer in (sent, canceled):
            assert answer.reason == "UNSUPPORTED_OPERATION", answer.response.text
            assert answer.message == SENTENCE
    assert newer.stored(world.database, newer.head_key(head)) == before


@in_worlds(
    place=st.sampled_from(["waiting", "claimed"]), values=NEWER_HEADS, receives=st.integers(1, 3)
)
async def test_a_newer_turn(world: World, place: str, values: _Typed, receives: int) -> None:
    """It is given back each time, without attempt or commit; no sweep gives it up or ends it."""
    head = world.heads[place]
    world.set_head(head, values)
    await world.refuses_to_run(head, receives=receives)
    before = await world.newest(place)
    assert await world.bury(head, max_attempts=1) == "left"
    after = await world.newest(place)
    assert after == before
    assert (after.version, after.turn.attempts) == (head.version, head.turn.attempts)
    world.clock.advance(3600)
    sweep = await world.sweep()
    assert (sweep.failed, sweep.given_up) == (0, 0)
    assert (await world.newest(place)).turn.sends == 1


async def test_a_damaged_turn_comes_back_ever_more_rarely(world: World) -> None:
    """Copies of a damaged turn wait twice as long each time, up to an hour."""
    head = world.heads["waiting"]
    newer.append_to_body(world.database, newer.event_key(head), b"T")
    sweeper = Sweeper(world.storage, world.queue, clock=world.clock, give_up_s=24 * 3600)
    sent_after: list[int] = []
    sent_at = world.clock.now_ms()
    while not (await world.newest("waiting")).is_terminal:
        before = await world.newest("waiting")
        assert before.due_at is not None
        world.clock.advance((before.due_at - world.clock.now_ms()) / 1000)
        await sweeper.sweep()
        after = await world.newest("waiting")
        if after.turn.sends > before.turn.sends:
            sent_after.append((world.clock.now_ms() - sent_at) // 1000)
            sent_at = world.clock.now_ms()
            assert await world.bury(head, copy_number=after.turn.sends) == "left"
            assert await world.newest("waiting") == after
    assert sent_after[:7] == [60, 120, 240, 480, 960, 1920, 3600]
    assert set(sent_after[7:]) == {3600}
    given_up = await world.newest("waiting")
    assert given_up.state == S.TASK_STATE_FAILED
    assert given_up.turn.attempts == 0


UNOPENED: Final[Mapping[str, _Typed]] = {
    "no entry": {"body": {"B": b""}},
    "an entry that may be skipped": {"body": {"B": encode_entries([Unknown(b"Z", 0, b"x")])}},
    "a turn beyond the log": {"turn": {"S": '{"number":50,"base":50}'}},
}


@pytest.mark.parametrize("damage", UNOPENED.values(), ids=UNOPENED)
async def test_a_turn_whose_opening_cannot_be_read_waits(world: World, damage: _Typed) -> None:
    """No worker starts a turn whose opening cannot be read, and its dead letter changes nothing."""
    head = world.heads["waiting"]
    item_key = newer.event_key(head) if "body" in damage else newer.head_key(head)
    newer.set_attributes(world.database, item_key, damage)
    before = await world.newest("waiting")
    await world.refuses_to_run(before)
    assert await world.bury(before) == "left"
    assert await world.newest("waiting") == before


async def test_a_running_attempt_that_meets_a_newer_format_stops(world: World) -> None:
    """A running attempt that meets a newer format stops, and does not fail or write the task."""
    head = world.heads["waiting"]

    async def outrun(context: Any, queue: Any) -> None:
        await queue.enqueue_event(chunk(context, "x" * 70_000))
        current = await world.newest("waiting")
        await world.storage.commit(current, Commit())
        needs = {"needs": {"N": str(FORMAT + 1)}}
        world.set_head(head, needs)
        await complete(context, queue)

    bench = world.bench(Executor(outrun), max_attempts=1)
    await bench.enqueue(head)
    assert await bench.work() is False
    world.clock.advance(600)
    assert await bench.work() is False
    after = await world.newest("waiting")
    assert after.state == S.TASK_STATE_WORKING
    assert after.needs == FORMAT + 1


# -- operations ------------------------------------------------------------------------------

FIELDS = st.dictionaries(
    newer.NAMES, st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers())
)
UNKNOWN_OPERATIONS = st.text(max_size=12).filter(lambda name: name not in ("run", "cancel"))


def widened(message: Any, fields: Mapping[str, Any], **values: Any) -> str:
    """The body of a message with fields that this release does not know."""
    body = message.model_dump(mode="json", by_alias=True) | dict(fields) | values
    for name in ("params", "job"):
        if name in body:
            body[name] = body[name] | dict(fields)
    return json.dumps(body)


@in_worlds(place=st.sampled_from(PLACES), name=UNKNOWN_OPERATIONS, fields=FIELDS)
async def test_an_unknown_operation_is_left_to_a_newer_worker(
    world: World, place: str, name: str, fields: Mapping[str, Any]
) -> None:
    """A worker gives it back, whatever has become of its task; a dead letter fails nothing."""
    head = world.heads[place]
    body = widened(Operation.to_run(params_of(head)), fields, operation=name)
    record = {"messageId": "m", "receiptHandle": "r", "body": body}
    attributes = {"ApproximateReceiveCount": "1", "MessageGroupId": "g"}
    handle = world.queue.decode_record({**record, "attributes": attributes})
    assert handle.message.operation == name
    agent = Executor(complete)
    bench = world.bench(agent)
    assert await bench.adapter.process(handle) is False
    letters = DeadLetters(world.storage, world.queue, retry=RetryPolicy(max_attempts=1))
    settled = await letters.handle(body)
    assert settled == ("left" if place in {"waiting", "claimed"} else "dropped")
    after = await world.newest(place)
    assert (after.version, after.turn.attempts) == (head.version, head.turn.attempts)
    assert agent.started == []


@in_worlds(fields=FIELDS)
async def test_newer_fields_are_ignored(world: World, fields: Mapping[str, Any]) -> None:
    """A run with more fields runs, and a push job with more is delivered."""
    head = world.heads["waiting"]
    await world.queue.send(Operation.to_run(params_of(head)))
    record = present(take(world.queue))
    wide = record | {"body": widened(Operation.to_run(params_of(head)), fields)}
    bench = world.bench(Executor(complete))
    assert await bench.adapter.process(world.queue.decode_record(wide))
    assert (await world.newest("waiting")).state == S.TASK_STATE_COMPLETED
    named: dict[str, Any] = {"scope": head.scope, "task_id": head.task_id, "config_id": "hook"}
    job = PushJob(**named, incarnation=head.incarnation, version=1)
    assert PushJob.model_validate_json(widened(job, fields)) == job


# -- damaged items ---------------------------------------------------------------------------

ODD: Final[_Typed] = {"M": {"a": {"L": []}}}
HEADS: Final[Mapping[str, tuple[_Typed, tuple[str, ...]]]] = {
    "without a version": ({}, ("version",)),
    "without a state": ({}, ("state",)),
    "without a turn": ({}, ("turn",)),
    "a number for a text": ({"context_id": {"N": "1"}}, ()),
    "a text for a number": ({"next_turn": {"S": "1"}}, ()),
    "a broken number": ({"due_at": {"N": "1.5"}}, ()),
    "no JSON": ({"cancel": {"S": "{"}}, ()),
    "usage that is no list": ({"usage": {"S": "{}"}}, ()),
    "usage without numbers": ({"usage": {"S": '[["model", "1"]]'}}, ()),
    "another type": ({"turn": ODD}, ()),
}
"""What is written to HEAD, and the attributes that are taken away."""


@pytest.mark.parametrize("damage", HEADS.values(), ids=HEADS)
async def test_a_damaged_head_hides_no_other_task(
    world: World, damage: tuple[_Typed, tuple[str, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    """One error names its key in every place; lists, sweeps and webhooks go on with the others."""
    head = world.heads["claimed"]
    key = newer.head_key(head)
    newer.set_attributes(world.database, key, damage[0])
    if damage[1]:
        newer.remove_attributes(world.database, key, *damage[1])
    before = newer.stored(world.database, key)
    others = set(PLACES) - {"claimed"}
    for query in (ListTasksQuery(), ListTasksQuery(context_id="c")):
        found = await list_tasks(world.storage, query)
        assert {task.id for task in found.tasks} == others
    looks = await world.storage.look([(head.scope, place) for place in PLACES])
    assert {task for (_, task), seen in looks.items() if seen is not None} == others
    for asked in (world.storage.head("claimed"), world.storage.read("claimed")):
        with pytest.raises(UnreadableTaskError, match="HEAD of task claimed"):
            await asked
    world.clock.advance(3600)
    report = await world.sweep()
    assert (report.sent, report.failed) == (1, 0)
    await world.push_all()
    assert await world.bury(head) == "dropped"
    async with world.http(REST) as agent:
        assert is_answer(await agent.call("GetTask", {"id": "paused"}))
        for call in ("GetTask", "CancelTask"):
            assert not is_answer(await agent.call(call, {"id": "claimed"}))
    assert all("HEAD of task claimed is damaged" in line for line in unreadable(caplog))
    assert newer.stored(world.database, key) == before


LATE: Final = TaskStatus(state=S.TASK_STATE_WORKING, timestamp=Timestamp(seconds=2**60))


def numbers(**values: float) -> Struct:
    """A Struct of numbers, also of those that JSON does not have."""
    return Struct(fields={name: Value(number_value=number) for name, number in values.items()})


UNSHOWABLE: Final[Mapping[str, Entry]] = {
    "metadata": MetadataMerged(numbers(a=math.nan)),
    "artifact": ArtifactWritten(
        Artifact(artifact_id="z", parts=[Part(data=Value(number_value=-math.inf))])
    ),
    "time": StatusChanged(LATE),
    "nanos": StatusChanged(TaskStatus(timestamp=Timestamp(nanos=-1))),
}


@pytest.mark.parametrize("entry", UNSHOWABLE.values(), ids=UNSHOWABLE)
async def test_what_no_json_can_show_is_left_out_of_its_task(world: World, entry: Entry) -> None:
    """What JSON does not have is an unreadable entry; in HEAD's copy it is shown from the log."""
    key = newer.event_key(world.heads["ended"], 2)
    newer.append_to_body(world.database, key, encode_entries([entry]))
    await world.show_all()
    assert present(await world.storage.read("ended")).needs_newer
    status, metadata = LATE.SerializeToString(), numbers(a=math.inf).SerializeToString()
    world.set_head("ended", {"status": {"B": status}, "metadata": {"B": metadata}})
    for binding in (JSONRPC, REST):
        async with world.http(binding) as agent:
            listed = await agent.call("ListTasks", {"historyLength": 0})
            shown = {task["id"]: task for task in listed.result["tasks"]}
            assert set(shown) == set(PLACES)
            assert shown["ended"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_damaged_copy_in_a_head_is_that_of_the_log(world: World) -> None:
    """A list reads the log of such a task, and what is written next leaves the copy away."""
    paused = S.TASK_STATE_AUTH_REQUIRED
    entries = (StatusChanged(TaskStatus(state=paused)), MetadataMerged(numbers(a=1)))
    head = await world.storage.commit(world.heads["claimed"], Commit(entries=entries, token="t"))
    world.set_head(head, {name: {"B": b"\xff"} for name in ("status", "metadata")})
    query = ListTasksQuery(history_length=0, include_artifacts=False)
    listed = {task.id: task for task in (await list_tasks(world.storage, query)).tasks}
    assert (set(listed), listed["claimed"].status.state) == (set(PLACES), paused)
    async with world.http(REST) as agent:
        assert is_answer(await agent.send("here", taskId="claimed", configuration=IMMEDIATELY))
    merge = Commit(entries=(MetadataMerged(numbers(b=2)),), token="t")
    head = await world.storage.commit(await world.newest("claimed"), merge)
    assert (head.status, head.metadata) == (None, None)
    task = present(await world.storage.load_task("claimed", 0, include_artifacts=False))
    assert (task.status.state, dict(task.metadata)) == (paused, {"a": 1, "b": 2})


@pytest.mark.parametrize("is_newer", [False, True], ids=["damaged", "newer"])
async def test_a_sweep_goes_past_tasks_that_cannot_be_read(
    world: World, caplog: pytest.LogCaptureFixture, *, is_newer: bool
) -> None:
    """It reaches what is behind more of them than it may repair, and none ends or fails them."""
    for number in range(7):
        head = (await world.storage.open_task("c", request(), task_id=f"bad-{number}")).head
        await world.storage.request_cancel(head.task_id)
        if is_newer:
            world.set_head(head, {"needs": {"N": str(FORMAT + 1)}})
        else:
            newer.remove_attributes(world.database, newer.head_key(head), "version")
    world.clock.advance(1)
    await world.storage.open_task("c", request(), task_id="last")
    await world.storage.open_task("c", request(), task_id="canceled")
    await world.storage.request_cancel("canceled")
    for place in PLACES:
        await delete_task(world.storage, place)
    world.clock.advance(3600)
    report = await world.sweep(limit=2)
    assert report == SweepReport(canceled=1, sent=1, skipped=7)
    assert (await world.newest("last")).turn.sends == 1
    if is_newer:
        await delete_task(world.storage, "last")
        for _ in range(5):
            world.clock.advance(24 * 3600)
            report = await world.sweep()
            assert (report.failed, report.given_up, report.canceled) == (0, 0, 0)
        assert (await world.newest("bad-0")).is_being_canceled
        return
    lines = unreadable(caplog)
    assert len(lines) == 7
    told = "An overdue task is left as it is until its item is restored from a backup or deleted:"
    for number, line in enumerate(sorted(lines)):
        assert line.startswith(f"{told} HEAD of task bad-{number} is damaged (")
        assert "version" in line


def unreadable(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about tasks that cannot be read."""
    lines = [r for r in caplog.records if getattr(r, "action", "") == "unreadable_task"]
    assert lines
    assert not any(record.exc_info for record in lines)
    return [record.getMessage() for record in lines]


@pytest.mark.parametrize("is_lost", [False, True], ids=["in parts", "lost"])
async def test_a_commit_that_is_not_there_hides_no_other_task(
    world: World, caplog: pytest.LogCaptureFixture, *, is_lost: bool
) -> None:
    """Lists leave its task out with one line; who asks for it is not told to try again."""
    key = newer.event_key(world.heads["waiting"])
    if is_lost:
        world.database.delete(key)
    else:
        newer.set_attributes(world.database, key, {"parts": {"N": "2"}})
    sentence = "Version 1 of task waiting is not there, or was stored in part."
    found = await list_tasks(world.storage, ListTasksQuery())
    assert {task.id for task in found.tasks} == set(PLACES) - {"waiting"}
    assert unreadable(caplog) == [f"A task is left out: {sentence}"]
    short = ListTasksQuery(history_length=0, include_artifacts=False)
    assert len((await list_tasks(world.storage, short)).tasks) == len(PLACES)
    with pytest.raises(UnreadableTaskError, match=sentence):
        await world.storage.read("waiting")
    assert await world.bury(world.heads["waiting"]) == "dropped"
    for binding in (JSONRPC, REST):
        async with world.http(binding) as agent:
            shown = await agent.call("GetTask", {"id": "waiting"})
            assert "The stored task is damaged" in shown.response.text
            assert "try again" not in shown.response.text


async def test_a_commit_that_comes_in_late_is_no_damage(world: World) -> None:
    """A gap that other commits fill while it is read is not taken for one that stays."""
    head = world.heads["claimed"]
    late = [newer.stored(world.database, newer.event_key(head, n)) for n in (1, 2)]
    for item in late:
        world.database.delete({name: item[name] for name in ("PK", "SK")})
    sleep = world.clock.sleep

    async def put_and_sleep(seconds: float) -> None:
        if late:
            world.database.put(late.pop(0))
        await sleep(seconds)

    world.clock.sleep = put_and_sleep  # type: ignore[method-assign]
    assert len(present(await world.storage.read("claimed")).records) == 2


CONTEXTS: Final[tuple[_Typed, ...]] = (
    {},
    {"value": {"S": "{"}, "version": {"N": "1"}},
    {"value": {"S": "{}"}},
    {"value": {"S": "{}"}, "version": {"S": "1"}},
)


async def test_a_damaged_context_is_named_and_deleted(world: World) -> None:
    """A damaged context is refused with one sentence, and can be deleted."""
    (item,) = [i for i in world.database.items() if i["SK"]["S"] == "CONTEXT"]
    for values in CONTEXTS:
        world.database.put({name: item[name] for name in ("PK", "SK")} | values)
        with pytest.raises(UnreadableTaskError, match="The state of context c is damaged: restore"):
            await world.storage.contexts.load("c")
        with pytest.raises(ConcurrencyError):
            await world.storage.contexts.put("c", context_write({}, expected_version=9))
        await delete_context(world.storage, "c")
        assert await world.storage.contexts.load("c") == (None, 0)
