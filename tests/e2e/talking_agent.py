"""An agent that says something else for each seed, in uneven steps: chunks and statuses."""

from __future__ import annotations

import asyncio
import random

from a2a_serverless.worker import TaskContext, Worker

LETTERS = 'ab 5"\\\n\r\u2028é漢🎈:{}'
"""With what could end a line or an event of a stream, if it were not escaped."""


class Talking(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        chance = random.Random(ctx.user_text)  # noqa: S311 - repeatable
        for number in range(chance.randint(15, 30)):
            await asyncio.sleep(chance.uniform(0, 0.1))
            said = f"{number} " + "".join(chance.choices(LETTERS, k=20))
            if chance.random() < 0.2:
                await ctx.send_status(said)
            else:
                await ctx.emit_text_artifact(said, artifact_id="talk", append=True)
        await ctx.respond("Done.")


agent = Talking()
