"""The agent of the subscribers' test: numbered chunks, the first of them at the test's pace.

After each of these it waits until a file with the chunk's number is in the folder that
`PACED_FOLDER` names.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from a2a_serverless.worker import TaskContext, Worker

FOLDER = "PACED_FOLDER"
CHUNKS = 40
PACED = 9
GAP_S = 0.05


class Paced(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        folder = Path(os.environ[FOLDER])
        for number in range(CHUNKS):
            await ctx.emit_text_artifact(str(number), artifact_id="numbers", append=True)
            while number < PACED and not (folder / str(number)).exists():  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.02)
            await asyncio.sleep(GAP_S)
        await ctx.respond("Done.")


agent = Paced()
