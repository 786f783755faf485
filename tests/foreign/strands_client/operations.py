"""Strands' agent of a remote agent: URL BINDING RECEIVER, of which URL is read.

Prints one JSON line for each operation. Runs in the environment of its framework.
"""

from __future__ import annotations

import asyncio
import sys
import warnings

from tests.foreign.reading import strands_client as read
from tests.foreign.tried import tried


async def main(url: str) -> None:
    await tried("delegate", lambda: read(url, "go", streams=False))
    await tried("stream", lambda: read(url, "go", streams=True))
    await tried("question", lambda: read(url, "ask", streams=False))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1]))
