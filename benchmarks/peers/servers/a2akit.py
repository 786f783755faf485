"""a2akit on PostgreSQL and Redis.

`python -m benchmarks.peers.servers.a2akit postgresql+asyncpg://… redis://…`. Each such process
serves requests and runs agents; several processes on the same services share tasks.
"""

from __future__ import annotations

import socket
import sys

import uvicorn
from a2akit import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker

from benchmarks.peers.agent import work


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


def main(database: str, redis: str) -> None:
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
        broker=redis,
        event_bus=redis,
        enable_telemetry=False,
    )
    # With its protocol named: otherwise asyncio leaves Nagle's algorithm on.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        server.as_fastapi_app(), log_level="warning", access_log=False, lifespan="on"
    )
    print(f"A2A at http://127.0.0.1:{listening.getsockname()[1]},", flush=True)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
