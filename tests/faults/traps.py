"""What kills a process of the tests at a named point of the flow (`a2a_serverless.faults`).

    A2A_FAULT_POINT=between-commits:2    die at the second passage of that point
    A2A_FAULT_MARK=/path/of/a/file       written, to the disk, before the end

The end is SIGKILL: nothing is flushed, no handler runs, no connection is closed in order.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from typing import Final

from a2a_serverless import faults

POINT_VARIABLE: Final = "A2A_FAULT_POINT"
MARK_VARIABLE: Final = "A2A_FAULT_MARK"


class UnknownFaultPointError(Exception):
    """The environment, or the code, names a point that does not exist."""


class Trap:
    """Counts the passages of all threads, and ends the process at the one that was asked for.

    Raises:
        UnknownFaultPointError: there is no such point, or no such passage.
    """

    def __init__(self, wanted: str, mark: str | None = None) -> None:
        name, _, passage = wanted.partition(":")
        if name not in faults.POINTS or not passage.isdecimal() or not int(passage):
            msg = f"{POINT_VARIABLE}={wanted} does not have the form NAME:1, NAME one of {names()}."
            raise UnknownFaultPointError(msg)
        self._name = name
        self._left = int(passage)
        self._mark = mark
        self._lock = threading.Lock()

    def __call__(self, name: str, /) -> None:
        if name not in faults.POINTS:
            raise UnknownFaultPointError(f"There is no point {name}; there are {names()}.")
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


def arm(variables: Mapping[str, str]) -> None:
    """Set the trap that the variables ask for, if they do, in this process.

    Raises:
        UnknownFaultPointError: they do not name a point and a passage.
    """
    if wanted := variables.get(POINT_VARIABLE, ""):
        faults.point = Trap(wanted, variables.get(MARK_VARIABLE))


def names() -> str:
    """All points, for a sentence."""
    return ", ".join(sorted(faults.POINTS))
