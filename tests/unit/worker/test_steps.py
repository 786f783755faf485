"""Turns that go on at their records: steps, hand-over, sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle
from typing import Annotated, Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part, Task
from pydantic import Field

from a2a_serverless import steps
from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import head_key
from a2a_serverless.tasks import head as heads
from a2a_serverless.tasks.blobs import BlobOwner
from a2a_serverless.tasks.entries import Recorded, StepId
from a2a_serverless.tasks.head import Operation
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import FinalError, Retry, StepError, TaskContext
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.failures import WrongCallError
from a2a_serverless.worker.steps import MAX_OFFLOADED_BYTES
from tests.support.clocks import ManualClock
from tests.support.present import present
from tests.support.queues import left
from tests.support.workers import Agent, S, chunk, idle, params_of, status
from tests.unit.worker.stand import Handle, Log, Patch, Script, Stand, beside, lines, run, sent
from tests.unit.worker.test_ends_of_attempts import (
    PLACES,
    Exits,
    Place,
    UnsayableError,
    exits,
    interrupts,
)

__all__ = ["Handle", "Script", "Stand", "run"]


async def test_a_recorded_step_does_not_run_again() -> None:
    """The second attempt gets what the first has recorded, and runs what was under way."""
    ran: list[str] = []

    def plan(text: str) -> tuple[str, ...]:
        ran.append("plan")
        return text, "b"

    async def search(what: str) -> dict[int, int]:
        ran.append(what)
        if len(ran) == 2:
            raise RuntimeError("no")
        return {1: len(what)}

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("intro", "a")
        words = await ctx.step("plan", plan, "a")
        await ctx.emit_text_artifact("planned", "a", append=True)
        found = await ctx.step("search", search, words[0])
        await ctx.complete(f"{words} {found}")

    stand, head = await run(handle)
    assert (head.state, stand.script.starts, ran) == (S.TASK_STATE_COMPLETED, 2, ["plan", "a", "a"])
    # Results are as their records have them, also in the attempt that has made them.
    final = ["['a', 'b'] {'1': 1}"]
    assert await stand.artifacts() == {"a": ["introplanned"], "final-answer": final}


async def test_a_result_comes_back_as_it_was() -> None:
    """Bytes and JSON values are the same in the attempt that goes on."""
    values, got = [b"\x00\xff", "text", None, [1, {"a": True}]], list[Any]()

    async def handle(ctx: TaskContext) -> None:
        got.append([await ctx.step("make", values.__getitem__, n) for n in range(len(values))])
        if len(got) == 1:
            raise RuntimeError("once more")
        await ctx.complete()

    await run(handle)
    assert got == [values, values]


async def test_a_step_in_a_step_is_a_plain_call() -> None:
    """Only the outer one is recorded, and `ctx.step_id` is its id."""
    ids: list[str] = []

    async def inner(ctx: TaskContext) -> tuple[int]:
        ids.append(ctx.step_id)
        return (1,)

    async def outer(ctx: TaskContext) -> bool:
        ids.append(ctx.step_id)
        return bool(await ctx.step("inner", inner, ctx) == (1,))

    async def handle(ctx: TaskContext) -> None:
        assert await ctx.step("outer", outer, ctx)
        with pytest.raises(RuntimeError, match="is the id of a step"):
            _ = ctx.step_id
        await ctx.complete()

    stand, head = await run(handle)
    assert (head.state, len(set(ids))) == (S.TASK_STATE_COMPLETED, 1)
    assert (await stand.kinds()).count("Recorded") == 1


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (ValueError("no such page"), "ValueError: no such page"),
        (UnsayableError(), "UnsayableError: (its text cannot be read)"),
        (type("Stop", (BaseException,), {})("enough"), "Stop: enough"),  # as pytest's own are
    ],
)
async def test_a_failure_is_recorded_if_an_agent_goes_on(failure: BaseException, says: str) -> None:
    """Behind its tries the agent gets the same error in later attempts; no other try is made."""
    ran, told = list[int](), list[StepError]()

    def fetch() -> None:
        ran.append(1)
        raise failure

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(StepError) as raised:
            await ctx.step("fetch", fetch, retry=Retry(tries=2, base_s=0))
        told.append(raised.value)
        await ctx.send_status("going on")
        await ctx.step("next", len, "x")
        if len(told) == 1:
            raise failure
        await ctx.complete()

    stand, head = await run(handle)
    assert (head.state, stand.script.starts, len(ran)) == (S.TASK_STATE_COMPLETED, 2, 2)
    assert [str(error) for error in told] == [f"step 'fetch' failed with {says}"] * 2
    assert told[0].__cause__ is failure


@pytest.mark.parametrize(
    ("place", "call"), [*zip(PLACES, cycle([exits, interrupts]), strict=False)]
)
async def test_an_exit_of_a_step_ends_its_attempt(place: Place, call: Exits) -> None:
    """It counts as a dead process's; nothing is tried again, recorded or caught, in a task too."""
    ran: list[int] = []

    async def leave() -> int:
        ran.append(1)
        if len(ran) < 3:
            await place(call)
        return len(ran)

    async def handle(ctx: TaskContext) -> None:
        got: Any = None
        try:
            got = await ctx.step("leave", leave, retry=Retry(tries=5, base_s=0))
        except Exception as error:  # noqa: BLE001 - it must not meet the exit
            got = error
        await ctx.respond(f"{got}")

    stand, head = await run(handle, max_attempts=1)
    assert (head.state, len(ran)) == (S.TASK_STATE_FAILED, 1)
    assert "Recorded" not in await stand.kinds()
    stand, head = await run(handle, max_attempts=2)
    assert (head.state, await stand.text(), len(ran)) == (S.TASK_STATE_COMPLETED, "3", 3)


