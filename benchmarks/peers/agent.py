"""The agent of `benchmarks.peers`, which every system runs in its own kind of agent.

Its message is JSON: how many chunks, how far apart on average and how long each one is, and how
long the agent is silent after them. A chunk's text is its number and the time at which it was
emitted (CLOCK_MONOTONIC, which all processes of a machine share). This module only needs the
standard library, because it runs in the environment of each system.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable

ANSWER = "done"
NOTES = "PEERS_NOTES"
"""The environment variable with the file to which the agents of all processes append notes."""


async def work(asked: str, task_id: str, emit: Callable[[str], Awaitable[None]]) -> str:
    """Emit the chunks, be silent, and return the answer."""
    load = json.loads(asked)
    note("started", task_id)
    # Uneven, so that polls do not keep step with the chunks.
    gaps = random.Random(task_id)  # noqa: S311 - guards nothing
    try:
        for number in range(load.get("chunks", 0)):
            if gap_s := load.get("gap_s", 0):
                await asyncio.sleep(gaps.uniform(0.5, 1.5) * gap_s)
            await emit(f"{number} {time.monotonic_ns()} {'x' * load.get('size', 0)}")
        if silence_s := load.get("silence_s", 0):
            await asyncio.sleep(silence_s)
    except asyncio.CancelledError:
        note("heard", task_id)
        raise
    note("ended", task_id)
    return ANSWER


def note(what: str, task_id: str) -> None:
    """Append a line to the notes: `what`, the task, the process and the time."""
    line = f"{what} {task_id} {os.getpid()} {time.monotonic_ns()}\n"
    file = os.open(os.environ[NOTES], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
