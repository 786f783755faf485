"""The official SDK's own server over SQLite, with which `benchmarks.stream` compares.

`python -m benchmarks.stream_stock LOG DATABASE` runs DefaultRequestHandler with the SDK's database
store and database event stream in their defaults, and SQLite in WAL mode, which suits them. Two
such processes on one file are two replicas: the one that took the message runs the agent, the other
one follows through the event stream. It needs sqlalchemy and aiosqlite, which `uv run --with` adds
to the environment. LOG is written as by `benchmarks.stream_probe`; a read is a SELECT.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from a2a.server.cluster import DatabaseTaskEventStream, VersionedDatabaseTaskStore
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_rest_routes
from a2a.types import TaskArtifactUpdateEvent
from fastapi import FastAPI
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from a2a_serverless_tools.local.sockets import bind
from benchmarks.cards import card_of
from benchmarks.stream_agent import Ticker
from benchmarks.stream_probe import Notes

CARD = card_of("Ticker", "Emits timed chunks.", binding="HTTP+JSON")


class TimedStore(VersionedDatabaseTaskStore):
    """Notes when the save of each chunk has returned."""

    notes: Notes

    async def save(self, task: Any, **options: Any) -> Any:
        """Save, then note."""
        version = await super().save(task, **options)
        returned_ns = time.monotonic_ns()
        saved = options.get("event")
        if isinstance(saved, TaskArtifactUpdateEvent):
            number = saved.artifact.parts[0].text.split()[0]
            self.notes.add("commit", task.id, number, returned_ns)
        return version


def time_selects(engine: AsyncEngine, notes: Notes) -> None:
    """Note every SELECT of the engine."""
    sent: dict[int, int] = {}

    def before(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        if statement.startswith("SELECT"):
            sent[id(cursor)] = time.monotonic_ns()

    def after(_: Any, cursor: Any, *__: Any) -> None:
        at_ns = sent.pop(id(cursor), None)
        if at_ns is not None:
            now_ns = time.monotonic_ns()
            notes.add("read", now_ns, now_ns - at_ns)

    event.listen(engine.sync_engine, "before_cursor_execute", before)
    event.listen(engine.sync_engine, "after_cursor_execute", after)


async def main(log: Path, database: Path) -> None:
    """Serve until a signal."""
    notes = Notes(log)
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
    time_selects(engine, notes)
    async with engine.connect() as connection:
        await connection.execute(text("PRAGMA journal_mode = WAL"))
    store, stream = TimedStore(engine), DatabaseTaskEventStream(engine)
    store.notes = notes
    await store.initialize()
    await stream.initialize()
    handler = DefaultRequestHandler(Ticker(), store, CARD, event_stream=stream)
    app = FastAPI(routes=create_rest_routes(handler))
    listening = bind(0)
    print(f"A2A at http://127.0.0.1:{listening.getsockname()[1]},", flush=True)
    config = uvicorn.Config(app, lifespan="off", log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