async def test_a_step_in_a_thread_ends_with_its_attempt() -> None:
    """It has a loop of its own, in which no task is cancelled: the thread is not left behind."""
    over = threading.Event()

    async def handle(ctx: TaskContext) -> None:
        lease = active_turn(ctx).lease
        began, home = asyncio.Event(), asyncio.get_running_loop()

        async def fails() -> None:
            home.call_soon_threadsafe(began.set)
            stopped = asyncio.run_coroutine_threadsafe(lease.stopped.wait(), home)
            await asyncio.wrap_future(stopped)
            raise ValueError

        async def in_its_loop() -> None:
            await ctx.step("fails", fails, retry=Retry(tries=2, base_s=0))

        def in_a_thread() -> None:
            try:
                asyncio.run(in_its_loop())
            finally:
                over.set()

        async def leave() -> None:
            await began.wait()
            await exits()

        await ctx.gather(leave(), ctx.run_sync(in_a_thread))

    _, head = await run(handle, max_attempts=1)
    assert head.state == S.TASK_STATE_FAILED
    assert await asyncio.to_thread(over.wait, 10)


async def test_what_the_runtime_acts_on_leaves_a_step_with_its_causes() -> None:
    """A FinalError comes through as it was raised: its cause is still the service's exception."""
    error = FinalError("no account")
    error.__cause__ = ConnectionError("refused")

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(FinalError) as raised:
            await ctx.step("charge", AsyncMock(side_effect=error))
        assert raised.value.__cause__ is error.__cause__
        await ctx.complete("done")

    _, head = await run(handle)
    assert head.state == S.TASK_STATE_COMPLETED


async def test_a_failure_beside_a_record_is_tried_again() -> None:
    """A step that ends beside it does not record the failure: the next attempt tries again."""
    ran, failed = list[str](), asyncio.Event()

    async def bad() -> None:
        ran.append("bad")
        failed.set()
        if len(ran) == 1:
            raise ValueError

    async def handle(ctx: TaskContext) -> None:
        await ctx.gather(ctx.step("good", failed.wait), ctx.step("bad", bad))
        await ctx.complete()

    _, head = await run(handle)
    assert (head.state, ran) == (S.TASK_STATE_COMPLETED, ["bad", "bad"])


async def test_a_step_is_tried_again_in_its_attempt() -> None:
    """`retry` tries it again; waits of a minute or more hold no worker, and tries are counted."""
    ran: list[int] = []

    def fetch() -> int:
        ran.append(1)
        if len(ran) < 4:
            raise ValueError
        return len(ran)

    async def handle(ctx: TaskContext) -> None:
        got = await ctx.step("fetch", fetch, retry=Retry(tries=4, base_s=30, cap_s=100))
        await ctx.complete(str(got))

    stand, head = await run(handle, clock=ManualClock())
    assert (len(ran), head.turn.parked, head.turn.attempts) == (2, "asleep", 0)
    await stand.pass_time(60)
    await stand.work()
    assert len(ran) == 3
    await stand.pass_time(100)
    head = await stand.work()
    assert (head.state, len(ran), stand.script.starts) == (S.TASK_STATE_COMPLETED, 4, 3)


async def test_attempts_count_without_progress() -> None:
    """A turn that records a step before each failure is not failed after MaxAttempts."""
    ran: list[int] = []

    async def handle(ctx: TaskContext) -> None:
        for number in range(8):
            before = len(ran)
            await ctx.step("work", ran.append, number)
            if len(ran) > before:
                raise RuntimeError("died")
        await ctx.complete()

    stand, head = await run(handle, max_attempts=2)
    assert (head.state, stand.script.starts, ran) == (S.TASK_STATE_COMPLETED, 9, list(range(8)))


async def test_code_that_has_changed_finds_its_records() -> None:
    """Steps that were put in, moved or taken out do not disturb those that are recorded."""
    ran, got = list[str](), list[str]()
    order = [["a", "b", "fail"], ["x", "b", "a", "a"]]

    def work(name: str) -> str:
        if name == "fail":
            raise RuntimeError
        ran.append(name)
        return name.upper()

    async def handle(ctx: TaskContext) -> None:
        got[:] = [await ctx.step(name, work, name) for name in order.pop(0)]
        await ctx.complete()

    await run(handle)
    assert (ran, got) == (["a", "b", "x", "a"], ["X", "B", "A", "A"])


