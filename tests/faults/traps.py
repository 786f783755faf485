"""What kills a process of the tests at a named point of the flow (`a2a_serverless.faults`).

    A2A_FAULT_POINT=between-commits:2    die at the second passage of that point
    A2A_FAULT_MARK=/path/of/a/file       written, to the disk, before the end
    A2A_FAULT_WRITE=12                   die within milliseconds of the twelfth write to the table

The end is SIGKILL: nothing is flushed, no handler runs, no connection is closed in order.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from a2a_serverless import faults
from a2a_serverless.storage.sqlite import SqliteTable

POINT_VARIABLE: Final = "A2A_FAULT_POINT"
MARK_VARIABLE: Final = "A2A_FAULT_MARK"
WRITE_VARIABLE: Final = "A2A_FAULT_WRITE"
WITHIN_S: Final = 0.01
"""The longest time between the beginning of that write and the end."""

POINTS: Final = frozenset(
    {
        "after-create",  # API: the message is committed, its operation is not sent
        "after-send",  # API: the operation is sent, the client has no answer
        "after-cancel-request",  # API: HEAD is marked, the cancel operation is not sent
        "after-cancel-send",  # API: the cancel is sent; no request waits for its end any more
        "after-receive",  # worker: the delivery has the visibility of its receive, nothing is read
        "after-claim",  # worker: the turn has an owner, which is dead
        "before-blob",  # worker: a file is emitted, it is not stored
        "blob-stored",  # worker: a file is stored, nothing refers to it
        "snapshot-stored",  # worker: a snapshot is stored, HEAD does not name it
        "between-commits",  # worker: some of the attempt is committed, the next batch is not
        "before-ack",  # worker: all is committed, the message is still in the queue
        "after-leave",  # worker: a turn is left for another of its conversation, its message is not
        "before-next-turn",  # any: a turn is left or has ended, its conversation is not passed on
        "after-requeue",  # any: the next turn is woken, its operation is not sent
        "after-hand-over",  # worker: a turn is left at a record, its copy is not sent
        "blobs-deleted",  # deletion: a task is fenced, its files are deleted and its items are not
        "items-deleted",  # deletion: a task's items are deleted, its HEAD is not
        "before-nack",  # worker: the attempt is counted, its delivery is not given back
        "cancel-received",  # worker: a cancel operation is delivered, nothing is done about it
        "canceling",  # worker: a running agent is being cancelled
        "after-postpone",  # sweeper: a turn's next look is put off, its operation is not sent
        "after-dead-letter",  # dead letters: the task is ended, the letter is not deleted
        "push-stream-received",  # push: stream records are read, no job is sent
        "push-job-sent",  # push: one configuration has its job, its task's others have none
        "push-received",  # push: a job is delivered, nothing is read
        "push-before-post",  # push: an event is read, its receiver knows nothing
        "push-after-post",  # push: the receiver has answered, the cursor has not moved
        "push-after-move",  # push: the cursor has moved, the next event is not sent
        "push-before-dead-letter",  # push: an event is to be given up, nothing says so
        "push-after-dead-letter",  # push: its dead letter is sent, the cursor has not moved
        "push-before-ack",  # push: the receiver knows all, the job is still in the queue
        "push-postponed",  # sweeper: a webhook's next look is put off, its job is not sent
        "push-before-nack",  # push: the failure is counted, the job is not given back
    }
)
"""The points that the package passes."""


class UnknownFaultPointError(Exception):
    """The environment, or the code, names a point that does not exist."""


class Trap:
    """Counts the passages of all threads, and ends the process at the one that was asked for."""

    def __init__(self, wanted: str, mark: str | None = None) -> None:
        name, _, passage = wanted.partition(":")
        if name not in POINTS or not passage.isdecimal() or not int(passage):
            msg = f"{POINT_VARIABLE}={wanted} does not have the form NAME:1, NAME one of {names()}."
            raise UnknownFaultPointError(msg)
        self._name = name
        self._left = int(passage)
        self._mark = mark
        self._lock = threading.Lock()

    def __call__(self, name: str, /) -> None:
        if name not in POINTS:
            raise UnknownFaultPointError(f"There is no point {name}; there are {names()}.")
        if name != self._name:
            return
        with self._lock:  # never released by the thread that dies: no other one comes through
            self._left -= 1
            if self._left == 0:
                self._die()

    def _die(self) -> None:
        if self._mark is not None:
            descriptor = os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(descriptor, f"{self._name}\n".encode())
            os.fsync(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)


def arm(variables: Mapping[str, str]) -> None:
    """Set the trap that the variables ask for, if they do, in this process."""
    if wanted := variables.get(POINT_VARIABLE, ""):
        faults.point = Trap(wanted, variables.get(MARK_VARIABLE))
    if wanted := variables.get(WRITE_VARIABLE, ""):
        SqliteTable.write = _deadly(SqliteTable.write, int(wanted))  # type: ignore[method-assign,assignment]


def _deadly(write: Callable[..., Awaitable[None]], wanted: int) -> Callable[..., Awaitable[None]]:
    """Return a table's write; when the wanted one begins, the end comes at a random time."""
    numbers = itertools.count(1)

    async def counted(*args: Any, **options: Any) -> None:
        if next(numbers) == wanted:
            after_s = random.uniform(0, WITHIN_S)  # noqa: S311 - a kill's time
            asyncio.get_running_loop().call_later(after_s, os.kill, os.getpid(), signal.SIGKILL)
        await write(*args, **options)

    return counted


def names() -> str:
    return ", ".join(sorted(POINTS))
