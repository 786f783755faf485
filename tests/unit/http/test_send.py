"""SendMessage: new tasks, follow-ups, repetitions, and what a client waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import SendMessageRequest

from a2a_serverless.errors import NewerReleaseError, UnavailableError
from a2a_serverless.http.intake import storable
from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import event_sort, task_partition
from a2a_serverless.storage.table import Key, Update
from a2a_serverless.tasks.entries import CRITICAL, Unknown, encode_entries
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import ANONYMOUS, Scope
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import Agent, message
from tests.support.scripted_worker import ScriptedWorker

IMMEDIATELY = {"returnImmediately": True}


async def test_a_blocking_send_answers_with_the_finished_task(
    agent: Agent, worker: ScriptedWorker
) -> None:
    """The answer has the last state, all artifacts, and the ids in the history."""
    answer = await agent.send("go")
    assert answer.state == "COMPLETED"
    assert answer.task["artifacts"][0]["parts"] == [{"text": "Once upon "}, {"text": "a time."}]
    said = answer.task["history"][0]
    assert (said["taskId"], said["contextId"]) == (answer.task["id"], answer.task["contextId"])


async def test_a_blocking_send_returns_when_the_agent_asks(
    agent: Agent, worker: ScriptedWorker
) -> None:
    """Input-required ends the wait (3.2.2), and a follow-up that names only the task goes on."""
    asked = await agent.send("ask me")
    assert asked.state == "INPUT_REQUIRED"
    told = await agent.send("go", taskId=asked.task["id"])
    assert told.state == "COMPLETED"
    assert told.task["contextId"] == asked.task["contextId"]
    assert [m["parts"][0]["text"] for m in told.task["history"]] == ["ask me", "Which one?", "go"]


async def test_a_blocking_send_returns_at_auth_required_while_the_agent_goes_on(
    agent: Agent, worker: ScriptedWorker
) -> None:
    """Auth-required is an interruption for the client although the turn is not over."""
    answer = await agent.send("auth please")
    assert answer.state == "AUTH_REQUIRED"


async def test_a_slow_agents_task_comes_back_working(
    agent: Agent, agent_with: Callable[..., Agent], worker: ScriptedWorker
) -> None:
    """At the blocking limit the client gets the working task, not an error."""
    headers = {"Idempotency-Key": "key-1"}
    await agent.send("wait", headers=headers, configuration=IMMEDIATELY)
    await worker.waiting.wait()
    hasty = agent_with(Settings(auth="none", blocking_limit_s=0.05))
    answer = await hasty.send("wait", headers=headers)
    assert answer.response.status_code == 200
    assert answer.state == "WORKING"


async def test_return_immediately_answers_with_the_submitted_task(agent: Agent) -> None:
    """Without any worker the answer comes at once: the submitted task."""
    answer = await agent.send("go", configuration=IMMEDIATELY)
    assert answer.state == "SUBMITTED"


async def test_a_message_only_agent_answers_with_its_message(
    agent: Agent, worker: ScriptedWorker
) -> None:
    """Where the agent replied with a Message alone, a blocking send has it, with its context."""
    answer = await agent.send("reply to me")
    assert answer.result["message"]["parts"] == [{"text": "Hello."}]
    assert answer.result["message"]["contextId"]


@pytest.mark.parametrize(
    ("length", "kept"), [(0, []), (1, ["go"]), (9, ["ask", "Which one?", "go"])]
)
async def test_history_length_limits_the_answer(
    agent: Agent, worker: ScriptedWorker, length: int, kept: list[str]
) -> None:
    """0 is none, n the last n, more than there are all (3.2.4)."""
    asked = await agent.send("ask")
    answer = await agent.send(
        "go", taskId=asked.task["id"], configuration={"historyLength": length}
    )
    assert [m["parts"][0]["text"] for m in answer.task.get("history", [])] == kept


async def test_the_clients_context_is_kept(agent: Agent, worker: ScriptedWorker) -> None:
    """A context id without a task id opens a task in that context (3.4.3)."""
    answer = await agent.send("go", contextId="my-context")
    assert answer.task["contextId"] == "my-context"


async def test_the_agent_learns_who_sent_the_message(agent: Agent, worker: ScriptedWorker) -> None:
    """The caller's tenant and declared extensions go along with the turn."""
    params = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}}
    headers = {"A2A-Extensions": "urn:b, urn:a", "A2A-Version": "1.0"}
    if agent.binding == "jsonrpc":
        await agent.call("SendMessage", {**params, "tenant": "acme"}, headers)
    else:
        await agent.client.post("/acme/message:send", json=params, headers=headers)
    caller = worker.started[0].caller
    assert (caller.tenant, caller.extensions) == ("acme", ("urn:a", "urn:b"))


