"""An agent whose turns end when three of them run at the same time."""

from __future__ import annotations

import asyncio

from a2a_serverless.worker import TaskContext, Worker

TURNS = 3


class Meeting(Worker):
    """Waits for two others."""

    def __init__(self) -> None:
        self._met = asyncio.Barrier(TURNS)

    async def handle(self, ctx: TaskContext) -> None:
        """Answer when all are there."""
        await self._met.wait()
        await ctx.respond("Met.")


agent = Meeting
