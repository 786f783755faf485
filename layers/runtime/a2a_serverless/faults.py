"""Named points in the flow at which a test can make its own process die.

What a crash leaves behind depends on between which two requests it comes. `point` marks such a
place; it does nothing unless the environment arms it, which only tests do:

    A2A_FAULT_POINT=between-commits:2    die at the second passage of that point
    A2A_FAULT_MARK=/path/of/a/file       written, to the disk, before the end

The end is SIGKILL: nothing is flushed, no handler runs, no connection is closed in order.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Final

POINT_VARIABLE: Final = "A2A_FAULT_POINT"
MARK_VARIABLE: Final = "A2A_FAULT_MARK"

POINTS: Final = frozenset(
    {
        "after-create",  # API: the message is committed, its operation is not sent
        "after-send",  # API: the operation is sent, the client has no answer
        "after-cancel-flag",  # API: the flag is up, the cancel operation is not sent
        "after-cancel-send",  # API: the cancel is sent; nobody waits for its end any more
        "after-receive",  # worker: the delivery has the visibility of its receive, nothing is read
        "after-claim",  # worker: the turn has an owner, which is dead
        "between-commits",  # worker: some of the attempt is committed, the next batch is not
        "before-ack",  # worker: all is committed, the message is still in the queue
        "before-nack",  # worker: the attempt is counted, its delivery is not given back
        "cancel-received",  # worker: a cancel operation is delivered, nothing is done about it
        "canceling",  # worker: a running agent is being cancelled
        "after-postpone",  # sweeper: a turn's next look is put off, its operation is not sent
        "after-overdue-cancel",  # sweeper: the task is canceled, its flag is up
        "after-dead-letter",  # dead letters: the task is ended, the letter is not deleted
        "push-stream-received",  # push: stream records are read, nobody is woken
        "push-wake-sent",  # push: one configuration is woken, its task's others are not
        "push-received",  # push: a wake is delivered, nothing is read
        "push-before-post",  # push: an event is read, its receiver knows nothing
        "push-after-post",  # push: the receiver has answered, the cursor has not moved
        "push-after-move",  # push: the cursor has moved, the next event is not sent
        "push-before-bury",  # push: an event is to be given up, nothing says so
        "push-after-bury",  # push: its dead letter is sent, the cursor has not moved
        "push-before-ack",  # push: the receiver knows all, the wake is still in the queue
        "push-before-nack",  # push: the failure is counted, the wake is not given back
    }
)


class UnknownFaultPointError(Exception):
    """The environment, or the code, names a point that does not exist."""


def armed(environment: Mapping[str, str]) -> Callable[[str], None]:
    """What `point` does under these variables.

    Raises:
        UnknownFaultPointError: they do not name a point and a passage.
    """
    wanted = environment.get(POINT_VARIABLE, "")
    if not wanted:
        return _pass
    name, _, passage = wanted.partition(":")
    if name not in POINTS or not passage.isdecimal() or not int(passage):
        msg = f"{POINT_VARIABLE}={wanted} does not have the form NAME:1, NAME one of {names()}."
        raise UnknownFaultPointError(msg)
    return _Trap(name, int(passage), environment.get(MARK_VARIABLE))


def names() -> str:
    """All points, for a sentence."""
    return ", ".join(sorted(POINTS))


def _pass(name: str, /) -> None:
    """Nothing: no process but a test's is armed."""


class _Trap:
    """Counts the passages of all threads, and ends the process at the one that was asked for."""

    def __init__(self, name: str, passage: int, mark: str | None) -> None:
        self._name = name
        self._left = passage
        self._mark = mark
        self._lock = threading.Lock()

    def __call__(self, name: str, /) -> None:
        if name not in POINTS:
            msg = f"There is no point {name}; there are {names()}."
            raise UnknownFaultPointError(msg)
        if name != self._name:
            return
        with self._lock:  # never released by the thread that dies: no other one comes through
            self._left -= 1
            if self._left == 0:
                self._die()

    def _die(self) -> None:
        if self._mark is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = os.open(self._mark, flags, 0o644)
            os.write(descriptor, f"{self._name}\n".encode())
            os.fsync(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)


point: Callable[[str], None] = armed(os.environ)
"""Pass a point by its name. Call it through the module, so that a test can arm it anew."""
