"""One caller attacks each account of what costs the owner, while another one works.

Real processes, on DynamoDB Local and an SQS emulator. Each caller has an API process of its own, as
on Lambda no two requests share one; table, queues, workers, push and sweeper are for both.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.faults import processes
from tests.faults.harness import Emulators, World, until
from tests.faults.processes import ROOT
from tests.support.a2a_calls import Agent, Answer
from tests.support.beside import beside
from tests.unit.push.receivers import OK, Receiver, Request, status
from tests.unit.push.receivers import Answer as Reply
from tests.unit.worker.shares import p95

pytestmark = pytest.mark.emulators

IS_ASKED_FOR: Final = os.environ.get("A2A_ATTACK") == "long"
ATTACK_S: Final = 600.0
CALM_ROUNDS: Final = 45
WORKERS: Final = 10
STREAMS, SLEEPING, FILES = 6, 20, 20
"""What one caller may have of each."""
LONGEST_S: Final = 120.0
PARTS: Final = 100
"""Of a message, each naming the same file."""
TURN_S: Final = 2
"""Of the neighbour's turns."""
LONG_TURN_S: Final = 4
"""Of the attacker's turns where it wants all places."""
PAUSE_S: Final = 10.0
"""Between two requests of each of the attacker's clients: the processors are for all processes."""
ACCOUNTS: Final = (
    {"turns": 3 * WORKERS, "waits": STREAMS, "streams": STREAMS + 2},
    {"objects": 1, "copies": 1, "webhooks": 1},
    {"sleeps": 5},
)
"""What is attacked at once, each by so many requests: who has too many turns asleep opens none."""
MET: Final = {
    "turns": "200 SUBMITTED",
    "waits": "200 SUBMITTED",
    "streams": "200, ended at once",
    "objects": "200",
    "copies": "429",
    "webhooks": "200 SUBMITTED",
    "sleeps": "400",
}
"""The answers that show that an account is at its limit, or that what is attacked is reached."""
REPORT: Final = ROOT / "build/attack.md"

ATTACKER, NEIGHBOUR = "key-of-the-attacking-caller", "key-of-the-neighbouring-caller"
SETTINGS: Final = {
    "A2A_AUTH": "api-key",
    "A2A_API_KEYS": f"attacker={ATTACKER},neighbour={NEIGHBOUR}",
    "A2A_VISIBILITY_S": "60",
    "A2A_WAITING_S": "60",
    "A2A_STREAMS_PER_CALLER": str(STREAMS),
    "A2A_SLEEPING_TURNS_PER_CALLER": str(SLEEPING),
    "A2A_UPLOADS_PER_HOUR": str(FILES),
    "A2A_PUSH_ALLOWED_HOSTS": "127.0.0.1",
    "A2A_PUSH_TIMEOUT_S": "2",
    processes.PARK: "0.5",
    processes.SWEEP_PERIOD: "5",
}


Rounds = Sequence[dict[str, float]]
"""What each round of the neighbour took, in seconds."""


