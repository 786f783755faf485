"""What ends an attempt: its errors, a cancel, an exit; and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, NoReturn
from unittest.mock import ANY

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.steps import TurnParked
from a2a_serverless.storage.activity import process_name
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.head import AttemptEnd
from a2a_serverless.worker import failures
from a2a_serverless.worker.delivery import RELEASE_S
from a2a_serverless.worker.failures import (
    MOST_MEMBERS,
    AgentFailedError,
    members,
    raised_at,
    text_of,
)
from a2a_serverless.worker.loops import ENDING_ROUNDS, contained, prepare_loop, run_to_end
from tests.support.clocks import ManualClock
from tests.support.memory import items_of
from tests.support.present import present
from tests.support.workers import Agent, Execute, S, chunk, complete, status
from tests.unit.worker.stand import Log, Patch, Source, Stand, actions, line, lines, run, sent

AT_ONCE = "x" * 70_000
"""A text that is committed when the call that emits it returns."""


async def test_a_failed_attempt_leaves_its_end_on_head(caplog: Log) -> None:
    """Time, error's name, correlation id, no text; the next one logs it, the last its own."""
    fails = Agent(raising(ValueError("password is hunter2")))
    stand = await sent(fails, max_attempts=2, clock=ManualClock())
    assert await stand.bench.work() is False
    head, released = await stand.head(), await stand.released()
    assert head.status_at <= present(released.at) <= stand.clock.now_ms()
    correlation_id = line(caplog, "retry")["correlation_id"]
    end = AttemptEnd(token=ANY, reason="ValueError", correlation_id=correlation_id)
    assert (replace(released, at=None, place=""), released.token) == (end, head.turn.token)
    assert (await stand.bench.records(stand.task))[-1].worker == process_name()
    assert await stand.bench.work() is True
    first, last = await stand.ends()
    logged = line(caplog, "gave_up")
    assert (first, last.reason) == (released, "ValueError")
    assert (last.reason, last.correlation_id) == (logged["reason"], logged["correlation_id"])


# -- the place and the text of an error --------------------------------------------------------


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def deeper() -> None:
    raise LookupError("customer 4711")


def of_library() -> None:
    json.loads("{")


def raising(error: Exception) -> Execute:
    async def raises(context: RequestContext, queue: EventQueue) -> None:
        raise error

    return raises


async def directly(context: RequestContext, queue: EventQueue) -> None:
    deeper()


async def in_a_library(context: RequestContext, queue: EventQueue) -> None:
    of_library()


async def in_a_thread(context: RequestContext, queue: EventQueue) -> None:
    await asyncio.to_thread(deeper)


async def in_a_group(context: RequestContext, queue: EventQueue) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(directly(context, queue))


async def of_a_cause(context: RequestContext, queue: EventQueue) -> None:
    try:
        deeper()
    except LookupError as error:
        raise ValueError("wrapped") from error


FILE = "tests/unit/worker/test_ends_of_attempts.py"


async def end_of(execute: Execute, **settings: Any) -> AttemptEnd:
    """How an attempt has failed, by HEAD as it is stored."""
    stand = await sent(Agent(execute), max_attempts=2, **settings)
    await stand.bench.work()
    return await stand.released()


@pytest.mark.parametrize(
    ("execute", "function", "message"),
    [
        (directly, "deeper", "customer 4711"),
        (in_a_library, "of_library", "Expecting property name enclosed in double quotes"),
        (in_a_thread, "deeper", "customer 4711"),
        (in_a_group, "deeper", "LookupError: customer 4711"),
        (of_a_cause, "of_a_cause", "wrapped"),
        (raising(UnsayableError()), "raises", ""),
        (raising(ValueError("a\nb\x1b[31m\u202ecd\x00")), "raises", "a b [31m cd"),
    ],
)
async def test_an_end_has_the_innermost_own_line(execute: Any, function: str, message: str) -> None:
    """File relative to the agent's folder, line and function; and the text if it is kept."""
    found = await end_of(execute, keep_error_texts=True)
    assert re.fullmatch(rf"{FILE}, line \d+, in {function}", found.place)
    assert found.message.startswith(message)
    assert bool(found.message) is bool(message)
    textless = replace(found, message="", token=ANY, correlation_id=ANY, at=ANY)
    assert await end_of(execute) == textless


def test_without_a_line_of_the_authors_it_is_the_librarys() -> None:
    """An agent that is all a package's, such as a framework's graph, has no line of its author."""
    error = AgentFailedError()
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    error.__cause__ = raised.value.with_traceback(present(raised.tb.tb_next))
    assert re.fullmatch(r"json/decoder\.py, line \d+, in raw_decode", raised_at(error))
    assert raised_at(failures.DeadlineError()) == ""


