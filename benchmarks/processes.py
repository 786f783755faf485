"""Servers that a benchmark starts as processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
START_S = 60.0
STOP_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server, and the text by which it was ready."""

    said: str
    process: subprocess.Popen[bytes]


@contextmanager
def running(command: Sequence[str], ready: str, folder: Path, **variables: str) -> Iterator[Server]:
    """Run a server for the block; `said` is the first group of `ready` in its output.

    Raises:
        RuntimeError: the server ended, or was not ready within `START_S`; has its output.
    """
    output = folder / f"{uuid.uuid4().hex}.out"
    environment = {**os.environ, "A2A_AUTH": "none", "PYTHONPATH": str(ROOT), **variables}
    with output.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - our own servers
            command, env=environment, stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + START_S
        while (found := re.search(ready, output.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {output.read_text()[-2000:]}")
            time.sleep(0.05)
        yield Server(said=found[1], process=process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
