"""A deployment in which processes of two releases run: a tagged one and this, or this and the next.

The next release is this one with the next format (`tests.faults.next_format`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.e2e.gated_agent import GATE
from tests.e2e.releases import Release
from tests.faults import next_format, processes
from tests.faults.harness import CARD, Emulators, World, until
from tests.support.emulators import Emulator

Version = Literal["old", "new"]

AGENT = f"{Path(__file__).parent / 'gated_agent.py'}:agent"
CONCURRENCY = 8


@dataclass
class Process:
    """A command of one release."""

    version: Version
    pid: int
    says: Callable[[str], Awaitable[str]]
    """Waits until it has said a pattern, and returns the pattern's first group."""


@dataclass
class Upgrade:
    """A deployment in which processes of both releases run."""

    world: World
    release: Release | None
    """The older one; None: this is it, and the newer one has the next format."""
    stack: ExitStack
    started: int = 0

    def open_gate(self) -> None:
        """Let the agents go on."""
        Path(self.world.variables[GATE]).touch()

    def api(self, version: Version) -> Process:
        return self._start(version, "api", "--card", CARD, "--port", "0")

    def worker(self, version: Version) -> Process:
        return self._start(version, "worker", "--agent", AGENT, "--concurrency", str(CONCURRENCY))

    def _start(self, version: Version, *arguments: str) -> Process:
        self.started += 1
        name = f"{version}-{arguments[0]}-{self.started}"
        output = self.world.folder / f"{name}.log"
        variables = dict(self.world.variables)
        if self.release is None or version == "new":
            if self.release is None and version == "new":
                variables[next_format.VARIABLE] = "1"
            new = processes.start(name, arguments, variables, output)
            self.world.started.append(new)
            return Process(version, new.pid, new.says)
        old = self.stack.enter_context(
            self.release.running(*arguments, variables=variables, output=output)
        )

        async def says(pattern: str) -> str:
            return await asyncio.to_thread(old.wait_for, pattern)

        return Process(version, old.process.pid, says)

    def count(self, worker: Process, what: str) -> int:
        """How many entries a worker has made in the ledger."""
        return sum(entry.pid == worker.pid for entry in self.world.ledger.entries(what=what))

    async def holds(self, worker: Process) -> None:
        """Wait until a worker has begun as many tasks as it may; they wait at the gate."""

        async def are_enough() -> bool:
            found = self.world.ledger.entries(what="holds")
            return len({one.task_id for one in found if one.pid == worker.pid}) >= CONCURRENCY

        await until(are_enough, f"the {worker.version} worker holds {CONCURRENCY} tasks")


@asynccontextmanager
async def upgrading(
    dynamodb: Emulator, sqs: Emulator, release: Release | None, folder: Path
) -> AsyncIterator[Upgrade]:
    """A table and queues, a closed gate, and no process yet."""
    settings = {"A2A_VISIBILITY_S": "3", "A2A_PUSH_ALLOWED_HOSTS": "127.0.0.1"}
    async with Emulators(dynamodb, sqs).world(folder, **settings) as world:
        world.variables[GATE] = str(folder / "gate")
        with ExitStack() as stack:
            yield Upgrade(world, release, stack)
