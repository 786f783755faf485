"""The agent of the browser tests: what it is told decides what it does."""

from __future__ import annotations

import asyncio

from a2a_serverless.worker import TaskContext, Worker

REPORT = """## Route for Saturday

The ferry at **09:40** is the last one with bicycle places; the coast road is closed until noon.

| leg | by | minutes |
|---|---|---|
| home to harbour | bicycle | 25 |
| harbour to island | ferry | 50 |
| island to camp | bicycle | 35 |

1. Book two bicycle places.
2. Leave at nine, *not later*.

More at [the harbour](https://harbour.example/times).
"""


class Scripted(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        told = ctx.user_text
        if ctx.history:
            await ctx.complete(f"Thank you: {told}")
        elif told == "ask":
            await ctx.request_input("Which day?")
        elif told == "wait":
            await ctx.send_status("Waiting until it is canceled.")
            await asyncio.Event().wait()
        else:
            await ctx.send_status("Looking at the tables.")
            for number in range(20):
                await ctx.emit_text_artifact(f"{number} ", artifact_id="count", append=number > 0)
                await asyncio.sleep(0.15)
            await ctx.respond("All twenty.")


agent = Scripted()
