"""What an attempt leaves behind when it ends its turn's work, and when it hears of a cancel."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.storage.activity import process_name
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import SHUTDOWN, AttemptEnd
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.delivery import RELEASE_S
from a2a_serverless.worker.failures import (
    MOST_OF_ERROR,
    MOST_PLACE,
    AgentFailedError,
    DeadlineError,
    raised_at,
    text_of,
)
from tests.support.clocks import ManualClock
from tests.support.memory import items_of
from tests.support.workers import Agent, Bench, PacedClock, S, chunk, idle, status_text

AT_ONCE = "x" * 70_000
"""A text that is committed when the call that emits it returns."""


async def fail(context: RequestContext, queue: EventQueue) -> None:
    raise ValueError("password is hunter2")


def line(caplog: pytest.LogCaptureFixture, action: str) -> dict[str, Any]:
    """The fields of the one line of the log with an action."""
    (found,) = [r for r in caplog.records if getattr(r, "action", "") == action]
    return vars(found)


async def test_a_failed_attempt_leaves_its_end_on_head(caplog: pytest.LogCaptureFixture) -> None:
    """Its time, the error's name, and the log's correlation id; nothing of the error's text."""
    clock = ManualClock()
    bench = Bench(Agent(fail), max_attempts=2, retry_base_s=0, clock=clock)
    task = await bench.send()
    assert await bench.work() is False
    head = await bench.head(task)
    assert head.turn.token is not None
    correlation_id = line(caplog, "retry")["correlation_id"]
    assert head.turn.released is not None
    assert head.turn.released.at is not None
    assert head.status_at <= head.turn.released.at <= clock.now_ms()
    end = AttemptEnd(token=head.turn.token, reason="ValueError", correlation_id=correlation_id)
    assert replace(head.turn.released, at=None, place="") == end
    claim = (await bench.records(task))[-1]
    assert claim.worker == process_name()


async def test_the_next_attempt_takes_the_end_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next attempt logs the end of the one before; the last one logs its own as it fails."""
    bench = Bench(Agent(fail), max_attempts=2, retry_base_s=0)
    task = await bench.send()
    await bench.work()
    released = (await bench.head(task)).turn.released
    assert await bench.work() is True
    ends = [record.ended for record in await bench.records(task) if record.ended is not None]
    logged = line(caplog, "gave_up")
    assert ends[0] == released
    assert [end.reason for end in ends] == ["ValueError", "ValueError"]
    assert (ends[1].reason, ends[1].correlation_id) == (logged["reason"], logged["correlation_id"])


async def test_a_fault_of_the_agent_has_a_correlation_id(caplog: pytest.LogCaptureFixture) -> None:
    """A fault's correlation id is in the log line and the stored end, not in the client's text."""

    async def forget(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "half"))

    bench = Bench(Agent(forget))
    task = await bench.send()
    assert await bench.work() is True
    ended = (await bench.records(task))[-1].ended
    logged = line(caplog, "agent_at_fault")
    assert ended is not None
    assert (ended.reason, ended.correlation_id) == (
        "InvalidAgentEventError",
        logged["correlation_id"],
    )
    text = status_text(await bench.task(task))
    assert text.startswith("The agent returned without ending its turn")
    assert ended.correlation_id not in text


# -- the place and the text of an error --------------------------------------------------------


class UnsayableError(Exception):
    """An error that cannot be shown as text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def deeper() -> None:
    raise LookupError("customer 4711")


def of_library() -> None:
    json.loads("{")


async def raising(context: RequestContext, queue: EventQueue) -> None:
    deeper()


async def in_a_library(context: RequestContext, queue: EventQueue) -> None:
    of_library()


async def in_a_thread(context: RequestContext, queue: EventQueue) -> None:
    await asyncio.to_thread(deeper)


async def in_a_group(context: RequestContext, queue: EventQueue) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raising(context, queue))


async def of_a_cause(context: RequestContext, queue: EventQueue) -> None:
    try:
        deeper()
    except LookupError as error:
        raise ValueError("wrapped") from error


async def unsayable(context: RequestContext, queue: EventQueue) -> None:
    raise UnsayableError


