"""Snapshots of long tasks: a reader gets one in the place of most of the log.

The worker that has ended a turn stores what the log has made of the task as a blob, and HEAD names
it. A snapshot is never more than a shorter way: a reader that cannot have it reads the whole log,
and a worker that dies before HEAD names it leaves that to the next one.

A process keeps some in its memory as well (`NearSnapshots`), of tasks whose turns it has read.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from a2a.types import Task

from a2a_serverless import faults
from a2a_serverless.errors import (
    ConfigurationError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage.blobs import put_whole, whole
from a2a_serverless.storage.codec import text_of, value_of
from a2a_serverless.tasks.blobs import Blob, BlobOwner
from a2a_serverless.tasks.entries import (
    MessageAppended,
    content_of,
    decode_entries,
    encode_entries,
    is_plain,
)
from a2a_serverless.tasks.fold import Log, Record, Snapshot
from a2a_serverless.tasks.head import AttemptEnd, Head, SnapshotName
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless.tasks.rules import naming, wants_snapshot

if TYPE_CHECKING:
    from a2a_serverless.storage.durable import DurableStorage

logger = logging.getLogger(__name__)

_BESIDE: Final = ("token", "commit_id", "at", "worker", "ended", "trace")
"""What a commit says beside its version and its entries."""

NEAR_COMMITS: Final = 8
"""Commits since the last snapshot in memory after which a task gets another one there."""
NEAR_BYTES: Final = 8_000_000
"""The most bytes of the tasks whose snapshots a process keeps in memory, as stored."""
LISTED_BYTES: Final = 4_000_000
"""The most bytes of the tasks that a process keeps in memory as pages have shown them."""


class NearSnapshots:
    """The snapshots that this process keeps in memory, those that were used last. Thread-safe.

    The commits of an incarnation never change. So a snapshot is valid as long as HEAD, which every
    read fetches, has the same incarnation; what was written since is read behind it.
    """

    def __init__(self, most_bytes: int = NEAR_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[TaskKey, tuple[Head, Snapshot]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, head: Head) -> Snapshot | None:
        """Return the snapshot of a task if it is at least as near as the one that HEAD names."""
        with self._lock:
            then, near = self._kept.get((head.scope, head.task_id), (None, None))
            if then is None or near is None:
                return None
            if then.incarnation != head.incarnation or near.last > head.version:
                del self._kept[head.scope, head.task_id]
                return None
            self._kept.move_to_end((head.scope, head.task_id))
        return near if near.last >= head.snapshot.version else None

    def keep(self, log: Log) -> None:
        """Keep the snapshot with which a log begins, or a nearer one if its newest turn is far.

        `log` was read from its beginning, or from a snapshot on.
        """
        head, turn, made = log.head, log.head.turn, log.since
        if head.size > self._most_bytes:
            return
        last = turn.number - 1
        is_far = turn.is_open and last - (made.last if made else 0) >= NEAR_COMMITS
        # Its message was accepted while no turn was open: no restart goes back behind it.
        if is_far and turn.base == turn.number and not turn.begun and not log.needs_newer:
            made = log.fold(last).snapshot() or made
        if made is None:
            return
        with self._lock:
            self._kept[head.scope, head.task_id] = head, made
            self._kept.move_to_end((head.scope, head.task_id))
            while sum(of.size for of, _ in self._kept.values()) > self._most_bytes:
                self._kept.popitem(last=False)

    def forget(self, task: TaskKey) -> None:
        """Drop the snapshot of a task that is gone."""
        with self._lock:
            self._kept.pop(task, None)


class ListedTasks:
    """The tasks that pages have shown, those that were shown last. Thread-safe.

    HEAD's mark names the write that has made it, and the log up to there never changes: so a task
    is valid as long as HEAD, which every page fetches, has the same mark.
    """

    def __init__(self, most_bytes: int = LISTED_BYTES) -> None:
        self._left = most_bytes
        self._kept: OrderedDict[TaskKey, tuple[object, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, head: Head, view: object) -> Task | None:
        """Return a task as a view shows it, as an object of the caller's; None: it is not kept."""
        task = head.scope, head.task_id
        with self._lock:
            made, content = self._kept.get(task, (None, b""))
            if made != (head.incarnation, head.mark, view):
                return None
            self._kept.move_to_end(task)
        return Task.FromString(content)

    def keep(self, head: Head, view: object, shown: Task) -> None:
        """Keep a task as a view shows it, in the place of another view of it."""
        task, content = (head.scope, head.task_id), shown.SerializeToString()
        with self._lock:
            self._left += len(self._kept.pop(task, (None, b""))[1]) - len(content)
            self._kept[task] = (head.incarnation, head.mark, view), content
            while self._left < 0:
                self._left += len(self._kept.popitem(last=False)[1][1])


