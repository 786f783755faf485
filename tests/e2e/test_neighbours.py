"""One caller attacks for ten minutes while another works: what the other one notices of it.

The API, the workers and the sweeper are real; a clock that jumps spares the waiting. Requests to
the table and the queue take their time, indexes lag, and API and table have limits as on AWS.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_high
from typing import Any, Final

import httpx
import pytest
from a2a.types import AgentCard
from pydantic import SecretStr

from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.table import Item, Key, Range
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.context import TaskContext, Worker, WorkerExecutor
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless_tools.testing.process import _InlineHeartbeat
from tests.support.a2a_calls import Agent as Remote
from tests.support.alarms import CloudWatch, alarms_of, rung
from tests.support.beside import beside
from tests.support.databases import LONG
from tests.support.permissions import transform
from tests.support.template import TEMPLATE
from tests.unit.worker.shares import JumpingLoop, LaggingTable, LoopClock, SlowQueue, p95

CARD: Final = Path(__file__).parents[2] / "functions/api/agent_card.json"
BEGIN_S: Final = 1_000_000.0
"""Small enough for timers of a float's exactness."""
REPORT: Final = Path(__file__).parents[2] / "build/attack.md"
ATTACK_S: Final = 600 if LONG else 30
WORKERS: Final = 10
TURN_S: Final = 2.0
ENVIRONMENTS: Final = 100
"""Of the API: each answers one request at a time (`ApiConcurrency`)."""
UNITS_A_SECOND: Final = 1_000
"""Read units of the table: a fortieth of what AWS gives a table by default."""
CONNECTIONS: Final = 90
TALK: Final = "a-long-conversation"
LONG_TALK: Final = 1000 if LONG else 100
"""Tasks of the attacker's conversation."""
ATTACKER, NEIGHBOUR = "key-of-the-attacking-caller", "key-of-the-neighbouring-caller"
SLEEP: Final = "sleep"
SLEEPING: Final = 50
FILES: Final = 20
"""Turns of a caller that may sleep, and files that it may store within an hour."""
CONTENT: Final = b"z" * 100
PARTS: Final = 100
"""Of a message, each naming the same file."""
RARE: Final = ("TASK_STATE_REJECTED", "TASK_STATE_INPUT_REQUIRED")


class BoundedTable(LaggingTable):
    """A table that reads so many units a second: who wants more waits."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.05)
        self._free_at = 0.0

    async def _pay(self, units: float) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + units / UNITS_A_SECOND
        if self._free_at - now > 1:  # a second of unused capacity may be used at once
            await asyncio.sleep(self._free_at - now - 1)

    async def load(self, keys: Iterable[Key], **options: Any) -> dict[Key, Item | None]:
        keys = list(keys)
        await self._pay(len(keys))
        return await super().load(keys, **options)

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        async for page in super().query(wanted):
            await self._pay(0.5 + len(page) / 40)
            yield page


class Works(Worker):
    """The agent, whose turn takes two seconds; told to sleep it sleeps before."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == SLEEP:
            await ctx.sleep(90)
        await self._clock.sleep(TURN_S)
        await ctx.respond("Done.")


