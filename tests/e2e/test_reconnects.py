"""Cut anywhere, continued anywhere: what a client gets in pieces is the log of the task.

20 runs in the suite, 200 with A2A_FAULTS=long.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from a2a.types import TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten, Entry, MetadataMerged, StatusChanged
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.rules import Commit
from tests.e2e.stored import log_of
from tests.support.a2a_calls import JSONRPC, REST, target
from tests.support.databases import LONG
from tests.support.messages import agent_message, artifact, request

pytestmark = [pytest.mark.emulators, pytest.mark.timeout(600)]

RUNS = 200 if LONG else 20
AT_ONCE = 8
CUTS = 15
"""Of one run; after that many the line holds."""

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED


class Agent:
    """Writes a log at random: big commits and small ones, silent ones, restarts."""

    def __init__(self, storage: DurableStorage, chance: random.Random) -> None:
        self._storage = storage
        self._chance = chance
        self._token = ""
        self._is_fresh = True

    async def work(self, task_id: str) -> None:
        head = await self._storage.head(task_id)
        assert head is not None
        commits = self._chance.randint(4, 14)
        for number in range(commits):
            await asyncio.sleep(self._chance.uniform(0, 0.03))
            claims = not self._token or self._chance.random() < 0.1
            if claims:
                self._token, self._is_fresh = new_token(), True
            entries = [self._entry() for _ in range(self._chance.randint(1, 5))]
            if number == commits - 1:
                # Nothing takes an artifact back that a dead attempt alone has written.
                entries.append(self._chunk(60))
                entries.append(StatusChanged(TaskStatus(state=COMPLETED)))
            head = await self._storage.commit(
                head, Commit(entries=tuple(entries), token=self._token, claims=claims)
            )

    def _entry(self) -> Entry:
        match self._chance.choices(("chunk", "big", "status", "silent"), (8, 0.2, 2, 1))[0]:
            case "status":
                said = agent_message(self._text(20))
                return StatusChanged(TaskStatus(state=WORKING, message=said))
            case "silent":
                metadata = Struct()
                metadata.update({"seen": self._chance.random()})
                return MetadataMerged(metadata)
            case kind:
                return self._chunk(400_000 if kind == "big" else 60)

    def _chunk(self, length: int) -> Entry:
        # An attempt's first chunk replaces what a dead attempt left, as in the worker.
        append, self._is_fresh = not self._is_fresh, False
        return ArtifactWritten(artifact("story", self._text(length)), append=append)

    def _text(self, length: int) -> str:
        """Return text with characters that could end a line or an event if not escaped."""
        some = self._chance.choices('ab 5"\\\n\r\u2028é漢🎈:{}', k=min(length, 60))
        return "".join(some) + "x" * max(0, length - 60)


@dataclass
class Client:
    """A client with a bad line: what it has of one task, over all its connections."""

    http: httpx.AsyncClient
    urls: list[str]
    binding: str
    chance: random.Random
    openings: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Each connection's Task, and how many events came before it."""
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    last_id: str = ""
    connections: int = 0
    is_there: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, task_id: str) -> None:
        """Stream the task to its end, through all cuts."""
        while not self._has_ended():
            await self._connect(task_id)

    async def _connect(self, task_id: str) -> None:
        verb, path, body = target(self.binding, "SubscribeToTask", {"id": task_id})
        headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        url = self.urls[self.connections % len(self.urls)] + path
        left = self.chance.randint(0, 2500) if self.connections < CUTS else 1 << 30
        is_first, self.connections = self.connections == 0, self.connections + 1
        async with self.http.stream(verb, url, json=body, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            unread, has_opening = b"", False
            async for piece in response.aiter_raw():
                cut = left <= len(piece)
                unread += piece[:left] if cut and not (is_first and not has_opening) else piece
                *blocks, unread = unread.split(b"\n\n")
                for block in blocks:
                    has_opening = self._take(block.decode(), is_opening=not has_opening)
                left -= len(piece)
                if left <= 0 and (has_opening or not is_first):
                    return

    def _take(self, block: str, *, is_opening: bool) -> bool:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
        if not fields:
            return not is_opening
        assert "event" not in fields, fields
        data = json.loads(fields["data"])
        event = data["result"] if self.binding == JSONRPC else data
        if is_opening:
            assert not self.last_id or fields["id"] == self.last_id
            self.openings.append((len(self.events), event["task"]))
            self.is_there.set()
        else:
            self.events.append((fields["id"], event))
        self.last_id = fields["id"]
        return True

    def _has_ended(self) -> bool:
        last = self.events[-1][1] if self.events else {}
        state = last.get("statusUpdate", {}).get("status", {}).get("state")
        return bool(state == "TASK_STATE_COMPLETED")

    def stories(self) -> set[str]:
        """The artifact's text as each connection's Task and what came after it make it."""
        return {self._story(task, self.events[seen:]) for seen, task in self.openings}

    @staticmethod
    def _story(task: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> str:
        parts = [p["text"] for a in task.get("artifacts", []) for p in a["parts"]]
        for _, event in events:
            update = event.get("artifactUpdate")
            if update is not None:
                said = [part["text"] for part in update["artifact"]["parts"]]
                parts = parts + said if update.get("append") else said
        return "".join(parts)


async def one_run(
    storage: DurableStorage, http: httpx.AsyncClient, urls: list[str], number: int
) -> int:
    """One task, one agent, one client; gives the number of connections."""
    chance = random.Random(number)  # noqa: S311 - repeatable
    binding = (JSONRPC, REST)[number % 2]
    opened = await storage.open_task("context", request())
    task_id = opened.head.task_id
    client = Client(http, chance.sample(urls, 2), binding, chance)
    agent = Agent(storage, random.Random(number + 1_000_000))  # noqa: S311 - as above

    async def work() -> None:
        await client.is_there.wait()
        await agent.work(task_id)

    await asyncio.gather(work(), client.follow(task_id))

    got = [(id_.rpartition(".")[0], event) for id_, event in client.events]
    logged = await log_of(storage, task_id)
    behind = logged[1:]  # the first one, submitted, is in the opening Task
    assert [id_ for id_, _ in got] == [id_ for id_, _ in behind], f"run {number}"
    assert got == behind, f"run {number}"
    ended = await storage.load_task(task_id)
    assert ended is not None
    story = "".join(part.text for a in ended.artifacts for part in a.parts)
    assert client.stories() == {story}, f"run {number}"
    return client.connections


async def test_cuts_lose_and_repeat_nothing(
    storage: DurableStorage, api_urls: list[str], record_property: Any
) -> None:
    """The connection is cut at random bytes, and goes on in the other process."""
    free = asyncio.Semaphore(AT_ONCE)
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as http:

        async def run(number: int) -> int:
            async with free:
                return await one_run(storage, http, api_urls, number)

        connections = await asyncio.gather(*(run(number) for number in range(RUNS)))
    record_property("connections", sum(connections))
    assert sum(connections) > 3 * RUNS