async def long(context: RequestContext, queue: EventQueue) -> None:
    raise ValueError("ü" * 1_000_000)


async def hidden(context: RequestContext, queue: EventQueue) -> None:
    raise ValueError("a\nb\x1b[31m\u202ecd\x00")


FILE = "tests/unit/worker/test_ends_of_attempts.py"


async def end_of(agent: AgentExecutor, **settings: Any) -> AttemptEnd:
    """How an attempt has failed, by HEAD as it is stored."""
    bench = Bench(agent, max_attempts=2, retry_base_s=0, **settings)
    task = await bench.send()
    await bench.work()
    end = (await bench.head(task)).turn.released
    assert end is not None
    return end


@pytest.mark.parametrize(
    ("execute", "function", "message"),
    [
        (raising, "deeper", "customer 4711"),
        (in_a_library, "of_library", "Expecting property name enclosed in double quotes"),
        (in_a_thread, "deeper", "customer 4711"),
        (in_a_group, "deeper", "LookupError: customer 4711"),
        (of_a_cause, "of_a_cause", "wrapped"),
        (unsayable, "unsayable", ""),
        (hidden, "hidden", "a b [31m cd"),
    ],
)
async def test_an_end_has_the_authors_innermost_line(
    execute: Any, function: str, message: str
) -> None:
    """File relative to the agent's folder, line and function; and the text if it is kept."""
    found = await end_of(Agent(execute), keep_error_texts=True)
    assert re.fullmatch(rf"{FILE}, line \d+, in {function}", found.place)
    assert found.message.startswith(message)
    assert bool(found.message) is bool(message)
    assert (await end_of(Agent(execute))) == replace(
        found, message="", token=ANY, correlation_id=ANY, at=ANY
    )


def test_without_a_line_of_the_authors_it_is_the_librarys() -> None:
    """An agent that is all a package's, such as a framework's graph, has no line of its author."""
    error = AgentFailedError()
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    assert raised.tb.tb_next is not None
    error.__cause__ = raised.value.with_traceback(raised.tb.tb_next)
    assert re.fullmatch(r"json/decoder\.py, line \d+, in raw_decode", raised_at(error))
    assert raised_at(DeadlineError()) == ""


def test_a_text_with_half_a_character_is_stored_without_it() -> None:
    """A table takes no text that is not UTF-8."""
    error = AgentFailedError()
    error.__cause__ = ValueError("a\ud800b")
    assert text_of(error, 10) == "a b"
    error.__cause__ = ValueError("€€€€")
    assert text_of(error, 10) == "€€€"


async def test_place_and_text_are_bounded_together() -> None:
    """A megabyte of text, and a path that is long: its end stays."""
    found = await end_of(Agent(long), keep_error_texts=True)
    assert len(found.place.encode()) + len(found.message.encode()) <= MOST_OF_ERROR
    assert len(found.message) > 30
    assert set(found.message) == {"ü"}
    far = "/nowhere/" + "ä/" * 100 + "agent.py, line 7"
    shown = raised_at(InvalidAgentEventError(place=far))
    assert shown.endswith("ä/agent.py, line 7")
    assert len(shown.encode()) <= MOST_PLACE


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_text_is_stored_by_the_setting_alone(*, keeps: bool) -> None:
    """Without it no item of the task has it, while it waits and after it has failed."""
    bench = Bench(Agent(raising), max_attempts=2, retry_base_s=0, keep_error_texts=keeps)
    task = await bench.send()
    for _ in range(2):
        await bench.work()
        items = repr(items_of(bench.storage))
        assert ("customer 4711" in items) is keeps
        assert "in deeper" in items
    ends = [record.ended for record in await bench.records(task) if record.ended]
    assert [end.message for end in ends] == [("customer 4711" if keeps else "")] * 2
    assert "customer 4711" not in str(await bench.task(task))


# -- attempts that are interrupted -----------------------------------------------------------


