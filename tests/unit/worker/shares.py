"""Callers who share the places of a deployment: its workers under a clock that jumps.

`python -m tests.unit.worker.shares RUNS` prints the tables of the page `shares`, and with `wakes`
in the place of the number how long turns wait that wake together.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import selectors
import statistics
import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from unittest import mock

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import UnavailableError
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage, Observer
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Item, Key, Range, Write
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.shares import Shares
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless_tools.testing.process import _InlineHeartbeat
from tests.support.commits import asleep
from tests.support.messages import request
from tests.support.queues import MemoryQueue
from tests.support.workers import Agent, complete

REQUEST_S: Final = 0.008
"""Seconds of one request to the table."""
QUEUE_S: Final = 0.02
"""Seconds of a send, a receive or an acknowledgement."""
SWEEP_S: Final = 60.0
RESTART_S: Final = 3.0
"""Seconds from a worker's death until another one has its place."""


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer as soon as nothing else is left to do."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.now


class _Jumps(selectors.DefaultSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._jumping = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "All tasks wait for one another."
            self._jumping.now += timeout
        return ready


class LoopClock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class LaggingTable(MemoryTable):
    """A table with slow requests, whose indexes show a write `lag()` seconds later."""

    def __init__(self, lag: Callable[[], float]) -> None:
        super().__init__(INDEXES)
        self.requests = 0
        self._lag = lag
        self._shown = MemoryTable(INDEXES)
        self._writes = 0
        self._latest: dict[Key, int] = {}

    async def _request(self) -> None:
        self.requests += 1
        await asyncio.sleep(REQUEST_S)

    async def load(self, keys: Iterable[Key], **options: Any) -> dict[Key, Item | None]:
        await self._request()
        return await super().load(keys, **options)

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        await self._request()
        pages = self._shown.query(wanted) if wanted.index else super().query(wanted)
        async for page in pages:
            yield page

    async def write(self, *writes: Write, **options: Any) -> None:
        await self._request()
        await super().write(*writes, **options)
        found = await super().load([write.key for write in writes])
        self._writes += 1
        later = asyncio.get_running_loop().call_later
        later(self._lag(), self._show, self._writes, found)

    def _show(self, number: int, found: dict[Key, Item | None]) -> None:
        """Show what write `number` has made, unless what a later one has made is shown already."""
        for key, item in found.items():
            if number > self._latest.get(key, 0):
                self._latest[key] = number
                self._shown._store(key, self._shown._items.get(key), item)


class SlowQueue(MemoryQueue[Operation]):
    most_receives = 0
    """Of one message."""
    receives: Counter[str]
    """Of each task, if they are counted."""

    async def send(self, message: Operation) -> None:
        await asyncio.sleep(QUEUE_S)
        await super().send(message)

    async def _receive(self, limit: int) -> tuple[list[Any], float]:
        records, next_s = await super()._receive(limit)
        if hasattr(self, "receives"):
            self.receives.update(self.decode_record(each).message.task_id for each in records)
        return records, next_s

    async def pull(self, limit: int, wait_s: float) -> list[Any]:
        await asyncio.sleep(QUEUE_S)
        handles = await super().pull(limit, wait_s)
        self.most_receives = max([self.most_receives, *(handle.attempt for handle in handles)])
        return handles

    async def delete(self, record: EventRecord) -> None:
        await asyncio.sleep(QUEUE_S)
        await super().delete(record)


@dataclass(kw_only=True)
class House:
    """A deployment with `places` workers, and what its turns do."""

    places: int
    seed: int
    turns: int = 1
    """The places of one process."""
    visibility_s: int = 60
    is_serial: bool = False
    lag_s: float = 0.05

    deaths: float = 0.0
    """The share of the deliveries whose worker dies before it does anything."""
    turn_s: dict[str, float] = field(default_factory=dict)
    """The seconds of a caller's turns."""
    sent: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    busy: list[tuple[float, float]] = field(default_factory=list)
    """When turns ran."""
    running: dict[str, float] = field(default_factory=dict)
    whose: dict[str, str] = field(default_factory=dict)
    at_work: Counter[int] = field(default_factory=Counter)
    """The deliveries that each process works on."""

    def run(self, play: Callable[[House], Any]) -> House:
        """Let `play` happen, and all turns come to their ends."""
        loop = JumpingLoop()
        loop.now = 1_000_000.0
        try:
            with _seeded(self.seed):
                loop.run_until_complete(self._run(play))
        finally:
            loop.close()
        return self

    async def _run(self, play: Callable[[House], Any]) -> None:
        loop = asyncio.get_running_loop()
        self.clock = LoopClock(loop)
        self.chance = random.Random(self.seed)  # noqa: S311 - a seeded schedule
        self.settings = settings = self._settings()
        self.queue, quarantine = map(self._queue, ("Operation.fifo", "Quarantine.fifo"))
        backends = memory_backends(settings, self.clock)
        self.storage = DurableStorage(
            self._table(),
            clock=self.clock,
            timing=backends.storage.timing,
            observer=Observer(send=self._woken),
            is_serial=self.is_serial,
        )
        self.backends = backends = replace(
            backends, storage=self.storage, operations=self.queue, quarantine=quarantine
        )
        self.adapters = [
            WorkerAdapter(backends, Agent(self._work), settings, heartbeat=_InlineHeartbeat())
            for _ in range(self.places // self.turns)
        ]
        for adapter in self.adapters:
            adapter.shares = Shares(self.storage, self.queue, self.clock, chance=self.chance.random)
            adapter.shares.idle = partial(self._idle, adapter)
        await self.clock.sleep(10)
        places = self.adapters * self.turns
        running = [asyncio.create_task(self._place(each)) for each in places]
        if self.places:
            running.append(asyncio.create_task(self._sweeps()))
        await play(self)
        while len(self.ended) < len(self.sent):
            await self.clock.sleep(0.1)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _settings(self) -> Settings:
        return Settings(visibility_s=self.visibility_s, turn_limit_s=825, max_attempts=100)

    def _queue(self, name: str) -> SlowQueue:
        return SlowQueue(Operation, visibility_s=self.visibility_s, clock=self.clock, name=name)

    def _table(self) -> LaggingTable:
        return LaggingTable(lambda: self.chance.expovariate(1 / self.lag_s))

    async def _place(self, adapter: WorkerAdapter) -> None:
        while True:
            for handle in await self.queue.pull(1, 20):
                if self.chance.random() < self.deaths:
                    await self.clock.sleep(RESTART_S)  # its message comes again, after a visibility
                else:
                    self.at_work[id(adapter)] += 1
                    await adapter.process(handle)
                    self.at_work[id(adapter)] -= 1

    def _idle(self, adapter: WorkerAdapter) -> int:
        return self.turns - self.at_work[id(adapter)]

    async def _sweeps(self) -> None:
        while True:
            await self.clock.sleep(SWEEP_S)
            with suppress(UnavailableError):
                await Sweeper(self.storage, self.queue, clock=self.clock).sweep()

    async def _woken(self, head: Head) -> None:
        await self.queue.send(
            Operation.to_run(OperationParams.of(head, head.turn.number, head.turn.sends))
        )

    async def lose(self, caller: str, context_id: str = "ctx") -> Head:
        """A message of a caller whose turn is on no queue."""
        storage = self.storage.for_scope(Scope.of("", caller))
        user = Caller(user=caller)
        return (await storage.open_task(context_id, request("work"), caller=user)).head

    async def send(self, caller: str, context_id: str = "ctx") -> str:
        head = await self.lose(caller, context_id)
        task_id = head.task_id
        self.whose[task_id] = caller
        self.sent[task_id] = self.clock.monotonic()
        await self.queue.send(Operation.to_run(OperationParams.of(head, 1)))
        return task_id

    async def asleep(self, caller: str, until: float) -> str:
        """A turn of a caller that sleeps until a second of the clock."""
        head = await asleep(self.storage, caller, int(until * 1000))
        self.whose[head.task_id] = caller
        return head.task_id

    async def burst(self, caller: str, count: int) -> list[str]:
        return await asyncio.gather(*(self.send(caller) for _ in range(count)))

    async def _work(self, context: RequestContext, queue: EventQueue) -> None:
        task_id = context.task_id or ""
        caller = self.whose[task_id]
        begun = self.clock.monotonic()
        self.started.setdefault(task_id, begun)
        self.running[task_id] = begun
        await self.clock.sleep(self.turn_s[caller] * self.chance.uniform(0.95, 1.05))
        await complete(context, queue)
        del self.running[task_id]
        self.busy.append((begun, self.clock.monotonic()))
        self.ended[task_id] = self.clock.monotonic()

    # -- figures ---------------------------------------------------------------------------------

    def waits(self, tasks: Iterable[str]) -> list[float]:
        """How long turns have waited for their start, in seconds."""
        return [self.started[task] - self.sent[task] for task in tasks]

    def fill(self, *, since: float, until: float) -> float:
        """The share of the places on which turns ran in a time."""
        now = [(begun, until) for begun in self.running.values()]
        spans = [max(0.0, min(end, until) - max(begin, since)) for begin, end in [*self.busy, *now]]
        return sum(spans) / ((until - since) * self.places)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw ids and pauses from a seed: a task's id decides its shard, and who is before it."""
    chance, state = random.Random(seed), random.getstate()  # noqa: S311 - ids of a test
    random.seed(seed)
    with (
        mock.patch.object(uuid, "uuid4", partial(_drawn, chance)),
        mock.patch.object(secrets, "token_urlsafe", lambda size: chance.randbytes(size).hex()),
    ):
        try:
            yield
        finally:
            random.setstate(state)


def _drawn(chance: random.Random) -> uuid.UUID:
    return uuid.UUID(int=chance.getrandbits(128), version=4)


def p95(values: Sequence[float]) -> float:
    return sorted(values)[max(0, round(0.95 * len(values)) - 1)]


def behind(places: int, count: int, turn_s: float, *, seed: int, **options: Any) -> float:
    """How long a message of B waits that comes at any time while those of A wait."""

    async def play(house: House) -> None:
        await house.burst("A", count)
        await house.clock.sleep(house.chance.uniform(0.1, 0.8 * count * turn_s / places))
        found.append(await house.send("B"))
        house.ended |= {task: 0 for task in house.sent if house.whose[task] == "A"}
        while found[0] not in house.ended:
            await house.clock.sleep(0.1)

    found: list[str] = []
    house = House(places=places, seed=seed, turn_s={"A": turn_s, "B": turn_s}, **options).run(play)
    return house.waits(found)[0]


def wakes(parked: int, due: int) -> list[tuple[int, int]]:
    """Requests and sends of each sweep while `parked` turns sleep, until `due` others are sent."""

    async def play(house: House) -> None:
        at = await _fallen_asleep(house, parked, due)
        table = house.storage.table
        assert isinstance(table, LaggingTable)
        while sum(sent for _, sent in done) <= due:
            before = table.requests
            report = await Sweeper(house.storage, house.queue, clock=house.clock).sweep()
            done.append((table.requests - before, report.requeued))
            await house.clock.sleep(max(at + 0.01 - house.clock.monotonic(), SWEEP_S))
        house.ended = house.sent

    done = list[tuple[int, int]]()
    House(places=0, seed=1).run(play)
    return done


def woken(due: int, *, places: int, turn_s: float, seed: int) -> tuple[list[float], float]:
    """How long after their time turns start that wake at once: `due` of A's, and B's, the last."""

    async def play(house: House) -> None:
        await _fallen_asleep(house, 0, due)
        while len(house.ended) < len(house.sent):
            await house.clock.sleep(1)

    house = House(places=places, seed=seed, turn_s={"A": turn_s, "B": turn_s}).run(play)
    *waits, of_b = house.waits(house.sent)
    return waits, of_b


async def _fallen_asleep(house: House, parked: int, due: int) -> float:
    """Let turns sleep, `parked` of fifty callers for a day; return when the others wake."""
    at = house.clock.monotonic() + 600
    await asyncio.gather(*(house.asleep(f"C{n % 50}", at + 86_400) for n in range(parked)))
    tasks = await asyncio.gather(*(house.asleep("A", at) for _ in range(due)))
    tasks.append(await house.asleep("B", at + 0.001))
    house.sent = dict.fromkeys(tasks, at)
    return at


def steady(
    rate: float, seconds: float, *, places: int, turn_s: float, seed: int
) -> tuple[list[float], int]:
    """How long messages of B, one in 3 s, wait while A sends `rate` a second; the most receives."""

    async def play(house: House) -> None:
        sending = []
        for number in range(int(rate * seconds)):
            sending.append(asyncio.create_task(house.send("A")))
            await house.clock.sleep(1 / rate)
            if number / rate > 3 * len(found) + 5:
                found.append(await house.send("B"))
        await asyncio.gather(*sending)
        while not set(found) <= house.ended.keys():
            await house.clock.sleep(0.1)
        house.ended |= dict.fromkeys(house.sent, 0.0)

    found: list[str] = []
    house = House(places=places, seed=seed, turn_s={"A": turn_s, "B": turn_s}).run(play)
    return house.waits(found), house.queue.most_receives


def alone(places: int, count: int, turn_s: float, *, seed: int, **options: Any) -> float:
    """The share of the places that are busy until the last but `places` turns begin."""
    house = House(places=places, seed=seed, turn_s={"A": turn_s}, **options).run(
        lambda house: house.burst("A", count)
    )
    starts = sorted(house.started.values())
    return house.fill(since=starts[0], until=starts[-places])


def main() -> None:
    """Print the figures of each case: waits in seconds, shares of the places in percent."""
    logging.disable()
    if sys.argv[1] == "wakes":
        waits, of_b = woken(1000, places=10, turn_s=0.5, seed=0)
        _print(f"1,000 turns of A that wake: A {_figures(waits)} s, B {of_b:.1f} s")
        return
    seeds = range(int(sys.argv[1]))
    cases: list[tuple[str, int, int, float, dict[str, float]]] = [
        ("4 places, 60 turns of 2 s", 4, 60, 2.0, {}),
        ("10 places, 300 turns of 2 s", 10, 300, 2.0, {}),
        ("10 places, 100 turns of 60 s", 10, 100, 60.0, {}),
        ("10 places, 300 turns of 2 s, indexes 500 ms late", 10, 300, 2.0, {"lag_s": 0.5}),
        ("10 places, 300 turns of 2 s, 1 % of deliveries die", 10, 300, 2.0, {"deaths": 0.01}),
    ]
    for name, places, count, turn_s, options in cases:
        waits = [behind(places, count, turn_s, seed=seed, **options) for seed in seeds]
        fills = [alone(places, count, turn_s, seed=seed, **options) for seed in seeds]
        _print(f"{name}: B {_figures(waits)} s, A alone {min(fills):.1%} to {max(fills):.1%}")
    for rate, places in ((5, 10), (60, 10), (20, 4)):
        runs = [steady(rate, 30, places=places, turn_s=2.0, seed=seed) for seed in seeds]
        found = _figures([wait for waits, _ in runs for wait in waits])
        _print(f"{places} places, {rate} a second: B {found} s, {max(r for _, r in runs)} receives")


def _figures(waits: Sequence[float]) -> str:
    return f"p50 {statistics.median(waits):.1f}, p95 {p95(waits):.1f}, max {max(waits):.1f}"


_print = partial(print, flush=True)


if __name__ == "__main__":
    main()
