"""What Conductor's command line prints of an answer."""

from __future__ import annotations

from functools import partial

from tests.foreign.tried import printed

PACKAGE = "conductor-a2a-cli"


async def read(url: str, text: str, *, command: tuple[str, ...]) -> str:
    return await printed("a2a", *command, "--agent", url, text)


READS = {
    "send --quiet": partial(read, command=("send", "--quiet")),
    "stream": partial(read, command=("stream",)),
}
