"""What the command line of a2a-handler prints of an answer."""

from __future__ import annotations

from functools import partial

from tests.foreign.tried import printed

PACKAGE = "a2a-handler"


async def read(url: str, text: str, *, command: str) -> str:
    return await printed("handler", "message", command, "--url", url, "--text", text)


READS = {"send": partial(read, command="send"), "stream": partial(read, command="stream")}
