"""The forms of a stack: it is updated to each, checked there, and updated back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.live import agent, callers, operations, streams, turns, webhooks
from tests.live.ground import changed
from tests.live.subject import Check, Subject, require, state, status_text

TURNS: Final = 10
WORKERS: Final = 2
OUTSIDE: Final = 6


async def shared(subject: Subject) -> None:
    """Have ten turns run at once, on two workers.

    While one look at all of them lasts, two workers that take one turn each show four at most.
    """
    shown = {"WorkerTurns": str(TURNS), "WorkerConcurrency": str(WORKERS)}
    await changed(subject, **shown, WorkerTimeout="120", TurnTimeout="45")
    # So long that the first one runs still when the last one is sent to a busy machine.
    ids = [await subject.begin("steps", count=2 * TURNS, gap_s=1) for _ in range(TURNS)]

    async def share() -> bool:
        states = [state(await subject.task(task_id)) for task_id in ids]
        return states.count("WORKING") > 2 * WORKERS

    what = f"a moment at which more than {2 * WORKERS} of ten turns ran"
    await subject.until(what, share, within_s=100)
    processes = await _processes(subject, ids)
    require(len(processes) <= WORKERS, f"ten turns ran in {len(processes)} processes")
    await _anywhere(subject)
    await turns.refused(subject)


async def outside(subject: Subject) -> None:
    """Send a turn that waits for its worker, start that on this machine, and have it run all."""
    await changed(subject, Worker="external")
    waiting = await subject.begin("say")
    variables = await subject.ground.variables(subject)
    require(state(await subject.task(waiting)) == "SUBMITTED", "a function has taken the turn")
    await _worker(subject, variables)
    await subject.completed(waiting, within_s=100)
    ids = [await subject.begin("steps", count=3, gap_s=1) for _ in range(OUTSIDE)]
    processes = await _processes(subject, ids)
    require(len(processes) == 1, f"one worker's turns ran in {len(processes)} processes")
    await _anywhere(subject)


async def both(subject: Subject) -> None:
    """Move a client from its key to tokens and back, over an Auth that takes both."""
    await callers.move(subject, _anywhere)


async def _anywhere(subject: Subject) -> None:
    """Check what a stack does in each form."""
    await operations.operations("HTTP+JSON", "1.0").run(subject)
    await streams.python(subject)
    await turns.canceled(subject)
    await webhooks.notified(subject)


async def _processes(subject: Subject, ids: Sequence[str]) -> set[str]:
    """Wait for the tasks' ends; return the processes that have completed them."""
    return {status_text(await subject.completed(task_id, within_s=200)) for task_id in ids}


async def _worker(subject: Subject, variables: Mapping[str, str]) -> None:
    """Start a worker on this machine."""
    log = subject.made.ledger.with_name("worker.log")
    program = Path(sys.executable).with_name("a2a-serverless")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            program,
            *("worker", "--concurrency", "8", "--agent", f"{agent.__file__}:agent"),
            cwd=log.parent,
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
        )

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 30)
        except TimeoutError:
            process.kill()
            await process.wait()

    subject.made.note("process of a worker", str(process.pid), end)

    async def works() -> bool:
        said = await asyncio.to_thread(log.read_text)
        require(process.returncode is None, f"the worker did not start: {said[-300:]}")
        return "works on" in said

    await subject.until("the worker", works, within_s=120)


CHECKS: Final = (
    Check("shared-turns", "ten tasks share two workers", shared),
    Check("external-workers", "a worker of this machine runs what no function takes", outside),
    Check(
        "key-and-token",
        "a client keeps its tasks from its key over both to tokens, and back",
        both,
    ),
)
