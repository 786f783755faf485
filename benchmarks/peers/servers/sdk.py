"""The official SDK's server: in memory, on SQLite, or in its cluster mode on PostgreSQL.

`python -m benchmarks.peers.servers.sdk [sqlite+aiosqlite:///… | postgresql+asyncpg://…]`. Several
processes on one PostgreSQL are replicas: the one that took the message runs the agent, the others
follow through its event stream in the database.
"""

from __future__ import annotations

import asyncio
import sys

from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.cluster import (
    DatabaseTaskEventStream,
    VersionedDatabaseTaskStore,
    VersionedTaskStore,
)
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import Part, Role
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from benchmarks.cards import card_of
from benchmarks.peers.agent import work
from benchmarks.peers.servers.web import keep_sqlite_as_we_do, serve

CARD = card_of("Ticker", "Emits timed chunks.", binding="JSONRPC")


class Ticker(AgentExecutor):
    """Does what its message asks for."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Emit the chunks, then complete."""
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        is_first = True

        async def emit(text: str) -> None:
            nonlocal is_first
            await task.add_artifact([Part(text=text)], artifact_id="ticks", append=not is_first)
            is_first = False

        answer = await work(context.get_user_input(), context.task_id, emit)
        await task.complete(new_text_message(answer, role=Role.ROLE_AGENT))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel; the handler ends `execute`."""
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def main(database: str = "") -> None:
    """Serve until a signal."""
    store: TaskStore | VersionedTaskStore = InMemoryTaskStore()
    stream = None
    if database.startswith("sqlite"):
        keep_sqlite_as_we_do()
        store = DatabaseTaskStore(create_async_engine(database))
        await store.initialize()
    elif database:
        engine = create_async_engine(database)
        store, stream = VersionedDatabaseTaskStore(engine), DatabaseTaskEventStream(engine)
        await store.initialize()
        await stream.initialize()
    handler = DefaultRequestHandler(Ticker(), store, CARD, event_stream=stream)
    await serve(Starlette(routes=create_jsonrpc_routes(handler, "/")))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
