"""The line at the end of each turn, over every table: what it says, and what it leaves out."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
from a2a.types import TaskStatus

from a2a_serverless.observability.logs import begun, works_on
from a2a_serverless.settings import Settings
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.entries import Caller, ModelsUsed, StatusChanged, Unknown
from a2a_serverless.tasks.head import Operation
from a2a_serverless.tasks.identity import caller_number, new_token
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.tasks.usage import Usage
from a2a_serverless.wiring import memory_backends, table_backends
from a2a_serverless.worker import TaskContext, lease
from a2a_serverless.worker.loops import have_threads
from a2a_serverless.worker.sweeper import GIVE_UP_S, DeadLetters
from tests.support.clocks import ManualClock
from tests.support.databases import Database, create_table, emulator_client
from tests.support.emulators import Emulator
from tests.support.observed import Line, counted, logged
from tests.support.present import present
from tests.support.workers import PacedClock, S, params_of
from tests.unit.worker.test_steps import Stand

Handle = Callable[[TaskContext], Awaitable[None]]
Stands = Callable[..., Stand]
AT_ONCE = "x" * 70_000
"""A text that is committed when the call that emits it returns: it claims the turn."""


@pytest.fixture
def database(local_dynamodb: Emulator) -> Iterator[Database]:
    """A table of its own: turns of other tests that wait for a share would be before these."""
    client, name = emulator_client(local_dynamodb), f"tasks-{uuid4()}"
    create_table(client, name)
    yield Database(client=client, table=name)
    client.close()


@pytest.fixture
def stands(backend: Table, clock: ManualClock) -> Stands:
    """A worker, its queue and its sweeper, on the table under test."""
    names = {name: f"{name}-{uuid4()}" for name in ("queue", "dead_letter_queue")}
    paced = PacedClock()
    paced._now = (clock.now_ms() - paced.now_ms()) / 1000

    def stand(handle: Handle, **settings: object) -> Stand:
        chosen = Settings().model_copy(update=names)
        backends = table_backends(chosen, backend, paced)
        if backend.partition_units is not None:  # no function has its queue on DynamoDB
            queue = memory_backends(chosen, paced).operations
            backends = replace(backends, operations=queue)
        return Stand(handle, clock=paced, backends=backends, **settings)

    return stand


def ends(lines: list[Line]) -> list[Line]:
    """The lines at the ends of turns."""
    return [line for line in lines if line.get("action") == "turn_ended"]


def only(lines: list[Line], action: str = "turn_ended") -> Line:
    (line,) = [line for line in lines if line.get("action") == action]
    return line


async def echo(ctx: TaskContext) -> None:
    await ctx.complete("done")


def pass_over(stand: Stand, seconds: float) -> None:
    assert isinstance(stand.clock, PacedClock)
    stand.clock._now += seconds


async def test_a_line(stands: Stands, backend: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its times, its one commit, caller and function; units where the table reports them."""
    monkeypatch.setattr(lease, "process_name", lambda: "echo:7 2026/11/29/[7]0")
    stand = stands(echo)
    with logged() as lines, counted() as metrics:
        stand.task = await stand.bench.send(caller=Caller(user="ann"))
        pass_over(stand, 3)
        await stand.bench.work()
    line = only(lines)
    known = {"task_id": stand.task.task_id, "context_id": "ctx", "turn": 1, "state": "completed"}
    known |= {"attempts": 1, "waits": {}, "commits": 1, "code_version": "7", "queued_ms": 3000}
    known |= {"running_ms": 0, "waiting_ms": 0, "attempt_ms": 0, "total_ms": 3000}
    known |= {"caller": caller_number("ann")}
    assert {name: line.get(name) for name in known} == known
    assert {"reason", "tokens", "cost"} & line.keys() == set()
    is_dynamodb = backend.partition_units is not None
    assert ("read_units" in line, "write_units" in line) == (is_dynamodb, is_dynamodb)
    assert ("storing_ms" in line) == (is_dynamodb or isinstance(backend, SqliteTable))
    assert metrics.values("TimeRunning") == [0]
    assert re.fullmatch("[0-9a-f]{16}", line["correlation_id"])
    assert only(lines, "attempt")["correlation_id"] == line["correlation_id"]