FIXED, ANEW = "1b4e28ba-2fa1-41d2-883f-0016d3cca427", "9f1c7a52-93d4-4a3e-9d3b-2f4f5b0f6f11"
"""As the SDK makes them, at random."""


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ([("a", "good morning"), ("a", "good evening")], {"a": ["good evening"]}),
        ([("first", "text"), ("second", "text")], {"second": ["text"]}),
        ([(FIXED, "first"), (ANEW, "second")], {ANEW: ["second"]}),
    ],
)
async def test_what_is_said_otherwise_starts_the_turn_over(said: Any, shown: Any) -> None:
    """What an attempt says otherwise, or not any more, is never mixed: all runs again."""
    ran: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        name, text = said[min(stand.script.starts, 2) - 1]
        await ctx.emit_text_artifact(text, name)
        await ctx.step("work", ran.append, "work")
        if stand.script.starts == 1:
            raise RuntimeError
        await ctx.complete()

    stand = Stand(handle, max_attempts=3)
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED
    assert (await stand.artifacts(), ran) == (shown, ["work", "work"])


@pytest.mark.parametrize("most", [1, 3])
async def test_code_that_differs_each_time_ends(most: int, caplog: Log) -> None:
    """It begins as often as it has attempts; then the task fails, and says what has differed."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact(f"It is {ctx.task_id} {stand.clock.now_ms()}", "day")
        for _ in range(20):
            await ctx.step("part", stand.last, 120)
        await ctx.complete()

    stand = Stand(handle, max_attempts=most)
    head = await stand.work(deadline_s=900)
    # Of each beginning one attempt is handed over, and the next one differs from it.
    assert (head.state, stand.script.starts) == (S.TASK_STATE_FAILED, 2 * most)
    assert (await stand.kinds()).count("Restarted") == most - 1
    assert (await stand.text()).startswith(
        "The agent's code has run again and said another content of artifact 'day', outside of"
        " steps, and the turn has no attempt left: take what differs from run to run, such as the"
        " time or a random number, from a step."
    )
    told = [each["said"] for each in lines(caplog, "non_determinism")]
    assert len(told) == most
    assert all(" from a step. (" in one and "test_steps.py, line " in one for one in told)


async def test_a_failure_after_a_new_beginning_has_all_its_attempts() -> None:
    """Beginnings count where the code differs, and nowhere else."""
    ran: list[int] = []

    async def handle(ctx: TaskContext) -> None:
        ran.append(len(ran))
        await ctx.emit_text_artifact(str(min(ran[-1], 3)))  # differs in the second and fourth
        await ctx.step("work", len, "x")
        if ran[-1] < 5:
            raise RuntimeError
        await ctx.complete()

    _, head = await run(handle, max_attempts=3)
    assert (head.state, ran) == (S.TASK_STATE_COMPLETED, list(range(6)))


@pytest.mark.parametrize(("count", "seconds", "starts"), [(20, 120, 3), (4, 400, 3)])
async def test_a_turn_beyond_a_worker_is_handed_over(count: int, seconds: int, starts: int) -> None:
    """Each step and event once, no attempt used; it leaves before a step that may not end."""
    ran: list[int] = []

    async def handle(ctx: TaskContext) -> None:
        for number in range(count):
            await ctx.step("part", part, number)
            await ctx.emit_text_artifact(f"{number} ", append=True)
        await ctx.complete()

    async def part(number: int) -> None:
        ran.append(number)
        await stand.last(seconds)

    stand = Stand(handle, max_attempts=1)
    head = await stand.work(deadline_s=900)
    assert (head.state, stand.script.starts) == (S.TASK_STATE_COMPLETED, starts)
    assert (ran, head.turn.resends) == (list(range(count)), 0)
    kinds = await stand.kinds()
    assert "Restarted" not in kinds
    assert kinds.count("ArtifactWritten") == count


async def test_a_turn_whose_leaving_is_not_stored_is_tried_again(monkeypatch: Patch) -> None:
    """It has not left then: its delivery comes again, and it sleeps from there on."""
    commit, lost = DurableStorage.commit, list[Commit]()

    async def away(storage: DurableStorage, head: heads.Head, wanted: Commit) -> heads.Head:
        if wanted.parks and not lost:
            lost.append(wanted)
            raise UnavailableError
        return await commit(storage, head, wanted)

    monkeypatch.setattr(DurableStorage, "commit", away)
    heard: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.sleep(3600)
        except BaseException as error:
            heard.append(type(error).__name__)
            raise

    stand, head = await run(handle, clock=ManualClock())
    assert (head.turn.parked, stand.script.starts, len(lost)) == ("asleep", 2, 1)
    assert heard == ["CancelledError", "TurnParked"]


async def test_a_turn_that_is_to_be_canceled_is_not_handed_over() -> None:
    """A step that goes on in spite of the cancel is recorded; then the agent goes on to its end."""
    heard: list[str] = []

    async def stubborn(ctx: TaskContext) -> None:
        stand.queue.is_closed = True  # its worker is told to end, too
        await stand.storage.request_cancel(ctx.task_id)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def handle(ctx: TaskContext) -> None:
        await ctx.step("stubborn", stubborn, ctx)
        heard.append("behind it")

    stand = await sent(handle, clock=ManualClock())
    assert await stand.bench.adapter.process(await stand.bench.deliver())
    assert (await stand.state(), heard) == (S.TASK_STATE_CANCELED, ["behind it"])


async def test_a_step_longer_than_a_worker_fails_with_its_name() -> None:
    """After its attempts the task says which step it was, and what helps."""
    stand = Stand(lambda ctx: ctx.step("export", stand.last, 1000), max_attempts=2)
    assert (await stand.work(deadline_s=900)).state == S.TASK_STATE_FAILED
    assert "The step 'export' needs longer than a worker has: cut it" in await stand.text()


async def test_a_sleep_may_be_shorter_when_the_code_runs_again() -> None:
    """The seconds until a time are fewer then: no other sleep is taken for the one that is over."""
    woke: dict[int, float] = {}

    async def handle(ctx: TaskContext) -> None:
        await ctx.gather(ctx.sleep(120))  # in a task of its own, it is none of `handle`'s
        for at in (600, 660, 1260):
            await ctx.sleep(max(0, begun + at - stand.clock.monotonic()))
            woke.setdefault(at, stand.clock.monotonic() - begun)
        await ctx.sleep(1020)
        await ctx.complete()

    stand = Stand(handle)
    begun = stand.clock.monotonic()
    while not (await stand.work()).is_terminal:
        await stand.pass_time(60)
    assert (woke, stand.clock.monotonic() - begun) == ({at: at for at in (600, 660, 1260)}, 2280)


async def test_sleeps_beside_one_another_each_end_at_their_time() -> None:
    """The turn wakes for the first one, and for each other one as long after its beginning."""
    woke: dict[str, int] = {}

    async def branch(ctx: TaskContext, name: str, hours: int) -> None:
        when = datetime.fromtimestamp(begun / 1000, UTC) + timedelta(hours=hours)
        await (ctx.sleep_until(when) if name == "until" else ctx.sleep(hours * 3600, key=name))
        hour = (stand.clock.now_ms() - begun) // 3_600_000
        await ctx.step("woke", woke.setdefault, name, hour, key=name)

    async def handle(ctx: TaskContext) -> None:
        await ctx.gather(branch(ctx, "two", 2), branch(ctx, "three", 3), branch(ctx, "until", 4))
        await ctx.complete()

    stand = Stand(handle)
    begun = stand.clock.now_ms()
    for _ in range(4):
        turn = (await stand.work()).turn
        assert (turn.parked, turn.attempts, left(stand.queue)) == ("asleep", 0, [])
        await stand.pass_time(3600)
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED
    assert woke == {"two": 2, "three": 3, "until": 4}


async def test_waits_of_a_thread_end_in_its_process() -> None:
    """A function of `ctx.run_sync` cannot be left: its sleep and its step's wait end on time."""
    tries: list[int] = []

    def look() -> None:
        tries.append(stand.clock.now_ms())
        if len(tries) == 1:
            raise LookupError("not yet")

    def blocking(ctx: TaskContext) -> None:
        async def waiting() -> None:
            await ctx.sleep(90)
            await ctx.step("look", look, retry=Retry(tries=2, base_s=60))

        asyncio.run(waiting())

    async def handle(ctx: TaskContext) -> None:
        await ctx.run_sync(blocking, ctx)
        await ctx.complete()

    stand = Stand(handle, clock=ManualClock())
    began = stand.clock.now_ms()
    assert ((await stand.work()).state, stand.script.starts) == (S.TASK_STATE_COMPLETED, 1)
    assert tries[0] - began >= 90_000
    assert tries[1] - tries[0] >= 60_000


