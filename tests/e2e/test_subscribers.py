"""Many subscribers on one task, in two processes; the agent runs in a third one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from a2a.client import Client
from a2a.types import StreamResponse, SubscribeToTaskRequest, TaskState

from tests.e2e.clients import BINDINGS, client_at, last_state, stream
from tests.e2e.commands import environment, running
from tests.e2e.paced_agent import CHUNKS, FOLDER, GAP_S, PACED

pytestmark = [pytest.mark.emulators, pytest.mark.timeout(300)]

AGENT = f"{Path(__file__).parent / 'paced_agent.py'}:agent"
SLOW_S = 2 * GAP_S
"""What a slow reader takes for an event; the agent writes twice as fast."""


@pytest.fixture
def paces(provisioned: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """The folder of an agent's process: a file there lets it go on."""
    working, env = ("worker", "--agent", AGENT), {**provisioned, FOLDER: str(tmp_path)}
    with running(*working, env=environment(**env), output=tmp_path / "log") as worker:
        worker.wait_for("turns at a time")
        yield tmp_path


class Subscriber:
    """An official client on one task, and what it has seen."""

    def __init__(self, client: Client, pause_s: float) -> None:
        self._client = client
        self._pause_s = pause_s
        self.seen: list[StreamResponse] = []
        self.has_opening = asyncio.Event()

    async def follow(self, task_id: str) -> None:
        async for event in self._client.subscribe(SubscribeToTaskRequest(id=task_id)):
            self.seen.append(event)
            self.has_opening.set()
            await asyncio.sleep(self._pause_s)

    def numbers(self) -> list[int]:
        """The chunks of the opening Task and of the events, in their order."""
        opening = [p for a in self.seen[0].task.artifacts for p in a.parts]
        updates = [e.artifact_update for e in self.seen if e.HasField("artifact_update")]
        parts = [*opening, *(part for update in updates for part in update.artifact.parts)]
        return [int(part.text.split()[0]) for part in parts]


async def test_subscribers_in_two_processes_see_the_same(api_urls: list[str], paces: Path) -> None:
    """The one who sent and nine official clients, each joining at another chunk, two of them slow.

    Over both bindings and both processes: the same events in the same order, to the end.
    """
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as following:
        clients = [
            await stack.enter_async_context(client_at(url, binding=binding))
            for url in api_urls
            for binding in BINDINGS
        ]
        sent: list[StreamResponse] = []
        subscribers: list[Subscriber] = []
        async for event in stream(clients[0], "go"):
            sent.append(event)
            if event.HasField("artifact_update") and len(subscribers) < PACED:
                number = len(subscribers)
                pause_s = SLOW_S if number in (1, 2) else 0
                subscribers.append(Subscriber(clients[number % len(clients)], pause_s))
                following.create_task(subscribers[-1].follow(sent[0].task.id))
                await subscribers[-1].has_opening.wait()
                (paces / str(number)).touch()
    assert len(subscribers) == PACED
    assert len(sent) > CHUNKS
    for subscriber in subscribers:
        followed = subscriber.seen[1:]
        assert subscriber.seen[0].HasField("task")
        assert followed == sent[-len(followed) :]
        assert subscriber.numbers() == list(range(CHUNKS))
        assert last_state(subscriber.seen) == TaskState.TASK_STATE_COMPLETED
