"""Servers of other frameworks, called by an agent that is killed at each point of the call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_serverless.worker import Remote, TaskContext, Worker
from a2a_serverless_tools.testing import AgentBench, step
from tests.e2e.commands import running_program
from tests.support.required import ROOT, peer_python_of, python_of

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]

OPENS_TWO = {"strands_client": ("after",)}
"""Where a server opens a second task: of A2A 0.3, it has neither a list nor a memory of ids."""
POINTS = ("before", "after", step("ctx.call_agent books"))
"""In the sending: before the server has the message, and after it has answered; behind a record."""


@dataclass(frozen=True)
class Server:
    """A server in a process of its own, and the messages that its agent has worked on."""

    name: str
    url: str
    notes: Path

    @property
    def said(self) -> list[str]:
        return self.notes.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module", params=("google_adk", "a2akit", "strands_client"))
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Server]:
    """One after the other, each for all of its points."""
    name, folder = request.param, tmp_path_factory.mktemp("server")
    notes, output = folder / "notes", folder / "output"
    notes.touch()
    python = peer_python_of(name) if name == "a2akit" else python_of(name)
    command = [str(python), "-W", "ignore", "tests/foreign/called.py", name, str(notes)]
    with running_program(command, env=os.environ, output=output, cwd=ROOT) as started:
        yield Server(name, started.wait_for(r"(?m)^(http://\S+)\n"), notes)


class Buyer(Worker):
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


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_killed_caller_opens_one_task_where_a_server_can_know(server: Server, point: Any) -> None:
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
    def __init__(self, books: Remote) -> None:
        self.agents = {"books": books}

    async def handle(self, ctx: TaskContext) -> None:
        async def show(piece: str) -> None:
            await ctx.emit_text_artifact(piece, "read", append=True)

        await ctx.complete((await ctx.call_agent("books", ctx.user_text, on_text=show)).text)


def test_the_text_of_each_server_is_passed_on(server: Server) -> None:
    """Whether it streams or not, the pieces are the text of its reply."""
    with AgentBench(Host(Remote(server.url)), timeout_s=60) as bench:
        run = bench.send("tea aloud")
    assert run.artifacts["read"].text == run.artifacts["final-answer"].text
    assert run.artifacts["read"].text.strip() == "did tea aloud"
