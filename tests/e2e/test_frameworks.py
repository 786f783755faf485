"""The examples of frameworks: a conversation outlives its processes, and is its caller's own."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from a2a.client import Client
from a2a.types import GetTaskRequest, Part, Task, TaskState

from tests.e2e.clients import artifact_text, client_at, send, settled, stream
from tests.e2e.commands import START_S, Running, environment, running, running_with
from tests.e2e.conftest import names_of_queues, provision
from tests.e2e.frameworks import FRAMEWORKS, Framework, said
from tests.foreign import dying
from tests.support.required import ROOT

S = TaskState
RESTS = {S.TASK_STATE_COMPLETED, S.TASK_STATE_INPUT_REQUIRED, S.TASK_STATE_FAILED}
KEYS = {"ann": "a-key-of-ann-20-or-more", "bob": "a-key-of-bob-20-or-more"}
QUICK = {
    "A2A_AUTH": "none",
    "A2A_VISIBILITY_S": "2",
    "A2A_WAITING_S": "2",
    "A2A_RETRY_BASE_S": "0.2",
    "A2A_CONVERSATIONS": "serial",
}
"""A dead worker's turn is taken over after 2 s."""

NAMES = [
    pytest.param(name, marks=[pytest.mark.foreign] if framework.environment else [])
    for name, framework in FRAMEWORKS.items()
]


GOES_ON = "You have said: Hello; Bye."
REMEMBERS = "You have said: Hello; Bye; Delete the draft; Bye."


class Caller:
    """Speaks to an agent in one context, whose id all callers choose alike."""

    def __init__(self, client: Client, context_id: str) -> None:
        self.client = client
        self.context_id = context_id

    async def begin(self, text: str | Part, task: Task | None = None) -> Task:
        return await send(self.client, text, task=task, context_id=self.context_id)

    async def rest(self, task: Task) -> Task:
        """The task when it has come to rest, whichever worker takes it."""
        return await settled(self.client, task.id, RESTS)

    async def say(self, text: str | Part, task: Task | None = None) -> Task:
        return await self.rest(await self.begin(text, task))


@pytest.mark.emulators
async def test_a_conversation_outlives_its_processes(
    provisioned: dict[str, str], tmp_path: Path
) -> None:
    """Worker after worker is killed: in the middle of a turn, and between two turns of a task.

    The tests of each adapter let its attempts die at each record.
    """
    framework = FRAMEWORKS["langgraph"]
    env = environment(**provision({**provisioned, **names_of_queues()}), **QUICK)
    example = str(framework.folder / "agent.py")

    def worker(name: str, **dies: str) -> AbstractContextManager[Running]:
        own = {**env, **dies, "PYTHONPATH": f"{env['PYTHONPATH']}:{ROOT}"}
        module = "tests.foreign.dying" if dies else "a2a_serverless_tools.cli"
        where: Any = {"env": own, "output": tmp_path / name, "module": module}
        return running_with(framework.python, "worker", "--agent", f"{example}:agent", **where)

    card = str(framework.folder / "agent_card.json")
    api = running("api", "--card", card, "--port", "0", env=env, output=tmp_path / "api")
    with api as serving:
        async with client_at(serving.url, streaming=False, polling=True) as client:
            caller = Caller(client, framework.example)
            with worker("first", **{dying.VARIABLE: "2"}) as first:
                first.wait_for("turns at a time")
                assert said(await caller.say(framework.hello)) == framework.heard
                cut = await caller.begin(framework.bye)
                assert first.process.wait(START_S) == -signal.SIGKILL
                left = await client.get_task(GetTaskRequest(id=cut.id))
                assert artifact_text(left).strip() == GOES_ON
            with worker("second") as second:
                assert said(await caller.rest(cut)) == GOES_ON
                asks = await caller.say(framework.wish)
                assert said(asks) == framework.question
                assert second.end(signal.SIGKILL) == -signal.SIGKILL
            with worker("third"):
                answer = framework.as_answer(asks, framework.answer)
                assert said(await caller.say(answer, asks)) == framework.done
                assert said(await caller.say(framework.bye)) == REMEMBERS


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
async def test_the_example_of_a_framework(name: str, tmp_path: Path) -> None:
    """One command starts it; tokens are chunks, and questions are input-required."""
    framework = FRAMEWORKS[name]
    keys = ",".join(f"{name}={key}" for name, key in KEYS.items())
    env = environment(A2A_AUTH="api-key", A2A_API_KEYS=keys)
    command = [*framework.command, "--port", "0"]
    where: Any = {"env": env, "output": tmp_path / "dev", "cwd": ROOT}
    with running_with(framework.python, *command, **where) as dev:
        await converse(framework, dev.url)
        assert dev.end() == 0, dev.said()


async def converse(framework: Framework, url: str) -> None:
    """Let Ann and Bob, who have chosen the same id for a new context, speak to the agent."""
    async with (
        client_at(url, streaming=False, headers={"x-api-key": KEYS["ann"]}) as anns,
        client_at(url, streaming=False, headers={"x-api-key": KEYS["bob"]}) as bobs,
        client_at(url, headers={"x-api-key": KEYS["ann"]}) as streaming,
    ):
        ann, bob = Caller(anns, "one-by-one"), Caller(bobs, "one-by-one")
        events = stream(streaming, framework.hello, context_id=ann.context_id)
        heard = [event async for event in events]
        chunks = sum(event.HasField("artifact_update") for event in heard)
        assert chunks > 1 or not framework.streams
        assert said(await ann.rest(heard[0].task)) == framework.heard

        assert said(await bob.say(framework.bye)) == framework.knows_nothing

        asks = await ann.say(framework.wish)
        assert framework.question in (None, said(asks))
        answer = framework.as_answer(asks, framework.answer)
        assert said(await ann.say(answer, asks)) == framework.done
        assert said(await ann.say(framework.bye)) == framework.remembers