async def test_a_sleep_that_the_agent_cancels_is_as_if_it_had_not_begun() -> None:
    """A step that is faster than the sleep beside it: the next sleep lasts its own time."""
    answered = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        asking = asyncio.create_task(ctx.step("ask", answered.wait))
        napping = asyncio.create_task(ctx.sleep(3600, key="at most"))
        await asyncio.sleep(0)
        answered.set()
        await asyncio.wait({asking, napping}, return_when=asyncio.FIRST_COMPLETED)
        napping.cancel()
        await asyncio.wait({napping})
        await ctx.sleep(7200)
        await ctx.complete()

    stand = Stand(handle)
    began = stand.clock.now_ms()
    head = await stand.work()
    assert (head.due_at or 0) >= began + 7_200_000
    await stand.pass_time(7200)
    head = await stand.work()
    assert (head.state, stand.script.starts) == (S.TASK_STATE_COMPLETED, 2)


@pytest.mark.parametrize("cancels", ["always", "once"])
async def test_a_step_that_the_agent_cancels_says_its_part_once(cancels: str) -> None:
    """What was streamed stays, said once; one not cancelled again starts the turn over."""
    said = asyncio.Event()

    async def partly(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("partial ", "a", append=True)
        said.set()
        await asyncio.Event().wait()

    async def handle(ctx: TaskContext) -> None:
        if cancels == "once" and stand.script.starts > 2:
            await ctx.complete("other")
            return
        asking = asyncio.create_task(ctx.step("partly", partly, ctx))
        await said.wait()
        await idle()
        if cancels == "always" or stand.script.starts == 1:
            asking.cancel()
        await asyncio.wait({asking})
        await ctx.sleep(3600)
        await ctx.sleep(3600)
        await ctx.complete("end")

    stand = Stand(handle, clock=ManualClock() if cancels == "once" else None)
    for _ in range(3):
        head = await stand.work()
        await stand.pass_time(3600)
    assert (head.state, stand.script.starts) == (S.TASK_STATE_COMPLETED, 3)
    ends = {"always": {"a": ["partial "], "final-answer": ["end"]}}
    assert await stand.artifacts() == ends.get(cancels, {"final-answer": ["other"]})


async def test_records_of_another_attempt_are_read_before_a_claim(monkeypatch: Patch) -> None:
    """An attempt whose claim lost a race reads the log again: no recorded step runs twice."""
    ran: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        ran.append(await ctx.step("work", lambda: "run"))
        await ctx.complete()

    async def records() -> None:
        work = Recorded(StepId("work", "", 1), "json", b'"zombie"')
        await stand.storage.commit(await stand.head(), Commit(entries=(work,), token="zombie"))

    stand = await sent(handle)
    await stand.storage.commit(stand.task, Commit(token="zombie", claims=True))
    beside(monkeypatch, "read", records, when="behind")
    head = await stand.work()
    assert (head.state, ran) == (S.TASK_STATE_COMPLETED, ["zombie"])


async def test_an_older_worker_gives_a_turn_with_records_back(monkeypatch: Patch) -> None:
    """A release that knows no records does not run such a turn; after the turn it runs the next."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.step("work", len, "x")
        await ctx.sleep(3600)
        await ctx.request_input("more?")

    stand, head = await run(handle)
    assert head.needs == heads.RECORDS
    with monkeypatch.context() as older:
        older.setattr(heads, "FORMAT", 1)
        await stand.queue.send(Operation.to_run(params_of(head, copy_number=9)))
        assert not await stand.bench.work()
    assert stand.script.starts == 1
    await stand.pass_time(3600)
    head = await stand.work()
    assert (head.state, head.needs) == (S.TASK_STATE_INPUT_REQUIRED, 0)


async def test_a_turn_has_a_limit_without_its_sleeps() -> None:
    """A2A_MAX_TURN_HOURS counts the time in which the turn was worked on."""

    async def handle(ctx: TaskContext) -> None:
        for number in range(100):
            await ctx.step("part", stand.last, 835)
            if number == 1:
                await ctx.sleep(48 * 3600)
        await ctx.complete()

    stand = Stand(handle, max_turn_hours=2)
    await stand.work(deadline_s=900)
    await stand.pass_time(48 * 3600)
    assert (await stand.work(deadline_s=900)).state == S.TASK_STATE_FAILED
    assert "for 2 hours (A2A_MAX_TURN_HOURS)" in await stand.text()
    assert 9 <= stand.script.starts <= 12


@pytest.mark.parametrize("merges", [False, True])
async def test_a_state_that_was_loaded_is_recorded(*, merges: bool) -> None:
    """The turn goes on with it; if another changed it, it fails, or a `merge` makes one of both."""
    loaded: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        loaded.append(await ctx.load_context())
        await ctx.step("work", len, "x")
        await ctx.sleep(3600)
        await ctx.update_context(
            {"own": 1}, merge=(lambda stored, own: {**stored, **own}) if merges else None
        )
        await ctx.complete()

    stand, _ = await run(handle)
    contexts = stand.storage.contexts
    await contexts.put("ctx", context_write({"other": 1}))
    await stand.pass_time(3600)
    head = await stand.work()
    assert loaded == [None, None]
    if merges:
        assert head.state == S.TASK_STATE_COMPLETED
        assert await contexts.load("ctx") == ({"other": 1, "own": 1}, 2)
    else:
        assert head.state == S.TASK_STATE_FAILED
        assert "Another turn has changed the state of this conversation" in await stand.text()


@pytest.mark.parametrize("is_missing", [False, True])
async def test_a_large_result_is_recorded_beside_the_log(*, is_missing: bool) -> None:
    """It is read as it was written; without its blob the task fails, and the client reads why."""
    large, got = "x" * 2_000_000, list[bool]()

    async def handle(ctx: TaskContext) -> None:
        got.append(await ctx.step("search", lambda: large) == large)
        await ctx.sleep(3600)
        await ctx.complete("found")

    stand, head = await run(handle)
    assert head.size < 4_000
    if is_missing:
        blobs = present(stand.storage.table.blobs)
        await blobs.delete(BlobOwner(head.scope, head.task_id, head.incarnation))
    await stand.pass_time(3600)
    state = S.TASK_STATE_FAILED if is_missing else S.TASK_STATE_COMPLETED
    assert ((await stand.work()).state, got) == (state, [True] * (2 - is_missing))
    assert ("cannot be read any more: send the message again" in await stand.text()) is is_missing


async def test_steps_of_any_executor() -> None:
    """`a2a_serverless.steps` do in an AgentExecutor, beside events, what the context's do."""
    ran: list[str] = []

    @steps.step(key=lambda city: city)
    async def search(city: str) -> str:
        ran.append(steps.step_id())
        return city.upper()

    @steps.step
    def count(text: str) -> int:
        ran.append(text)
        return len(text)

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        found = [await search("rome"), await search("oslo")]
        total = await steps.step("sum", sum, [await count(word) for word in found])
        total = await steps.poll("sum", lambda: total)
        await queue.enqueue_event(chunk(context, "begun;"))
        await queue.enqueue_event(context.current_task or Task(id=context.task_id))
        await queue.enqueue_event(status(context, S.TASK_STATE_WORKING, "half"))
        await steps.sleep(3600)
        answer = await steps.ask("Which?", schema=int, id="number")
        await queue.enqueue_event(chunk(context, f"{answer.data};"))
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, f"{found} {total}"))

    stand, _ = await run(Agent(execute))
    await stand.pass_time(3600)
    head = await stand.work()
    assert (head.state, head.turn.asks) == (S.TASK_STATE_INPUT_REQUIRED, True)
    await stand.follow_up("7")
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED
    assert await stand.text() == "['ROME', 'OSLO'] 8"
    assert await stand.artifacts() == {"a": ["begun;7;"]}
    assert [said.parts[0].text for said in (await stand.shown()).history].count("half") == 1
    assert len(set(ran)) == len(ran) == 4
    with pytest.raises(RuntimeError, match="No turn runs here"):
        await search("rome")


