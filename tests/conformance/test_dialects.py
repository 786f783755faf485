"""What clients of 0.1, of simple_a2a and of the EMM see; those of 0.3 are in `test_client.py`.

Numbers with E are those of the statements on `tasks/submit` and `tasks/status`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.compat.v0_3 import types as types_v03
from a2a.types import AgentCard

from a2a_serverless.clock import SystemClock
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.wiring import Backends
from tests.conformance.conftest import FUNCTIONS, ServedAgent, serving
from tests.conformance.older_clients import Client01, RpcError, Seen, SimpleA2A, sent
from tests.support.a2a_calls import JSONRPC
from tests.support.followers import Followers
from tests.support.present import present
from tests.support.scripted_worker import ScriptedWorker

SUBMIT_PATH = "/api/a2a/tasks"
STORY = "Once upon a time."
WAITING = 2
"""The version at which the agents of "wait" and "auth" wait."""


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> Settings:
    """All that older methods need; a test that says so has other settings."""
    chosen = {"older_dialects": True, "push_queue": "pushes.fifo"}
    chosen = {"push_allowed_hosts": "receiver.example", **getattr(request, "param", chosen)}
    return Settings(auth="none", cancel_timeout_s=5, blocking_limit_s=20, **chosen)


@pytest.fixture
async def agent(
    request: pytest.FixtureRequest,
    settings: Settings,
    backends: Backends,
    card: AgentCard,
    worker: ScriptedWorker,
) -> AsyncIterator[ServedAgent]:
    """Behind StreamFunction; where a test says so, also behind ApiFunction."""
    function: Entrypoint = getattr(request, "param", "stream")
    async with serving(JSONRPC, function, settings, backends, card) as agent:
        yield agent


@pytest.fixture
def client(agent: ServedAgent) -> Client01:
    return Client01(agent.client)


@pytest.mark.parametrize("agent", FUNCTIONS, indirect=True)
async def test_the_same_conversation(client: Client01) -> None:
    """Send, stream, pause, resume and cancel have the outcome that they have in later versions."""
    told = await client.send("go")
    assert (told.states, told.text) == (["completed"], STORY)
    streamed = await client.stream("go")
    assert (streamed.states, streamed.text) == (["submitted", "working", "completed"], STORY)
    asked = await client.send("ask")
    assert asked.states == ["input-required"]
    resumed = await client.stream("go", task=asked)
    assert (resumed.states[-1], resumed.text) == ("completed", STORY)
    paused = await client.stream("ask")
    assert paused.states[-1] == "input-required"
    answered = await client.send("go", task=paused)
    assert (answered.task_id, answered.states) == (paused.task_id, ["completed"])
    waiting = await client.send("ask")
    assert await client.cancel(waiting) == "canceled"


OF_1_0 = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}
OF_0_3 = {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "go"}]}
OF_0_1 = {"role": "user", "parts": [{"type": "text", "text": "go"}]}


@pytest.mark.parametrize("agent", FUNCTIONS, indirect=True)
async def test_a_notification(agent: ServedAgent) -> None:
    """JSON-RPC 2.0, 4.1: a request without an id is carried out, and gets no answer, nor error."""
    opened = 0
    methods: list[tuple[str, dict[str, Any]]] = [
        *((method, OF_1_0) for method in ("SendMessage", "SendStreamingMessage")),
        *((method, OF_0_3) for method in ("message/send", "message/stream")),
        *((method, OF_0_1) for method in ("tasks/send", "tasks/sendSubscribe")),
        *((method, {}) for method in ("SendMessage", "message/send", "message/stream")),
        *((method, {}) for method in ("tasks/send", "NoSuchMethod")),
    ]
    for method, said in methods:
        opened += bool(said)
        call = {"jsonrpc": "2.0", "method": method, "params": {"message": said}}
        headers = {"A2A-Version": "1.0"} if method[0].isupper() else {}
        response = await agent.client.post("/", json=call, headers=headers)
        assert (method, response.status_code, response.content) == (method, 204, b"")
        assert (await agent.call("ListTasks", {})).result["totalSize"] == opened


async def test_more_history_than_there_may_be(client: Client01) -> None:
    """0.1, 0.3: a historyLength above the limit gets what the limit gives."""
    for length in (1001, 2**31 - 1):
        opened = await client.call("tasks/send", {"message": OF_0_1, "historyLength": length})
        got = await client.call("tasks/get", {"id": opened["id"], "historyLength": length})
        params = {"message": OF_0_3, "configuration": {"historyLength": length}}
        sent = await client.call("message/send", params)
        assert len(opened["history"]) == len(got["history"]) == len(sent["history"]) == 1


async def test_a_0_3_client_without_a_header(agent: ServedAgent, client: Client01) -> None:
    """The names that 0.1 and 0.3 share are answered so that 0.3 can read them."""
    seen = await client.send("go")
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": seen.task_id}}
    answer = (await agent.client.post("/", json=body)).json()
    task = types_v03.GetTaskSuccessResponse.model_validate(answer).result
    assert task.kind == "task"
    assert task.status.state == types_v03.TaskState.completed
    assert task.artifacts is not None
    assert [part.root.kind for part in task.artifacts[0].parts] == ["text"]


class TestVersion01:
    async def test_the_task_it_reads(self, client: Client01) -> None:
        """0.1: id, sessionId, status, numbered artifacts, history if asked; so for a Message."""
        params = {**sent("go"), "sessionId": "s-1", "historyLength": 5, "metadata": {"a": 1}}
        task = await client.call("tasks/send", params)
        assert (task["id"], task["sessionId"]) == (params["id"], "s-1")
        assert task["status"]["message"]["parts"][0]["type"] == "text"
        assert [artifact["index"] for artifact in task["artifacts"]] == [0]
        assert task["history"][0]["parts"][0]["text"] == "go"
        assert task["history"][0]["role"] == "user"
        assert "history" not in await client.call("tasks/send", sent("go"))
        reply = await client.call("tasks/send", sent("reply"))
        assert reply["status"]["message"]["parts"][0]["text"] == "Hello."

    async def test_every_kind_of_part_arrives(
        self, client: Client01, worker: ScriptedWorker, card: AgentCard
    ) -> None:
        """The agent gets each kind of part of 0.1, and simple_a2a's parts without a type."""
        parts = [
            {"type": "text", "text": "go", "metadata": {"a": 1}},
            {"type": "file", "file": {"name": "a", "bytes": "AAEC"}},
            {"type": "file", "file": {"uri": "https://example.com/b", "mimeType": "text/plain"}},
            {"type": "data", "data": {"b": [1]}},
            {"text": "plain", "mediaType": "text/plain"},
        ]
        params = {"id": "t", "message": {"role": "user", "parts": parts}}
        await client.call("tasks/send", params)
        received = worker.started[0].request.message.parts
        kinds = [part.WhichOneof("content") for part in received]
        assert kinds == ["text", "raw", "url", "data", "text"]
        assert received[1].raw == b"\x00\x01\x02"
        assert (received[2].url, received[2].media_type) == (parts[2]["file"]["uri"], "text/plain")  # type: ignore[index]

    async def test_states_that_came_later(
        self, client: Client01, worker: ScriptedWorker, followers: Followers
    ) -> None:
        """0.1 has no auth-required: its client is asked for input, and the stream goes on."""
        streaming = asyncio.create_task(client.frames("tasks/sendSubscribe", sent("auth")))
        await followers.reach(1, version=WAITING)
        worker.gate.set()
        frames = await streaming
        shown = [(f["status"]["state"], f["final"]) for f in frames]
        assert shown[-2:] == [("input-required", False), ("completed", True)]

    async def test_it_is_canceled(self, client: Client01, worker: ScriptedWorker) -> None:
        """`tasks/cancel` ends it, and its stream says so."""
        streaming = asyncio.create_task(client.stream("obey", task=Seen("my-task")))
        while not worker.started:  # noqa: ASYNC110 - the worker has no event for it
            await asyncio.sleep(0.01)
        assert await client.cancel(Seen("my-task")) == "canceled"
        assert (await streaming).states[-1] == "canceled"

    async def test_resubscribing(
        self, client: Client01, worker: ScriptedWorker, followers: Followers
    ) -> None:
        """`tasks/resubscribe` begins with the task as it is, and follows it to its end."""
        sending = asyncio.create_task(client.send("wait", task=Seen("my-task")))
        await worker.waiting.wait()
        following = asyncio.create_task(client.frames("tasks/resubscribe", {"id": "my-task"}))
        await followers.reach(2, version=WAITING)
        worker.gate.set()
        frames = await following
        assert frames[0]["status"]["state"] == "working"
        assert frames[0]["sessionId"]
        assert frames[-1]["final"]
        assert (await sending).text == STORY

    async def test_push_in_a_message_and_beside_it(
        self, client: Client01, agent: ServedAgent, backends: Backends
    ) -> None:
        """0.1 has one receiver for a task: the later one replaces the first, as 1.0 shows."""
        first = {"url": "https://receiver.example/1", "authentication": {"schemes": ["Bearer"]}}
        seen = await client.call("tasks/send", {**sent("ask"), "pushNotification": first})
        shown = await client.call("tasks/pushNotification/get", {"id": seen["id"]})
        assert shown["pushNotificationConfig"]["url"] == first["url"]
        assert shown["pushNotificationConfig"]["authentication"] == {"schemes": ["Bearer"]}
        empty = {"url": "https://receiver.example/2", "authentication": {"schemes": []}}
        second = {"id": seen["id"], "pushNotificationConfig": empty}
        await client.call("tasks/pushNotification/set", second)
        listed = await agent.call("ListTaskPushNotificationConfigs", {"taskId": seen["id"]})
        configs = [(one["id"], one["url"]) for one in listed.result["configs"]]
        assert configs == [("a2a-0.1", "https://receiver.example/2")]
        webhooks = backends.storage.for_scope(ANONYMOUS).webhooks
        assert present(await webhooks.get(seen["id"], "a2a-0.1")).dialect == "0.1"
        third = {"id": seen["id"], "pushNotificationConfig": {"url": "http://10.0.0.7/"}}
        with pytest.raises(RpcError, match=r"pushNotificationConfig\.url"):
            await client.call("tasks/pushNotification/set", third)

    async def test_a_task_without_an_id(self, client: Client01) -> None:
        """simple_a2a: it gets one of the server's; `taskId` may stand for `id`."""
        params = sent("ask")
        task = await client.call("tasks/send", {"message": params["message"]})
        resumed = await client.send("go", task=Seen(task["id"]))
        assert resumed.states == ["completed"]
        for name in ("id", "taskId"):
            assert (await client.call("tasks/get", {name: task["id"]}))["id"] == task["id"]

    async def test_errors(self, client: Client01) -> None:
        """Errors have the codes that 0.1 knows; they name the field as the client did (E9)."""
        await client.send("go", task=Seen("done"))
        cases: list[tuple[str, Any, int]] = [
            ("tasks/get", {"id": "nobody"}, -32001),
            ("tasks/get", {}, -32602),
            ("tasks/get", [], -32602),
            ("tasks/get", {"id": 5}, -32602),
            ("tasks/cancel", {"id": "nobody"}, -32001),
            ("tasks/cancel", {"id": "done"}, -32002),
            ("tasks/resubscribe", {"id": "nobody"}, -32001),
            ("tasks/resubscribe", {"id": "done"}, -32004),
            ("tasks/send", sent("more", Seen("done")), -32004),
            ("tasks/send", {"id": "x"}, -32602),
            ("tasks/send", {"id": "no id", "message": sent("go")["message"]}, -32602),
            ("tasks/send", {"id": "x", "message": {"role": "user", "parts": []}}, -32602),
            ("tasks/send", {"id": "x", "message": {"role": "king", "parts": [{}]}}, -32602),
            *(
                ("tasks/send", {"id": "x", "message": {"role": "user", "parts": [part]}}, -32602)
                for part in ("go", {"type": "audio"}, {"type": "file", "file": "a"})
            ),
            ("tasks/send", {**sent("go"), "pushNotification": {"url": "http://a"}}, -32602),
            ("tasks/send", {**sent("go"), "pushNotification": []}, -32602),
            ("tasks/send", {**sent("go"), "historyLength": []}, -32602),
            ("tasks/pushNotification/set", {"id": "done"}, -32602),
            ("tasks/pushNotification/set", {"id": "x", "pushNotificationConfig": {}}, -32602),
            ("tasks/pushNotification/get", {"id": "nobody"}, -32001),
            ("tasks/sendSubscribe", {"id": "x"}, -32602),
            ("tasks/submit", {"taskId": "x"}, -32602),
            *(
                (method, {"message": sent("go")["message"], **unnamed}, -32602)
                for method in ("tasks/status", "tasks/submit")
                for unnamed in ({}, *({"taskId": it} for it in ("", None, 7)))
            ),
            ("tasks/list", {"contextId": 5}, -32602),
        ]
        for method, params, code in cases:
            with pytest.raises(RpcError) as caught:
                await client.call(method, params)
            assert (method, params, caught.value.code) == (method, params, code)
        for method, params, sentence in (
            ("tasks/get", {}, "id is missing or not a text: it names the task."),
            ("tasks/get", {"taskId": 5}, "taskId is missing or not a text: it names the task."),
            ("tasks/list", {"contextId": 5}, "contextId is missing or not a text: it names the"),
            *(
                (
                    "tasks/send",
                    {**sent("go"), "pushNotification": {"url": "https://a", **auth}},
                    f"pushNotification.authentication{problem}",
                )
                for auth, problem in (
                    ({"authentication": {"schemes": "Bearer"}}, ".schemes is no list of names."),
                    ({"authentication": "Bearer"}, " is not an object."),
                    ({"authenticationInfo": "Bearer"}, " is not an object."),
                )
            ),
        ):
            with pytest.raises(RpcError, match=f"^{sentence}"):
                await client.call(method, params)


