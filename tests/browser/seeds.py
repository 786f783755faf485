"""Tasks whose pages are looked at: a conversation, a killed attempt, a webhook that fails."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from struct import pack
from typing import Any, TypeVar

from a2a import types
from a2a.types import Artifact, Message, Part, Role, TaskState
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    Entry,
    Recorded,
    StatusChanged,
    StepId,
)
from a2a_serverless.tasks.fold import LAST
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.rules import Commit, releasing
from tests.browser.agent import REPORT

_thread = ThreadPoolExecutor(1)

T = TypeVar("T")

WORKER = "worker:12 2026/11/22/[12]4f1c"
NEXT_WORKER = "worker:12 2026/11/22/[12]9be0"
HOOK = "https://crm.example.com/hooks/new-orders"
CRM = types.TaskPushNotificationConfig(id="crm", url=HOOK, token="secret")


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result; in a thread, as playwright runs an event loop in this one."""
    return _thread.submit(asyncio.run, coroutine).result()


class Scribe:
    """Writes tasks to a storage at times of its choice."""

    def __init__(self, storage: DurableStorage, clock: Any) -> None:
        self.storage = storage
        self.clock = clock

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def open(self, task_id: str, text: str, *, user: str = "ann", **options: Any) -> Head:
        message = Message(message_id=f"m-{task_id}", role=Role.ROLE_USER, parts=[Part(text=text)])
        sent, who = (
            types.SendMessageRequest(message=message),
            {"task_id": task_id, "caller": Caller(user)},
        )
        return done(self.storage.open_task("trip-2026", sent, **(options | who))).head

    def commit(self, head: Head, *entries: Entry, **options: Any) -> Head:
        now = done(self.storage.head(head.task_id))
        assert now is not None
        return done(self.storage.commit(now, Commit(entries=entries, **options)))

    def begin(self, task_id: str, text: str, *, waits_s: float = 0, **options: Any) -> Head:
        """A task whose first attempt has the turn, after a wait."""
        head = self.open(task_id, text, **options)
        self.wait(waits_s)
        return self.claim(head, "a")

    def claim(self, head: Head, token: str, worker: str = WORKER) -> Head:
        return self.commit(head, token=token, claims=True, worker=worker)


def said(state: TaskState, text: str = "") -> StatusChanged:
    """A status, with a message if there is a text."""
    message = Message(message_id="s", role=Role.ROLE_AGENT, parts=[Part(text=text)])
    status = types.TaskStatus(state=state, message=message if text else None)
    return StatusChanged(status, archive=True)


def chunk(text: str, artifact_id: str = "notes", *, append: bool = True) -> ArtifactWritten:
    return ArtifactWritten(Artifact(artifact_id=artifact_id, parts=[Part(text=text)]), append)


def named(name: str, *parts: Part) -> ArtifactWritten:
    return ArtifactWritten(Artifact(artifact_id=name.lower(), name=name, parts=[*parts]))