async def test_an_artifact_that_is_named_at_random_is_said_once() -> None:
    """The SDK's TaskUpdater names it anew in each attempt; it is known again by what it says."""
    ran: list[str] = []

    @steps.step
    async def work(what: str) -> None:
        ran.append(what)
        if len(ran) == 3:
            raise RuntimeError

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = TaskUpdater(queue, context.task_id or "", context.context_id or "")
        await updater.start_work()
        own = str(uuid4())
        for text in ("named by the agent ", "the same"):
            await updater.add_artifact([Part(text=text)], artifact_id=FIXED, append=True)
        await updater.add_artifact([Part(text="the same")])
        await updater.add_artifact([Part(text="in two ")], artifact_id=own)
        await work("one")
        await updater.add_artifact([Part(text="pieces")], artifact_id=own, append=True)
        await work("two")
        await updater.add_artifact([Part(text="the same")])
        await work("three")
        await updater.add_artifact([Part(text="new")])
        await updater.complete()

    stand, _ = await run(Agent(execute))
    shown = await stand.artifacts()
    assert shown.pop(FIXED) == ["named by the agent the same"]
    assert [*shown.values()] == [["the same"], ["in two pieces"], ["the same"], ["new"]]
    assert ran == ["one", "two", "three", "three"]


async def test_artifacts_that_are_named_at_random_may_change_places() -> None:
    """As of branches that run beside one another: each is known by what it says."""
    ran: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = TaskUpdater(queue, context.task_id or "", context.context_id or "")
        for text in reversed(["a", "b"]) if ran else ["a", "b"]:
            await updater.add_artifact([Part(text=text)])
        await steps.step("work", ran.append, "work")
        if len(stand.agent.started) == 1:
            raise RuntimeError
        await updater.complete()

    stand = Stand(Agent(execute))
    head = await stand.work()
    assert (head.state, ran) == (S.TASK_STATE_COMPLETED, ["work"])
    assert [*(await stand.artifacts()).values()] == [["a"], ["b"]]


