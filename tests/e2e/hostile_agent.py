"""The agent of `test_quiet_alarms`: it does what the message says, also what no agent should."""

from __future__ import annotations

import asyncio
import sys

from a2a_serverless.worker import FinalError, TaskContext, Worker

LARGE = "x" * 1_000_000
"""Seven of them are longer than an answer that Lambda sends."""


PREFIX = "please-"
"""Of each message: the names of methods stand in tracebacks, and what a client says does not."""


class Obedient(Worker):
    """Does one thing by its name."""

    async def handle(self, ctx: TaskContext) -> None:
        """Do it."""
        await getattr(self, ctx.user_text.removeprefix(PREFIX), self.answer)(ctx)

    async def answer(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("done")
        await ctx.respond("done")

    async def large(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact(LARGE)
        await ctx.respond("done")

    async def ask(self, ctx: TaskContext) -> None:
        await ctx.request_input("which?")

    async def slow(self, ctx: TaskContext) -> None:
        await asyncio.sleep(1)
        await ctx.respond("done")

    async def fail(self, ctx: TaskContext) -> None:
        await ctx.fail("no")

    async def wrong(self, ctx: TaskContext) -> None:
        raise ValueError(ctx.user_text)

    async def final(self, ctx: TaskContext) -> None:
        raise FinalError("it cannot be done")

    async def leave(self, ctx: TaskContext) -> None:
        sys.exit(3)

    async def silent(self, ctx: TaskContext) -> None:
        """End without an ending."""

    async def background(self, ctx: TaskContext) -> None:
        self.left = asyncio.create_task(asyncio.sleep(3600))
        await ctx.respond("done")


agent = Obedient
