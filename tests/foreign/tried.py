"""How a client in an environment of its own tells what came of each operation.

It knows no package of the clients: each imports it beside its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


async def tried(operation: str, call: Callable[[], Awaitable[Any]]) -> None:
    """Print one JSON line: what came of the operation, or its error."""
    try:
        told = {"says": str(await call())}
    except Exception as error:  # noqa: BLE001 - of any client, whatever it raises
        told = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(f"{json.dumps({'operation': operation, **told})}\n")
    sys.stdout.flush()


def outcome(state: str, *texts: str) -> str:
    """A task in words: its state, and what it has said."""
    return f"{state}: {''.join(texts)}"


async def printed(command: str, *arguments: str) -> str:
    """Return what a command of this environment writes to stdout, without colours."""
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name(command),
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
    )
    out, _ = await process.communicate()
    return out.decode().strip()


class Talk:
    """Does what a client can do: those of these operations for which it has a method.

    `sent` sends a text for a task, or for a new one, and `told` has a task in words.
    """

    task: Any = None
    asked: Any = None
    running: Any = None
    sent: Callable[..., Awaitable[Any]]
    told: Callable[[Any], str]

    OPERATIONS = (
        *("card", "send", "stream", "get", "list", "question", "answer", "start"),
        *("set push", "get push", "list push", "delete push", "subscribe", "unknown task"),
    )

    async def all(self) -> None:
        for operation in self.OPERATIONS:
            if (call := getattr(self, operation.replace(" ", "_"), None)) is not None:
                await tried(operation, call)

    async def send(self) -> str:
        self.task = await self.sent("go")
        return self.told(self.task)

    async def question(self) -> str:
        self.asked = await self.sent("ask")
        return self.told(self.asked)

    async def answer(self) -> str:
        return self.told(await self.sent("go", self.asked))
