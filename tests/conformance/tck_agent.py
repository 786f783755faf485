"""The agent that the A2A project's conformance kit talks to.

The kit says what it wants by the beginning of a message's id. The page `conformance-kit` tells how
to run it. Written for the official SDK, as an agent from elsewhere would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from a2a.helpers import new_data_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

LONG_RUN_S = 4.0
"""Twice as long as the kit waits for an event."""

FILE = Part(raw=b"tck", filename="output.txt", media_type="text/plain")
LINKED_FILE = Part(
    url="https://example.com/output.txt", filename="output.txt", media_type="text/plain"
)

Scenario = Callable[[TaskUpdater, EventQueue], Awaitable[None]]


def completed_with(text: str) -> Scenario:
    async def scenario(task: TaskUpdater, _: EventQueue) -> None:
        await task.complete(task.new_agent_message([Part(text=text)]))

    return scenario


def artifact(*parts: Part, works: bool = False) -> Scenario:
    """One artifact, in as many chunks as it has parts; `works`: behind a status."""

    async def scenario(task: TaskUpdater, _: EventQueue) -> None:
        if works:
            await task.start_work()
        for number, part in enumerate(parts, 1):
            is_last, several = number == len(parts), len(parts) > 1
            await task.add_artifact([part], "made", append=several, last_chunk=several and is_last)
        await task.complete()

    return scenario


def streamed(*parts: Part) -> Scenario:
    return artifact(*parts, works=True)


async def long_run(task: TaskUpdater, _: EventQueue) -> None:
    await task.start_work()
    await asyncio.sleep(LONG_RUN_S)
    await task.complete()


async def message_alone(task: TaskUpdater, queue: EventQueue) -> None:
    await queue.enqueue_event(task.new_agent_message([Part(text="Direct message response")]))


async def rejected(task: TaskUpdater, _: EventQueue) -> None:
    await task.reject(task.new_agent_message([Part(text="rejected")]))


SCENARIOS: Mapping[str, Scenario] = {
    "tck-complete-task": completed_with("Hello from TCK"),
    "tck-artifact-text": artifact(Part(text="Generated text content")),
    "tck-artifact-file": artifact(FILE),
    "tck-artifact-file-url": artifact(LINKED_FILE),
    "tck-artifact-data": artifact(new_data_part({"key": "value", "count": 42})),
    "tck-message-response": message_alone,
    "tck-input-required": lambda task, _: task.requires_input(),
    "tck-reject-task": rejected,
    "tck-stream-001": streamed(Part(text="Stream hello from TCK")),
    "tck-stream-002": artifact(),
    "tck-stream-003": streamed(Part(text="Stream task lifecycle")),
    "tck-stream-ordering-001": streamed(Part(text="Ordered output")),
    "tck-stream-artifact-text": streamed(Part(text="Streamed text content")),
    "tck-stream-artifact-file": streamed(FILE),
    "tck-stream-artifact-chunked": streamed(Part(text="chunk-1 "), Part(text="chunk-2")),
    "test-resubscribe-message-id": long_run,
}


def scenario_of(message_id: str) -> Scenario:
    """The scenario with the longest prefix; else one that completes the task."""
    prefixes = [prefix for prefix in SCENARIOS if message_id.startswith(prefix)]
    if not prefixes:
        return completed_with("This message is in no scenario.")
    return SCENARIOS[max(prefixes, key=len)]


class KitAgent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await scenario_of(context.message.message_id)(updater, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


agent = KitAgent()
