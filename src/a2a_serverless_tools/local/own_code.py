"""The code of an agent that is edited: how it is loaded, and what another process takes over.

Its modules are compiled from their source. Python takes a bytecode file for any source of the same
size and second, even for the source before a quick edit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import Any, Final

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.worker.agents import handler_of, load_agent
from a2a_serverless.worker.failures import AgentNotLoadedError, is_library
from a2a_serverless.worker.loops import called
from a2a_serverless_tools.local.replacing import Told, is_installed, mark_of, packages

logger = logging.getLogger(__name__)

NAMED: Final = 3
"""The most changed files that a line of the log names."""


class OwnCode:
    """The modules of an agent's folder, and the other files that count as its code.

    Packages that are installed below the folder, as in a `.venv`, do not count as the agent's. Of
    these and all others a change counts that replaces or removes one.

    Args:
        reference: the agent, as for `load_agent`.
        files: files that are read beside the modules, such as its card.
    """

    def __init__(self, reference: str, files: Iterable[Path] = ()) -> None:
        self._reference = reference
        self._agent = Path(reference.rpartition(":")[0]).resolve()
        # Marked before they are read, so that an edit while they are read is noticed later.
        self._marks = {str(path): mark_of(path) for path in (self._agent, *files)} | packages()

    def install(self) -> None:
        """Import the modules of the folder from their source from now on, in this process."""
        read = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
            path = loader.path
            if not self._is_own(path):
                return read(loader, fullname)
            self._marks.setdefault(path, mark_of(path))
            code: CodeType = loader.source_to_code(loader.get_data(path), path)
            return code

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]

    def load(self) -> AgentExecutor:
        """Return the agent of the files.

        Raises:
            ConfigurationError: as `load_agent`.
        """
        return load_agent(self._reference)

    def changed(self) -> list[str]:
        """Return the files that have changed since they were read, or since the last call."""
        found = []
        for path, mark in tuple(self._marks.items()):
            if (now := mark_of(path)) != mark:
                self._marks[path] = now
                found.append(path)
        return found

    def named(self, paths: Iterable[str]) -> str:
        """Return the names of changed files, for a sentence."""
        names = sorted({*map(self._name, paths)})
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more

    def _name(self, path: str) -> str:
        if is_installed(path):
            return f"the package {Path(path).name.partition('-')[0]}"
        folder = self._agent.parent
        return os.path.relpath(path, folder) if Path(path).is_relative_to(folder) else path

    def _is_own(self, path: str) -> bool:
        """Return True for a module of the folder; Python itself may be below it, too."""
        path = os.path.abspath(path)  # noqa: PTH100 - links are not followed, as in imports
        own = f"{self._agent.parent}{os.sep}"
        is_below = path.startswith(own) and not is_installed(path[len(own) :])
        return is_below and not is_library(path)


class Succession:
    """Asks the parent for a successor after an edit, and says which turns may begin.

    Args:
        code: the code that this process has loaded.
        link: to the parent. Without a parent this process ends at once.
        clock: tells which messages came after the last attempt.
    """

    def __init__(self, code: OwnCode, link: Connection, clock: Clock | None = None) -> None:
        self.code = code
        self._link = link
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._asked_at = 0
        self._answer = Future[bool]()
        """Of the last question: True if the process goes on. The first needs none."""
        self._answer.set_result(True)
        self.over = threading.Event()
        """Set when a successor serves."""
        self.broken = ""
        """Why the code of the present files cannot be loaded; empty: it can be, as far as known."""
        os.register_at_fork(after_in_child=link.close)  # else no one sees the end of this process

    def serve(self) -> None:
        """Tell the parent that this process serves, and follow what it says."""
        self.tell(Told("ready"))
        threading.Thread(target=self._follow, name="parent", daemon=True).start()

    def tell(self, told: Told) -> None:
        """Tell the parent something; harmless when it is gone, which ends this process."""
        with self._lock, suppress(OSError):
            self._link.send(told)

    def look(self, sent_at: int = 0) -> None:
        """Ask for a successor if the code has changed.

        Code that cannot be loaded is tried again for each message that has been sent after the last
        attempt, at `sent_at`: what was missing may be there meanwhile, though no known file has
        changed.
        """
        with self._lock:
            if not self._answer.done() or self.over.is_set():
                return
            changed = self.code.changed()
            if changed:
                text = "%s changed: loading the new code"
                logger.info(text, self.code.named(changed), extra={"action": "agent_reloaded"})
            if changed or (self.broken and sent_at > self._asked_at):
                self._asked_at = self._clock.now_ms()
                self._answer = Future()
                self.tell(Told("changed"))

    async def may_begin(self, sent_at: int) -> bool:
        """Return True if a turn may begin here, whose message was sent at a time; else hand it on.

        It waits for a successor that is asked for.
        """
        self.look(sent_at)
        return await asyncio.shield(asyncio.wrap_future(self._answer))

    def agent(self) -> AgentExecutor:
        """Load the agent; its turns fail with the reason while the present code cannot be loaded.

        Raises:
            ConfigurationError: as `load_agent`.
        """
        return _Guarded(self.code.load(), self)

    def _follow(self) -> None:
        try:
            while not self.over.is_set():
                self.broken = self._link.recv()
                if not self.broken:
                    self.over.set()
                self._answer.set_result(bool(self.broken))
            self._link.recv()
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone, and with it the lock of the file


class _Guarded(AgentExecutor):
    """Runs an agent, or fails its turns with the reason why the present code cannot be loaded."""

    def __init__(self, agent: AgentExecutor, succession: Succession) -> None:
        self._agent = agent
        self._succession = succession
        self.handler = handler_of(agent)
        self.keeps_conversation: Any = getattr(agent, "keeps_conversation", False)

    async def execute(self, *arguments: Any) -> None:
        await called(self._loaded().execute, *arguments)

    async def cancel(self, *arguments: Any) -> None:
        await called(self._loaded().cancel, *arguments)

    def _loaded(self) -> AgentExecutor:
        if self._succession.broken:
            reason = f"{self._succession.broken} Repair it, and send the message again."
            raise AgentNotLoadedError(reason)
        return self._agent