def test_a_text_with_half_a_character_is_stored_without_it() -> None:
    """A table takes no text that is not UTF-8."""
    error = AgentFailedError()
    error.__cause__ = ValueError("a\ud800b")
    assert text_of(error, 10) == "a b"
    error.__cause__ = ValueError("€€€€")
    assert text_of(error, 10) == "€€€"


async def test_place_and_text_are_bounded_together() -> None:
    """A megabyte of text, and a path that is long: its end stays."""
    found = await end_of(raising(ValueError("ü" * 1_000_000)), keep_error_texts=True)
    assert len(found.place.encode()) + len(found.message.encode()) <= failures.MOST_OF_ERROR
    assert len(found.message) > 30
    assert set(found.message) == {"ü"}
    far = "/nowhere/" + "ä/" * 100 + "agent.py, line 7"
    shown = raised_at(InvalidAgentEventError(place=far))
    assert shown.endswith("ä/agent.py, line 7")
    assert len(shown.encode()) <= failures.MOST_PLACE


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_text_is_stored_by_the_setting_alone(*, keeps: bool) -> None:
    """Without it no item of the task has it, while it waits and after it has failed."""
    stand = await sent(Agent(directly), max_attempts=2, keep_error_texts=keeps)
    for _ in range(2):
        await stand.bench.work()
        items = repr(items_of(stand.storage))
        assert ("customer 4711" in items) is keeps
        assert "in deeper" in items
    assert [end.message for end in await stand.ends()] == ["customer 4711" if keeps else ""] * 2
    assert "customer 4711" not in str(await stand.shown())


# -- attempts that are interrupted -----------------------------------------------------------


async def begin(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(chunk(context, AT_ONCE))
    await asyncio.Event().wait()


async def test_a_shutdown_does_not_wait_for_a_silent_table(monkeypatch: Patch, caplog: Log) -> None:
    """A shutdown waits at most `RELEASE_S` for the table."""
    stand = Stand(Agent(begin), visibility_s=60)
    worker = await stand.begin()
    assert (await stand.head()).turn.token is not None
    asked = asyncio.Event()

    async def unanswered(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(DurableStorage, "change", unanswered)
    stand.queue.is_closed = True
    worker.cancel()
    await asked.wait()
    await stand.clock.pass_time(RELEASE_S)
    assert line(caplog, "release_failed")["task_id"] == stand.task.task_id
    assert worker.cancelled()
    stand.queue.is_closed = False
    assert (await stand.head()).turn.released is None
    assert (await stand.bench.deliver()).attempt == 2


async def test_an_agent_that_cancels_what_is_not_its_own_uses_up_its_attempts(caplog: Log) -> None:
    """It ends its worker as a crash does: each attempt counts, and none is given back."""

    async def cancel_all(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, AT_ONCE))
        await stand.clock.sleep(1)
        for other in asyncio.all_tasks():
            other.cancel()

    stand = await sent(Agent(cancel_all), max_attempts=2)
    for attempts in (1, 2):
        worker = asyncio.create_task(stand.bench.adapter.serve(concurrency=1))
        await stand.clock.pass_time(0.5)
        with pytest.raises(asyncio.CancelledError):
            await stand.clock.pass_time(2)
        present(asyncio.current_task()).uncancel()
        await asyncio.wait([worker])
        turn = (await stand.head()).turn
        assert (turn.attempts, turn.released is not None) == (attempts, False)
    assert actions(caplog).count("cut_off") == 2
    assert await stand.bench.work() is True
    assert await stand.state() == S.TASK_STATE_FAILED


# -- exits, and what is left behind --------------------------------------------------------------


WAIT_S = 30
Work = Callable[[], Awaitable[None]]


async def forever() -> None:
    await asyncio.Event().wait()


def leaving(leave: Work) -> Agent:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await leave()
        await asyncio.sleep(0)
        await complete(context, queue)

    return Agent(execute)


@pytest.mark.parametrize("depth", [0, 1], ids=["itself", "sub-agents"])
async def test_background_tasks_end_with_the_turn(depth: int, caplog: Log) -> None:
    """The turn completes, its tasks are cancelled, and one line of the log names them."""
    tasks = list[asyncio.Task[None]]()

    async def start(depth: int) -> None:
        if depth:
            await asyncio.gather(start(depth - 1), start(depth - 1))
        else:
            tasks.append(asyncio.create_task(forever()))

    _, head = await run(leaving(partial(start, depth)))
    assert head.state == S.TASK_STATE_COMPLETED
    assert [task.cancelled() for task in tasks] == [True] * 2**depth
    told = line(caplog, "background_tasks_ended")
    assert told["said"].endswith(": forever")
    assert (told["task_id"], told["turn"]) == (head.task_id, 1)


async def test_the_next_turn_begins_behind_the_end_of_what_was_started() -> None:
    """No code of a turn runs beside that of the task's next turn, which a quick client opens."""
    is_ending, may_end = asyncio.Event(), asyncio.Event()
    never = asyncio.Event()  # here: a task for which nobody waits is collected with its event
    tidied = list[bool]()

    async def tidy() -> None:
        try:
            await never.wait()
        finally:
            is_ending.set()
            await may_end.wait()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None:
            asyncio.create_task(tidy())  # noqa: RUF006 - the turn ends it
            await asyncio.sleep(0)
            await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED))
        else:
            tidied.append(may_end.is_set())
            await complete(context, queue)

    stand = await sent(Agent(execute), clock=SystemClock(), has_heartbeat=True)
    async with asyncio.timeout(WAIT_S):
        first = asyncio.create_task(stand.bench.work())
        await is_ending.wait()
        await stand.follow_up("next")
        second = asyncio.create_task(stand.bench.work())
        await asyncio.sleep(0.2)
        may_end.set()
        assert await first
        assert await second
    assert tidied == [True]


