"""The resuming client on a bad line, at servers that are replaced: the task's log, nothing twice.

30 cuts and 2 restarts in the suite, 500 and 20 with A2A_FAULTS=long.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientCallContext, ClientConfig, ClientFactory
from a2a.types import StreamResponse, Task
from google.protobuf.json_format import MessageToDict

from a2a_serverless.client import ResumingClient, Retries, resuming
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.head import TERMINAL
from tests.e2e.clients import BINDINGS, artifact_text
from tests.e2e.commands import Running, environment, running
from tests.e2e.conftest import CARD
from tests.e2e.cutting_proxy import CuttingProxy
from tests.e2e.stored import log_of
from tests.support.databases import LONG
from tests.support.messages import request

pytestmark = [pytest.mark.emulators, pytest.mark.timeout(1800 if LONG else 300)]

CUTS, RESTARTS = (500, 20) if LONG else (30, 2)
AT_ONCE = 6
AGENT = f"{Path(__file__).parent / 'talking_agent.py'}:agent"
PATIENCE = Retries(give_up_after_s=600, longest_wait_s=1)
"""More time than a busy machine needs to replace servers, with connections cut before a word."""


@dataclass
class Call:
    """A message, and everything that its client got."""

    events: list[StreamResponse] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    @property
    def task_id(self) -> str:
        return self.events[0].task.id

    async def run(self, client: ResumingClient, text: str) -> None:
        context = ClientCallContext()
        async for event in client.send_message(request(text), context=context):
            self.events.append(event)
            self.ids.append(context.state.get("last_event_id", ""))


class Api:
    """The `api` process of the moment, behind the proxy."""

    def __init__(self, env: dict[str, str], folder: Path, stack: AsyncExitStack) -> None:
        self._env = env
        self._folder = folder
        self._stack = stack
        self._process: Running | None = None
        self.starts = 0

    async def start(self) -> str:
        """Start a process; its URL."""
        self.starts += 1
        serving = running(
            *("api", "--card", CARD, "--port", "0"),
            env=self._env,
            output=self._folder / f"api-{self.starts}.log",
        )
        self._process = await asyncio.to_thread(self._stack.enter_context, serving)
        return await asyncio.to_thread(self._process.wait_for, r"A2A at (\S+),")

    async def restart(self, proxy: CuttingProxy) -> None:
        """End it, politely or not, refuse connections meanwhile, and start another one."""
        assert self._process is not None
        number = signal.SIGKILL if self.starts % 2 else signal.SIGTERM
        await proxy.refuse()
        await asyncio.to_thread(self._process.end, number)
        proxy.target = await self.start()
        await proxy.listen()


@asynccontextmanager
async def clients_of(url: str) -> AsyncIterator[list[ResumingClient]]:
    """Clients of the card at `url`: streaming over both bindings, and one that waits for answers.

    The card names the proxy, through which they call.
    """
    timeout = httpx.Timeout(5, read=20)
    async with httpx.AsyncClient(trust_env=False, timeout=timeout) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        yield [
            resuming(
                ClientFactory(
                    ClientConfig(
                        httpx_client=http,
                        supported_protocol_bindings=[binding],
                        streaming=streaming,
                    )
                ).create(card),
                http,
                PATIENCE,
            )
            for binding, streaming in (
                (BINDINGS[0], True),
                (BINDINGS[1], True),
                (BINDINGS[0], False),
            )
        ]


@pytest.fixture
def worker(own_queues: dict[str, str], tmp_path: Path) -> Iterator[Running]:
    """The process that runs the agent, which is not cut off."""
    working = ("worker", "--agent", AGENT, "--concurrency", str(AT_ONCE))
    env = environment(**own_queues, A2A_AUTH="none")
    with running(*working, env=env, output=tmp_path / "worker.log") as worker:
        worker.wait_for("turns at a time")
        yield worker


async def tasks_of(storage: DurableStorage) -> int:
    return (await list_tasks(storage, ListTasksQuery(page_size=1))).total_size


async def check(call: Call, storage: DurableStorage, *, streaming: bool) -> None:
    """What the client got is what the log has, each event once."""
    stored = await storage.load_task(call.task_id)
    assert stored is not None
    assert stored.status.state in TERMINAL
    if not streaming:
        (answer,) = call.events
        assert artifact_text(answer.task) == artifact_text(stored)
        return
    opening, *updates = call.events
    first, *ids = [tuple(int(part) for part in id_.split(".")[:2]) for id_ in call.ids]
    got = list(zip(ids, map(MessageToDict, updates), strict=True))
    logged = [
        (tuple(int(part) for part in id_.split(".")), event)
        for id_, event in await log_of(storage, call.task_id)
    ]
    assert got == [(id_, event) for id_, event in logged if id_ > first]
    assert folded(opening.task, updates) == artifact_text(stored)


def folded(task: Task, updates: list[StreamResponse]) -> str:
    """The artifact's text as a client makes it of a Task and what came after it."""
    texts = [artifact_text(task)]
    for event in updates:
        if event.HasField("artifact_update"):
            said = "".join(part.text for part in event.artifact_update.artifact.parts)
            texts = [*texts, said] if event.artifact_update.append else [said]
    return "".join(texts)


async def test_the_log_and_nothing_twice(
    own_queues: dict[str, str],
    storage: DurableStorage,
    worker: Running,
    tmp_path: Path,
    record_property: Any,
) -> None:
    """Connections are cut at random bytes, the server is replaced: each client has the log."""
    env = environment(**own_queues, A2A_AUTH="none", A2A_BLOCKING_LIMIT_S="1")
    chance = random.Random(18)  # noqa: S311 - repeatable
    calls: list[Call] = []
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(CuttingProxy(CUTS, chance).running())
        api = Api({**env, "A2A_PUBLIC_URL": proxy.url}, tmp_path, stack)
        proxy.target = await api.start()
        clients = await stack.enter_async_context(clients_of(proxy.target))

        async def one(number: int) -> None:
            while proxy.cuts < CUTS or api.starts <= RESTARTS:
                call, index = Call(), number % len(clients)
                await call.run(clients[index], f"{number} {len(calls)}")
                calls.append(call)
                await check(call, storage, streaming=index < len(BINDINGS))

        async def replace() -> None:
            for number in range(RESTARTS):
                while proxy.cuts < CUTS * (number + 1) / (RESTARTS + 1):  # noqa: ASYNC110 - a count
                    await asyncio.sleep(0.01)
                await api.restart(proxy)

        before = await tasks_of(storage)
        await asyncio.gather(replace(), *(one(number) for number in range(AT_ONCE)))
        assert await tasks_of(storage) - before == len(calls)
    assert proxy.cuts == CUTS
    assert api.starts == RESTARTS + 1
    record_property("calls", len(calls))
    record_property("events", sum(len(call.events) for call in calls))
