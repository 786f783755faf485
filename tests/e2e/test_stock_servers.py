"""The SDK's own server, and those of others, with our stores: as processes, some of them killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from a2a_serverless_tools.cloud.emulator import free_port
from tests.e2e.commands import Running, running_program
from tests.support.required import ROOT, python_of

EXAMPLE: Final = "examples.stock_server"
HEADERS: Final = {"A2A-Version": "1.0"}
ENDED: Final = "TASK_STATE_COMPLETED"
OPEN: Final = {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"}
WITHIN_S: Final = 90
TASKS: Final = 30
KILL_S: Final = 6 * TASKS
"""Half of the limit of a test with a kill: the emulator's start counts, too."""
AT_ONCE: Final = 5
"""Requests under way, which are what a kill may cost."""


@contextmanager
def process(
    script: list[str], variables: dict[str, str], *, python: Path | None = None
) -> Iterator[Running]:
    """One server as a process of its own, which is killed."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'layers/runtime'}", **variables}
    output = Path(f"{variables['TABLE']}-{variables['PORT']}.log")
    command = [str(python or sys.executable), *script]
    with running_program(command, env=env, output=output) as started:
        yield started
        started.end(signal.SIGKILL)


@asynccontextmanager
async def client(port: int) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a connection for each request, so that each may meet another process."""
    limits = httpx.Limits(max_keepalive_connections=0, max_connections=40)
    where: dict[str, Any] = {"base_url": f"http://127.0.0.1:{port}", "headers": HEADERS}
    async with httpx.AsyncClient(limits=limits, timeout=WITHIN_S, **where) as made:
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    await made.get("/.well-known/agent-card.json")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
        yield made


def message(text: str, *, is_awaited: bool = True) -> dict[str, Any]:
    sent = {"messageId": os.urandom(8).hex(), "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": sent, "configuration": {"returnImmediately": not is_awaited}}


async def task_of(to: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    found = await to.get(f"/tasks/{task_id}")
    assert found.status_code == 200, found.text
    task: dict[str, Any] = found.json()
    return task


async def all_tasks(to: httpx.AsyncClient) -> dict[str, str]:
    states, token = dict[str, str](), ""
    while True:
        page = (await to.get("/tasks", params={"pageSize": 50, "pageToken": token})).json()
        states |= {task["id"]: task["status"]["state"] for task in page["tasks"]}
        token = page.get("nextPageToken", "")
        if not token:
            return states


@pytest.mark.long
@pytest.mark.timeout(2 * KILL_S)
async def test_a_killed_server_loses_no_task(tmp_path: Path) -> None:
    """Two processes of the SDK's server on a file: what was answered outlives a kill."""
    port = free_port()
    shared = {"TABLE": str(tmp_path / "tasks.sqlite"), "PORT": str(port)}
    server = ["-m", f"{EXAMPLE}.server"]
    with process(server, shared) as doomed, process(server, shared):
        async with asyncio.timeout(KILL_S), client(port) as to:
            begun: list[str] = []
            answered: list[str] = []
            is_time, turns = asyncio.Event(), asyncio.Semaphore(AT_ONCE)

            async def send() -> None:
                try:
                    async with turns:
                        answer = await to.post("/message:send", json=message("1"))
                except httpx.TransportError:
                    return  # the process that had it was killed
                answered.append(answer.json()["task"]["id"])
                if len(answered) >= TASKS // 3:
                    is_time.set()

            async def kill() -> None:
                await is_time.wait()
                for _ in range(3):
                    sent = message("100000", is_awaited=False)
                    begun.append((await to.post("/message:send", json=sent)).json()["task"]["id"])
                doomed.end(signal.SIGKILL)

            await asyncio.gather(kill(), *(send() for _ in range(TASKS)))
            # What was answered is there, whichever process had it.
            states = await all_tasks(to)
            assert {states[task_id] for task_id in answered} == {ENDED}
            assert len(answered) >= TASKS - AT_ONCE
            # A task of the dead process is not continued: the SDK has nothing that would do it. It
            # can be read, and canceled by whoever is there.
            for task_id in begun:
                assert (await task_of(to, task_id))["status"]["state"] in OPEN
                await to.post(f"/tasks/{task_id}:cancel", json={})
                assert (await task_of(to, task_id))["status"]["state"] == "TASK_STATE_CANCELED"
            assert Counter(states.values())[ENDED] >= len(answered)


@pytest.mark.long
async def test_a_task_is_followed_on_another_server(tmp_path: Path) -> None:
    """A subscriber gets the chunks of a task that another process runs, to its end."""
    table = {"TABLE": str(tmp_path / "tasks.sqlite")}
    ports = [free_port(), free_port()]
    server = ["-m", f"{EXAMPLE}.server"]
    first, second = ({**table, "PORT": str(port)} for port in ports)
    with process(server, first), process(server, second):
        async with client(ports[0]) as one, client(ports[1]) as other:
            begun = (await one.post("/message:send", json=message("50", is_awaited=False))).json()
            async with other.stream("GET", f"/tasks/{begun['task']['id']}:subscribe") as stream:
                lines = [line async for line in stream.aiter_lines() if line.startswith("data:")]
    assert '"task"' in lines[0]
    chunks = [line for line in lines if "artifactUpdate" in line]
    assert len(chunks) > 5
    assert '"text":"50 "' in chunks[-1].replace(": ", ":")
    assert ENDED in lines[-1]


@pytest.mark.foreign
@pytest.mark.parametrize(
    ("environment", "script"),
    [
        ("google_adk", ["-m", "uvicorn", f"{EXAMPLE}.adk_server:app", "--port"]),
        ("agentcore", ["-m", f"{EXAMPLE}.agentcore_server"]),
    ],
)
async def test_servers_of_others(environment: str, script: list[str], tmp_path: Path) -> None:
    """The ADK's and AgentCore's servers keep their tasks: the next process has them."""
    port = str(free_port())
    variables = {"TABLE": str(tmp_path / "tasks.sqlite"), "PORT": port}
    command = [*script, port] if script[-1] == "--port" else script
    python = python_of(environment)
    request = {"jsonrpc": "2.0", "id": "1", "method": "SendMessage", "params": message("1")}
    with process(command, variables, python=python) as first:
        async with client(int(port)) as to:
            task = (await to.post("/", json=request)).json()["result"]["task"]
            assert task["status"]["state"] == ENDED
        first.end(signal.SIGKILL)
    with process(command, variables, python=python):
        async with client(int(port)) as to:
            asked = {**request, "method": "GetTask", "params": {"id": task["id"]}}
            found = (await to.post("/", json=asked)).json()["result"]
    assert found["artifacts"] == task["artifacts"]
