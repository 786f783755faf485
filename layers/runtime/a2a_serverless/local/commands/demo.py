"""`a2a-serverless demo`: two tasks through the official client, printed as they happen."""

from __future__ import annotations

import asyncio
import logging
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import httpx
from a2a.client import A2ACardResolver, A2AClientError, Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentCard,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)

from a2a_serverless.local.stack import Options, Stack
from a2a_serverless.local.transcript import (
    Transcript,
    artifact_text,
    message_of,
    state_label,
    text_of,
)
from a2a_serverless.settings import load_settings

LIMIT_S = 60.0
"""The tasks take 5 s; on a machine where they take longer than this, something is stuck."""

STREAMED = "Two days in Lisbon, please"
UNCLEAR = "Plan a trip to Oslo"
ANSWER = "One day"


class DemoError(Exception):
    """What the client got is not what the demo is to show."""


def run(options: Namespace) -> int:
    """Show two tasks; 1 when the client gets anything but what it should."""
    if not options.verbose:
        logging.disable(logging.CRITICAL)  # the transcript is the product
    transcript = Transcript(sys.stdout)
    transcript.plain("API Gateway, Lambda, DynamoDB and SQS FIFO, simulated in this process")
    settings = load_settings().model_copy(update={"auth": "none", "public_url": ""})
    with Stack(settings, Options(backend="moto")) as stack:
        try:
            asyncio.run(_show(transcript, stack))
        except DemoError as error:
            return _failed(str(error))
        except TimeoutError:
            return _failed(f"nothing came for {LIMIT_S:g} seconds.")
        except (A2AClientError, httpx.HTTPError) as error:
            return _failed(f"{type(error).__name__}: {error}")
    return 0


def _failed(sentence: str) -> int:
    print(f"\nThe demo failed: {sentence}", file=sys.stderr)
    return 1


async def _show(transcript: Transcript, stack: Stack) -> None:
    async with asyncio.timeout(LIMIT_S), _Agent.at(stack.url) as agent:
        transcript.fact("agent", f"{agent.card.name}, {stack.url}/.well-known/agent-card.json")
        transcript.fact("client", f"a2a-sdk {version('a2a-sdk')}, streaming from {agent.url}")

        transcript.heading("1  A task that streams its answer")
        streamed = await _converse(agent, transcript, STREAMED)
        _expect(streamed, TaskState.TASK_STATE_COMPLETED)

        transcript.heading("2  A task that asks back, and goes on with the answer")
        paused = await _converse(agent, transcript, UNCLEAR)
        _expect(paused, TaskState.TASK_STATE_INPUT_REQUIRED)
        resumed = await _converse(agent, transcript, ANSWER, task=paused)
        _expect(resumed, TaskState.TASK_STATE_COMPLETED)

    transcript.plain("\n2 tasks completed: one streamed, one resumed after its question.")


async def _converse(
    agent: _Agent, transcript: Transcript, text: str, *, task: Task | None = None
) -> Task:
    """Send one message, show what comes, and compare it with what is stored."""
    transcript.client_says(text)
    task_id, chunks, streamed = "", 0, ""
    async for event in agent.send(message_of(text, task=task)):
        transcript.event(event)
        task_id = task_id or event.task.id or event.status_update.task_id
        if event.HasField("artifact_update"):
            chunks += 1
            streamed += text_of(event.artifact_update.artifact.parts)
    stored = await agent.load(task_id)
    if artifact_text(stored) != streamed:
        msg = f"the stored artifact of task {task_id} is not what was streamed."
        raise DemoError(msg)
    summary = f"task {stored.id}, {state_label(stored.status.state)}"
    if chunks:
        summary += f"\n{len(streamed)} characters as streamed in {chunks} chunks"
    transcript.fact("stored", summary)
    return stored


def _expect(task: Task, state: TaskState) -> None:
    if task.status.state != state:
        found = state_label(task.status.state)
        msg = f"task {task.id} is {found} instead of {state_label(state)}."
        raise DemoError(msg)


class _Agent:
    """The agent as its card describes it: streamed from the first interface, loaded by the API."""

    def __init__(self, card: AgentCard, streaming: Client, plain: Client) -> None:
        self.card = card
        self.url = card.supported_interfaces[0].url
        self._streaming = streaming
        self._plain = plain

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str) -> AsyncIterator[_Agent]:
        # Without the environment's proxies: everything is on this machine.
        async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as http:
            card = await A2ACardResolver(http, url).get_agent_card()
            factory = ClientFactory(ClientConfig(httpx_client=http))
            yield cls(card, factory.create(card), factory.create(_at_door(card, url)))

    def send(self, message: Message) -> AsyncIterator[StreamResponse]:
        return self._streaming.send_message(SendMessageRequest(message=message))

    async def load(self, task_id: str) -> Task:
        return await self._plain.get_task(GetTaskRequest(id=task_id))


def _at_door(card: AgentCard, url: str) -> AgentCard:
    """The card with those of its interfaces alone that are at `url`."""
    narrowed = AgentCard()
    narrowed.CopyFrom(card)
    del narrowed.supported_interfaces[:]
    narrowed.supported_interfaces.extend(
        interface
        for interface in card.supported_interfaces
        if httpx.URL(interface.url).port == httpx.URL(url).port
    )
    return narrowed
