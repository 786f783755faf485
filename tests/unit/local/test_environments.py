from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.simulation.environments import Environments, Handler, LocalContext

WAIT_S = 10.0


class Function:
    """A function whose environments are counted."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.made = 0
        self.ended = 0

    def make(self, environment: ExitStack) -> Handler:
        self.made += 1
        environment.callback(self.end)
        return self.handler

    def end(self) -> None:
        self.ended += 1


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def environments(function: Function, closing: ExitStack, limit: int = 4) -> Environments:
    made = Environments("function", function.make, limit=limit, timeout_s=30)
    closing.callback(made.close)
    return made


def test_concurrent_invocations_have_an_environment_each(closing: ExitStack) -> None:
    """Two invocations at once meet in two threads; a third one later takes one of these."""
    together = threading.Barrier(2)

    def handler(event: dict[str, Any], _: Any) -> str:
        if event.get("meets"):
            together.wait(WAIT_S)
        return threading.current_thread().name

    function = Function(handler)
    pool = environments(function, closing)

    answers = [pool.invoke({"meets": True}) for _ in range(2)]
    names = {answer.result(WAIT_S) for answer in answers}
    assert len(names) == 2
    assert pool.invoke({}).result(WAIT_S) in names
    assert function.made == 2


def test_invocations_beyond_the_limit_wait(closing: ExitStack) -> None:
    """With one environment the second invocation runs after the first one."""
    go_on = threading.Event()
    order: list[int] = []

    def handler(event: dict[str, Any], _: Any) -> None:
        if event["number"] == 1:
            assert go_on.wait(WAIT_S)
        order.append(event["number"])

    pool = environments(Function(handler), closing, limit=1)
    answers = [pool.invoke({"number": number}) for number in (1, 2)]
    assert not answers[1].done()
    go_on.set()

    for answer in answers:
        answer.result(WAIT_S)
    assert order == [1, 2]


def test_failed_invocation_leaves_its_environment_usable(closing: ExitStack) -> None:
    """A handler's exception is the invocation's answer; the environment takes the next one."""

    def handler(event: dict[str, Any], _: Any) -> str:
        if event["fails"]:
            raise LookupError("no luck")
        return "fine"

    function = Function(handler)
    pool = environments(function, closing)

    with pytest.raises(LookupError, match="no luck"):
        pool.invoke({"fails": True}).result(WAIT_S)
    assert pool.invoke({"fails": False}).result(WAIT_S) == "fine"
    assert function.made == 1


def test_handler_finds_its_own_event_loop_and_its_context(closing: ExitStack) -> None:
    """The handler's thread has an event loop, as Mangum needs it, and a context with time left."""

    def handler(_: dict[str, Any], context: LocalContext) -> tuple[str, int]:
        value = asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, "ran"))
        return value, context.get_remaining_time_in_millis()

    value, left_ms = environments(Function(handler), closing).invoke({}).result(WAIT_S)

    assert value == "ran"
    assert 0 < left_ms <= 30_000


def test_closing_ends_environments() -> None:
    """Closing cleans every environment up, and refuses what comes after."""
    function = Function(lambda event, _: event)
    pool = Environments("function", function.make, limit=4, timeout_s=30)
    pool.invoke({}).result(WAIT_S)

    pool.close()

    assert function.ended == function.made == 1
    with pytest.raises(RuntimeError, match="closed"):
        pool.invoke({})
