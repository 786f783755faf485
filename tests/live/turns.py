"""A turn's end, large messages, and what a link for a file takes."""

import hashlib
import time
from typing import Any, Final

import httpx

from tests.live.subject import (
    VERSION,
    Check,
    Figures,
    NotPossibleError,
    Subject,
    answer_to,
    artifact_text,
    ordered,
    require,
    state,
    status_text,
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


IN_A_ROW: Final = 5
SENT_BYTES: Final = 2_950_000
"""Below the limit of a part, 3 MB."""
ANSWERED_BYTES: Final = 2_000_000
"""With the message, which is in the history, below the limit of an answer in one piece, 5 MB."""
TOO_LARGE_BYTES: Final = 7_000_000
"""A size above Lambda's limit and below API Gateway's."""


async def large(subject: Subject) -> None:
    """Send five large messages; each is stored, read by the agent, and answered at length."""
    for number in range(IN_A_ROW):
        text, where = f"{number}".ljust(SENT_BYTES, "y"), f"large message {number + 1}"
        said = ordered("digest", text, answer_bytes=ANSWERED_BYTES)
        answer = await subject.agent.call("SendMessage", {"message": said})
        says = f"{where} was answered with {answer.response.status_code} {answer.reason}"
        require("task" in answer.result, says)
        task = answer.task
        if state(task) != "COMPLETED":  # a blocking send has come back at work
            task = await subject.ended(task["id"])
        digest = hashlib.sha256(text.encode()).hexdigest()
        require(status_text(task) == digest, f"the agent has read another text of {where}")
        got = await subject.task(task["id"])
        require(len(artifact_text(got)) == ANSWERED_BYTES, f"the task of {where} was read in part")
        require(got["history"][0]["parts"][1]["text"] == text, f"{where} was not kept as sent")


async def too_large(subject: Subject) -> None:
    """Send more than Lambda takes."""
    said = {"message": ordered("digest", "y" * TOO_LARGE_BYTES, answer_bytes=1)}
    response = await subject.http.post("/message:send", json=said, headers=VERSION)
    what = f"{TOO_LARGE_BYTES} bytes were answered with {response.status_code}, not with 413"
    require(response.status_code == 413, what)


async def other_uploads(subject: Subject) -> None:
    """Put what a link was not made for, and what is there already."""
    content = b"a small file"
    sha256 = hashlib.sha256(content).hexdigest()
    form = {"size": len(content), "sha256": sha256, "mediaType": "text/plain"}
    answer = await subject.http.post("/files", json=form)
    require(answer.status_code == 200, f"an upload was refused with {answer.status_code}")
    asked: dict[str, Any] = answer.json()
    unsigned = asked["url"].partition("?")[0]
    tries: dict[str, tuple[str, bytes, dict[str, str]]] = {
        "other content": (asked["url"], content[::-1], {}),
        "other length": (asked["url"], content * 2, {}),
        "other type": (asked["url"], content, {"Content-Type": "text/html"}),
        "unsigned": (unsigned, content, {}),
        "as asked": (asked["url"], content, {}),
        "again": (asked["url"], content, {}),
    }
    answers: dict[str, int] = {}
    async with httpx.AsyncClient(timeout=120) as anyone:
        for name, (url, sent, changed) in tries.items():
            headers = {**asked["headers"], **changed}
            answers[name] = (await anyone.put(url, content=sent, headers=headers)).status_code
    *wrong, as_asked, again = answers.values()
    is_right = {400, 403} >= {*wrong} and (as_asked, again) == (200, 412)
    require(is_right, f"uploads were answered {answers}")


CHECKS: Final = (
    Check("cancel", f"a cancel of a working task is done within {CANCEL_S:g} s", canceled),
    Check("follow-up", "a task that asks for input goes on with the answer", followed_up),
    Check("failed-turn", "a turn that fails in each attempt is tried again, and fails", retried),
    Check("timeout-kill", "a turn that Lambda kills is ended by the next attempt", killed),
    Check("role-refused", "DynamoDB refuses a Scan with the worker's own role", refused),
    Check("large-messages", "five large messages in a row are stored and answered whole", large),
    Check("other-uploads", "a link for an upload takes its own file, once", other_uploads),
    Check("too-large", "a message that Lambda cannot take is refused with 413", too_large),
)
