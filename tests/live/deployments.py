"""A hundred tasks over a change of the functions that run them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.live.findings import Check, Figures, NotPossibleError, require
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

    A variable is added to each function, and taken away again: Lambda then starts new environments,
    as it does for new code, and the stack's template is left as it is.
    """
    subject.on_aws()
    if not subject.consent.changes:
        raise NotPossibleError("needs --allow-changes: it changes the functions' variables")
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
        change = await variables_of(subject, logical)
        await change(**{CHANGE: subject.run})
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


async def variables_of(
    subject: Subject, logical: str, *, is_undone: bool = True
) -> Callable[..., Awaitable[None]]:
    """Return what gives a function more variables; note how it gets back those of now if asked."""
    account, stack = subject.on_aws()
    function = stack.resources[logical]
    found = await account.call("lambda", "get_function_configuration", FunctionName=function)
    before: dict[str, str] = found["Environment"]["Variables"]

    async def give(**more: str) -> None:
        await account.call(
            "lambda",
            "update_function_configuration",
            FunctionName=function,
            Environment={"Variables": {**before, **more}},
        )

    async def look() -> bool | None:
        now = await account.call("lambda", "get_function_configuration", FunctionName=function)
        return now.get("LastUpdateStatus") == "Successful" or None

    async def change(**more: str) -> None:
        await give(**more)
        await subject.until(f"the change of {logical}", look, within_s=120, every_s=1)

    if is_undone:
        subject.made.note("variables of", function, give)
    return change


def _is_whole(task: dict[str, Any]) -> bool:
    """Whether every step is there, once and in order."""
    numbers = [int(line.split()[0]) for line in artifact_text(task).splitlines()]
    return state(task) == "COMPLETED" and numbers == list(range(STEPS))


CHECKS = (
    Check("second-deploy", f"{TASKS} tasks end whole while their functions are replaced", survived),
)