WRONG_TRIES: tuple[Any, ...] = (0, 2.5, "3")
WRONG_TIMES: tuple[Any, ...] = (-1, float("inf"), "3")
WRONG: list[tuple[Callable[[TaskContext], Any], str]] = [
    (lambda ctx: ctx.step("", len, "x"), "its name, of 1 to 200 characters"),
    (lambda ctx: ctx.step("x" * 300, len, "x"), "its name, of 1 to 200 characters"),
    (lambda ctx: ctx.step("nan", float, "nan"), "cannot be recorded"),
    (lambda ctx: ctx.step("ctx.sleep", len, "x"), "as the runtime's own do"),
    (lambda ctx: ctx.step("x", len, "x", retry=5), r"Retry\(tries=…\)"),  # type: ignore[arg-type]
    *((lambda _, w=w: Retry(tries=w), "Retry takes tries from 1 on, and got") for w in WRONG_TRIES),
    *((lambda _, w=w: Retry(base_s=w), "Retry takes seconds from 0 on, and") for w in WRONG_TIMES),
    *((lambda _, w=w: Retry(cap_s=w), "Retry takes seconds from 0 on, and") for w in WRONG_TIMES),
    (lambda ctx: ctx.step("x", len, "x", type=object()), "what pydantic reads"),
    (lambda ctx: ctx.step("x", str, "x", type=int), "not of its `type`"),
    (lambda ctx: ctx.step("x", float, "nan", type=float), "write as JSON and read again: Input"),
    (lambda ctx: ctx.step("x", lambda: b"\xff", type=bytes), "write as JSON and read again: Err"),
    (lambda ctx: ctx.step("x", lambda: (n for n in "x")), "collect what it yields"),
    (lambda ctx: ctx.complete_json([asyncio.Future()]), "is a Future: await it first"),
    (lambda ctx: ctx.sleep(asyncio.sleep(1)), "number from 0 on, and got a coroutine"),  # type: ignore[arg-type]
    (lambda ctx: ctx.step("set", set, "x"), r"list\(…\)"),
    (lambda ctx: ctx.step("x", lambda: [{1: "a", "1": "b"}]), "two keys are '1' as text"),
    (lambda ctx: ctx.step("x", lambda: {True: 1, "true": 2}), "two keys are 'true' as text"),
    (lambda ctx: ctx.step("x", lambda: {1: 1, "1": 2}, type=dict), "two keys are '1' as text"),
    (lambda ctx: ctx.step("big", "x".__mul__, MAX_OFFLOADED_BYTES), "at most 50,000,000"),
    (lambda ctx: ctx.step("call", len("x")), "a name, a function and its arguments"),  # type: ignore[arg-type]
    (lambda ctx: ctx.sleep(-1), "seconds, a number from 0 on"),
    (lambda ctx: ctx.sleep(float("nan")), "seconds, a number from 0 on"),
    (lambda ctx: ctx.sleep(float("inf")), "seconds, a number from 0 on"),
    (lambda ctx: ctx.sleep(40 * 24 * 3600), "the task expires before the end"),
    (lambda ctx: ctx.sleep_until(datetime(2026, 1, 1)), "a datetime with a time zone"),  # noqa: DTZ001
    (lambda ctx: ctx.gather(*(ctx.step("a", asyncio.Event().wait) for _ in "ab")), "by `key=…`"),
    (lambda ctx: ctx.gather(*(ctx.ask("Day?") for _ in "ab")), "tell them apart by `id=…`"),
    (lambda ctx: ctx.ask("?", id="a#2"), "takes as `id` a text without '#'"),
    (lambda ctx: ctx.ask("?", id=3), "takes as `id` a text without '#'"),  # type: ignore[arg-type]
    (lambda ctx: ctx.ask("?", timeout_s=-1), "takes as `timeout_s` seconds"),
    (lambda ctx: ctx.ask("?", timeout_s=10**9), "the task expires before the end of `timeout_s`"),
    (lambda ctx: ctx.ask("?", schema={"type": "object"}), "got a dict: write a BaseModel"),
    (lambda ctx: ctx.ask("?", schema=3), "a type that pydantic reads"),
    (lambda ctx: ctx.ask("?", schema=Annotated[int, Field(le=10**400)]), "int too large"),
    (lambda ctx: ctx.step("x", ctx.ask, "?"), r"ctx\.ask is called within a step: .*`await ctx\.a"),
    (lambda ctx: ctx.run_sync(lambda: asyncio.run(ctx.ask("?"))), r"ctx\.ask .* within a thread: "),
    (lambda ctx: ctx.step("x", ctx.poll, "look", len, ""), r"ctx\.poll is called within a step"),
    (lambda ctx: ctx.poll("", len, ""), r"ctx\.poll takes a text as its name, of 1 to"),
    (lambda ctx: ctx.poll("look", len, "", every_s=-1), "`every_s` seconds"),
    (lambda ctx: ctx.poll("l", ctx.emit_text_artifact, "x"), "emitted something and found nothing"),
    (lambda ctx: ctx.poll("look", lambda: None, timeout_s=10**9), "the task expires before"),
    (lambda ctx: ctx.callback("x", key="k" * 300), r"ctx\.callback takes a text as its key, of 0"),
    (lambda ctx: ctx.gather([ctx.sleep(1)]), r"got a list: write `await ctx\.gather\(\*work\)`"),  # type: ignore[arg-type]
    (lambda ctx: ctx.gather(asyncio.sleep), r"function: write `await ctx\.gather\(fetch\(…\)\)`"),  # type: ignore[arg-type]
    (lambda ctx: ctx.run_sync(asyncio.sleep), r"got sleep, which is async: .* `await func\(1\)`"),  # type: ignore[arg-type]
    (lambda ctx: ctx.run_sync(sum([1, 2])), r"got 3: `await ctx\.run_sync\(func, 1\)`, not `func"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "text"), WRONG)
