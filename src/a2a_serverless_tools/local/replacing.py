"""`dev`: a parent that holds file and port, and replaces the process that serves after an edit.

* The serving process notices an edit (`own_code`) and asks for a successor. Meanwhile it goes on
  serving, and no turn begins.
* The successor is a spare process that has imported the runtime, but nothing of the agent. When it
  serves, the one before leaves: it accepts no more connections, ends what it has begun, and hands
  over the turns that take longer.
* What cannot be loaded ends the spare instead, and messages fail with the reason.
* A process that dies takes neither file nor port with it: another one is started.

The parent imports little, runs no code of the agent, and so outlives all that it does.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Final, Literal, NamedTuple, NoReturn, TypeAlias

from a2a_serverless.errors import ConfigurationError

logger = logging.getLogger(__name__)

LOAD_S: Final = 60.0
"""Seconds in which an agent has to be loaded."""
END_S: Final = 8.0
"""Seconds in which processes have to end after Ctrl-C."""
_AGAIN_S: Final = 1.0
"""Seconds between two attempts to start a process where none serves."""

_FOREIGN: Final = frozenset({"site-packages", "dist-packages"})
"""The names of folders with installed packages."""

Mark: TypeAlias = tuple[int, int, int] | None
"""Times and size of a file; None: it does not exist."""


class Told(NamedTuple):
    """What a serving process tells its parent.

    `changed`: it asks for a successor. `refused`: it cannot serve, for a reason.
    """

    what: Literal["ready", "refused", "changed"]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a process is told that is to serve."""

    sessions: str
    """The folder that says who may use the console, whichever process serves it."""
    is_first: bool = False
    """True if it introduces itself."""
    frees: bool = True
    """True if what other processes have received is free again, as they are gone."""


def mark_of(path: str | Path) -> Mark:
    """Return what a change of a file changes, too."""
    try:
        found = os.stat(path)  # noqa: PTH116 - hundreds at a time
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def is_installed(path: str) -> bool:
    """Return True for a path in a folder of installed packages."""
    return not _FOREIGN.isdisjoint(Path(path).parts)


def packages() -> dict[str, Mark]:
    """Return the marks of the installed packages, by their folders of metadata."""
    found: dict[str, Mark] = {}
    for folder in sys.path:
        if Path(folder).name in _FOREIGN:
            with suppress(OSError), os.scandir(folder) as entries:
                own = [one.path for one in entries if one.name.endswith(".dist-info")]
                found |= {path: mark_of(path) for path in own}
    return found


class _Child:
    """A process that has imported the runtime, and serves when it is told to."""

    def __init__(self, command: Sequence[str]) -> None:
        self._packages = packages()
        self._link, theirs = multiprocessing.Pipe()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - this program
                [*command, "--child", str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )

    @property
    def is_usable(self) -> bool:
        """Return False for a spare that has died, or whose packages have been replaced."""
        return self.process.poll() is None and self._packages == packages()

    def serve(self, start: Start, bound: socket.socket) -> None:
        """Have it serve on a socket."""
        # It has died, which `heard` says. On macOS send_handle waits until it has the socket.
        with suppress(OSError, RuntimeError):
            self._link.send(start)
            send_handle(self._link, bound.fileno(), self.process.pid)

    def heard(self, within_s: float | None = None) -> Told | None:
        """Return what it says next; None if it has ended.

        Raises:
            TimeoutError: it says nothing in time.
        """
        try:
            if not self._link.poll(within_s):
                raise TimeoutError
            told: Told = self._link.recv()
        except (EOFError, ConnectionError):
            return None
        return told

    def answer(self, broken: str) -> None:
        """Have it leave, or go on with messages that fail with a reason."""
        with suppress(OSError):
            self._link.send(broken)


class Family:
    """The processes of one `dev`.

    Args:
        command: starts a process that serves when it is told to.
        sessions: a folder of the user's alone, for those who use the console.
    """

    def __init__(self, command: Sequence[str], sessions: str) -> None:
        self._command = command
        self._sessions = sessions
        self._children: list[_Child] = []
        self._spare: _Child | None = self._made()

    def run(self, bound: socket.socket) -> NoReturn:
        """Serve on a socket.

        Raises:
            ConfigurationError: the first process cannot serve.
            KeyboardInterrupt: SIGINT has come.
        """
        serving = self._served(Start(sessions=self._sessions, is_first=True), bound, within_s=None)
        if isinstance(serving, str):
            raise ConfigurationError(serving)
        while True:
            self._spare = self._spare or self._made()
            if serving.heard() is None:
                serving = self._instead_of(serving, bound)
            else:
                serving = self._after(serving, bound)

    def end(self) -> None:
        """End all processes: turns that run are given back. What does not end in time is killed."""
        _end(self._children)

    def _after(self, serving: _Child, bound: socket.socket) -> _Child:
        """Return what serves after an edit: a successor, or the same if none can be started."""
        successor = self._served(Start(sessions=self._sessions, frees=False), bound)
        if isinstance(successor, str):
            serving.answer(successor)
            return serving
        serving.answer("")
        return successor

    def _instead_of(self, dead: _Child, bound: socket.socket) -> _Child:
        """Return what serves after the death of a process, once one can be started."""
        text = "The process that serves has ended (%s): another one serves now"
        extra = {"action": "process_died"}
        logger.error(text, _ending(dead), extra=extra)
        known = ""
        # One that it has replaced may still run turns, which the next one would run as well.
        _end([child for child in self._children if child is not self._spare])
        while isinstance(successor := self._served(Start(sessions=self._sessions), bound), str):
            if successor != known:
                logger.error("%s", successor, extra=extra)
            known = successor
            time.sleep(_AGAIN_S)
        return successor

    def _served(
        self, start: Start, bound: socket.socket, within_s: float | None = LOAD_S
    ) -> _Child | str:
        """Return a process that serves from now on, or the reason why there is none.

        It is the spare, or a new process if the spare is of no use.
        """
        child, self._spare = self._spare, None
        if child is None or not child.is_usable:
            child = self._made()
        child.serve(start, bound)
        try:
            told = child.heard(within_s)
        except TimeoutError:
            child.process.kill()
            return f"The agent was not loaded within {LOAD_S:g} s."
        if told is None:
            return f"The process that serves has ended at its start ({_ending(child)})."
        return child if told.what == "ready" else told.reason

    def _made(self) -> _Child:
        # Ctrl-C is the parent's: it comes to a child as SIGTERM, and to none in its start. Here it
        # comes when the child is among those that `end` knows.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            child = _Child(self._command)
            self._children = [one for one in self._children if one.process.poll() is None]
            self._children.append(child)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return child


def _end(children: Sequence[_Child]) -> None:
    """End processes within `END_S`; kill those that do not."""
    for child in children:
        child.process.terminate()
    until = time.monotonic() + END_S
    try:
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, until - time.monotonic()))
    finally:
        for child in children:
            child.process.kill()


def _ending(dead: _Child) -> str:
    code = dead.process.wait()
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
