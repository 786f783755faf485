"""An agent that answers in each form: the message names the form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from a2a_serverless.worker import TaskContext, Worker

TEXT: Final = "Hello world"
"""What each form says."""


async def in_chunks(ctx: TaskContext, *, closes: bool, message: str | None = None) -> None:
    """Answer by two chunks of an artifact, of which the first ends within a word."""
    await ctx.emit_text_artifact(TEXT[:3], append=True)
    await ctx.emit_text_artifact(TEXT[3:], append=True, last_chunk=closes)
    await ctx.respond(message)


async def as_file(ctx: TaskContext) -> None:
    await ctx.emit_artifact("file", file_bytes=TEXT.encode(), media_type="text/plain")
    await ctx.respond()


FORMS: Final[Mapping[str, Callable[[TaskContext], Awaitable[None]]]] = {
    "message": lambda ctx: ctx.respond(TEXT),
    "Message alone": lambda ctx: ctx.reply_directly(TEXT),
    "artifact": lambda ctx: ctx.complete(TEXT),
    "chunks": lambda ctx: in_chunks(ctx, closes=False),
    "chunks, lastChunk": lambda ctx: in_chunks(ctx, closes=True),
    "chunks and message": lambda ctx: in_chunks(ctx, closes=True, message="Done."),
    "question": lambda ctx: ctx.request_input(TEXT),
    "failure": lambda ctx: ctx.fail(TEXT),
    "rejection": lambda ctx: ctx.reject(TEXT),
    "file": as_file,
    "data": lambda ctx: ctx.complete_json({"says": TEXT}),
}


class Answering(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        # A gateway of models writes who has said it before the text.
        await FORMS[ctx.user_text.strip().removeprefix("user: ")](ctx)


agent = Answering()