async def test_a_wrong_call_says_the_right_one(call: Any, text: str, caplog: Log) -> None:
    """The task fails at once; the log has the sentence."""
    raised: list[BaseException] = []

    async def handle(ctx: TaskContext) -> None:
        try:
            await call(ctx)
        except WrongCallError as error:
            raised.append(error)
            raise

    stand, head = await run(handle)
    assert (head.state, stand.script.starts) == (S.TASK_STATE_FAILED, 1)
    with pytest.raises(WrongCallError, match=text):
        raise raised[0]
    assert "Recorded" not in await stand.kinds()
    assert "never awaited" not in caplog.text


async def test_a_cancel_records_nothing() -> None:
    """A sleeping turn is not started for it; in `cancel()` steps and sleeps are plain calls."""
    ran: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.step("work", ran.append, "work")
        await ctx.sleep(3600)

    async def undo() -> None:  # no thread: the clock would pass the sleep before it begins
        ran.append("undo")

    async def cancel(ctx: TaskContext) -> None:
        await ctx.step("undo", undo)
        await ctx.sleep(1800)

    stand = Stand(handle, cancel_timeout_s=7200)
    stand.script.cancel = cancel  # type: ignore[method-assign]
    await stand.work()
    await stand.cancel()
    canceling = asyncio.create_task(stand.work())
    await stand.clock.pass_time(1799)
    assert not canceling.done()
    await stand.clock.pass_time(1)
    head = await canceling
    assert (head.state, head.turn.parked, head.due_at) == (S.TASK_STATE_CANCELED, "", None)
    assert (ran, stand.script.starts) == (["work", "undo"], 1)
    assert (await stand.kinds()).count("Recorded") == 2


