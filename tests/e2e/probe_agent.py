"""The agent of the end-to-end tests. It records every run in the folder that `PROBE_FOLDER` names.

What it is told decides what it does: `hold` waits until the file `release-<task id>` is in the
folder, `steps` takes a hundred steps and waits for that file in the middle one, `ask` pauses,
anything else is answered in two chunks.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from a2a_serverless.worker import TaskContext, Worker

FOLDER = Path(os.environ.get("PROBE_FOLDER", "."))
STEPS = 100


class Probe(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        record("runs", ctx.task_id)
        if ctx.history:
            await ctx.complete(f"resumed with {ctx.user_text}")
        elif ctx.user_text == "ask":
            await ctx.request_input("What exactly?")
        elif ctx.user_text == "steps":
            for number in range(STEPS):
                await ctx.step("count", count, ctx.task_id, number)
            await ctx.complete("counted")
        else:
            if ctx.user_text == "hold":
                await ctx.send_status("holding")
                await released(ctx.task_id)
            for chunk in ("You said: ", ctx.user_text):
                await ctx.emit_text_artifact(chunk, artifact_id="echo", append=True)
            await ctx.respond("Done.")


async def count(task_id: str, number: int) -> None:
    """Take one step: record its number and this process; the middle one waits."""
    record("steps", f"{number} {os.getpid()}")
    if number == STEPS // 2:
        await released(task_id)


async def released(task_id: str) -> None:
    while not (FOLDER / f"release-{task_id}").exists():  # noqa: ASYNC110 - a file
        await asyncio.sleep(0.02)


def record(name: str, line: str) -> None:
    """Append a line to a file that other processes append to as well."""
    descriptor = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


agent = Probe()
