"""a2akit on PostgreSQL and Redis, or on SQLite.

`python -m benchmarks.peers.servers.a2akit postgresql+asyncpg://… redis://…`, or with
`sqlite+aiosqlite:///… memory`. Each process serves requests and runs agents; several processes on
the same services share tasks.
"""

from __future__ import annotations

import asyncio
import sys

from a2akit import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker

from benchmarks.peers.agent import work
from benchmarks.peers.servers.web import keep_sqlite_as_we_do, serve


class Ticker(Worker):
    """Does what its message asks for."""

    async def handle(self, ctx: TaskContext) -> None:
        """Emit the chunks, then complete."""
        is_first = True

        async def emit(text: str) -> None:
            nonlocal is_first
            await ctx.emit_text_artifact(text, artifact_id="ticks", append=not is_first)
            is_first = False

        await ctx.respond(await work(ctx.user_text, ctx.task_id, emit))


def main(database: str, broker: str) -> None:
    """Serve until a signal."""
    card = AgentCardConfig(
        name="Ticker",
        description="Emits timed chunks.",
        capabilities=CapabilitiesConfig(streaming=True),
    )
    server = A2AServer(
        worker=Ticker(),
        agent_card=card,
        storage=database,
        broker=broker,
        event_bus=broker,
        enable_telemetry=False,
    )
    if database.startswith("sqlite"):
        keep_sqlite_as_we_do()
    asyncio.run(serve(server.as_fastapi_app()))


if __name__ == "__main__":
    main(*sys.argv[1:])
