"""SendMessage and CancelTask: new tasks, follow-ups, repetitions, and what a client waits for."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest

from a2a_serverless.errors import ConcurrencyError, NewerReleaseError, UnavailableError
from a2a_serverless.http.intake import REBASES
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.layout import event_sort, task_partition
from a2a_serverless.storage.table import Key, Update
from a2a_serverless.tasks.conversation import MOST_WAITING
from a2a_serverless.tasks.entries import CRITICAL, Unknown, encode_entries
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.identity import ANONYMOUS, Scope
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import LATER, Agent, Serve, message
from tests.support.messages import request
from tests.support.present import present
from tests.support.scripted_worker import ScriptedWorker


async def test_a_slow_agents_task_comes_back_working(
    agent: Agent, serve: Serve, worker: ScriptedWorker
) -> None:
    """At the blocking limit the client gets the working task, not an error."""
    headers = {"Idempotency-Key": "key-1"}
    await agent.send("wait", headers=headers, configuration=LATER)
    await worker.waiting.wait()
    answer = await serve(blocking_limit_s=0.05).send("wait", headers=headers)
    assert answer.response.status_code == 200
    assert answer.state == "WORKING"


async def test_a_turn_that_sleeps_until_its_credentials_come_is_answered(
    agent: Agent, backends: Backends, worker: ScriptedWorker
) -> None:
    """A blocking send returns at auth-required, also if the agent's first commit sleeps already."""
    async with asyncio.timeout(15):  # the blocking limit is 20 s
        answer = await agent.send("nap")
    assert answer.state == "AUTH_REQUIRED"
    storage = backends.storage.for_scope(worker.started[0].storage.scope)
    head = present(await storage.head(answer.task["id"]))
    assert (head.turn.parked, head.turn.attempts) == ("asleep", 0)


async def test_a_message_to_a_full_conversation(agent: Agent, backends: Backends) -> None:
    """The client reads how many wait, and what to do."""
    backends.storage.is_serial = True
    for _ in range(MOST_WAITING + 1):
        await backends.storage.open_task("talk", request("go"))
    answer = await agent.send("go", contextId="talk")
    assert answer.reason == "UNSUPPORTED_OPERATION"
    told = "50 messages wait in this conversation: send it when one has been answered."
    assert answer.message == told


