"""Event loops that take turns at the interpreter."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

import pytest

from a2a_serverless_tools.local import loops
from a2a_serverless_tools.local.loops import Loop

LONG_S = 20


@contextmanager
def running() -> Iterator[Loop]:
    """Run a loop in a thread of its own."""
    with closing(Loop()) as loop:
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield loop
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(LONG_S)
            assert not thread.is_alive()


@pytest.fixture
def is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no loop take the floor from another one."""
    monkeypatch.setattr(loops, "PATIENCE_S", 2 * LONG_S)


@pytest.mark.usefixtures("is_patient")
def test_a_loop_goes_on_until_it_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loop wakes in another one begins behind its work, though that lets threads run."""
    monkeypatch.setattr(loops, "POLL_S", LONG_S)
    ran = threading.Event()

    async def work() -> None:
        other.call_soon_threadsafe(ran.set)
        for _ in range(3):
            assert not ran.wait(0.02)
            await asyncio.sleep(0)

    with running() as loop, running() as other:
        asyncio.run_coroutine_threadsafe(work(), loop).result(LONG_S)
        assert ran.wait(LONG_S)


def test_a_blocked_loop_holds_up_no_other_one() -> None:
    """Others go on beside a callback that blocks, one after the other, and it goes on after it."""
    begun, released = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert released.wait(LONG_S)

    with running() as blocked, running() as first, running() as second:
        blocked.call_soon_threadsafe(block)
        assert begun.wait(LONG_S)
        for loop in (first, second, first, second):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(LONG_S)
        released.set()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), blocked).result(LONG_S)


@pytest.mark.parametrize(("poll_s", "busy_s"), [(0.005, 0.05), (2 * LONG_S, 0)])
@pytest.mark.usefixtures("is_patient")
def test_a_loop_that_never_waits_hears_its_input_and_lets_others_run(
    monkeypatch: pytest.MonkeyPatch, poll_s: float, busy_s: float
) -> None:
    """A task without a pause ends neither the loop's own input nor the work of other loops.

    It looks for them after `POLL_S`, and when it has been busy for `BUSY_S`, at each step.
    """
    monkeypatch.setattr(loops, "POLL_S", poll_s)
    monkeypatch.setattr(loops, "BUSY_S", busy_s)
    ours, theirs = socket.socketpair()
    heard, other_ran, postponed = threading.Event(), threading.Event(), threading.Event()

    async def spin() -> None:
        loop.add_reader(ours, heard.set)
        loop.call_when_idle(postponed.set)
        other.call_soon_threadsafe(other_ran.set)
        theirs.send(b"x")
        for event in (heard, other_ran, postponed):
            while not event.is_set():  # noqa: ASYNC110 - it shall never wait
                await asyncio.sleep(0)
        loop.remove_reader(ours)

    with closing(ours), closing(theirs), running() as loop, running() as other:
        asyncio.run_coroutine_threadsafe(spin(), loop).result(LONG_S)


@pytest.mark.usefixtures("is_patient")
def test_what_is_called_when_idle_comes_behind_the_loops_work() -> None:
    """A postponed call waits for the callbacks that are ready, and is made before the loop ends."""
    seen = list[str]()

    async def work() -> None:
        loop.call_when_idle(lambda: seen.append("idle"))
        for _ in range(3):
            seen.append("work")
            await asyncio.sleep(0)

    with running() as loop:
        asyncio.run_coroutine_threadsafe(work(), loop).result(LONG_S)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(LONG_S)
        assert seen == ["work", "work", "work", "idle"]
    with closing(Loop()) as last:
        last.run_until_complete(asyncio.sleep(0))
        last.call_when_idle(lambda: seen.append("closed"))
        assert seen[-1] == "idle"
    assert seen[-1] == "closed"


def test_a_loop_wakes_another_one_when_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the two do not run beside each other; another thread wakes it at once."""
    monkeypatch.setattr(loops, "POLL_S", LONG_S)
    steps, woken_in, all_woken = list[int](), list[int](), threading.Event()

    async def work() -> None:
        for step in (1, 2, 3):
            steps.append(step)
            other.call_soon_threadsafe(int)
            await asyncio.sleep(0)
        loop.call_when_idle(lambda: other.call_soon_threadsafe(int))

    def wake() -> None:
        woken_in.append(steps[-1])
        if len(woken_in) == len(steps) + 1:
            all_woken.set()
        Loop.wake(other)

    with running() as loop, running() as other:
        monkeypatch.setattr(other, "wake", wake)
        asyncio.run_coroutine_threadsafe(work(), loop).result(LONG_S)
        assert all_woken.wait(LONG_S)
        assert woken_in == [3, 3, 3, 3]
        woken_in.clear()
        other.call_soon_threadsafe(int)
        assert woken_in


def test_a_postponed_call_that_fails_ends_neither_its_loop_nor_the_next_call() -> None:
    """The loop's handler hears of it, as of a callback's error."""
    said, called = list[str](), threading.Event()

    async def work() -> None:
        loop.set_exception_handler(lambda _, context: said.append(repr(context["exception"])))
        loop.call_when_idle(partial(next, iter(())))
        loop.call_when_idle(called.set)

    with running() as loop:
        asyncio.run_coroutine_threadsafe(work(), loop).result(LONG_S)
        assert called.wait(LONG_S)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(LONG_S)
    assert said == ["StopIteration()"]


@pytest.mark.usefixtures("is_patient")
def test_a_closed_loop_has_left_the_floor() -> None:
    """A loop that ran and was closed holds up none that comes after it."""
    with closing(Loop()) as first:
        first.run_until_complete(asyncio.sleep(0))
    with running() as loop:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(LONG_S)