class TestSimpleA2A:
    """simple_a2a's client as its source describes it; it speaks 0.1, and a little more."""

    @pytest.fixture
    def simple(self, agent: ServedAgent) -> SimpleA2A:
        return SimpleA2A(agent.client)

    async def test_a_stream_in_its_own_frames(self, simple: SimpleA2A) -> None:
        """It finds the card under `agentCard`; who splits at two LF and reads `type` gets all."""
        card = (await simple.http.get("/agentCard")).json()
        assert (bool(card["name"]), card["capabilities"]["streaming"]) == (True, True)
        events = await simple.send_subscribe("go")
        kinds = [event["type"] for event in events if "type" in event]
        assert "TaskArtifactUpdateEvent" in kinds
        assert kinds[-1] == "TaskStatusUpdateEvent"
        assert (events[-1]["status"]["state"], events[-1]["final"]) == ("completed", True)

    async def test_push(self, simple: SimpleA2A, worker: ScriptedWorker) -> None:
        """As in its example: set, get, list and delete, with its names; no secret comes back."""
        push = "tasks/pushNotification"
        named = {"id": (await simple.send_task("ask"))["id"]}
        info = {"scheme": "Bearer", "value": "secret"}
        config = {"webhookUrl": "https://receiver.example/", "authenticationInfo": info}
        made = await simple.call(f"{push}/set", {**named, "pushNotificationConfig": config})
        assert made["id"] == named["id"]
        assert made["pushNotificationConfig"]["webhookUrl"] == config["webhookUrl"]
        assert made["pushNotificationConfig"]["authenticationInfo"] == {"scheme": "Bearer"}
        assert await simple.call(f"{push}/get", named) == made
        assert await simple.call(f"{push}/list", {}) == [made]
        assert await simple.call(f"{push}/delete", named) is None
        assert await simple.call(f"{push}/get", named) is None
        assert await simple.call(f"{push}/list", named) == []

    async def test_a_list(self, simple: SimpleA2A) -> None:
        """The caller's tasks, or those of a `contextId`, newest first, with their histories."""
        sent = [await simple.send_task("go") for _ in range(2)]
        sent.append(await simple.send_task("go", context_id="here"))
        listed = await simple.call("tasks/list", {})
        assert await simple.call("tasks/list", {"contextId": ""}) == listed
        assert await simple.call("tasks/list", {"contextId": "here"}) == listed[:1]
        histories = [task.pop("history") for task in listed]
        assert listed == list(reversed(sent))
        assert listed[0]["contextId"] == "here"
        assert all(history[0]["parts"][0]["text"] == "go" for history in histories)


