"""Clients that send requests as fast as they are answered: a process beside the one they flood.

Reads from stdin a JSON object: host, port, seconds, clients, and requests, each as the text of one
HTTP request. Each client begins at its own share, and goes on until the time is over and it has
sent that share. Writes to stdout how often which status came.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import Counter
from typing import Any


async def flood(plan: dict[str, Any]) -> dict[str, int]:
    """Send every request at least once, and on until the time is over."""
    until = time.monotonic() + plan["seconds"]
    answered: Counter[str] = Counter()
    requests = [text.encode() for text in plan["requests"]]
    share = math.ceil(len(requests) / plan["clients"])
    async with asyncio.TaskGroup() as group:
        for number in range(plan["clients"]):
            start = number * share % len(requests)
            own = requests[start:] + requests[:start]
            group.create_task(_client(plan, own, share, until, answered))
    return answered


async def _client(
    plan: dict[str, Any], requests: list[bytes], share: int, until: float, answered: Counter[str]
) -> None:
    turn = 0

    def goes_on() -> bool:
        return turn < share or time.monotonic() < until

    while goes_on():
        reader, writer = await asyncio.open_connection(plan["host"], plan["port"])
        try:
            while goes_on():
                writer.write(requests[turn % len(requests)])
                turn += 1
                answered[await _status(reader)] += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            answered["closed"] += 1
        finally:
            writer.close()


async def _status(reader: asyncio.StreamReader) -> str:
    """Read one answer and return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = next(
        int(line.split(":", 1)[1])
        for line in head.split("\r\n")
        if line.lower().startswith("content-length:")
    )
    await reader.readexactly(length)
    return head.split(" ", 2)[1]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(flood(json.load(sys.stdin)))))
