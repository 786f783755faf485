"""`a2a-serverless dev` in a folder, with a client of its agent."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.commands import Running, children, environment, running
from tests.support.a2a_calls import Caller


class Dev(Caller):
    def __init__(self, command: Running, folder: Path) -> None:
        super().__init__(command.url)
        self.command = command
        self.folder = folder

    def send(self, text: str = "hi", *, waits: bool = True, **fields: Any) -> dict[str, Any]:
        """The same, however long it takes: on a busy machine a process starts slowly."""
        task = super().send(text, waits=waits, **fields)
        is_open = task["status"]["state"] in {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"}
        return self.until("COMPLETED|FAILED|CANCELED", task["id"]) if waits and is_open else task

    def children(self) -> list[int]:
        """Its processes: those that serve or are about to leave, and at the end a spare."""
        return children(self.command.process.pid)

    def until_spare(self) -> None:
        """Wait until a spare has imported the runtime: until it does nothing any more."""
        before: tuple[int, str] | None = None
        deadline = time.monotonic() + 100
        while True:
            assert time.monotonic() < deadline
            spare = self.children()[-1]
            stat = Path(f"/proc/{spare}/stat").read_text().rpartition(")")[2].split()
            now = (spare, stat[11])  # its time in user mode
            if len(self.children()) > 1 and now == before and stat[0] == "S":
                return
            before = now
            time.sleep(0.5)


@contextmanager
def running_dev(folder: Path, *options: str, **variables: str) -> Iterator[Dev]:
    """A `dev` in the folder, which has agent and card; it may have been killed at the end."""
    output = folder / f"{uuid.uuid4().hex}.log"
    arguments, env = ("dev", "--port", "0", *options), environment(**variables)
    with (
        running(*arguments, env=env, output=output, cwd=folder) as command,
        Dev(command, folder) as dev,
    ):
        yield dev
