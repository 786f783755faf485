"""Large messages, one after the other, one that is too large, and what a link for a file takes."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import httpx

from tests.live.subject import (
    VERSION,
    Check,
    Subject,
    artifact_text,
    ordered,
    require,
    state,
    status_text,
)

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
    Check("large-messages", "five large messages in a row are stored and answered whole", large),
    Check(
        "other-uploads",
        "a link for an upload takes the file that it was made for, once",
        other_uploads,
    ),
    Check("too-large", "a message that Lambda cannot take is refused with 413", too_large),
)
