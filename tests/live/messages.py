"""Large messages, one after the other, and one that is too large."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import httpx

from tests.live.findings import Check, Figures, require
from tests.live.subject import VERSION, Subject, artifact_text, ordered, state, status_text

IN_A_ROW: Final = 5
SENT_BYTES: Final = 2_950_000
"""Below the limit of a part, 3 MB."""
ANSWERED_BYTES: Final = 2_000_000
"""With the message, which is in the history, below the limit of an answer in one piece, 5 MB."""
FILE_BYTES: Final = 50_000_000
TOO_LARGE_BYTES: Final = 7_000_000
"""A size above Lambda's limit and below API Gateway's."""


async def large(subject: Subject) -> Figures:
    """Send five large messages; each is stored, read by the agent, and answered at length."""
    took_s: list[float] = []
    for number in range(IN_A_ROW):
        text = f"{number}".ljust(SENT_BYTES, "y")
        began = subject.clock.monotonic()
        answer = await subject.agent.call(
            "SendMessage", {"message": ordered("digest", text, answer_bytes=ANSWERED_BYTES)}
        )
        where = f"large message {number + 1}"
        require(
            "task" in answer.result,
            f"{where} was answered with {answer.response.status_code} {answer.reason}",
        )
        task = answer.task
        if state(task) != "COMPLETED":  # a blocking send has come back at work
            task = await subject.ended(task["id"], within_s=60)
        digest = hashlib.sha256(text.encode()).hexdigest()
        require(status_text(task) == digest, f"the agent has read another text of {where}")
        took_s.append(round(subject.clock.monotonic() - began, 3))
        got = await subject.task(task["id"])
        require(len(artifact_text(got)) == ANSWERED_BYTES, f"the task of {where} was read in part")
        require(got["history"][0]["parts"][1]["text"] == text, f"{where} was not kept as sent")
    return {"sent bytes": SENT_BYTES, "answered bytes": ANSWERED_BYTES, "seconds": took_s}


async def too_large(subject: Subject) -> Figures:
    """Send more than Lambda takes."""
    response = await subject.http.post(
        "/message:send",
        json={"message": ordered("digest", "y" * TOO_LARGE_BYTES, answer_bytes=1)},
        headers=VERSION,
    )
    require(
        response.status_code == 413,
        f"{TOO_LARGE_BYTES} bytes were answered with {response.status_code}, not with 413",
    )
    return {"bytes": TOO_LARGE_BYTES, "status": response.status_code, "body": response.text[:500]}


async def file(subject: Subject) -> Figures:
    """Let the agent emit a file that no answer can hold, and fetch it by its link alone."""
    order = {"message": ordered("file", size=FILE_BYTES)}
    task = (await subject.agent.call("SendMessage", order)).task
    if state(task) != "COMPLETED":
        task = await subject.ended(task["id"], within_s=60)
    (part,) = task["artifacts"][0]["parts"]
    link = part["url"]
    began, sha, size = subject.clock.monotonic(), hashlib.sha256(), 0
    async with httpx.AsyncClient(timeout=60) as anyone:
        async with anyone.stream("GET", link) as got:
            async for chunk in got.aiter_bytes():
                sha.update(chunk)
                size += len(chunk)
        took_s = round(subject.clock.monotonic() - began, 3)
        wrong = {
            (await anyone.get(asked)).status_code for asked in (link.partition("?")[0], f"{link}0")
        }
    require(wrong == {403}, f"links without a signature, or with another, were answered {wrong}")
    require(got.status_code == 200, f"the link to a file was answered with {got.status_code}")
    require(sha.hexdigest() == status_text(task), f"the link gave another file, of {size} bytes")
    require(got.headers["content-type"] == "image/png", "the link gives the file another type")
    fetched = got.headers.get("content-disposition", "")
    require(fetched.startswith("attachment"), "a browser would show what a link gives")
    return {"bytes": size, "seconds": took_s}


async def upload(subject: Subject) -> Figures:
    """Upload a file that no message can hold, and let the agent read it."""
    content = bytes(range(256)) * (FILE_BYTES // 256)
    asked = await _asked_for(subject, content)
    began = subject.clock.monotonic()
    stored = await _put(asked, content)
    took_s = round(subject.clock.monotonic() - began, 3)
    require(stored == 200, f"an upload was answered with {stored}")
    message = ordered("read")
    message["parts"].append(asked["part"])
    sent = await subject.agent.call("SendMessage", {"message": message})
    require("task" in sent.result, f"its message was answered with {sent.reason} {sent.message}")
    task = sent.task
    if state(task) != "COMPLETED":
        task = await subject.ended(task["id"], within_s=60)
    digest = hashlib.sha256(content).hexdigest()
    require(status_text(task) == digest, "the agent has read another file than was uploaded")
    return {"bytes": len(content), "seconds": took_s}


async def other_uploads(subject: Subject) -> Figures:
    """Put what a link was not made for, and what is there already."""
    content = b"a small file"
    asked = await _asked_for(subject, content)
    answers = {
        "other content": await _put(asked, content[::-1]),
        "other length": await _put(asked, content * 2),
        "other type": await _put(asked, content, {"Content-Type": "text/html"}),
        "unsigned": await _put({**asked, "url": asked["url"].partition("?")[0]}, content),
        "as asked": await _put(asked, content),
        "again": await _put(asked, content),
    }
    refused = all(status in {400, 403} for status in list(answers.values())[:4])
    as_asked = (answers["as asked"], answers["again"]) == (200, 412)
    require(refused and as_asked, f"uploads were answered {answers}")
    return answers


async def _asked_for(subject: Subject, content: bytes) -> dict[str, Any]:
    form = {
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "mediaType": "text/plain",
    }
    answer = await subject.http.post("/files", json=form)
    require(answer.status_code == 200, f"an upload was refused with {answer.status_code}")
    asked: dict[str, Any] = answer.json()
    return asked


async def _put(
    asked: dict[str, Any], content: bytes, changed: Mapping[str, str] | None = None
) -> int:
    headers = {**asked["headers"], **(changed or {})}
    async with httpx.AsyncClient(timeout=120) as anyone:
        return (await anyone.put(asked["url"], content=content, headers=headers)).status_code


CHECKS = (
    Check("large-messages", "five large messages in a row are stored and answered whole", large),
    Check("file", "a file that no answer can hold is fetched by its link, whole", file, seconds=20),
    Check("upload", "a file that no message can hold is uploaded and read", upload, seconds=20),
    Check(
        "other-uploads",
        "a link for an upload takes the file that it was made for, once",
        other_uploads,
    ),
    Check("too-large", "a message that Lambda cannot take is refused with 413", too_large),
)
