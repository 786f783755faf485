"""Ways to an agent on which something is broken, and a clock that can be moved on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx

from a2a_serverless.clock import SystemClock
from tests.live.findings import Check, Finding
from tests.live.runner import run
from tests.live.subject import Subject

Break = Callable[[httpx.Request, httpx.Response], Awaitable[httpx.Response]]


class MovableClock(SystemClock):
    """The machine's clock, which a test moves on; pauses take no time."""

    def __init__(self) -> None:
        self._moved_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self._moved_s * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self._moved_s

    def move(self, seconds: float) -> None:
        self._moved_s += seconds


class HastyClock(MovableClock):
    """One on which a pause has passed at once."""

    async def sleep(self, seconds: float) -> None:
        self.move(seconds)
        await super().sleep(0)


class QuickClock(MovableClock):
    """One on which a second passes in ten milliseconds."""

    async def sleep(self, seconds: float) -> None:
        self.move(seconds)
        await super().sleep(seconds / 100)


class BrokenWay(httpx.AsyncBaseTransport):
    """A way to a real server, which breaks the answers to some requests."""

    def __init__(self, concerns: Callable[[httpx.Request], bool], does: Break) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self._concerns = concerns
        self._does = does
        self.broken = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if not self._concerns(request):
            return response
        self.broken += 1
        return await self._does(request, response)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def refuse(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Answer with an error of the server's instead."""
    await response.aclose()
    return httpx.Response(500, json={"error": {"code": 500, "message": "broken"}}, request=request)


async def buffer(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    """Answer in one piece, when all of it is there."""
    content = await response.aread()
    headers = {"content-type": response.headers["content-type"]}
    return httpx.Response(response.status_code, headers=headers, content=content, request=request)


def replace(old: str, new: str) -> Break:
    """Answer with another text."""

    async def does(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        text = (await response.aread()).decode().replace(old, new)
        headers = {"content-type": response.headers["content-type"]}
        return httpx.Response(response.status_code, headers=headers, text=text, request=request)

    return does


async def finding(subject: Subject, check: Check) -> Finding:
    """What a check finds."""
    (found,) = (await run(subject, [check], lambda _: None)).findings
    return found
