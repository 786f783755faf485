"""`a2a-serverless` with a stopwatch: `python -m benchmarks.stream_probe LOG api|worker …`.

It appends to LOG a line for every chunk that a commit has stored, and one for every Query that was
answered. Nothing else of the process is changed.

    commit <task id> <chunk> <ns when the commit call returned>
    read <ns when it was answered> <ns since it was sent>
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from a2a_serverless import aws
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools import cli


class Notes:
    """A file that several processes append lines to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, *fields: object) -> None:
        """Append one line."""
        os.write(self._file, (" ".join(map(str, fields)) + "\n").encode())


def time_commits(notes: Notes) -> None:
    """Note when the commit of each chunk has returned."""
    commit_plain = DurableStorage.commit

    async def commit(self: DurableStorage, head: Head, commit: Commit) -> Head:
        after = await commit_plain(self, head, commit)
        returned_ns = time.monotonic_ns()
        for entry in commit.entries:
            if isinstance(entry, ArtifactWritten):
                number = entry.artifact.parts[0].text.split()[0]
                notes.add("commit", head.task_id, number, returned_ns)
        return after

    DurableStorage.commit = commit  # type: ignore[method-assign]


def time_reads(notes: Notes) -> None:
    """Note every Query of the process's DynamoDB client."""
    sent = threading.local()  # a call stays in its thread

    def before(**_: Any) -> None:
        sent.at_ns = time.monotonic_ns()

    def after(**_: Any) -> None:
        now_ns = time.monotonic_ns()
        notes.add("read", now_ns, now_ns - sent.at_ns)

    events = aws.client("dynamodb").meta.events
    events.register("before-send.dynamodb.Query", before)
    events.register("after-call.dynamodb.Query", after)


if __name__ == "__main__":
    to_notes = Notes(Path(sys.argv[1]))
    time_commits(to_notes)
    if sys.argv[2] == "api":
        time_reads(to_notes)
    sys.exit(cli.main(sys.argv[2:]))
