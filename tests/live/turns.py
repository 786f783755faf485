"""A turn's end: by an answer, a cancel, a failure, Lambda's time-out and a refused call."""

from __future__ import annotations

import time
from typing import Final

from tests.live.subject import (
    Check,
    Figures,
    NotPossibleError,
    Subject,
    answer_to,
    artifact_text,
    require,
    state,
)

CANCEL_S: Final = 2.0
LONGEST_TIMEOUT_S: Final = 120
"""The longest `WorkerTimeout` that the check waits for."""
REDELIVERY_S: Final = 30
"""What the queue's visibility is beyond the function's timeout."""
SLACK_S: Final = 90


async def canceled(subject: Subject) -> Figures:
    """Cancel a task while its agent works."""
    task_id = await subject.begin("wait")
    await subject.reached(task_id, "WORKING")
    began = time.monotonic()
    answer = await subject.agent.call("CancelTask", {"id": task_id})
    took_s = round(time.monotonic() - began, 3)
    require("status" in answer.task, f"the cancel was answered with {answer.message}")
    require(answer.state == "CANCELED", f"the cancel was answered with {answer.state}")
    most_s = CANCEL_S * subject.slack
    require(took_s <= most_s, f"a cancel took {took_s:.1f} s, more than {most_s:g}")
    require(state(await subject.task(task_id)) == "CANCELED", "the task did not stay canceled")
    return {"seconds": took_s}


async def followed_up(subject: Subject) -> None:
    """Answer a task's question."""
    asked = await subject.reached(await subject.begin("ask"), "INPUT_REQUIRED")
    await subject.sent(answer_to(asked, "say"))
    await subject.completed(asked["id"])


async def retried(subject: Subject) -> None:
    """Have the agent raise an error in each attempt."""
    task = await subject.ended(await subject.begin("fail"), within_s=300)
    require(state(task) == "FAILED", f"the task ended as {state(task)}")
    require(artifact_text(task), "the last attempt left nothing")


async def killed(subject: Subject) -> None:
    """Have Lambda end a function in the middle of a turn; the next attempt ends the turn."""
    _, stack = subject.on_aws()
    timeout_s = int(stack.parameters["WorkerTimeout"])
    if timeout_s > LONGEST_TIMEOUT_S:
        raise NotPossibleError(f"WorkerTimeout is {timeout_s}: deploy with WorkerTimeout=60")
    if int(stack.parameters["MaxAttempts"]) < 2:
        raise NotPossibleError("MaxAttempts is 1: no attempt follows the one that is killed")
    began = time.monotonic()
    until_ms = round((time.time() + timeout_s / 2) * 1000)
    task_id = await subject.begin("outlive", until_ms=until_ms, blocked_s=timeout_s * 2)
    task = await subject.completed(task_id, within_s=2 * timeout_s + REDELIVERY_S + SLACK_S)
    took_s = round(time.monotonic() - began, 1)
    text = artifact_text(task)
    require(text == "the attempt that ends", f"{text!r}: what a dead attempt wrote has stayed")
    require(took_s >= timeout_s, f"it ended after {took_s} s, before its function could be killed")


async def refused(subject: Subject) -> None:
    """Have the agent scan the table with WorkerFunction's role."""
    code = artifact_text(await subject.completed(await subject.begin("denied")))
    require(code == "AccessDeniedException", f"a Scan of the table by the worker was: {code}")


CHECKS: Final = (
    Check("cancel", f"a cancel of a working task is done within {CANCEL_S:g} s", canceled),
    Check("follow-up", "a task that asks for input goes on with the answer", followed_up),
    Check("failed-turn", "a turn that fails in each attempt is tried again, and fails", retried),
    Check("timeout-kill", "a turn that Lambda kills is ended by the next attempt", killed),
    Check("role-refused", "DynamoDB refuses a Scan with the worker's own role", refused),
)