class TestIdempotency:
    async def test_a_repeated_key_finds_a_task(self, agent: Agent, worker: ScriptedWorker) -> None:
        """It gets the task as it is, and nothing runs; for another message it is refused."""
        first_key, next_key = {"Idempotency-Key": "key-1"}, {"Idempotency-Key": "key-2"}
        asked = (await agent.send("ask", headers=first_key)).task
        assert (await agent.send("ask", headers=first_key)).task == asked
        to: dict[str, Any] = {"taskId": asked["id"]}
        await agent.send("ask pay 100", headers=next_key, **to)
        for text in ("ask and 50 more", "go"):
            newest = (await agent.send(text, **to)).task
            assert (await agent.send("ask pay 100", headers=next_key, **to)).task == newest
            assert (await agent.send("ask", headers=first_key)).task == newest
        for sent in ({"headers": first_key}, {"headers": next_key, **to}):
            answer = await agent.send("something else", **sent)
            assert answer.reason == "INVALID_PARAMS"
            assert "key" in answer.message
        started = [turn.text for turn in worker.started]
        assert started == ["ask", "ask pay 100", "ask and 50 more", "go"]

    async def test_other_content_under_a_message_id_is_another_message(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """Other content under a messageId opens another task; copies of each find their own."""
        text = "go "
        first = await agent.send("go", contextId="ours")
        other = await agent.send(text, contextId="ours", configuration=LATER)
        copies = [await agent.send(said, contextId="ours") for said in ("go", text)]
        assert first.task["id"] != other.task["id"]
        assert [copy.task["id"] for copy in copies] == [first.task["id"], other.task["id"]]
        assert [turn.text for turn in worker.started] == ["go", text]

    async def test_the_same_words_under_another_key_are_another_message(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """The answer to an agent that waits within its turn says what was said before."""
        first = await agent.send("auth", headers={"Idempotency-Key": "key-1"})
        assert first.state == "AUTH_REQUIRED"
        sent: dict[str, Any] = {"taskId": first.task["id"], "configuration": LATER}
        for _ in range(2):
            answer = await agent.send("auth", headers={"Idempotency-Key": "key-2"}, **sent)
            said = [each for each in answer.task["history"] if each["role"] == "ROLE_USER"]
            assert len(said) == 2

    @pytest.mark.parametrize(("flags", "follows_up"), [(0, False), (CRITICAL, True)])
    async def test_a_repetition_that_cannot_be_compared_is_refused(
        self, agent: Agent, backends: Backends, worker: Any, flags: int, *, follows_up: bool
    ) -> None:
        """A newer release has written the first one: one sentence, and no turn is opened."""
        sent: dict[str, Any] = {"headers": {"Idempotency-Key": "key-1"}}
        if follows_up:
            sent["taskId"] = (await agent.send("ask")).task["id"]
        task = (await agent.send("go", **sent)).task
        storage: Any = backends.storage
        head: Head = await storage.head(task["id"])
        sort = event_sort(head.incarnation, head.turn.number, 0)
        body = encode_entries([Unknown(b"Z", flags, b"")])  # a kind that is not known here
        place = Key(task_partition(head.scope, task["id"]), sort)
        await storage.table.write(Update(key=place, values={"body": body}))
        refused = await agent.send("go", **sent)
        assert refused.reason == "UNSUPPORTED_OPERATION"
        assert refused.message == str(NewerReleaseError())
        assert await storage.head(task["id"]) == head


async def test_a_task_that_changes_all_the_time(
    agent: Agent, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message for it is tried a few times, then the client is told to send it again."""
    task_id = (await agent.send("ask")).task["id"]
    lost = AsyncMock(side_effect=ConcurrencyError)
    monkeypatch.setattr(DurableStorage, "commit", lost)
    answer = await agent.send("more", taskId=task_id, configuration=LATER)
    assert answer.message.startswith("The service is busy; try again.")
    assert lost.await_count == REBASES


class TestSendingTheTurn:
    async def test_a_queue_that_fails_is_no_error_to_the_client(
        self, agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once committed, the task is submitted; the due index repairs the send."""
        refuse = AsyncMock(side_effect=UnavailableError)
        monkeypatch.setattr(backends.operations, "send", refuse)
        answer = await agent.send("go", configuration=LATER)
        assert answer.state == "SUBMITTED"
        in_an_hour = backends.storage.clock.now_ms() + 3_600_000
        due = await due_tasks(backends.storage, in_an_hour)
        assert [d.task_id for d in due] == [answer.task["id"]]

    async def test_a_clients_retry_sends_its_waiting_turn_again(
        self, agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A retry that finds its turn unclaimed hands it to the queue once more."""
        sent = AsyncMock()
        monkeypatch.setattr(backends.operations, "send", sent)
        headers = {"Idempotency-Key": "key-1"}
        for _ in range(2):
            await agent.send("go", headers=headers, configuration=LATER)
        first, second = (call.args[0].params for call in sent.await_args_list)
        assert first == second


async def test_the_key_is_the_scopes_own(agent: Agent, backends: Backends) -> None:
    """The same key under another tenant makes another task, with other ids."""
    headers = {"Idempotency-Key": "key-1", "A2A-Version": "1.0"}
    mine = await agent.send("go", headers=headers, configuration=LATER, contextId="ours")
    body = {"message": message(contextId="ours"), "configuration": LATER}
    response = await agent.client.post("/acme/message:send", json=body, headers=headers)
    theirs = response.json()["task"]
    for scope, task in ((Scope.of("acme", ""), theirs), (ANONYMOUS, mine.task)):
        assert await backends.storage.for_scope(scope).head(task["id"]) is not None
    assert mine.task["id"] != theirs["id"]


class TestCancel:
    async def test_an_agent_that_ignores_it_is_left_out(
        self, agent: Agent, serve: Serve, backends: Backends, worker: ScriptedWorker
    ) -> None:
        """After the cancel's time the API commits canceled; what the agent writes is refused."""
        sent = await agent.send("ignore", configuration=LATER)
        answer = await serve(cancel_timeout_s=0.1).call("CancelTask", {"id": sent.task["id"]})
        assert answer.state == "CANCELED"
        assert await due_tasks(backends.storage, 2**50) == []

    async def test_a_task_that_is_made_again_is_not_canceled(
        self, serve: Serve, backends: Backends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A cancel ends the task that was asked for, and none that takes its id meanwhile."""
        agent = serve(cancel_timeout_s=0.05)
        key = {"Idempotency-Key": "k"}
        sent = await agent.send("go", configuration=LATER, headers=key)
        send, task_id = backends.operations.send, sent.task["id"]

        async def made_again(operation: Operation) -> None:
            monkeypatch.setattr(backends.operations, "send", send)
            await delete_task(backends.storage.for_scope(ANONYMOUS), task_id)
            again = await agent.send("go", configuration=LATER, headers=key)
            assert again.task["id"] == task_id

        monkeypatch.setattr(backends.operations, "send", made_again)
        answer = await agent.call("CancelTask", {"id": task_id})
        assert answer.reason == "TASK_NOT_FOUND"
        assert (await agent.call("GetTask", {"id": task_id})).state == "SUBMITTED"