class Account:
    """A deployment, its two callers, and what they have seen."""

    def __init__(self, loop: JumpingLoop, card: AgentCard) -> None:
        self.clock = LoopClock(loop)
        keys = SecretStr(f"attacker={ATTACKER},neighbour={NEIGHBOUR}")
        limits = {"sleeping_turns_per_caller": SLEEPING, "uploads_per_hour": FILES}
        times = {"visibility_s": 60, "turn_limit_s": 825}
        settings = Settings(auth="api-key", api_keys=keys, **(limits | times))
        self._queue = SlowQueue(Operation, visibility_s=60, clock=self.clock, name="Operation.fifo")
        backends = memory_backends(settings, self.clock)
        storage = DurableStorage(BoundedTable(), clock=self.clock, timing=backends.storage.timing)
        storage.table.blobs = backends.storage.table.blobs
        self._backends = replace(backends, storage=storage, operations=self._queue)
        self._app = create_app(settings, self._backends, card)
        self._environments = asyncio.Semaphore(ENVIRONMENTS)
        self._workers = [
            WorkerAdapter(
                self._backends,
                WorkerExecutor(Works(self.clock)),
                settings,
                heartbeat=_InlineHeartbeat(),
            )
            for _ in range(WORKERS)
        ]
        self._numbers = itertools.count()
        self.answers = Counter[int]()
        self.sends: list[float] = []
        self.lists: list[float] = []
        """Seconds until the neighbour had its answers."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with beside([*map(self._place, self._workers), self._every_minute()]):
            yield

    async def _place(self, worker: WorkerAdapter) -> None:
        while True:
            for handle in await self._queue.pull(1, 20):
                await worker.process(handle)

    async def _every_minute(self) -> None:
        while True:
            await self.clock.sleep(60)
            await Sweeper(self._backends.storage, self._queue, clock=self.clock).sweep()
            metrics.flush()

    @asynccontextmanager
    async def caller(self, key: str) -> AsyncIterator[Remote]:
        async def bounded(scope: Any, receive: Any, send: Any) -> None:
            async with self._environments:
                await self._app(scope, receive, send)

        own: Any = {"base_url": "http://agent", "headers": {"X-API-Key": key}, "timeout": 60}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(bounded), **own) as http:
            yield Remote(http)

    async def send(
        self, remote: Remote, *parts: Any, text: str = "go", waits: bool = True, talk: str = ""
    ) -> str:
        """Send a message of a text and parts; return its task's state, of a refused one none."""
        number = next(self._numbers)
        ids: Any = {"messageId": f"message-{number}", "contextId": talk or f"context-{number}"}
        how = {"returnImmediately": not waits}
        answer = await remote.send(parts=[{"text": text}, *parts], configuration=how, **ids)
        self.answers[answer.response.status_code] += 1
        return answer.state if answer.response.is_success else ""

    async def works(self, seconds: float) -> None:
        """Let the neighbour send a message every five seconds, wait for its answer, and list."""
        until = self.clock.monotonic() + seconds
        async with self.caller(NEIGHBOUR) as remote:
            while self.clock.monotonic() < until:
                began = self.clock.monotonic()
                assert await self.send(remote) == "COMPLETED"
                self.sends.append(self.clock.monotonic() - began)
                began = self.clock.monotonic()
                assert (await remote.call("ListTasks", {"pageSize": 20})).response.is_success
                self.lists.append(self.clock.monotonic() - began)
                await self.clock.sleep(5 - (self.clock.monotonic() - began) % 5)

    @asynccontextmanager
    async def attacked(self, attack: str) -> AsyncIterator[None]:
        """Attack as one caller, by what `attack` names."""
        async with self.caller(ATTACKER) as remote:
            runs = {
                "requests": [self._holds] * CONNECTIONS + [self._lists] * 4,
                "sleeps": [self._sleeps] * 4,
                "files": [self._files, self._files],
            }[attack]
            async with beside(each(remote) for each in runs):
                yield

    async def _sleeps(self, remote: Remote) -> None:
        while True:
            await self.send(remote, text=SLEEP, waits=False)
            await self.clock.sleep(0.5)

    async def _files(self, remote: Remote) -> None:
        asked = {"size": 100, "sha256": hashlib.sha256(CONTENT).hexdigest()}
        asked |= {"mediaType": "text/plain"}
        place = (await remote.client.post("/files", json=asked)).json()
        await remote.client.put(place["url"], content=CONTENT, headers=place["headers"])
        while True:
            await self.send(remote, *[place["part"]] * PARTS, waits=False)
            read = await remote.call("ListTasks", {"pageSize": 100, "historyLength": 1})
            assert read.response.is_success, read
            await self.clock.sleep(5)

    async def _holds(self, remote: Remote) -> None:
        while True:
            await self.send(remote)
            await self.clock.sleep(5)

    async def _lists(self, remote: Remote) -> None:
        for number in itertools.count():
            after = datetime.fromtimestamp(BEGIN_S + number, UTC).isoformat()
            asked: list[dict[str, Any]] = [
                {"contextId": TALK, "pageSize": 1},
                {"status": RARE[number % 2], "pageSize": 1},
                {"statusTimestampAfter": after.replace("+00:00", "Z"), "pageSize": 1},
            ]
            for each in asked:
                answer = await remote.call("ListTasks", each)
                assert answer.response.is_success, answer
                await self.clock.sleep(0.2)

    async def talks(self) -> None:
        """Make the attacker's long conversation, whose turns are over."""
        async with self.caller(ATTACKER) as remote:
            for _ in range(LONG_TALK):
                await self.send(remote, waits=False, talk=TALK)
        while (await self._queue.depth()) != (0, 0, None):
            await self.clock.sleep(1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("attack", "statuses"), [("requests", {200}), ("sleeps", {200, 400}), ("files", {200, 429})]
)
@pytest.mark.timeout(3600 if LONG else 300)
def test_a_neighbour_hardly_notices_an_attack(
    attack: str, statuses: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Its answers and lists take at most twice as long, and no alarm rings.

    The other caller holds 90 requests, whose turns need more than all workers, and lists a
    conversation of many tasks, rare states and ever other times; or it has more turns that sleep,
    or more files stored and read, than a caller may: for ten minutes in the long form, which
    compares the 95th percentile; for half of one in the short form, whose few answers are compared
    in the middle.
    """
    caplog.set_level(logging.CRITICAL)
    loop = JumpingLoop()
    loop.now = BEGIN_S
    account = Account(loop, load_card(CARD))
    seen = CloudWatch(account.clock)
    of = p95 if LONG else median_high

    async def play() -> tuple[list[float], list[float]]:
        async with account.running():
            await account.clock.sleep(10)
            if attack == "requests":
                await account.talks()
            await account.works(ATTACK_S)
            calm = [of(account.sends), of(account.lists)]
            account.sends.clear()
            account.lists.clear()
            async with account.attacked(attack):
                await account.clock.sleep(20)
                await account.works(ATTACK_S)
            return calm, [of(account.sends), of(account.lists)]

    with seen.emitted():
        try:
            calm, attacked = loop.run_until_complete(play())
        finally:
            loop.close()
    if LONG:
        REPORT.parent.mkdir(exist_ok=True)
        with REPORT.open("a", encoding="utf-8") as file:
            ratios = zip(("answers", "lists"), calm, attacked, strict=True)
            said = ", ".join(f"{what} {one:.2f} s, then {two:.2f} s" for what, one, two in ratios)
            file.write(f"{attack}: p95 of {said}; answered {dict(account.answers)}\n\n")
    # Half a minute need not be long enough for the attack to meet its limit.
    assert {200} <= account.answers.keys() <= statuses
    assert not LONG or account.answers.keys() == statuses
    for before, during in zip(calm, attacked, strict=True):
        assert during <= 2 * before, (calm, attacked, account.sends)
    assert rung(alarms_of(transform(TEMPLATE)), seen, since_ms=int(BEGIN_S * 1000)) == set()
