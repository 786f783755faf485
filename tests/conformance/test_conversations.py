"""Conversations of several turns, through the application and the real worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from a2a.server.tasks import TaskUpdater

from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.conformance.sides import durable
from tests.support.a2a_calls import Agent

IMMEDIATELY = {"returnImmediately": True}


class Scripted(Worker):
    """Does what the message says; `gate` is what a waiting turn waits for."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.turns: list[str] = []

    async def handle(self, ctx: TaskContext) -> None:
        self.turns.append(ctx.user_text)
        match ctx.user_text.split():
            case ["ask", *_]:
                await ctx.request_input("Which one?")
            case ["wait", *_]:
                await ctx.send_status("Waiting")
                await self.gate.wait()
                await ctx.respond("Done")
            case _:
                await ctx.respond("Done")


class Staying(WorkerExecutor):
    """Stays in auth-required at "log in", until the gate opens; then asks for more."""

    async def execute(self, context: Any, event_queue: Any) -> None:
        worker: Any = self._worker
        ctx = TaskContext(context, event_queue)
        if ctx.user_text != "log in":
            await worker.handle(ctx)
            return
        updater = TaskUpdater(event_queue, ctx.task_id, ctx.context_id)
        await updater.requires_auth()
        await worker.gate.wait()
        await ctx.request_input("More?")


@asynccontextmanager
async def opened(worker: Worker) -> AsyncIterator[Agent]:
    """An agent's client, its worker running."""
    async with (
        durable(Staying(worker)) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
    ):
        yield Agent(http)


def history(task: dict[str, Any]) -> list[str]:
    return [message["parts"][0]["text"] for message in task["history"]]


async def test_every_message_is_in_the_history_in_order() -> None:
    """Five turns by a client that has one messageId, and that never names the context."""
    worker = Scripted()
    async with opened(worker) as agent:
        task = (await agent.send("ask 1")).task
        for text in ("ask 2", "ask 2", "ask 3", "go"):
            answer = await agent.send(text, taskId=task["id"])
            assert answer.task["contextId"] == task["contextId"]
    questions = ["Which one?"] * 4
    said = ["ask 1", "ask 2", "ask 2", "ask 3", "go"]
    expected = [text for pair in zip(said, questions, strict=False) for text in pair]
    assert history(answer.task) == [*expected, "go"]
    assert worker.turns == said
    assert answer.state == "COMPLETED"


async def test_what_a_task_does_not_take() -> None:
    """A message with another context, or to a working, ended or unknown task, is refused."""
    worker = Scripted()
    async with opened(worker) as agent:
        paused = (await agent.send("ask")).task
        working = (await agent.send("wait", configuration=IMMEDIATELY)).task
        ended = (await agent.send("go")).task
        refused = [
            await agent.send("x", taskId=paused["id"], contextId="elsewhere"),
            await agent.send("x", taskId=working["id"]),
            await agent.send("x", taskId=ended["id"]),
            await agent.send("x", taskId="nobody"),
        ]
        worker.gate.set()
        tasks = [(await agent.call("GetTask", {"id": t["id"]})).task for t in (paused, ended)]
    assert [answer.reason for answer in refused] == [
        "INVALID_PARAMS",
        "UNSUPPORTED_OPERATION",
        "UNSUPPORTED_OPERATION",
        "TASK_NOT_FOUND",
    ]
    assert [history(task) for task in tasks] == [["ask"], ["go"]]
    assert "x" not in worker.turns


async def test_a_message_to_an_agent_that_waits_for_credentials() -> None:
    """A message waits for the running turn, then starts a turn, even with a used messageId."""
    worker = Scripted()
    async with opened(worker) as agent:
        task = (await agent.send("log in")).task
        assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        for _ in range(2):
            await agent.send("go", taskId=task["id"], configuration=IMMEDIATELY)
        waiting = asyncio.create_task(agent.send("go", taskId=task["id"]))
        await asyncio.sleep(0)
        worker.gate.set()
        answer = await waiting
    assert answer.state == "COMPLETED"
    assert history(answer.task) == ["log in", "go", "More?"]
    assert worker.turns == ["go"]


async def test_tasks_of_one_context_have_histories_of_their_own() -> None:
    """A context joins tasks; it does not mix what was said in them."""
    async with opened(Scripted()) as agent:
        one = (await agent.send("ask 1", contextId="ours")).task
        two = (await agent.send("ask 2", contextId="ours", messageId="m2")).task
        done = await agent.send("go 1", taskId=one["id"])
        also = await agent.send("go 2", taskId=two["id"], contextId="ours")
    assert one["id"] != two["id"]
    assert history(done.task) == ["ask 1", "Which one?", "go 1"]
    assert history(also.task) == ["ask 2", "Which one?", "go 2"]
