"""A Worker that lets three other agents work at once, and puts together what they have found.

A flight is needed. A hotel is not: if its agent fails, the plan says so. What the table's agent
asks is asked of the client. No process waits for any of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from a2a_serverless.worker import Remote, Reply, TaskContext, WaitTimeoutError, Worker

HOUR_S = 3600.0


class Planner(Worker):
    """Plans a trip to the place that the message names."""

    agents: Mapping[str, Remote] = {
        name: Remote(os.environ.get(f"{name.upper()}_AGENT_URL", f"http://{name}.localhost"))
        for name in ("flights", "hotels", "tables")
    }

    async def handle(self, ctx: TaskContext) -> None:
        """Call all three; ask the client what they ask; complete with what there is."""
        flight, hotel, table = await ctx.gather(
            *(self.booked(ctx, name) for name in ("flights", "hotels", "tables"))
        )
        if flight is None:
            await ctx.fail(f"There is no flight to {ctx.user_text}: nothing was planned.")
            return
        hotel = hotel or "no hotel: please look for one yourself"
        table = table or "no table"
        await ctx.complete(f"{flight}; {hotel}; {table}.")

    async def booked(self, ctx: TaskContext, name: str) -> str | None:
        """Return what one agent has found; None if it has found nothing."""
        try:
            reply = await ctx.call_agent(name, ctx.user_text, timeout_s=HOUR_S)
            while reply.state == "input_required":
                reply = await self.answered(ctx, name, reply)
        except WaitTimeoutError:
            return None
        return reply.text if reply.state == "completed" else None

    async def answered(self, ctx: TaskContext, name: str, reply: Reply) -> Reply:
        """Ask the client what an agent asks, and go on with the answer."""
        answer = await ctx.ask(reply.question, id=name)
        return await reply.answer(answer.text, timeout_s=HOUR_S)


agent = Planner()