async def test_tenants_do_not_see_each_other(agent: Agent, worker: ScriptedWorker) -> None:
    """A task is not found under another tenant."""
    task_id = (await agent.send("go")).task["id"]
    if agent.binding == "jsonrpc":
        answer = await agent.call("GetTask", {"id": task_id, "tenant": "acme"})
        assert answer.reason == "TASK_NOT_FOUND"
    else:
        response = await agent.client.get(f"/acme/tasks/{task_id}", headers={"A2A-Version": "1.0"})
        assert response.status_code == 404


class TestFollowUps:
    async def test_an_unknown_task_is_not_created(self, agent: Agent) -> None:
        """Task ids are made by the server (3.4.2); also one that no key could hold."""
        for task_id in ("nobody", "no such/task", "x" * 3000):
            answer = await agent.send("go", taskId=task_id)
            assert answer.reason == "TASK_NOT_FOUND"

    async def test_a_finished_task_takes_no_message(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """Terminal states are final: UnsupportedOperationError (3.1.1)."""
        done = await agent.send("go")
        answer = await agent.send("more", taskId=done.task["id"], messageId="message-2")
        assert answer.reason == "UNSUPPORTED_OPERATION"
        assert "COMPLETED" in answer.message

    async def test_a_working_task_takes_no_message(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """A message to a task that does not wait for one is refused with a sentence."""
        waiting = await agent.send("wait", configuration=IMMEDIATELY)
        answer = await agent.send("more", taskId=waiting.task["id"], messageId="message-2")
        assert answer.reason == "UNSUPPORTED_OPERATION"
        assert "does not wait for a message" in answer.message

    async def test_another_context_is_refused(self, agent: Agent, worker: ScriptedWorker) -> None:
        """A message may not move its task to another context (3.4.3)."""
        asked = await agent.send("ask")
        answer = await agent.send("go", taskId=asked.task["id"], contextId="elsewhere")
        assert answer.reason == "INVALID_PARAMS"

    async def test_a_repeated_message_id_on_a_paused_task_is_a_new_turn(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """The conformance kit reuses its messageId for every turn, and each one counts."""
        asked = await agent.send("ask")
        again = await agent.send("ask again", taskId=asked.task["id"])
        done = await agent.send("go", taskId=asked.task["id"])
        assert again.state == "INPUT_REQUIRED"
        assert done.state == "COMPLETED"
        assert len(worker.started) == 3


class TestIdempotency:
    async def test_a_repeated_key_finds_the_first_task(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """Same key, same message: one task in one context, one run."""
        headers = {"Idempotency-Key": "key-1"}
        first = await agent.send("go", headers=headers)
        second = await agent.send("go", headers=headers)
        assert first.task == second.task
        assert len(worker.started) == 1

    async def test_a_key_of_another_message_is_an_error(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """A key that was used for another message is refused, and no second turn starts."""
        headers = {"Idempotency-Key": "key-1"}
        await agent.send("go", headers=headers)
        answer = await agent.send("something else", headers=headers)
        assert answer.reason == "INVALID_PARAMS"
        assert "key" in answer.message
        assert len(worker.started) == 1

    async def test_the_first_message_is_compared_also_turns_later(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """The key belongs to the message that created the task, whatever came after it."""
        headers = {"Idempotency-Key": "key-1"}
        asked = await agent.send("ask", headers=headers)
        done = await agent.send("go", taskId=asked.task["id"])
        again = await agent.send("ask", headers=headers)
        assert again.task == done.task

    async def test_a_message_id_in_a_named_context_is_a_key(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """The same message twice in one context creates one task."""
        first = await agent.send("go", contextId="ours")
        second = await agent.send("go", contextId="ours")
        other = await agent.send("go", contextId="theirs")
        assert first.task["id"] == second.task["id"] != other.task["id"]

    @pytest.mark.parametrize("text", ["cancel the flight", "go "])
    async def test_other_content_under_a_message_id_is_another_message(
        self, agent: Agent, worker: ScriptedWorker, text: str
    ) -> None:
        """Other content under a messageId opens another task; copies of each find their own."""
        first = await agent.send("go", contextId="ours")
        other = await agent.send(text, contextId="ours", configuration=IMMEDIATELY)
        copies = [await agent.send(said, contextId="ours") for said in ("go", text)]
        assert first.task["id"] != other.task["id"]
        assert [copy.task["id"] for copy in copies] == [first.task["id"], other.task["id"]]
        assert [turn.text for turn in worker.started] == ["go", text]

    async def test_a_message_id_alone_is_no_key(self, agent: Agent, worker: ScriptedWorker) -> None:
        """The conformance kit sends the same messageId for new tasks."""
        first, second = await agent.send("go"), await agent.send("go")
        assert first.task["id"] != second.task["id"]

    async def test_a_repeated_follow_up_opens_no_second_turn(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """A follow-up's key is that of the latest turn: the repetition waits for that turn."""
        asked = await agent.send("ask")
        headers = {"Idempotency-Key": "key-2"}
        first = await agent.send("go", taskId=asked.task["id"], headers=headers)
        second = await agent.send("go", taskId=asked.task["id"], headers=headers)
        assert first.task == second.task
        assert len(worker.started) == 2

    async def test_a_follow_up_after_whose_turn_the_agent_has_asked_again(
        self, agent: Agent, worker: ScriptedWorker
    ) -> None:
        """A repeated message with a key gets the question again; without one it starts a turn."""
        asked = await agent.send("ask")
        headers = {"Idempotency-Key": "key-2"}
        for _ in range(2):
            again = await agent.send("ask again", taskId=asked.task["id"], headers=headers)
            assert again.state == "INPUT_REQUIRED"
            assert len(worker.started) == 2
        await agent.send("ask again", taskId=asked.task["id"])
        assert len(worker.started) == 3

    async def test_a_retry_by_message_id_joins_the_open_turn(self, agent: Agent) -> None:
        """While the turn is open, its messageId says that it is the same message."""
        sent = await agent.send("go", configuration=IMMEDIATELY)
        again = await agent.send("go", taskId=sent.task["id"], configuration=IMMEDIATELY)
        assert again.state == "SUBMITTED"
        assert len(again.task["history"]) == 1

    @pytest.mark.parametrize("flags", [0, CRITICAL], ids=["skipped", "critical"])
    @pytest.mark.parametrize("follows_up", [False, True])
    async def test_a_repetition_that_cannot_be_compared_is_refused(
        self,
        agent: Agent,
        backends: Backends,
        worker: ScriptedWorker,
        flags: int,
        *,
        follows_up: bool,
    ) -> None:
        """A newer release has written the first one: one sentence, and no turn is opened."""
        sent: dict[str, Any] = {"headers": {"Idempotency-Key": "key-1"}}
        if follows_up:
            sent["taskId"] = (await agent.send("ask")).task["id"]
        task = (await agent.send("go", **sent)).task
        head = await written_by_a_newer_release(backends, task["id"], flags)
        refused = await agent.send("go", **sent)
        assert refused.reason == "UNSUPPORTED_OPERATION"
        assert refused.message == str(NewerReleaseError())
        assert await backends.storage.head(task["id"]) == head


async def written_by_a_newer_release(backends: Backends, task_id: str, flags: int) -> Head:
    """HEAD of a task whose latest turn is opened by an entry of a kind not known here."""
    storage: Any = backends.storage
    head: Head = await storage.head(task_id)
    place = Key(task_partition(head.scope, task_id), event_sort(head.incarnation, head.turn, 0))
    body = encode_entries([Unknown(b"Z", flags, b"")])
    await storage.table.write(Update(key=place, values={"body": body}))
    return head


class TestSendingTheTurn:
    async def test_a_queue_that_fails_is_no_error_to_the_client(
        self, agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once committed, the task is submitted; the due index repairs the send."""

        async def refuse(*_: Any, **__: Any) -> None:
            raise UnavailableError

        monkeypatch.setattr(backends.operations, "send", refuse)
        answer = await agent.send("go", configuration=IMMEDIATELY)
        assert answer.state == "SUBMITTED"
        in_an_hour = backends.storage.clock.now_ms() + 3_600_000
        due = await backends.storage.due(in_an_hour)
        assert [d.task_id for d in due] == [answer.task["id"]]

    async def test_a_clients_retry_sends_its_waiting_turn_again(
        self, agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A retry that finds its turn unclaimed hands it to the queue once more."""
        sent: list[Any] = []

        async def record(operation: Operation) -> None:
            sent.append(operation.params)

        monkeypatch.setattr(backends.operations, "send", record)
        headers = {"Idempotency-Key": "key-1"}
        for _ in range(2):
            await agent.send("go", headers=headers, configuration=IMMEDIATELY)
        assert len(sent) == 2
        assert sent[0] == sent[1]

    async def test_trace_headers_travel_with_the_operation(
        self, agent: Agent, backends: Backends
    ) -> None:
        """The worker continues the client's trace; no other header leaves the API."""
        headers = {"traceparent": "00-1-2-01", "Authorization": "Bearer secret"}
        await agent.send("go", headers=headers, configuration=IMMEDIATELY)
        handle = await anext(aiter(backends.operations.deliveries()))
        assert handle.message.request_context == {"traceparent": "00-1-2-01"}
        assert handle.message.is_new_task


def test_the_log_holds_no_push_credentials() -> None:
    """The stored form of a request has no push configuration, whose token is a secret."""
    request = SendMessageRequest()
    request.configuration.task_push_notification_config.token = "secret"
    request.configuration.return_immediately = True
    stored = storable(request)
    assert b"secret" not in stored.SerializeToString()
    assert stored.configuration.return_immediately
    assert request.configuration.task_push_notification_config.token == "secret"


@pytest.mark.parametrize("context", [{}, {"contextId": "ours"}])
async def test_the_key_is_the_scopes_own(
    agent: Agent, backends: Backends, context: dict[str, str]
) -> None:
    """The same key under another tenant makes another task, with other ids."""
    headers = {"Idempotency-Key": "key-1", "A2A-Version": "1.0"}
    mine = await agent.send("go", headers=headers, configuration=IMMEDIATELY, **context)
    body = {"message": message(**context), "configuration": IMMEDIATELY}
    response = await agent.client.post("/acme/message:send", json=body, headers=headers)
    theirs = response.json()["task"]
    acme = backends.storage.for_scope(Scope.of("acme", ""))
    assert await acme.head(theirs["id"]) is not None
    assert await backends.storage.for_scope(ANONYMOUS).head(mine.task["id"]) is not None
    assert mine.task["id"] != theirs["id"]
    assert (mine.task["contextId"] == theirs["contextId"]) == bool(context)


@pytest.mark.parametrize("tenant", ["", "acme"])
async def test_the_same_message_in_one_context_of_two_callers(agent: Agent, tenant: str) -> None:
    """No other caller's message makes the id that a caller's own message makes, tenant or none."""
    said = {"message": message(contextId="ours"), "configuration": IMMEDIATELY}
    answers = []
    for path in (f"/{tenant}/message:send".replace("//", "/"), "/globex/message:send"):
        response = await agent.client.post(path, json=said, headers={"A2A-Version": "1.0"})
        answers.append(response.json()["task"]["id"])
    assert answers[0] != answers[1]


@pytest.mark.parametrize(
    "sent", [{}, {"contextId": "ours"}, {"headers": {"Idempotency-Key": "key-1"}}]
)
async def test_a_creation_reads_nothing(
    agent: Agent, backends: Backends, monkeypatch: pytest.MonkeyPatch, sent: dict[str, Any]
) -> None:
    """A message that opens a task is one write, with a key or in a context that it names, too."""
    asked: list[str] = []
    for name in ("load", "query", "write"):
        monkeypatch.setattr(MemoryTable, name, counted(asked, name, getattr(MemoryTable, name)))
    answer = await agent.send("go", configuration=IMMEDIATELY, **sent)
    assert answer.state == "SUBMITTED"
    assert asked == ["write"]


def counted(asked: list[str], name: str, request: Any) -> Any:
    """A request of a table that notes that it was made."""

    def made(*arguments: Any, **options: Any) -> Any:
        asked.append(name)
        return request(*arguments, **options)

    return made