async def test_an_attempt_that_failed_counts_with_the_next(stands: Stands) -> None:
    """Attempts, retries, both times and all tokens; each attempt has an id of its own."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact(AT_ONCE)
        pass_over(stand, 2)
        ctx.usage("m", input_tokens=10)
        if stand.script.starts == 1:
            raise ValueError("hunter2")
        await ctx.complete("done")

    stand = stands(handle)
    with logged() as lines:
        await stand.send()
        await stand.bench.work()
        pass_over(stand, 5)
        await stand.bench.work()
    line = only(lines)
    assert (line["attempts"], line["waits"]) == (2, {"retry": 1})
    assert (line["running_ms"], line["attempt_ms"], line["waiting_ms"]) == (4000, 2000, 5000)
    assert line["total_ms"] == line["queued_ms"] + line["running_ms"] + line["waiting_ms"]
    assert (line["tokens"], line["commits"]) == (20, 5)
    ids = {each["correlation_id"] for each in lines if each.get("action") == "attempt"}
    assert len(ids) == 2
    assert only(lines, "retry")["correlation_id"] in ids - {line["correlation_id"]}


async def test_what_a_lost_attempt_has_taken_is_not_guessed(stands: Stands) -> None:
    """Its process has said nothing: the sum of the attempts is left out, and the rest is told."""
    stand = stands(echo)
    with logged() as lines:
        head = await stand.send()
        claim = Commit(token=new_token(), claims=True, worker="dead")
        await stand.bench.storage_of(head).commit(head, claim)
        pass_over(stand, 6000)
        # As SQS brings it again to a worker of its own.
        await stand.bench.adapter.process(await stand.bench.deliver(), is_quarantined=True)
    line = only(lines)
    assert (line["attempts"], line["waits"], line["total_ms"]) == (2, {"lost": 1}, 6_000_000)
    assert {"running_ms", "waiting_ms"} & line.keys() == set()
    assert (line["attempt_ms"], line["queued_ms"]) == (0, 0)


async def test_a_turn_that_slept(stands: Stands) -> None:
    """It is woken by the sweeper, and one line at its end tells of both attempts."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.step("first", str, 1)
        pass_over(stand, 2)
        await ctx.sleep(3600)
        await ctx.complete("done")

    stand = stands(handle)
    with logged() as lines:
        await stand.send()
        await stand.bench.work()
        assert ends(lines) == []
        await stand.pass_time(3600)
        await stand.bench.work()
    line = only(lines)
    assert (line["attempts"], line["waits"]) == (2, {"asleep": 1})
    assert (line["waiting_ms"], line["running_ms"]) == (3_600_000, 4000)


async def test_a_turn_that_stood_in_line(stands: Stands) -> None:
    """Its first attempt knows for what it was left; that time is a part of the queue's."""
    stand = stands(echo)
    with logged() as lines:
        head = await stand.send()
        storage = stand.bench.storage_of(head)
        left = present(await storage.park(head, "share"))
        pass_over(stand, 30)
        assert await storage.requeue(left)
        await stand.bench.work()
    line = only(lines)
    assert (line["attempts"], line["waits"], line["queued_ms"]) == (1, {"share": 1}, 30_000)


async def test_the_second_turn_counts_for_itself(stands: Stands) -> None:
    """A turn that asks back has ended; the next one has its own numbers and tokens."""

    async def handle(ctx: TaskContext) -> None:
        ctx.usage("m", input_tokens=10 * stand.script.starts)
        await (ctx.request_input("which?") if stand.script.starts == 1 else ctx.complete("done"))

    stand = stands(handle)
    with logged() as lines:
        head = await stand.send()
        await stand.bench.work()
        pass_over(stand, 60)
        await stand.bench.follow_up(head, "this")
        pass_over(stand, 1)
        await stand.bench.work()
    first, second = ends(lines)
    assert (first["state"], first["tokens"], first["turn"]) == ("input_required", 10, 1)
    assert (second["state"], second["tokens"], second["turn"]) == ("completed", 20, 3)
    assert (second["queued_ms"], second["commits"], second["attempts"]) == (1000, 1, 1)