class TestRepetition:
    async def test_of_a_message_to_a_running_task(
        self, client: Client01, worker: ScriptedWorker, followers: Followers
    ) -> None:
        """A repeated message to a running task joins the turn that is under way."""
        both = [asyncio.create_task(client.send("wait", task=Seen("mine"))) for _ in range(2)]
        await worker.waiting.wait()
        await followers.reach(2)
        worker.gate.set()
        first, second = await asyncio.gather(*both)
        assert first == second
        assert len(worker.started) == 1

    async def test_of_what_was_said(self, client: Client01, worker: ScriptedWorker) -> None:
        """A repeated message is a retry, also of a finished task; a repeated answer is none."""
        first, second = [await client.send("go", task=Seen("done")) for _ in range(2)]
        assert (first == second, len(worker.started)) == (True, 1)
        with pytest.raises(RpcError):
            await client.send("something else", task=Seen("done"))
        for _ in range(2):
            assert (await client.send("ask", task=Seen("mine"))).states == ["input-required"]
        assert len(worker.started) == 2
        await client.send("ask first", task=Seen("other"))
        for _ in range(2):
            await client.send("ask", task=Seen("other"))
        assert len(worker.started) == 5

    async def test_of_a_first_message_with_a_key(
        self, agent: ServedAgent, client: Client01, worker: ScriptedWorker
    ) -> None:
        """With its key the first message is no answer, whatever was said in between."""
        for key, text in [("one", "ask first"), ("two", "ask again"), ("one", "ask first")]:
            agent.client.headers["Idempotency-Key"] = key
            await client.send(text, task=Seen("mine"))
        assert len(worker.started) == 2
        with pytest.raises(RpcError):
            await client.send("something else", task=Seen("mine"))

    async def test_another_session(self, client: Client01) -> None:
        """A task stays in its session."""
        await client.call("tasks/send", {**sent("ask", Seen("mine")), "sessionId": "a"})
        with pytest.raises(RpcError) as caught:
            await client.call("tasks/send", {**sent("go", Seen("mine")), "sessionId": "b"})
        assert caught.value.code == -32602


