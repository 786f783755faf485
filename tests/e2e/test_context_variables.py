"""Context variables between an API and workers in processes of their own, over the emulators."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.commands import START_S, STOP_S, environment, running
from tests.e2e.conftest import CARD
from tests.support.a2a_calls import REST, Agent

pytestmark = [pytest.mark.emulators, pytest.mark.timeout(300)]

FILES = {
    "request_variables.py": """
        from contextvars import ContextVar

        REQUEST_ID = ContextVar("request_id", default="unset")
    """,
    "application.py": """
        from pathlib import Path
        from request_variables import REQUEST_ID
        from a2a_serverless.http.function import app_from_environment

        app = app_from_environment("stream", folder=Path(__file__).parent)

        @app.middleware("http")
        async def set_request_id(request, call_next):
            REQUEST_ID.set(request.headers.get("x-request-id", "none"))
            return await call_next(request)
    """,
    "agent.py": """
        import asyncio, os
        from pathlib import Path
        from request_variables import REQUEST_ID
        from a2a_serverless.worker import Worker

        STARTS = Path(__file__).with_name("starts")

        class Reader(Worker):
            async def handle(self, ctx):
                with STARTS.open("a") as file:
                    print(REQUEST_ID.get(), os.getpid(), file=file)
                if ctx.user_text == "hold" and len(STARTS.read_text().splitlines()) == 1:
                    await ctx.send_status("holding")
                    await asyncio.Event().wait()
                await ctx.respond(REQUEST_ID.get())
    """,
}
VARIABLES = {
    "A2A_CONTEXT_VARIABLES": "request_variables:REQUEST_ID",
    "A2A_AUTH": "none",
    "A2A_CARD": CARD,
    "A2A_VISIBILITY_S": "2",
    "A2A_BLOCKING_LIMIT_S": "25",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An application with a middleware and an agent, which share a module."""
    for name, source in FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(source))
    return tmp_path


@contextmanager
def served(folder: Path, env: Mapping[str, str]) -> Iterator[str]:
    """The application under uvicorn, as stream.sh starts it."""
    with socket.socket() as listening, (folder / "api.log").open("wb") as output:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        command = ["-m", "uvicorn", "application:app", "--fd", str(listening.fileno())]
        process = subprocess.Popen(
            [sys.executable, *command, "--app-dir", str(folder), "--lifespan", "off"],
            env=dict(env),
            pass_fds=[listening.fileno()],
            stdout=output,
            stderr=output,
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(STOP_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(START_S):
        while not condition():  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.05)


async def test_values_cross_the_processes_and_survive_a_crash(
    own_queues: dict[str, str], folder: Path
) -> None:
    """A worker dies while its agent works; the next one's agent sees the same request's value."""
    env = environment(**own_queues, **VARIABLES)
    working = ("worker", "--agent", f"{folder / 'agent.py'}:Reader")
    with (
        served(folder, env) as url,
        running(*working, env=env, output=folder / "1.log") as one,
        running(*working, env=env, output=folder / "2.log") as two,
    ):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
            agent = Agent(http, REST)
            held = await agent.send(
                "hold",
                headers={"x-request-id": "r1"},
                configuration={"returnImmediately": True},
            )
            assert held.state in ("SUBMITTED", "WORKING")
            await until(lambda: len(starts(folder)) == 1)
            ((_, pid),) = starts(folder)
            next(w.process for w in (one, two) if str(w.process.pid) == pid).kill()
            other = await agent.send("hello", headers={"x-request-id": "r2"})
            assert other.task["status"]["message"]["parts"] == [{"text": "r2"}]
            got = held
            while got.state in ("SUBMITTED", "WORKING"):
                await asyncio.sleep(0.05)
                got = await agent.call("GetTask", {"id": held.task["id"]})
    assert got.state == "COMPLETED"
    assert got.task["status"]["message"]["parts"] == [{"text": "r1"}]
    assert sorted(value for value, _ in starts(folder)) == ["r1", "r1", "r2"]
    assert {other_pid for _, other_pid in starts(folder)[1:]} == {
        str(w.process.pid) for w in (one, two) if str(w.process.pid) != pid
    }


def starts(folder: Path) -> list[list[str]]:
    """The value that each start of the agent has seen, and the process that it ran in."""
    file = folder / "starts"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []
