"""What an attempt leaves behind when it ends its turn's work, and when it hears of a cancel."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.storage.activity import process_name
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.head import AttemptEnd
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
from tests.support.present import present
from tests.support.workers import Agent, Execute, S, chunk
from tests.unit.worker.stand import Log, Patch, Stand, actions, line, sent

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
    assert replace(released, at=None, place="") == end
    assert released.token == head.turn.token
    assert (await stand.bench.records(stand.task))[-1].worker == process_name()
    assert await stand.bench.work() is True
    first, last = await stand.ends()
    logged = line(caplog, "gave_up")
    assert (first, last.reason) == (released, "ValueError")
    assert (last.reason, last.correlation_id) == (logged["reason"], logged["correlation_id"])


# -- the place and the text of an error --------------------------------------------------------


class UnsayableError(Exception):
    """An error that cannot be shown as text."""

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
async def test_an_end_has_the_authors_innermost_line(
    execute: Any, function: str, message: str
) -> None:
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
    found = await end_of(raising(ValueError("ü" * 1_000_000)), keep_error_texts=True)
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


async def test_a_shutdown_does_not_wait_for_a_table_that_does_not_answer(
    monkeypatch: Patch, caplog: Log
) -> None:
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
