"""The agent of `benchmarks.cost`: the message names the profile that it plays."""

from __future__ import annotations

import asyncio

from a2a_serverless.worker import TaskContext, Worker

ANSWER = "x" * 2000
CHUNK = "x" * 40
"""About ten tokens."""


class Profiles(Worker):
    """`echo`, `think SECONDS`, or `stream CHUNKS SECONDS`."""

    async def handle(self, ctx: TaskContext) -> None:
        """Do what the profile does."""
        kind, *numbers = ctx.user_text.split()
        await getattr(self, kind)(ctx, *(float(number) for number in numbers))

    async def echo(self, ctx: TaskContext) -> None:
        """Answer at once."""
        await ctx.emit_text_artifact(ctx.user_text)
        await ctx.respond("Done.")

    async def think(self, ctx: TaskContext, seconds: float) -> None:
        """Send a status every ten seconds, then answer in one piece."""
        for _ in range(int(seconds // 10)):
            await ctx.send_status("Still at it.")
            await asyncio.sleep(10)
        await ctx.emit_text_artifact(ANSWER)
        await ctx.respond("Done.")

    async def stream(self, ctx: TaskContext, chunks: float, seconds: float) -> None:
        """Answer in chunks at equal intervals."""
        for _ in range(int(chunks)):
            await asyncio.sleep(seconds / chunks)
            await ctx.emit_text_artifact(CHUNK, artifact_id="answer", append=True)
        await ctx.respond("Done.")


agent = Profiles
