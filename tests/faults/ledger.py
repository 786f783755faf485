"""What an agent did, kept outside of the system: one file that all processes append to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "FAULTS_LEDGER"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One side effect. `at` is in seconds since the epoch."""

    what: str
    task_id: str
    pid: int
    at: float


class Ledger:
    """The file. A line is one write with O_APPEND: no process loses or splits another's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_process(cls) -> Ledger:
        return cls(Path(os.environ[VARIABLE]))

    def note(self, what: str, task_id: str) -> None:
        """Write one entry; it is in the file when this returns, whatever happens to the process."""
        entry = Entry(what=what, task_id=task_id, pid=os.getpid(), at=time.time())
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, f"{json.dumps(asdict(entry))}\n".encode())
        finally:
            os.close(descriptor)

    def entries(self, task_id: str | None = None, what: str | None = None) -> list[Entry]:
        """The entries so far, of one task and one kind where these are named."""
        read = (Entry(**json.loads(line)) for line in lines_of(self.path))
        wanted = (one for one in read if task_id in (None, one.task_id))
        return [one for one in wanted if what in (None, one.what)]

    def count(self, task_id: str, what: str) -> int:
        return len(self.entries(task_id, what))

    def release(self, task_id: str = "all") -> None:
        """Let the agent go on that holds this task, or, if none is named, each of them."""
        self.path.with_name(f"released-{task_id}").touch()

    def is_released(self, task_id: str) -> bool:
        return any(self.path.with_name(f"released-{name}").exists() for name in (task_id, "all"))


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file that other processes append to, without one that is being written."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield line
