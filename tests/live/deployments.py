"""A hundred tasks over a change of the functions that run them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tests.live.findings import Check, Figures, require
from tests.live.releases import versions_of
from tests.live.subject import Subject, artifact_text, state, status_text

TASKS: Final = 100
STEPS: Final = 5
GAP_S: Final = 1.0
AT_ONCE: Final = 5
"""Sends at the same time: an account may run ten functions."""
SAMPLE: Final = 10
"""The first tasks, which have ended when the functions are changed, and as many of the last."""
WITHIN_S: Final = 900.0
CHANGE: Final = "LIVE_CHANGE"
"""The variable that is added."""
CHANGED: Final = ("ApiFunction", "StreamFunction", "WorkerFunction")


async def survived(subject: Subject) -> Figures:
    """Begin a hundred tasks, change the functions meanwhile, and look at every end.

    A version with one variable more is put behind each function's alias, and the former one again:
    Lambda starts new environments for it, as for new code, and the stack's template stays as it is.
    """
    began = subject.clock.monotonic()
    places = asyncio.Semaphore(AT_ONCE)

    async def begin() -> str:
        async with places:
            return await subject.begin("steps", count=STEPS, gap_s=GAP_S)

    ids = await asyncio.gather(*(begin() for _ in range(TASKS)))

    async def some_ended() -> bool | None:
        # In the order of their sending: looking at all would be most of the load.
        early = [await subject.task(task_id) for task_id in ids[:SAMPLE]]
        return all(state(task) == "COMPLETED" for task in early) or None

    await subject.until("the first tasks", some_ended, within_s=WITHIN_S, every_s=1)
    for logical in CHANGED:
        versions = await versions_of(subject, logical)
        await versions.take(**{CHANGE: subject.run})
    changed_s = round(subject.clock.monotonic() - began, 1)
    tasks = [await subject.ended(task_id, within_s=WITHIN_S, every_s=1) for task_id in ids]
    before, after = (
        {status_text(task) for task in some} for some in (tasks[:SAMPLE], tasks[-SAMPLE:])
    )
    figures = {
        "tasks": len(tasks),
        "completed": sum(state(task) == "COMPLETED" for task in tasks),
        "processes of the first tasks": len(before),
        "processes of the last tasks": len(after),
        "the same processes": len(before & after),
        "changed after s": changed_s,
        "seconds": round(subject.clock.monotonic() - began, 1),
    }
    broken = [task["id"] for task in tasks if not _is_whole(task)]
    require(not broken, f"tasks that did not end whole: {broken}", **figures)
    require(
        not before & after,
        "the last tasks ran on processes of the first: nothing changed",
        **figures,
    )
    return figures


def _is_whole(task: dict[str, Any]) -> bool:
    """Whether every step is there, once and in order."""
    numbers = [int(line.split()[0]) for line in artifact_text(task).splitlines()]
    return state(task) == "COMPLETED" and numbers == list(range(STEPS))


CHECKS = (
    Check(
        "second-deploy",
        f"{TASKS} tasks end whole while their functions are replaced",
        survived,
        lambda subject: subject.changeable("it changes the functions' variables"),
        seconds=120,
    ),
)
