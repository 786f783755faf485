"""SendStreamingMessage and SubscribeToTask as A2A 1.0.1 asks for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.types import AgentCapabilities, AgentCard

from tests.conformance.conftest import EVERY_WAY, ServedAgent, states
from tests.support.a2a_calls import REST, message
from tests.support.followers import Followers
from tests.support.scripted_worker import ScriptedWorker

SEND = "SendStreamingMessage"
SUBSCRIBE = "SubscribeToTask"
IMMEDIATELY = {"returnImmediately": True}
AUTH_REQUIRED = 2
"""The version at which the agent of "auth" waits for credentials."""

pytestmark = pytest.mark.usefixtures("worker")


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"message": message(text, **fields)}


class TestSending:
    @EVERY_WAY
    async def test_a_stream_is_a_task_and_its_updates(self, agent: ServedAgent) -> None:
        """3.1.2, 3.5.2: the Task, then updates in their order; it closes at the terminal state."""
        events = await agent.events(SEND, said("go"))
        kinds = [next(iter(event)) for event in events]
        assert kinds[0] == "task"
        assert set(kinds[1:]) == {"statusUpdate", "artifactUpdate"}
        assert states(events) == ["SUBMITTED", "WORKING", "COMPLETED"]
        assert next(iter(events[-1])) == "statusUpdate"
        chunks = [e["artifactUpdate"] for e in events if "artifactUpdate" in e]
        assert [c["artifact"]["parts"][0]["text"] for c in chunks] == ["Once upon ", "a time."]
        assert [c.get("lastChunk", False) for c in chunks] == [False, True]
        assert {c["taskId"] for c in chunks} == {events[0]["task"]["id"]}

    async def test_an_answer_that_is_a_message(self, agent: ServedAgent) -> None:
        """3.1.2: the task that made it durable comes first, and its last status has the message."""
        events = await agent.events(SEND, said("reply please"))
        assert "task" in events[0]
        assert states(events)[-1] == "COMPLETED"

    async def test_a_stream_stays_open_for_credentials(
        self, agent: ServedAgent, worker: ScriptedWorker, followers: Followers
    ) -> None:
        """7.6.1: at AUTH_REQUIRED it goes on, and shows what the agent does with them."""
        streaming = asyncio.create_task(agent.events(SEND, said("auth")))
        await followers.reach(1, version=AUTH_REQUIRED)
        worker.gate.set()
        shown = states(await streaming)
        assert shown[-2:] == ["AUTH_REQUIRED", "COMPLETED"]

    async def test_its_configuration(self, agent: ServedAgent) -> None:
        """3.2.2, 3.2.4: a stream goes to its end; the history length holds for its first Task."""
        configuration = {**IMMEDIATELY, "historyLength": 0}
        events = await agent.events(SEND, {**said("go"), "configuration": configuration})
        assert states(events)[-1] == "COMPLETED"
        assert "history" not in events[0]["task"]

    @EVERY_WAY
    async def test_errors_are_those_of_a_send(self, agent: ServedAgent) -> None:
        """3.1.2: the same errors as SendMessage, as an answer and not as a stream."""
        for params, reason in (
            (said("go", taskId="nobody"), "TASK_NOT_FOUND"),
            (said("", parts=[{"text": "a", "mediaType": "a/b"}]), "CONTENT_TYPE_NOT_SUPPORTED"),
            (said("", parts=[]), "INVALID_PARAMS"),
        ):
            assert (await agent.call(SEND, params)).reason == reason


class TestSubscribing:
    async def test_it_stays_to_the_end(self, agent: ServedAgent, followers: Followers) -> None:
        """3.1.6: a task that waits for its user is followed into its next turns."""
        task_id = (await agent.send("ask")).task["id"]
        followers.forget()
        following = asyncio.create_task(agent.events(SUBSCRIBE, {"id": task_id}))
        await followers.reach(1)
        await agent.send("ask", taskId=task_id, messageId="m-2")
        await agent.send("go", taskId=task_id, messageId="m-3")
        shown = states(await following)
        assert shown[0] == "INPUT_REQUIRED"
        assert shown.count("INPUT_REQUIRED") == 2
        assert shown[-1] == "COMPLETED"

    async def test_all_subscribers_see_the_same(
        self, agent: ServedAgent, worker: ScriptedWorker, followers: Followers
    ) -> None:
        """3.1.6, 3.5.2: the Task as it is, then what every stream gets, in the same order."""
        task_id = (await agent.send("wait", configuration=IMMEDIATELY)).task["id"]
        await worker.waiting.wait()
        subscriptions = [
            asyncio.create_task(agent.events(SUBSCRIBE, {"id": task_id})) for _ in range(3)
        ]
        await followers.reach(3)
        worker.gate.set()
        first, second, third = await asyncio.gather(*subscriptions)
        assert first == second == third
        assert first[0]["task"]["id"] == task_id
        assert (len(first), states(first)) == (4, ["WORKING", "COMPLETED"])

    @pytest.mark.parametrize("agent", [(REST, "stream")], ids="-".join, indirect=True)
    async def test_one_that_leaves_harms_nobody(
        self, agent: ServedAgent, worker: ScriptedWorker, followers: Followers
    ) -> None:
        """3.5.2: a client that leaves its stream ends neither the other streams nor the task."""
        async with agent.stream(SEND, said("wait")) as leaving:
            task_id = (await anext(leaving))["task"]["id"]
            await worker.waiting.wait()
            staying = asyncio.create_task(agent.events(SUBSCRIBE, {"id": task_id}))
            await followers.reach(2)
        worker.gate.set()
        assert states(await staying)[-1] == "COMPLETED"
        assert (await agent.call("GetTask", {"id": task_id})).state == "COMPLETED"


class TestWithoutTheCapability:
    @pytest.fixture
    def card(self, card: AgentCard) -> AgentCard:
        card.capabilities.CopyFrom(AgentCapabilities())
        return card

    async def test_nothing_streams(self, agent: ServedAgent) -> None:
        """3.3.4: UnsupportedOperationError, before anything is looked at."""
        for method, params in ((SEND, said("go")), (SUBSCRIBE, {"id": "nobody"})):
            assert (await agent.call(method, params)).reason == "UNSUPPORTED_OPERATION"
        assert (await agent.call("ListTasks", {})).result["totalSize"] == 0
