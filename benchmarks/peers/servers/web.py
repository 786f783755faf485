"""What servers of peers share: their socket, and how safely SQLite keeps what they write."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from sqlalchemy import Engine, event


async def serve(app: Any) -> None:
    """Serve on a free port of the loopback, which is printed, until a signal."""
    # With its protocol named: otherwise asyncio leaves Nagle's algorithm on.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    print(f"A2A at http://127.0.0.1:{listening.getsockname()[1]},", flush=True)
    config = uvicorn.Config(app, lifespan="on", log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])


def keep_sqlite_as_we_do() -> None:
    """Have every SQLite engine of this process write as this project does: WAL, NORMAL."""
    event.listen(Engine, "connect", _set)


def _set(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
