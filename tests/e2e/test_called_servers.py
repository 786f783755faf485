"""Servers of other frameworks, called by an agent that is killed at each point of the call."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_serverless.worker import Remote, TaskContext, Worker
from a2a_serverless_tools.testing import AgentBench, step
from tests.support.required import ROOT, peer_python_of, python_of

OPENS_TWO = {"strands_client": ("after",)}
"""Where a server opens a second task: of A2A 0.3, it has neither a list nor a memory of ids."""
SERVERS = ("google_adk", "a2akit", "strands_client")
STARTS_WITHIN_S = 120
POINTS = ("before", "after", step("ctx.call_agent books"))
"""In the sending: before the server has the message, and after it has answered; behind a record."""


class Server:
    """A server in a process of its own, and the messages that its agent has worked on."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._notes = folder / "notes"
        self._notes.touch()
        python = peer_python_of(name) if name == "a2akit" else python_of(name)
        command = [python, "-W", "ignore", "tests/foreign/called.py", name, self._notes]
        output = folder / "output"
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*map(str, command)], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
            )
        try:
            self.url = self._url_in(output)
        except BaseException:
            self.end()
            raise

    def _url_in(self, output: Path) -> str:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            is_over = self.process.poll() is not None or time.monotonic() > deadline
            said = output.read_text(encoding="utf-8")
            if found := re.search(r"^(http://\S+)\n", said, re.MULTILINE):
                return found[1]
            assert not is_over, f"{self.name} is not there: {said}"
            time.sleep(0.05)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def said(self) -> list[str]:
        return self._notes.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Server]:
    """One after the other, each for all of its points."""
    made = Server(request.param, tmp_path_factory.mktemp("server"))
    try:
        yield made
    finally:
        made.end()


class Buyer(Worker):
    """Buys at the server what the client says."""

    def __init__(self, books: Remote) -> None:
        self.agents = {"books": books}

    async def handle(self, ctx: TaskContext) -> None:
        reply = await ctx.call_agent("books", ctx.user_text)
        await ctx.step("pay", str.upper, reply.text)
        await ctx.complete(reply.text)


class Kills(httpx.AsyncBaseTransport):
    """Kills the bench's process once, before or after a request that sends a message."""

    def __init__(self, moment: Any) -> None:
        self._moment = moment
        self.bench: AgentBench

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        is_send = b"essage" in request.content and b"parts" in request.content
        if is_send and self._moment == "before":
            await self._kill()
        async with httpx.AsyncHTTPTransport() as own:  # of this loop, which may be the second one
            answer = await own.handle_async_request(request)
            content = b"".join([piece async for piece in answer.aiter_raw()])
        if is_send and self._moment == "after":
            await self._kill()
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)

    async def _kill(self) -> None:
        self._moment = None
        self.bench._process._kill()
        await asyncio.Event().wait()


@pytest.mark.foreign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_killed_caller_opens_one_task_where_the_server_can_know(
    server: Server, point: Any
) -> None:
    """The table of the page `calling-agents` is what each server does."""
    before = len(server.said)
    transport = Kills(point)
    with AgentBench(Buyer(Remote(server.url, transport=transport)), timeout_s=60) as bench:
        transport.bench = bench
        run = bench.send(f"tea {point}", kill_after=None if isinstance(point, str) else point)
    assert run.artifacts["final-answer"].text.strip() == f"did tea {point}"
    assert run.attempts >= 2  # a slow server's answer is waited for outside of the process
    opened = 2 if point in OPENS_TWO.get(server.name, ()) else 1
    assert server.said[before:] == [f"tea {point}"] * opened


class Host(Worker):
    """Passes on what the server writes."""

    def __init__(self, books: Remote) -> None:
        self.agents = {"books": books}

    async def handle(self, ctx: TaskContext) -> None:
        async def show(piece: str) -> None:
            await ctx.emit_text_artifact(piece, "read", append=True)

        reply = await ctx.call_agent("books", ctx.user_text, on_text=show)
        await ctx.complete(reply.text)


@pytest.mark.foreign
@pytest.mark.timeout(300)
def test_the_text_of_each_server_is_passed_on(server: Server) -> None:
    """Whether it streams or not, the pieces are the text of its reply."""
    with AgentBench(Host(Remote(server.url)), timeout_s=60) as bench:
        run = bench.send("tea aloud")
    assert run.artifacts["read"].text == run.artifacts["final-answer"].text
    assert run.artifacts["read"].text.strip() == "did tea aloud"