class Webhooks:
    """All webhooks on one host: the neighbour's answer, the attacker's fail or hang."""

    def __init__(self) -> None:
        self.told_at: dict[str, float] = {}
        self.failed = 0

    def answer(self, request: Request) -> Reply:
        if request.target.startswith("/neighbour"):
            self.told_at.setdefault(request.target, time.time())
            return OK
        self.failed += 1
        return self._hangs() if request.target.startswith("/hangs") else status(503)

    async def _hangs(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(5)
        yield status(503)


class Party:
    def __init__(self, http: httpx.AsyncClient, receiver: Receiver) -> None:
        self.agent = Agent(http)
        self.receiver = receiver

    async def send(self, text: str, *parts: Any, waits: bool = True, webhook: str = "") -> Answer:
        told = {"taskPushNotificationConfig": {"url": webhook}} if webhook else {}
        return await self.agent.send(
            messageId=uuid.uuid4().hex,
            parts=[{"text": text}, *parts],
            configuration={"returnImmediately": not waits, **told},
        )


class Neighbour(Party):
    async def works(self, told_at: dict[str, float]) -> dict[str, float]:
        """Send a message, wait for its answer and notification, and list; return the seconds."""
        path = f"/neighbour/{uuid.uuid4().hex}"
        began = time.time()
        answer = await self.send(f"slow {TURN_S}", webhook=self.receiver.url(path=path))
        asked = {"id": answer.task["id"], "historyLength": 0}
        look = partial(self.agent.call, "GetTask", asked)
        if answer.state != "COMPLETED":
            await until(look, "an end", LONGEST_S, is_it=lambda one: one.state == "COMPLETED")
        ended = time.time()
        listed = await self.agent.call("ListTasks", {"pageSize": 20})
        assert listed.response.is_success, listed
        took = {"answer": ended - began, "list": time.time() - ended}
        await until(lambda: path in told_at, f"{path} is told", LONGEST_S)
        return {**took, "notification": max(0.0, told_at[path] - ended)}


class Attacker(Party):
    """The caller that attacks; `answers` counts what it was answered, by account."""

    def __init__(self, http: httpx.AsyncClient, receiver: Receiver) -> None:
        super().__init__(http, receiver)
        self.answers = defaultdict[str, Counter[str]](Counter)
        self._part: dict[str, Any] = {}
        self._sleeper = ""
        self._numbers = itertools.count()

    async def prepare(self) -> None:
        """Upload a file, have messages that name it often, and a turn that sleeps for long."""
        content = b"z" * 100
        asked = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        asked |= {"mediaType": "text/plain"}
        place = (await self.agent.client.post("/files", json=asked)).json()
        headers = place["headers"]
        put = await self.agent.client.put(place["url"], content=content, headers=headers)
        assert put.is_success, put.text
        self._part = place["part"]
        for _ in range(FILES // 2):
            answer = await self.send("chunks 1 0", *[self._part] * PARTS)
            assert answer.response.is_success, answer
        self._sleeper = (await self.send("naps 3600", waits=False)).task["id"]

    @asynccontextmanager
    async def attacking(self, accounts: Mapping[str, int]) -> AsyncIterator[None]:
        """Attack accounts for the block, each by so many requests at once."""
        attacks = [each for each, number in accounts.items() for _ in range(number)]
        async with beside(self._repeats(getattr(self, each)) for each in attacks):
            yield

    async def _repeats(self, attack: Any) -> None:
        while True:
            self.answers[attack.__name__][await attack()] += 1
            await asyncio.sleep(PAUSE_S)

    async def turns(self) -> str:
        """Want more turns than all workers run."""
        return _said(await self.send(f"slow {LONG_TURN_S}", waits=False))

    async def waits(self) -> str:
        """Hold a request for the answer to a message."""
        return _said(await self.send(f"slow {LONG_TURN_S}"))

    async def streams(self) -> str:
        """Hold a stream of a turn that sleeps."""
        began = time.monotonic()
        path = f"/tasks/{self._sleeper}:subscribe"
        async with self.agent.client.stream("POST", path, headers={"A2A-Version": "1.0"}) as answer:
            async for _ in answer.aiter_bytes():
                pass
        is_held = time.monotonic() - began > 5
        return f"{answer.status_code}, {'held' if is_held else 'ended at once'}"

    async def sleeps(self) -> str:
        """Have ever more turns that sleep, and wake together."""
        return _said(await self.send("naps 60", waits=False))

    async def objects(self) -> str:
        """List all messages with all the files that they name."""
        return _said(await self.agent.call("ListTasks", {"pageSize": 100, "historyLength": 1}))

    async def copies(self) -> str:
        """Have the file stored once more by a message."""
        return _said(await self.send("chunks 1 0", self._part, waits=False))

    async def webhooks(self) -> str:
        """Have webhooks on the neighbour's host called that fail, or answer late or nowhere."""
        number = next(self._numbers)
        url = self.receiver.url(path=f"/{('fails', 'hangs')[number % 2]}/{number}")
        return _said(await self.send("chunks 1 0", waits=False, webhook=url))


def _said(answer: Answer) -> str:
    state = answer.result.get("task", {}).get("status", {}).get("state", "")
    return f"{answer.response.status_code} {state.removeprefix('TASK_STATE_')}".strip()


@asynccontextmanager
async def _caller(world: World, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Start an API process for a caller; yield a client that has its key."""
    api = await world.start("api")
    url, limits = await api.says(r"A2A at (\S+),"), httpx.Limits(max_connections=None)
    own: Any = {"headers": {"X-API-Key": key}, "timeout": 60, "trust_env": False}
    async with httpx.AsyncClient(base_url=url, limits=limits, **own) as http:
        yield http


async def _rounds(neighbour: Neighbour, webhooks: Webhooks, ends: Callable[[int], bool]) -> Rounds:
    """Let the neighbour work until `ends` says so of the number of rounds, one in four seconds."""
    seen = list[dict[str, float]]()
    while not ends(len(seen)):
        began = time.monotonic()
        seen.append(await neighbour.works(webhooks.told_at))
        await asyncio.sleep(max(0.0, 4 - (time.monotonic() - began)))
    return seen


def _report(calm: Rounds, attacked: Rounds, attacker: Attacker) -> str:
    lines = ["| the neighbour's | p50, ms | p95, ms | p50, attacked | p95, attacked |"]
    lines += ["|---|---:|---:|---:|---:|"]
    for what in calm[0]:
        cells = [what]
        for phase in (calm, attacked):
            values = sorted(each[what] for each in phase)
            cells += [f"{1000 * values[len(values) // 2]:.0f}", f"{1000 * p95(values):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| account | the attacker was answered |", "|---|---|"]
    for what, counts in attacker.answers.items():
        said = ", ".join(f"{count} times {answer}" for answer, count in counts.most_common())
        lines.append(f"| {what} | {said} |")
    lines += ["", f"{len(calm)} rounds, and {len(attacked)} under attack."]
    return "\n".join([*lines, f"Load (1 min): {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."])


@pytest.mark.skipif(not IS_ASKED_FOR, reason="ten minutes of an idle machine: `make attack`")
@pytest.mark.parametrize("accounts", ACCOUNTS, ids=",".join)
@pytest.mark.timeout(1800)
async def test_an_attack_on_every_account_is_the_attackers(
    accounts: Mapping[str, int], push_emulators: Emulators, tmp_path: Path
) -> None:
    """The attacker meets the limit of each account; the neighbour is answered and told of it all.

    The attacker wants more turns than the workers run, more open requests, sleeping turns, stored
    copies and read objects than a caller may have, and webhooks that fail on the neighbour's own
    host, for ten minutes. The neighbour's answers, lists and notifications take at most twice as
    long, at the 95th percentile, as without it; where it has all places, they wait for the end of
    one of its turns.
    """
    webhooks = Webhooks()
    with Receiver(webhooks.answer) as receiver:
        async with push_emulators.world(tmp_path, **SETTINGS) as world:
            await world.start("worker", concurrency=WORKERS)
            await world.start("push", concurrency=50)
            await world.start("sweep")
            async with _caller(world, NEIGHBOUR) as near, _caller(world, ATTACKER) as far:
                neighbour, attacker = Neighbour(near, receiver), Attacker(far, receiver)
                await neighbour.works(webhooks.told_at)  # the first ones make the connections
                calm = await _rounds(neighbour, webhooks, CALM_ROUNDS.__le__)
                await attacker.prepare()
                async with attacker.attacking(accounts):

                    def are_met() -> bool:
                        met = {each for each in accounts if attacker.answers[each][MET[each]]}
                        return met == accounts.keys() and webhooks.failed >= 2 * ("webhooks" in met)

                    await until(are_met, "every account is at its limit", LONGEST_S)
                    end_s = time.monotonic() + ATTACK_S
                    attacked = await _rounds(
                        neighbour, webhooks, lambda _: time.monotonic() > end_s
                    )
    report = _report(calm, attacked, attacker)
    REPORT.parent.mkdir(exist_ok=True)
    with REPORT.open("a", encoding="utf-8") as file:
        file.write(f"{report}\n\n")
    for what in calm[0]:
        before, during = ([each[what] for each in phase] for phase in (calm, attacked))
        longer = LONG_TURN_S if "turns" in accounts else p95(before)
        assert p95(during) <= p95(before) + longer, report