def png(size: int = 96) -> bytes:
    across = range(size * 2)
    lines = (bytes(v for x in across for v in (60 + x, 110 + y, 200)) for y in range(size))
    rows = b"".join(b"\0" + line for line in lines)

    def piece(kind: bytes, body: bytes) -> bytes:
        return pack(">I", len(body)) + kind + body + pack(">I", zlib.crc32(kind + body))

    header = piece(b"IHDR", pack(">IIBBBBB", size * 2, size, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + piece(b"IDAT", zlib.compress(rows)) + piece(b"IEND", b"")


def conversation(scribe: Scribe, task_id: str) -> None:
    """A finished task with Markdown, JSON, an image and a file."""
    head = scribe.begin(
        task_id, "How do we get to the island on Saturday, with bicycles?", waits_s=0.4
    )
    scribe.wait(2)
    looks = said(TaskState.TASK_STATE_WORKING, "Looking at ferries and roads.")
    scribe.commit(head, looks, token="a")
    scribe.wait(3)
    report = named("Route", Part(text=REPORT, media_type="text/markdown"))
    figures = ParseDict({"ferry": {"dep": "09:40", "places": 2}, "closed": ["coast road"]}, Value())
    scribe.commit(head, report, named("Figures", Part(data=figures)), token="a")
    scribe.wait(1.5)
    picture = Part(raw=png(), media_type="image/png", filename="map.png")
    route = Part(raw=b"GPX", media_type="application/gpx+xml", filename="route.gpx")
    completed = said(TaskState.TASK_STATE_COMPLETED, "Book the places today: two are left.")
    scribe.commit(head, named("Map", picture, route), completed, token="a")


def killed(scribe: Scribe, task_id: str, *, lost: bool = True, **options: Any) -> Head:
    """A task whose first attempt died, and whose second has the turn."""
    head = scribe.begin(task_id, "Compare the three offers.", **options, waits_s=0.6)
    offers(scribe, head, "a", 4)
    if not lost:
        end = AttemptEnd(token="a", reason="TimeoutError", correlation_id="1f7a9c02")
        scribe.wait(1)
        done(scribe.storage.change(head, partial(releasing, end=end)))
    scribe.wait(62)
    scribe.claim(head, "b", NEXT_WORKER)
    offers(scribe, head, "b", 3)
    return head


def offers(scribe: Scribe, head: Head, token: str, count: int) -> None:
    for number in range(count):
        scribe.wait(4)
        scribe.commit(head, chunk(f"offer {number}: 120\n", append=number > 0), token=token)


def asleep(scribe: Scribe, task_id: str) -> None:
    """A task whose first attempt has left its turn asleep, for hours from now."""
    head = scribe.begin(task_id, "Book it when the sale begins.", waits_s=0.6)
    scribe.wait(4)
    plan = Recorded(StepId("plan", "", 1), "json", b"1")
    scribe.commit(head, said(TaskState.TASK_STATE_WORKING, "I wait."), plan, token="a")
    now_ms = scribe.clock.now_ms()
    end = AttemptEnd(token="a", reason="asleep", at=now_ms, until=now_ms + 18_000_000)
    slept = Recorded(StepId("ctx.sleep", "", 1), "until", b"[1, 0]")
    scribe.commit(head, slept, token="a", parks=end)


def failing_webhook(scribe: Scribe, task_id: str) -> None:
    """A finished task whose receiver has not answered for ten minutes."""
    head = scribe.begin(task_id, "File the invoice.", push=CRM, waits_s=1)
    scribe.wait(9)
    scribe.commit(head, said(TaskState.TASK_STATE_COMPLETED, "Filed."), token="a")
    scribe.wait(3)
    (push,) = done(scribe.storage.webhooks.all(task_id))
    since = scribe.clock.now_ms()
    scribe.wait(600)
    told = push.settled((1, LAST), "status 200", since, is_told=True)
    failed = replace(told, version=1, failures=6, failing_since=since)
    at = scribe.clock.now_ms()
    moved = failed.answered("status 503", at, next_at=at + 7_200_000)
    assert done(scribe.storage.webhooks.move(push, moved))


def told_slowly(scribe: Scribe, task_id: str) -> Head:
    """A killed task whose receiver took one notification at the third attempt; with the lines."""
    head = killed(scribe, task_id, push=CRM)
    (push,) = done(scribe.storage.webhooks.all(task_id))
    at = scribe.clock.now_ms() - 70_000
    told: tuple[tuple[str, str, float | None], ...] = (
        ("push_failed", "status 503", 12.0),
        ("push_failed", "ConnectTimeout", 30.0),
        ("push_delivered", "status 200", None),
    )
    for number, (action, reason, wait_s) in enumerate(told, 1):
        fields = {"task_id": task_id, "config_id": "crm", "version": 6, "attempt": number}
        fields |= {"action": action, "reason": reason, "created": at / 1000}
        fields |= {"levelname": "INFO", "levelno": logging.INFO, "msg": "A delivery"}
        wait = {} if wait_s is None else {"wait_s": wait_s}
        logging.getLogger("a2a_serverless").handle(logging.makeLogRecord(fields | wait))
        at += 0 if wait_s is None else round(wait_s * 1000) + 400
    moved = push.settled((6, LAST), "status 200", at, is_told=True)
    assert done(scribe.storage.webhooks.move(push, moved))
    return head


def large(scribe: Scribe, task_id: str, *, chunks: int = 3_200, attempts: int = 200) -> None:
    """A task with many attempts, whose last one has written many chunks."""
    opened = scribe.open(task_id, "Write a long report.")
    pieces = [chunk(f"word {number} ", append=number > 0) for number in range(chunks)]

    async def write(head: Head) -> None:
        for number in range(attempts):
            scribe.wait(1)
            claim = Commit(token=f"t{number}", claims=True, worker=f"worker {number}")
            head = await scribe.storage.commit(head, claim)
        for first in range(0, chunks, 16):
            scribe.wait(1)
            written = Commit(entries=tuple(pieces[first : first + 16]), token=f"t{attempts - 1}")
            head = await scribe.storage.commit(head, written)

    done(write(opened))
