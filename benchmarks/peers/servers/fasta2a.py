"""fasta2a on the only storage and broker that it has: in memory, in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvicorn
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

from benchmarks.peers.agent import work

SLOTS = 32
"""The most turns at a time: each loop of a worker runs one."""


class Ticker(Worker[Any]):
    """Does what its message asks for."""

    running: dict[str, asyncio.Task[str]] = {}  # noqa: RUF012 - there is one worker

    async def run_task(self, params: TaskSendParams) -> None:
        """Emit the chunks, then complete."""
        task_id, context_id = params["id"], params["context_id"]
        await self.storage.update_task(task_id, state="working")
        texts: list[str] = []

        async def emit(text: str) -> None:
            chunk: Artifact = {"artifact_id": "ticks", "parts": [{"text": text}]}
            await self.publish_artifact(
                task_id, context_id, chunk, append=bool(texts), last_chunk=False
            )
            texts.append(text)

        asked = "".join(part.get("text", "") for part in params["message"]["parts"])
        self.running[task_id] = asyncio.ensure_future(work(asked, task_id, emit))
        try:
            await asyncio.wait([self.running[task_id]])
            if self.running[task_id].cancelled():
                await self.storage.update_task(task_id, state="canceled")
                return
            answer: Message = {
                "role": "agent",
                "message_id": task_id,
                "parts": [{"text": self.running[task_id].result()}],
            }
            kept: list[Artifact] = [
                {"artifact_id": "ticks", "parts": [{"text": text} for text in texts]}
            ]
            await self.storage.update_task(
                task_id, state="completed", new_artifacts=kept, new_messages=[answer]
            )
        finally:
            del self.running[task_id]

    async def cancel_task(self, params: TaskIdParams) -> None:
        """Cancel the agent, and wait until its turn has ended."""
        if (agent := self.running.get(params["id"])) is not None:
            agent.cancel()

    def build_message_history(self, history: list[Message]) -> list[Any]:  # noqa: ARG002 - the base's
        """Return nothing: the agent has no model."""
        return []

    def build_artifacts(self, result: Any) -> list[Artifact]:  # noqa: ARG002 - the base's
        """Return nothing: `run_task` makes them."""
        return []


def main() -> None:
    """Serve until a signal."""
    storage: InMemoryStorage[Any] = InMemoryStorage()
    broker = InMemoryBroker()
    worker = Ticker(broker=broker, storage=storage)

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, AsyncExitStack() as slots:
            for _ in range(SLOTS):
                await slots.enter_async_context(worker.run())
            yield

    app = FastA2A(storage=storage, broker=broker, name="Ticker", lifespan=lifespan)
    # With its protocol named: otherwise asyncio leaves Nagle's algorithm on.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    print(f"A2A at http://127.0.0.1:{listening.getsockname()[1]},", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
