"""What astromesh-a2a gives of an answer, by itself and as a tool."""

from __future__ import annotations

from astromesh_a2a import Policy, RemoteAgent
from astromesh_a2a.testing import allow_loopback

PACKAGE = "astromesh-a2a"
POLICY = Policy(allowed=("127.0.0.1",), allow_insecure_http=True)


async def read(url: str, text: str) -> str:
    async with RemoteAgent(url, policy=POLICY) as remote:
        allow_loopback(remote)
        result = await remote.send(text)
        return result.answer or result.pending or "".join(map(str, result.data))


async def stream(url: str, text: str) -> str:
    async with RemoteAgent(url, policy=POLICY) as remote:
        allow_loopback(remote)
        async with remote.stream(text) as events:
            given = [event.payload async for event in events]
        return "".join(one["text"] or "".join(map(str, one["data"])) for one in given)


READS = {"send": read, "stream": stream}
