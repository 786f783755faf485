"""Places of slow requests: a caller with many slow webhooks does not delay those of others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest

from a2a_serverless.errors import UnavailableError
from a2a_serverless.push import deliverer
from a2a_serverless.push.client import Outcome
from a2a_serverless.push.deliverer import _NO_PLACE, SHARE, Budget, _Places
from a2a_serverless.storage import leases
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.leases import Slots, _Slot
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.identity import Scope
from a2a_serverless_tools.contract import Storage
from tests.support.memory import memory_slots
from tests.support.messages import request as request_of
from tests.unit.push.receivers import OK, Receiver, Request, silence
from tests.unit.push.world import COMPLETED, World, config, logged

DELIVERED = Outcome(meaning="delivered", reason="status 200", status=200)
PLACES = 50
"""The places of template.yaml: requests at the same time."""


def limited(per_caller: int, slots: Slots | None = None) -> _Places:
    return _Places(slots or memory_slots(), per_caller=per_caller, in_all=0)


class Slow:
    """Requests that are answered when a test says so."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.answer, self._changed = asyncio.Event(), asyncio.Condition()

    async def __call__(self) -> Outcome:
        await self._count(begun=1)
        try:
            await self.answer.wait()
            return DELIVERED
        finally:
            await self._count(ended=1)

    async def _count(self, *, begun: int = 0, ended: int = 0) -> None:
        self.begun, self.ended = self.begun + begun, self.ended + ended
        async with self._changed:
            self._changed.notify_all()

    async def until(self, begun: int, ended: int) -> None:
        """Return when as many have begun and ended."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: (self.begun, self.ended) == (begun, ended))


async def during(
    made: _Places, request: Slow, caller: str = "ann", *, again: bool = False
) -> Outcome:
    return await made.during(request, caller=caller, has_failed=again, timeout_s=15)


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is slow at once."""
    monkeypatch.setattr(deliverer, "GRACE_S", 0.01)


async def test_a_quick_request_needs_no_place() -> None:
    """It is made although its caller has none left; one that has failed before is not made."""
    made, slow = limited(1), Slow()
    holder = asyncio.create_task(during(made, slow, again=True))
    await slow.until(1, 0)
    assert await during(made, slow, again=True) == _NO_PLACE
    assert slow.begun == 1
    quick = Slow()
    quick.answer.set()
    assert await during(made, quick) == DELIVERED
    slow.answer.set()
    assert await holder == DELIVERED


@pytest.mark.usefixtures("no_grace")
async def test_slow_requests_are_as_many_as_places() -> None:
    """Slow requests beyond a caller's places are ended; other callers have places of their own."""
    made, slow = limited(2), Slow()
    mine = [asyncio.create_task(during(made, slow)) for _ in range(5)]
    ended: set[asyncio.Task[Outcome]] = set()
    for refused in asyncio.as_completed(mine):
        assert await refused == _NO_PLACE
        ended = {task for task in mine if task.done()}
        if len(ended) >= 3:
            break
    assert (slow.begun, slow.ended) == (5, 3)
    assert [task.result() for task in ended] == [_NO_PLACE] * 3
    theirs = asyncio.create_task(during(made, slow, "bob"))
    await slow.until(6, 3)
    slow.answer.set()
    expected = [_NO_PLACE if task in ended else DELIVERED for task in mine]
    assert await asyncio.gather(*mine, theirs) == [*expected, DELIVERED]
    slow.answer.clear()
    again = [asyncio.create_task(during(made, slow)) for _ in range(2)]
    await slow.until(8, 6)
    slow.answer.set()
    assert await asyncio.gather(*again) == [DELIVERED] * 2


async def test_a_delivery_that_ends_ends_its_request() -> None:
    """A cancel of the delivery, at Lambda's end, leaves no request and no place behind."""
    made, slow = limited(1), Slow()
    delivery = asyncio.create_task(during(made, slow, again=True))
    await slow.until(1, 0)
    delivery.cancel()
    await asyncio.gather(delivery, return_exceptions=True)
    assert slow.ended == 1
    slow.answer.set()
    assert await during(made, slow, again=True) == DELIVERED


class Silent(Slots):
    """A table that does not answer."""

    async def claim(self, slot: _Slot, token: str, *, until_ms: int) -> bool:
        raise UnavailableError


async def test_a_silent_table_limits_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The notification is sent, and a line says that it was not counted."""
    slow, silent = Slow(), Silent(MemoryTable(INDEXES), kind=leases.PLACES)
    slow.answer.set()
    with caplog.at_level(logging.WARNING):
        assert await during(limited(1, silent), slow, again=True) == DELIVERED
    assert [line["action"] for line in logged(caplog.records)] == ["webhook_not_counted"]


def tarpit(request: Request) -> bytes | AsyncIterator[bytes]:
    """Take a request, and never answer it if its URL says so."""
    return silence() if request.target == "/tarpit" else OK


async def test_sixty_tarpits_of_one_client_delay_nobody_else(
    receiver: Receiver, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty places, sixty webhooks that never answer, and behind them one of another client."""
    monkeypatch.setattr(deliverer, "GRACE_S", 1.0)  # long enough to reach the receiver
    world.timeout_s = 20.0
    world.deliverer.places = limited(PLACES // SHARE)
    receiver.script = tarpit
    for number in range(6):
        ann = Caller(user="ann", tenant=f"t{number}")
        own = world.storage.for_scope(Scope.of(ann.tenant, ann.user))
        head = (await own.open_task(f"c{number}", request_of(), caller=ann)).head
        for config_id in range(10):
            hook = config(receiver.url(path="/tarpit"), f"h{config_id}", task_id=head.task_id)
            await own.webhooks.put(hook)
        await Storage(own).update_task(head.task_id, COMPLETED)
    theirs = world.storage.for_scope(Scope.of("", "somebody else"))
    bob = Caller(user="somebody else")
    await theirs.open_task("ctx", request_of(), caller=bob, push=config(receiver.url()))
    await world.pass_on()
    took_s = await in_places(world, receiver)
    assert took_s < world.timeout_s / 2
    assert len([r for r in receiver.requests if r.target == "/tarpit"]) >= PLACES // SHARE


async def in_places(world: World, receiver: Receiver) -> float:
    """Deliver all jobs, `PLACES` at a time; the seconds until the other client was told."""
    free, began = asyncio.Semaphore(PLACES), time.monotonic()

    async def deliver(handle: object) -> None:
        async with free:
            await world.deliverer.deliver(handle, Budget(world.timeout_s))  # type: ignore[arg-type]

    handles = list(iter(world.take, None))
    assert len(handles) == 61
    handles.sort(key=lambda handle: handle.message.config_id == "hook")  # the other client's: last
    running = [asyncio.create_task(deliver(handle)) for handle in handles]
    try:
        await asyncio.wait_for(asyncio.shield(running[-1]), 30)
        assert any(request.target == "/hook" for request in receiver.requests)
        return time.monotonic() - began
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