async def test_a_call_after_the_end_stores_nothing(caplog: Log) -> None:
    """A step is a plain call, no question is asked, the end stays; the log names lost calls."""
    ran, refused = list[str](), list[str]()

    async def handle(ctx: TaskContext) -> None:
        callback = await ctx.callback("form")
        asking = asyncio.create_task(ctx.ask("Before the end?"))
        await asyncio.sleep(0)
        await ctx.complete()
        await asyncio.wait({asking})
        await ctx.step("late", ran.append, "late")
        await ctx.sleep(3600)
        ctx.usage("m", input_tokens=7)
        calls: list[Callable[[], Any]] = [
            *(lambda: asking, lambda: ctx.ask("Which?")),
            *(partial(callback.wait, timeout_s=seconds) for seconds in (60, 0)),
            lambda: ctx.poll("job", ran.append, "polled"),
            lambda: ctx.call_agent("books", "x"),
        ]
        for call in calls:
            try:
                await call()
            except RuntimeError as error:
                refused.append(str(error).removeprefix("The turn has ended already: "))

    _, head = await run(handle, public_url="https://agent.example")
    assert (head.state, ran, head.turn.checkpoint) == (S.TASK_STATE_COMPLETED, ["late"], 0)
    assert head.usage == ()
    ways = ["ask", "ask", "wait", "wait", "wait", "call the agent"]
    assert refused == [f"{way} before its end." for way in ways]
    told = " ".join(line["said"] for line in lines(caplog, "call_after_end"))
    assert "Call after the end of the turn: ctx.step" in told
    assert re.search(r"ctx\.usage, .*test_steps\.py", told)


async def test_a_step_that_outlives_its_turn_is_not_recorded() -> None:
    """The end of the turn is its last commit; who waits for the step gets its result."""
    go, results = asyncio.Event(), list[str]()

    async def slow() -> str:
        await go.wait()
        return "late"

    async def handle(ctx: TaskContext) -> None:
        stepping = asyncio.create_task(ctx.step("slow", slow))
        await idle()
        await ctx.complete()
        go.set()
        results.append(await stepping)

    stand, head = await run(handle)
    assert (head.state, results) == (S.TASK_STATE_COMPLETED, ["late"])
    assert "Recorded" not in await stand.kinds()


async def test_a_step_is_recorded_behind_one_that_clients_have_seen() -> None:
    """A record keeps all before it: the part of a step that may run again would be said twice."""
    said, beside_it = asyncio.Event(), asyncio.Event()

    async def streams(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("part", "a")
        said.set()
        await beside_it.wait()
        await idle()

    async def quick() -> None:
        beside_it.set()

    async def handle(ctx: TaskContext) -> None:
        streaming = asyncio.create_task(ctx.step("streams", streams, ctx))
        await said.wait()
        for _ in range(2):
            await ctx.sleep(40)
        assert "Recorded" not in await stand.kinds()
        await ctx.step("quick", quick)
        await streaming
        await ctx.complete()

    stand = Stand(handle, clock=ManualClock())
    await stand.work()
    recorded = [each.id.name for each in await stand.entries() if isinstance(each, Recorded)]
    assert [name for name in recorded if name in {"streams", "quick"}] == ["streams", "quick"]


async def test_without_steps_nothing_is_recorded() -> None:
    """An agent that ignores steps writes what it has written before."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.load_context()
        await ctx.emit_text_artifact("x")
        await ctx.complete()

    stand, head = await run(handle)
    assert (head.turn.checkpoint, head.needs) == (0, 0)
    assert "Recorded" not in await stand.kinds()
    found = await stand.storage.table.load([head_key(head.scope, head.task_id)])
    item = present(found.popitem()[1])
    assert not {"checkpoint", "parked"} & json.loads(item["turn"]).keys()
    assert "needs" not in item