class Later(SystemClock):
    """The time in a while."""

    after_s = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.after_s * 1000


class TestSubmitting:
    @pytest.fixture
    def clock(self, backends: Backends) -> Later:
        """The clock of the API, after the worker has begun."""
        backends.storage.clock = clock = Later()
        return clock

    @pytest.fixture
    def client(self, agent: ServedAgent) -> Client01:
        return Client01(agent.client, SUBMIT_PATH)

    @staticmethod
    def submission(text: str, task_id: str = "test-1") -> dict[str, Any]:
        return {"taskId": task_id, "message": sent(text)["message"]}

    @pytest.mark.parametrize("agent", FUNCTIONS, indirect=True)
    @pytest.mark.parametrize("path", [SUBMIT_PATH, "/"])
    async def test_submit_answers_with_the_finished_task(
        self, agent: ServedAgent, worker: ScriptedWorker, path: str
    ) -> None:
        """E1-E4: submit answers under the client's id, with a flat status and one artifact.

        E5-E8, E12-E14, E17: status answers the same to anybody, again and again, without a run; of
        an unknown task, also by an id that none can have, a result says so, and no error.
        """
        client = Client01(agent.client, path)
        task = (await client.call("tasks/submit", self.submission("go")))["task"]
        assert set(task) == {"id", "status", "artifact"}
        assert (task["id"], task["status"]) == ("test-1", "completed")
        assert [part["text"] for part in task["artifact"]["parts"]] == ["Once upon a time."]
        for _ in range(3):
            assert await client.call("tasks/status", {"taskId": "test-1"}) == {"task": task}
        assert len(worker.started) == 1
        for task_id in ("nobody", "no id/at all"):
            result = await client.call("tasks/status", {"taskId": task_id})
            assert result == {"task": {"id": task_id, "status": "not_found"}}

    @pytest.mark.parametrize(
        ("text", "status"), [("go", "completed"), ("ask", "input-required"), ("wait", "working")]
    )
    async def test_a_result_is_kept_for_an_hour_from_its_end(
        self, client: Client01, worker: ScriptedWorker, clock: Later, text: str, status: str
    ) -> None:
        """E10, E18: then its id is free; one that works, or waits, is not gone, however old."""
        submitting = asyncio.create_task(client.call("tasks/submit", self.submission(text)))
        if text == "wait":
            await worker.waiting.wait()
        else:
            await submitting
        for after_s, seen in ((3500, status), (3600, "not_found" if text == "go" else status)):
            clock.after_s = after_s
            result = await client.call("tasks/status", {"taskId": "test-1"})
            assert result["task"]["status"] == seen
        if text == "go":
            task = (await client.call("tasks/submit", self.submission("fail")))["task"]
            assert (task["status"], len(worker.started)) == ("failed", 2)
        if text == "wait":
            worker.gate.set()
            assert (await submitting)["task"]["status"] == "completed"
            result = await client.call("tasks/status", {"taskId": "test-1"})
            assert result["task"]["status"] == "completed"

    async def test_tasks_that_were_sent_are_kept(self, client: Client01, clock: Later) -> None:
        """E10: its status is known, and nothing is deleted, however long ago it has ended."""
        await client.send("go", task=Seen("another"))
        clock.after_s = 7200
        found = await client.call("tasks/status", {"taskId": "another"})
        assert found["task"]["status"] == "completed"
        with pytest.raises(RpcError):
            await client.call("tasks/submit", self.submission("other", "another"))
        assert (await client.call("tasks/get", {"id": "another"}))["id"] == "another"

    @pytest.mark.parametrize("text", ["go", "wait"])
    async def test_no_advice_that_is_refused(
        self, client: Client01, worker: ScriptedWorker, text: str
    ) -> None:
        """E11: other content under the id of a task that works or has ended names another id."""
        submitting = asyncio.create_task(client.call("tasks/submit", self.submission(text)))
        if text == "wait":
            await worker.waiting.wait()
        else:
            await submitting
        with pytest.raises(RpcError) as caught:
            await client.call("tasks/submit", self.submission("something else"))
        assert "under another id" in str(caught.value)
        assert "without taskId" not in str(caught.value)
        other = await client.call("tasks/submit", self.submission("go", "test-2"))
        assert other["task"]["status"] == "completed"
        worker.gate.set()
        await submitting

    async def test_other_ends(self, client: Client01) -> None:
        """E19: an agent that only spoke has its words as the artifact; a question takes a turn."""
        for text, status, said in (
            ("fail", "failed", "It did not work."),
            ("ask", "input-required", "Which one?"),
        ):
            task = (await client.call("tasks/submit", self.submission(text, text)))["task"]
            assert (task["status"], task["artifact"]["parts"][0]["text"]) == (status, said)
        task = (await client.call("tasks/submit", self.submission("go", "ask")))["task"]
        assert task["status"] == "completed"