async def begin(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(chunk(context, AT_ONCE))
    await asyncio.Event().wait()


async def serving(bench: Bench, clock: PacedClock) -> asyncio.Task[None]:
    """A worker whose agent has come as far as it can."""
    task = asyncio.create_task(bench.adapter.serve(concurrency=1))
    await clock.pass_time(0.5)
    return task


async def told_to_end(bench: Bench, worker: asyncio.Task[None]) -> None:
    """The end of a worker after the drain of a signal; its queue serves the next worker."""
    bench.operations.is_closed = True
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    bench.operations.is_closed = False


async def test_a_shutdown_releases_the_turns_that_it_interrupts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next claim takes the reason into the log, and the line's correlation id."""
    caplog.set_level("INFO")
    clock = PacedClock()
    bench = Bench(Agent(begin), clock=clock)
    task = await bench.send()
    worker = await serving(bench, clock)
    token = (await bench.head(task)).turn.token
    assert token is not None
    await told_to_end(bench, worker)
    head = await bench.head(task)
    correlation_id = line(caplog, "shutdown")["correlation_id"]
    assert head.turn.released is not None
    assert head.turn.released.at is not None
    assert replace(head.turn.released, at=None) == AttemptEnd(
        token=token, reason=SHUTDOWN, correlation_id=correlation_id
    )
    await bench.storage.commit(head, Commit(token="next", claims=True))
    assert (await bench.records(task))[-1].ended == head.turn.released


async def test_a_shutdown_does_not_wait_for_a_table_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A shutdown waits at most `RELEASE_S` for the table."""
    clock = PacedClock()
    bench = Bench(Agent(begin), clock=clock)
    task = await bench.send()
    worker = asyncio.create_task(bench.work())
    await idle()
    assert (await bench.head(task)).turn.token is not None
    asked = asyncio.Event()

    async def unanswered(*_: object, **__: object) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(DurableStorage, "change", unanswered)
    bench.operations.is_closed = True
    worker.cancel()
    await asked.wait()
    await clock.pass_time(RELEASE_S)
    assert line(caplog, "release_failed")["task_id"] == task.task_id
    assert worker.done()
    assert worker.cancelled()
    bench.operations.is_closed = False
    assert (await bench.head(task)).turn.released is None
    assert (await bench.deliver()).attempt == 2


async def test_an_agent_that_cancels_what_is_not_its_own_uses_up_its_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ends its worker as a crash does: the attempt counts, and is not noted as given back.

    Else its turn would end one worker after the other, as no worker's end costs an attempt.
    """
    clock = PacedClock()

    async def cancel_all(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, AT_ONCE))
        await clock.sleep(1)
        for other in asyncio.all_tasks():
            other.cancel()

    bench = Bench(Agent(cancel_all), clock=clock, max_attempts=2)
    test, task = asyncio.current_task(), await bench.send()
    assert test is not None
    for attempts in (1, 2):
        worker = await serving(bench, clock)
        with pytest.raises(asyncio.CancelledError):
            await clock.pass_time(2)
        test.uncancel()
        await asyncio.wait([worker])
        head = await bench.head(task)
        assert (head.turn.attempts, head.turn.released is not None) == (attempts, False)
    assert [record.__dict__.get("action") for record in caplog.records].count("cut_off") == 2
    assert await bench.work() is True
    assert (await bench.head(task)).state == S.TASK_STATE_FAILED


async def test_a_cancel_that_comes_before_the_claim_is_heard_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancel between a delivery's read and its claim is heard at the claim, not by the watch."""
    clock = PacedClock()

    async def wait(context: RequestContext, queue: EventQueue) -> None:
        await asyncio.Event().wait()

    agent = Agent(wait)
    bench = Bench(agent, clock=clock)
    task = await bench.send()
    await bench.storage.commit(task, Commit(token="dead", claims=True))
    reads = type(bench.storage).read

    async def read_too_early(storage: Any, task_id: str, **options: Any) -> Log | None:
        log = await reads(storage, task_id, **options)
        await bench.storage.request_cancel(task_id)
        return log

    monkeypatch.setattr(type(bench.storage), "read", read_too_early)
    assert await bench.work() is True
    assert clock.monotonic() == 0
    assert (await bench.head(task)).state == S.TASK_STATE_CANCELED


# -- requests to cancel ----------------------------------------------------------------------
