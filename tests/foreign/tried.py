"""How a client in an environment of its own tells what came of each operation.

It knows no package of the clients: each imports it beside its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
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
