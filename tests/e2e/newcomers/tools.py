"""What the tools of a newcomer's agent do; this file lies beside the agent's."""

from __future__ import annotations

import asyncio
from pathlib import Path

from a2a_serverless.worker import current_context


async def draw() -> str:
    """Draw a picture: here the user's own, again."""
    ctx = current_context()
    (picture,) = ctx.files
    content = await ctx.read_file(picture)
    await ctx.emit_artifact("drawing", file_bytes=content, filename="drawing.png")
    return "drawn"


async def first() -> str:
    """Do the first step."""
    note("first")
    return "first is done"


async def second() -> str:
    """Do the second step, which takes long."""
    note("second")
    while not Path("go").exists():  # noqa: ASYNC110, ASYNC240 - the test makes it
        await asyncio.sleep(0.02)
    return "Both are done."


def note(step: str) -> None:
    """Write down that a step has begun."""
    with Path("steps.txt").open("a", encoding="utf-8") as steps:
        steps.write(f"{step}\n")
