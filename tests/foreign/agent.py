"""The agent of the matrix: `ask` asks back, `obey` waits to be canceled, all else is said back."""

from __future__ import annotations

import asyncio

from a2a_serverless.worker import TaskContext, Worker


class Told(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        match ctx.user_text.strip():
            case "ask":
                await ctx.request_input("Which one?")
            case "obey":
                await ctx.send_status("Waiting.")
                await asyncio.Event().wait()
            case text:
                for chunk in ("You said: ", text):
                    await ctx.emit_text_artifact(chunk, artifact_id="echo", append=True)
                await ctx.respond("Done.")


agent = Told()
