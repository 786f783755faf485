"""The end of a turn from outside: by a cancel, and by Lambda's time-out."""

from __future__ import annotations

from typing import Final

from tests.live.findings import Check, Figures, NotPossibleError, require
from tests.live.subject import Subject, artifact_text, state

CANCEL_S: Final = 2.0
LONGEST_TIMEOUT_S: Final = 120
"""The longest `WorkerTimeout` that the check waits for."""
REDELIVERY_S: Final = 30
"""What the queue's visibility is beyond the function's timeout."""
SLACK_S: Final = 90


async def canceled(subject: Subject) -> Figures:
    """Cancel a task while its agent works."""
    task_id = await subject.begin("wait")
    await subject.working(task_id)
    began = subject.clock.monotonic()
    answer = await subject.agent.call("CancelTask", {"id": task_id})
    took_s = round(subject.clock.monotonic() - began, 3)
    require("status" in answer.task, f"the cancel was answered with {answer.message}")
    require(answer.state == "CANCELED", f"the cancel was answered with {answer.state}")
    most_s = CANCEL_S * subject.slack
    require(took_s <= most_s, f"a cancel took {took_s:.1f} s, more than {most_s:g}")
    require(state(await subject.task(task_id)) == "CANCELED", "the task did not stay canceled")
    return {"seconds": took_s}


def _timeout_s(subject: Subject) -> int:
    """Return the worker's timeout.

    Raises:
        NotPossibleError: it is not waited for, or a kill is the last attempt.
    """
    _, stack = subject.on_aws()
    timeout_s = int(stack.parameters["WorkerTimeout"])
    if timeout_s > LONGEST_TIMEOUT_S:
        raise NotPossibleError(f"WorkerTimeout is {timeout_s}: deploy with WorkerTimeout=60")
    if int(stack.parameters["MaxAttempts"]) < 2:
        raise NotPossibleError("MaxAttempts is 1: no attempt follows the one that is killed")
    return timeout_s


async def killed(subject: Subject) -> Figures:
    """Have Lambda end a function in the middle of a turn; the next attempt ends the turn."""
    timeout_s = _timeout_s(subject)
    began = subject.clock.monotonic()
    until_ms = subject.clock.now_ms() + timeout_s * 500
    task_id = await subject.begin("outlive", until_ms=until_ms, blocked_s=timeout_s * 2)
    task = await subject.ended(task_id, within_s=2 * timeout_s + REDELIVERY_S + SLACK_S, every_s=2)
    took_s = round(subject.clock.monotonic() - began, 1)
    require(state(task) == "COMPLETED", f"the task ended as {state(task)}", seconds=took_s)
    require(
        artifact_text(task) == "the attempt that ends",
        f"the artifact is {artifact_text(task)!r}: what a dead attempt wrote has stayed",
        seconds=took_s,
    )
    require(
        took_s >= timeout_s,
        "the turn ended before its function could be killed",
        seconds=took_s,
    )
    return {"worker's timeout s": timeout_s, "seconds": took_s}


CHECKS = (
    Check("cancel", f"a cancel of a working task is done within {CANCEL_S:g} s", canceled),
    Check(
        "timeout-kill",
        "a turn that Lambda kills is ended by the next attempt",
        killed,
        _timeout_s,
        seconds=150,
    ),
)