async def test_why_a_task_has_failed(stands: Stands) -> None:
    """The type of the exception, under the id that the client reads; no text of the author's."""

    async def handle(ctx: TaskContext) -> None:
        if stand.script.starts == 1:
            raise ValueError("hunter2")
        await ctx.fail("swordfish")

    stand = stands(handle, max_attempts=1)
    with logged() as lines, counted() as metrics:
        for _ in range(2):
            await stand.send()
            await stand.bench.work()
            if stand.script.starts == 1:
                text = await stand.text()
    raised, told = ends(lines)
    assert (raised["state"], raised["reason"], told["reason"]) == ("failed", "ValueError", "agent")
    assert raised["correlation_id"] in text
    assert not re.search("hunter2|swordfish", str(ends(lines)))
    assert metrics.total("TasksFailed", reason="raised") == 1
    assert metrics.total("TasksFailed", reason="agent") == 1


async def test_what_the_sweeper_ends(stands: Stands) -> None:
    """A cancel at its deadline, a turn that cannot start: by what HEAD knows, each with its id."""
    stand = stands(echo)
    with logged() as lines:
        head = await stand.send()
        await stand.bench.storage_of(head).request_cancel(head.task_id)
        await stand.pass_time(20)
    line = only(lines)
    assert (line["state"], line["attempts"], line["total_ms"]) == ("canceled", 0, 20_000)
    assert {"queued_ms", "running_ms", "caller", "reason"} & line.keys() == set()
    assert only(lines, "cancel_at_deadline")["correlation_id"] == line["correlation_id"]
    with logged() as lines:
        await stand.send()
        await stand.pass_time(600)
        await stand.pass_time(GIVE_UP_S)
    line = only(lines)
    assert (line["state"], line["reason"], line["attempts"]) == ("failed", "never_started", 0)
    of_task = [each for each in lines if each.get("task_id") == stand.task.task_id]
    assert len({each["correlation_id"] for each in of_task}) == 2


async def test_a_dead_letter_ends_its_turn_with_the_same_line(stands: Stands) -> None:
    """The last attempt is lost: that is the reason, and the client reads the line's id."""
    stand = stands(echo, max_attempts=1)
    retry = stand.bench.adapter.retry
    letters = DeadLetters(stand.bench.storage, stand.bench.operations, retry=retry)
    with logged() as lines:
        head = await stand.send()
        claim = Commit(token=new_token(), claims=True)
        await stand.bench.storage_of(head).commit(head, claim)
        letter = Operation.to_run(params_of(head)).model_dump_json()
        assert await letters.handle(letter) == "failed"
    line = only(lines)
    assert (line["reason"], line["attempts"], line["waits"]) == ("lost", 1, {})
    assert line["correlation_id"] in await stand.text()


async def test_damaged_times_and_counts_are_left_out(stands: Stands) -> None:
    """The line is written all the same, without the numbers that nobody knows."""
    stand = stands(echo)
    head = await stand.send()
    storage, token = stand.bench.storage_of(head), new_token()
    log = present(await storage.read(head.task_id))
    opened = replace(log.records[0], at=None)
    opened = replace(opened, entries=(*opened.entries, Unknown(b"U", 0, b"damaged")))
    done = StatusChanged(TaskStatus(state=S.TASK_STATE_COMPLETED))
    end = Commit(token=token, claims=True, entries=(ModelsUsed((Usage("m", 1, 5),)), done))
    with logged() as lines, begun():
        works_on(replace(log, records=(opened,)), stand.clock.now_ms())
        await storage.commit(head, end)
    line = only(lines)
    assert (line["state"], line["attempts"], line["running_ms"]) == ("completed", 1, 0)
    assert {"queued_ms", "total_ms", "tokens"} & line.keys() == set()


async def test_lines_from_the_agents_own_threads(stands: Stands) -> None:
    """Whatever thread the agent and its libraries log in, the line names the turn and its work."""
    own = logging.getLogger("mine")

    async def handle(ctx: TaskContext) -> None:
        have_threads(asyncio.get_running_loop(), 1)
        await asyncio.to_thread(own.warning, "to_thread")
        await ctx.run_sync(own.warning, "run_sync")
        await asyncio.get_running_loop().run_in_executor(None, own.warning, "run_in_executor")
        await ctx.complete("done")

    stand = stands(handle)
    with logged() as lines:
        await stand.send()
        await stand.bench.work()
    mine = [line for line in lines if line["name"] == "mine"]
    assert [line["message"] for line in mine] == ["to_thread", "run_sync", "run_in_executor"]
    end = only(lines)
    for name in ("task_id", "turn", "attempt", "correlation_id"):
        assert {line[name] for line in mine} == {end[name]}
