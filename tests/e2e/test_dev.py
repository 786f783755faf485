"""`dev` and `demo`: what they serve and show, what outlasts a kill, and what refuses a start."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver

from tests.e2e.commands import environment, kill, run, running
from tests.e2e.conftest import CARD, Served
from tests.e2e.devs import running_dev
from tests.support.a2a_calls import message


async def test_card_names_the_address_that_was_asked(dev: Served) -> None:
    """One URL for each binding and version: a client stays where it has found the card."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        for address in (dev.url, dev.url.replace("127.0.0.1", "localhost")):
            card = await A2ACardResolver(http, address).get_agent_card()
            urls = [interface.url.rstrip("/") for interface in card.supported_interfaces]
            assert urls == [address] * 4


async def test_the_command_follows_beside_a_running_stream(dev: Served) -> None:
    """`task ID --follow` prints what the stream shows, under its cursors, and ends with it."""
    env, output = environment(), dev.folder / "follow.log"
    body = {"message": message("hold", messageId=uuid.uuid4().hex)}
    streamed: list[tuple[str, Any]] = []
    async with (
        httpx.AsyncClient(base_url=dev.url, trust_env=False, timeout=60) as http,
        http.stream("POST", "/message:stream", json=body, headers={"A2A-Version": "1.0"}) as answer,
    ):
        lines = answer.aiter_lines()
        streamed.append(await next_event(lines))
        task_id = streamed[0][1]["task"]["id"]
        arguments = ("task", task_id, "--follow", "--file", str(dev.file))
        with running(*arguments, env=env, output=output) as following:
            await asyncio.to_thread(following.wait_for, "holding")
            dev.release(task_id)
            while "COMPLETED" not in str(streamed[-1]):
                streamed.append(await next_event(lines))
            assert await asyncio.to_thread(following.process.wait, 60) == 0
            said = [json.loads(line) for line in following.said().splitlines()]
    followed = [(line.pop("id"), line) for line in said]
    assert followed[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert followed[-len(streamed) + 1 :] == streamed[1:]


async def next_event(lines: AsyncIterator[str]) -> tuple[str, Any]:
    """The next event of a stream: its cursor, and what it says."""
    cursor = ""
    async for line in lines:
        if line.startswith("id:"):
            cursor = line[3:].strip()
        elif line.startswith("data:"):
            return cursor, json.loads(line[5:])
    pytest.fail("The stream has ended.")


AGENT = """
import asyncio
from pathlib import Path
from a2a_serverless.worker import Worker

class Agent(Worker):
    async def handle(self, ctx):
        with Path("starts").open("a") as starts:
            starts.write(f"{ctx.user_text}\\n")
        await ctx.emit_text_artifact("one ", append=False, last_chunk=False)
        while ctx.user_text == "hold" and not Path("go").exists():
            await asyncio.sleep(0.02)
        await ctx.complete(f"said {ctx.user_text}")

agent = Agent()
"""
SOON_S = 45.0
"""Far below the minute for which a delivery is hidden from other workers."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agent_card.json").write_text(Path(CARD).read_text())
    return tmp_path


@pytest.mark.long
def test_a_killed_dev_forgets_nothing(folder: Path) -> None:
    """All tasks are listed, and the turn that ran is run again at once, and completes once."""
    with running_dev(folder) as first:
        ended = [first.send(f"task {number}") for number in range(3)]
        held = first.send("hold", waits=False)["id"]
        first.until("WORKING", held)
        kill(first.command)
    (folder / "go").touch()
    with running_dev(folder) as second:
        began = time.monotonic()
        assert second.listed() == {held, *(task["id"] for task in ended)}
        for task in ended:
            assert second.task(task["id"])["artifacts"] == task["artifacts"]
        task = second.until("COMPLETED", held)
        assert time.monotonic() - began < SOON_S
        texts = [part["text"] for one in task["artifacts"] for part in one["parts"]]
        assert texts == ["one ", "said hold"]
        assert (folder / "starts").read_text().split("\n").count("hold") == 2
        assert second.command.end() == 0
    said = run("task", held, "--logs", cwd=folder)
    assert said.stderr == f"file {folder / '.a2a/dev.db'}\n"
    assert "state     completed" in said.stdout
    assert "attempt 2" in said.stdout
    with running_dev(folder, "--fresh") as third:
        assert third.listed() == set()
        assert third.send("again")["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "No task matches" in run("tasks", "--state", "failed", cwd=folder).stderr
    assert held not in run("tasks", cwd=folder).stdout


@pytest.mark.long
def test_a_disk_without_room(folder: Path) -> None:
    """A message is refused without details; with room again all tasks are there and go on."""
    with running_dev(folder) as full:
        task = full.send("before")["id"]
        size = (folder / ".a2a/dev.db-wal").stat().st_size
        room = (size, resource.RLIM_INFINITY)
        limits = {it: resource.prlimit(it, resource.RLIMIT_FSIZE, room) for it in full.children()}
        refused = full.http.post("/message:send", json={"message": message("x" * 200_000)})
        assert refused.status_code >= 500
        assert "dev.db" not in refused.text
        for process, before in limits.items():
            resource.prlimit(process, resource.RLIMIT_FSIZE, before)
        assert full.task(task)["status"]["state"] == "TASK_STATE_COMPLETED"
        assert {task, full.send("after")["id"]} <= full.listed()
        assert full.command.end() == 0


@pytest.mark.long
def test_demo_shows_a_streamed_and_a_resumed_task(tmp_path: Path) -> None:
    """`demo` exits 0 from any folder and without an AWS account, and shows both tasks whole."""
    variables = {"HOME": str(tmp_path), "AWS_PROFILE": "missing", "AGENT_CHUNK_DELAY_S": "0.02"}
    shown = run("demo", env=environment(**variables), cwd=tmp_path)

    assert (shown.returncode, shown.stderr) == (0, ""), shown.stdout
    lines = shown.stdout.splitlines()
    states = [line[11:26].strip() for line in lines if line[:9].endswith(" s")]
    assert (states.count("completed"), states.count("input-required")) == (2, 1)
    assert states.count("itinerary") >= 5
    assert "Afternoon: Time Out Market" in shown.stdout
    assert "as streamed in" in shown.stdout
    assert lines[-1].startswith("2 tasks completed")
    assert "\033" not in shown.stdout
    assert max(len(line) for line in lines if "agent" not in line) <= 100


@pytest.mark.long
def test_demo_of_an_own_agent(tmp_path: Path) -> None:
    """`demo` in a folder with an agent and its card runs that agent on the card's examples."""
    example = Path(__file__).parents[2] / "examples" / "questionnaire_worker"
    shutil.copy(example / "agent.py", tmp_path)
    card = json.loads((example / "agent_card.json").read_text())
    card["skills"][0]["examples"] = ["begin", "stop"]
    (tmp_path / "agent_card.json").write_text(json.dumps(card))
    shown = run("demo", cwd=tmp_path)
    assert "agent.py:agent" in shown.stdout.splitlines()[1]
    assert "What is your name?" in shown.stdout
    assert shown.returncode == 1, "the second example is rejected, which is no good end"
    assert "is rejected instead of completed or input-required or auth-required" in shown.stderr