async def test_a_task_of_the_process_goes_on(caplog: Log) -> None:
    """A task with a context of its own is not the turn's: so a shared client keeps its tasks."""
    tasks = list[asyncio.Task[None]]()

    async def leave() -> None:
        tasks.append(asyncio.create_task(forever(), context=Context()))

    await run(leaving(leave))
    assert not tasks[0].done()
    assert lines(caplog, "background_tasks_ended") == []
    tasks[0].cancel()


async def test_a_task_that_does_not_stop_is_left_behind_and_named(caplog: Log) -> None:
    """After five seconds of refusals the delivery ends all the same, and the log says so."""
    refusing, tasks = asyncio.Event(), list[asyncio.Task[None]]()

    async def refuse() -> None:
        while not refusing.is_set():
            try:
                await refusing.wait()
            except asyncio.CancelledError:
                continue

    async def leave() -> None:
        tasks.append(asyncio.create_task(refuse()))

    _, head = await run(leaving(leave), clock=ManualClock())
    assert (head.state, len(lines(caplog, "agent_left_behind"))) == (S.TASK_STATE_COMPLETED, 1)
    refusing.set()
    await asyncio.gather(*tasks)


async def test_tasks_that_start_one_another_without_end_are_left_behind(caplog: Log) -> None:
    """Each starts one more while it ends: after a few rounds the delivery ends all the same."""
    started: list[asyncio.Task[None]] = []

    async def again() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if len(started) <= ENDING_ROUNDS:
                started.append(asyncio.create_task(again()))
                await asyncio.sleep(0)  # it begins, so that it hears of its end

    async def leave() -> None:
        started.append(asyncio.create_task(again()))

    _, head = await run(leaving(leave))
    assert (head.state, len(lines(caplog, "agent_left_behind"))) == (S.TASK_STATE_COMPLETED, 1)
    assert [task.done() for task in started] == [True] * ENDING_ROUNDS + [False]


def test_a_loop_reports_no_exception_with_which_a_turn_leaves() -> None:
    """Of tasks that nobody awaits; others, also beside those in a group, are told as before."""
    loop, told = asyncio.new_event_loop(), list[BaseException]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    prepare_loop(loop)
    error, leaves = ValueError("no"), [TurnParked(), GeneratorExit()]
    mixed = BaseExceptionGroup("mixed", [*leaves, error])
    for each in (*leaves, BaseExceptionGroup("all", leaves), error, mixed):
        loop.call_exception_handler({"message": "lost", "exception": each})
    loop.close()
    assert told == [error, mixed]


def test_of_a_group_so_many_members_are_looked_at() -> None:
    """An agent may raise one of any size, and its end must not wait for that."""
    group = ExceptionGroup("all", [ValueError("no")] * MOST_MEMBERS)
    assert len([*members(group)]) == MOST_MEMBERS


# -- exits -----------------------------------------------------------------------------------------

Exits = Callable[[], Awaitable[None]]
Place = Callable[[Any], Awaitable[object]]


async def exits() -> NoReturn:
    await asyncio.sleep(0)
    sys.exit(3)


async def interrupts() -> NoReturn:
    await asyncio.sleep(0)
    raise KeyboardInterrupt