CONFIG = {"url": "https://receiver.example/"}


@pytest.mark.parametrize("settings", [{"older_dialects": True}], indirect=True)
async def test_push_is_refused_where_the_card_offers_none(client: Client01) -> None:
    """-32003, also in a message."""
    for method, params in (
        ("tasks/send", {**sent("go"), "pushNotification": CONFIG}),
        ("tasks/pushNotification/set", {"id": "x", "pushNotificationConfig": CONFIG}),
        ("tasks/pushNotification/list", {"id": "x"}),
    ):
        with pytest.raises(RpcError) as caught:
            await client.call(method, params)
        assert caught.value.code == -32003


@pytest.mark.parametrize("settings", [{}], indirect=True)
async def test_older_methods_are_switched_off(client: Client01, agent: ServedAgent) -> None:
    """By default there are neither methods nor path; clients still find the card."""
    for method in ("tasks/send", "tasks/sendSubscribe", "tasks/submit", "tasks/status"):
        with pytest.raises(RpcError) as caught:
            await client.call(method, {"taskId": "t", **sent("go")})
        assert caught.value.code == -32601
    assert (await agent.client.get(SUBMIT_PATH)).status_code == 404
    card = await agent.client.get("/.well-known/agent.json")
    assert card.json()["url"] == "https://test/"


async def test_a_version_that_is_named_is_spoken(agent: ServedAgent) -> None:
    """`tasks/send` with A2A-Version 1.0 is no method of 1.0, whatever is switched on."""
    assert (await agent.call("tasks/send", sent("go"))).code == -32601
