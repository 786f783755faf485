"""A question in the middle of an agent's code, as clients of each version meet it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard, TaskPushNotificationConfig

from a2a_serverless.http.app import create_app
from a2a_serverless.push.notifications import owed
from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.push import Push
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.context import WorkerExecutor


class Payer(Worker):
    """Asks once or twice between its steps; `ran` has the steps."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.step("plan", self.ran.append, "plan")
        account = await ctx.ask("Which account?", data={"accounts": ["a", "b"]}, id="account")
        await ctx.step("pay", self.ran.append, f"pay {account.text}")
        if "twice" in ctx.user_text:
            await ctx.ask("Sure?")
        await ctx.complete(f"paid from {account.text}")


@pytest.fixture
def payer() -> Payer:
    return Payer()


@pytest.fixture
def settings() -> Settings:
    return Settings(auth="none", blocking_limit_s=20)


@pytest.fixture
def backends(settings: Settings) -> Backends:
    return memory_backends(settings)


@pytest.fixture
async def client(
    payer: Payer, settings: Settings, backends: Backends
) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the agent, which works."""
    card = AgentCard(name="Payer", version="1")
    card.capabilities.streaming = True
    transport = httpx.ASGITransport(create_app(settings, backends, card))
    adapter = WorkerAdapter(backends, WorkerExecutor(payer), settings)
    serving = asyncio.create_task(adapter.serve(concurrency=2))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def message(text: str, task_id: str = "", *, message_id: str = "m") -> dict[str, Any]:
    said = {"role": "ROLE_USER", "parts": [{"text": text}], "messageId": message_id}
    return {"message": said | ({"taskId": task_id} if task_id else {})}


async def send(client: httpx.AsyncClient, body: dict[str, Any], *, key: str = "") -> httpx.Response:
    headers = {"A2A-Version": "1.0"} | ({"Idempotency-Key": key} if key else {})
    return await client.post("/message:send", json=body, headers=headers)


async def asked(client: httpx.AsyncClient, text: str = "pay") -> dict[str, Any]:
    """Send a message that is answered with the question; return its task."""
    answer = await send(client, message(text, message_id=text))
    task: dict[str, Any] = answer.json()["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    return task


async def log_of(backends: Backends, task_id: str) -> Log:
    log = await backends.storage.for_scope(ANONYMOUS).read(task_id)
    assert log is not None
    return log


async def test_a_blocking_send_returns_with_the_question_and_with_the_end(
    client: httpx.AsyncClient, payer: Payer
) -> None:
    """The parts of the question have its id; the answer goes on with the code."""
    task = await asked(client)
    parts = task["status"]["message"]["parts"]
    assert [part.get("text") for part in parts] == ["Which account?", None]
    assert [part["metadata"] for part in parts] == [{"questionId": "account"}] * 2
    done = (await send(client, message("b", task["id"], message_id="n"))).json()["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert payer.ran == ["plan", "pay b"]


async def test_an_answer_that_is_repeated_is_the_same_turn(
    client: httpx.AsyncClient, payer: Payer, backends: Backends
) -> None:
    """By its key, also when the code has asked again or ended; another content is refused."""
    task = await asked(client, "pay twice")
    body = message("b", task["id"], message_id="n")
    first = (await send(client, body, key="k")).json()["task"]
    again = (await send(client, body, key="k")).json()["task"]
    assert first["status"]["message"] == again["status"]["message"]
    assert first["status"]["message"]["parts"][0]["text"] == "Sure?"
    other = message("a", task["id"], message_id="n")
    assert (await send(client, other, key="k")).status_code == 400
    await send(client, message("yes", task["id"], message_id="o"))
    assert (await send(client, body, key="k")).status_code == 200
    log = await log_of(backends, task["id"])
    assert sum(record.opening is not None for record in log.records) == 3
    assert payer.ran == ["plan", "pay b"]


async def test_of_two_answers_at_once_one_is_taken(client: httpx.AsyncClient, payer: Payer) -> None:
    """The other one is refused, as by any task that is worked on."""
    task = await asked(client)
    answers = await asyncio.gather(
        *(send(client, message(each, task["id"], message_id=each)) for each in "abc")
    )
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400]
    (done,) = (answer.json()["task"] for answer in answers if answer.status_code == 200)
    text = done["artifacts"][0]["parts"][0]["text"]
    assert payer.ran == ["plan", f"pay {text[-1]}"]


async def test_a_task_that_has_asked_can_be_deleted(
    client: httpx.AsyncClient, backends: Backends, payer: Payer
) -> None:
    """An answer that comes then finds no task, and nothing goes on."""
    task = await asked(client)
    await delete_task(backends.storage.for_scope(ANONYMOUS), task["id"])
    answer = await send(client, message("b", task["id"], message_id="n"))
    assert answer.status_code == 404
    assert payer.ran == ["plan"]


async def test_webhooks_get_each_question_and_the_end_once(
    client: httpx.AsyncClient, backends: Backends
) -> None:
    """A question is an end of a turn for them, as that of `request_input`."""
    task = await asked(client, "pay twice")
    for number, text in enumerate(("b", "yes")):
        await send(client, message(text, task["id"], message_id=f"{number}"))
    log = await log_of(backends, task["id"])
    config = TaskPushNotificationConfig(id="mine", task_id=task["id"])
    push = Push(scope="", incarnation=log.head.incarnation, config=config, version=0)
    bodies = [event.body(push, event.content).decode() for event in owed(log, push, "ends")]
    states = [re.findall("TASK_STATE_[A-Z_]+", body)[0] for body in bodies]
    asks, ends = "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"
    assert states == [asks, asks, ends]


async def test_a_client_of_0_3_answers_a_question(client: httpx.AsyncClient, payer: Payer) -> None:
    """It reads the question with its ids, and its next message is the answer."""

    async def call(text: str, task_id: str = "") -> dict[str, Any]:
        said: dict[str, Any] = {"kind": "message", "role": "user", "messageId": text}
        said |= {"parts": [{"kind": "text", "text": text}]}
        said |= {"taskId": task_id} if task_id else {}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": said}}
        answer = await client.post("/", json=body, headers={"A2A-Version": "0.3"})
        result: dict[str, Any] = answer.json()["result"]
        return result

    task = await call("pay")
    assert task["status"]["state"] == "input-required"
    part = task["status"]["message"]["parts"][0]
    assert (part["text"], part["metadata"]) == ("Which account?", {"questionId": "account"})
    assert (await call("b", task["id"]))["status"]["state"] == "completed"
    assert payer.ran == ["plan", "pay b"]