async def in_a_task(call: Exits) -> None:
    await asyncio.ensure_future(call())


async def in_a_task_group(call: Callable[[], Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(call())


async def in_silence(call: Exits) -> None:
    await asyncio.gather(call(), return_exceptions=True)


PLACES: list[Place] = [
    lambda call: call(),
    in_a_task,
    lambda call: asyncio.gather(call(), asyncio.sleep(0)),
    in_a_task_group,
    lambda call: asyncio.create_task(in_a_task(call)),
    in_silence,
]


@pytest.mark.parametrize(
    ("place", "call", "caught"),
    [*zip(PLACES, cycle([exits, interrupts]), cycle([Exception, Exception, ()]), strict=False)],
)
async def test_an_exit_anywhere_is_a_failed_attempt(place: Place, call: Exits, caught: Any) -> None:
    """The turn is tried again, and a turn of another task beside it is not touched."""
    healthy_began, healthy = asyncio.Event(), asyncio.Event()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "exit":
            with suppress(caught):
                await place(call)
            await complete(context, queue)
        healthy_began.set()
        await healthy.wait()
        await complete(context, queue)

    stand = Stand(Agent(execute))
    good, neighbour = await stand.send("work"), asyncio.create_task(stand.bench.work())
    await healthy_began.wait()
    await stand.send("exit")
    for attempt in (1, 2, 3):
        assert await stand.bench.work() is (attempt == 3)
    healthy.set()
    assert await neighbour
    failed, now = await stand.head(), await stand.head(good)
    assert (failed.state, failed.turn.attempts) == (S.TASK_STATE_FAILED, 3)
    kind = "SystemExit" if call is exits else "KeyboardInterrupt"
    assert [end.reason for end in await stand.ends()] == [kind] * 3
    assert (now.state, now.turn.attempts) == (S.TASK_STATE_COMPLETED, 1)


async def test_an_exit_does_not_hold_up_a_cancel() -> None:
    """Neither in `execute()`, which is being cancelled, nor in `cancel()`: the task is canceled."""

    async def execute(_: RequestContext, __: EventQueue) -> None:
        try:
            await stand.storage.request_cancel(stand.task.task_id)
            await asyncio.Event().wait()
        finally:
            await in_silence(exits)

    stand = Stand(Agent(execute, lambda *_: in_a_task(interrupts)))
    assert await (await stand.begin(3))
    assert await stand.state() == S.TASK_STATE_CANCELED


@pytest.mark.parametrize(
    ("ends", "action"), [(sys.exit, "exit_in_callback"), (None, "loop_stopped")]
)
def test_an_end_of_a_loop_does_not_end_the_function(ends: Any, action: str, caplog: Log) -> None:
    """An exit in a callback, or a stopped loop, is logged; both turns of the batch complete."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "exit":
            loop = asyncio.get_running_loop()
            loop.call_soon(ends or loop.stop)
        for _ in range(3):
            await asyncio.sleep(0)
        await complete(context, queue)

    source = Source(Agent(execute))
    try:
        records = [source.send(text)[1] for text in ("exit", "work")]
        assert source.handle(*records) == []
    finally:
        source.function.close()
    assert action in actions(caplog)


def test_what_ends_the_work_itself_is_passed_on() -> None:
    """Its exit, or a stop that the kit means, ends the process; one in a callback does not."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        async def leaves() -> None:
            sys.exit(4)

        async def answers() -> str:
            loop.call_soon(sys.exit, 7)  # runs before the loop is told that the work has ended
            return "done"

        async def stops() -> None:
            loop.stop()
            await asyncio.sleep(0)

        with pytest.raises(SystemExit, match="4"):
            run_to_end(loop, leaves())
        assert run_to_end(loop, answers()) == "done"
        with pytest.raises(RuntimeError, match="stopped"):
            run_to_end(loop, stops(), may_stop=lambda: True)
        assert run_to_end(loop, stops()) is None


async def test_tasks_of_the_runtime_are_not_wrapped() -> None:
    """The task factory wraps only tasks of agents, and calls the factory before it."""
    loop = asyncio.get_running_loop()
    made: list[Any] = []

    def noting(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Future[Any]:
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(noting)
    try:
        prepare_loop(loop)
        prepare_loop(loop)
        own = asyncio.sleep(0)
        await asyncio.create_task(own)
        assert made == [own]
        with pytest.raises(AgentFailedError, match=r"sys\.exit"):
            await asyncio.create_task(contained(in_a_task(exits)))
        assert made[-1].__qualname__ == "exits"
    finally:
        loop.set_task_factory(None)