async def snapshot_of(storage: DurableStorage, head: Head) -> Snapshot | None:
    """Return the snapshot that HEAD names; None if it is not there, or cannot be had or read."""
    blob = Blob(_owner(head), head.snapshot.digest, head.snapshot.length)
    try:
        content = await whole(storage.table.blobs, blob)
    except (ConfigurationError, UnavailableError) as error:
        extra = {"action": "snapshot_refused", "task_id": head.task_id}
        logger.warning("A snapshot was not read, but the whole log: %s", error, extra=extra)
        return None
    if content is None:
        return None
    return _read(content)


async def take_snapshot(storage: DurableStorage, head: Head) -> None:
    """Store a snapshot of a task that wants one; what fails is logged, for the next turn to do."""
    try:
        await _take(storage, head)
    except (ConfigurationError, UnavailableError, UnreadableTaskError) as error:
        extra = {"action": "snapshot_failed", "task_id": head.task_id}
        logger.warning("A snapshot was not stored: %s", error, extra=extra)


async def _take(storage: DurableStorage, head: Head) -> None:
    blobs = storage.table.blobs
    if blobs is None:
        return
    log = await storage.read(head.task_id, incarnation=head.incarnation, is_whole=False)
    if log is None or log.needs_newer or not wants_snapshot(log.head):
        return
    made = log.snapshot()
    if made is None:
        return
    name = SnapshotName(version=made.last, size=log.head.size)
    # Before HEAD names it: what HEAD names is there to be read.
    blob = await put_whole(blobs, _written(made), _owner(replace(log.head, snapshot=name)))
    faults.point("snapshot-stored")
    after = replace(log.head, snapshot=replace(name, digest=blob.digest, length=blob.size))
    # A reader that has read HEAD before finds it no more, and reads the whole log.
    unneeded = await _name(storage, log.head, after)
    if unneeded.snapshot.version:
        await blobs.delete(_owner(unneeded))


def _written(made: Snapshot) -> bytes:
    """Return a snapshot as a blob has it: a line of JSON, and entries."""
    bodies = [encode_entries(each) for each in (made.entries, *(one.entries for one in made.kept))]
    kept = [
        [len(body), _beside(record)] for body, record in zip(bodies[1:], made.kept, strict=True)
    ]
    about = json.dumps([made.version, made.turn, made.shown, len(bodies[0]), kept])
    return b"".join([about.encode(), b"\n", *bodies])


def _beside(record: Record) -> dict[str, Any]:
    """Return what a commit says beside its version and its entries."""
    said = {name: getattr(record, name) for name in _BESIDE}
    if record.ended is not None:
        said["ended"] = text_of(record.ended)
    return {name: value for name, value in said.items() if value not in (None, "")}


def _read(content: bytes) -> Snapshot | None:
    """Return the snapshot of a blob; None: it is none."""
    about, _, bodies = content.partition(b"\n")
    try:
        version, turn, shown, length, kept = json.loads(about)
    except ValueError:
        return None
    records, start = [], length
    for number, (size, said) in enumerate(kept, version + 1):
        entries = decode_entries(bodies[start : start + size])
        if "ended" in said:
            said["ended"] = value_of(AttemptEnd, said["ended"])
        records.append(Record(version=number, entries=entries, **said))
        start += size
    entries = decode_entries(bodies[:length])
    return Snapshot(
        version=version,
        turn=turn,
        shown=shown,
        history=tuple(each.message for each in entries if isinstance(each, MessageAppended)),
        others=tuple(each for each in entries if not isinstance(each, MessageAppended)),
        is_plain=all(map(is_plain, map(content_of, entries))),
        kept=tuple(records),
    )


async def _name(storage: DurableStorage, before: Head, after: Head) -> Head:
    """Let HEAD name a snapshot in the place of an earlier one; return HEAD with the unneeded one.

    That is the new one if there is a later one, or the task is gone.
    """
    seen = before

    def named(now: Head) -> Head | None:
        nonlocal seen
        decided = naming(now, after.snapshot)
        if decided is not now:  # else an earlier request has named it, without an answer
            seen = now
        return decided

    return after if await storage.change(before, named) is None else seen


def _owner(head: Head) -> BlobOwner:
    """Return the owner of HEAD's snapshot: within that of the task, with a mark no file has."""
    return BlobOwner(head.scope, head.task_id, f"{head.incarnation}/!{head.snapshot.version}")
