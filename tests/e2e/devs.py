"""`a2a-serverless dev` in a folder, with a client of its agent."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.commands import Running, environment, running
from tests.support.a2a_calls import Caller


class Dev(Caller):
    """A running `dev` and a client of it."""

    def __init__(self, command: Running, folder: Path) -> None:
        super().__init__(command.wait_for(r"A2A at (\S+),"))
        self.command = command
        self.folder = folder


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
