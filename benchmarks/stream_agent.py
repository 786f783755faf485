"""The agent of `benchmarks.stream`, written for the official SDK: the same file runs on both sides.

Its message is JSON: how many chunks, how far apart on average, and how long the agent is silent
after them. A chunk's text is its number and the time at which it was enqueued (CLOCK_MONOTONIC,
which all processes of a machine share).
"""

from __future__ import annotations

import asyncio
import json
import random
import time

from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part


class Ticker(AgentExecutor):
    """Emits numbered, timed chunks of one artifact."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Emit the chunks, be silent, complete."""
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await task.start_work()
        asked = json.loads(context.get_user_input())
        # Uneven, so that polls do not keep step with the chunks.
        gaps = random.Random(context.task_id)  # noqa: S311 - guards nothing
        for number in range(asked["chunks"]):
            await asyncio.sleep(gaps.uniform(0.5, 1.5) * asked["gap_s"])
            text = f"{number} {time.monotonic_ns()}"
            await task.add_artifact([Part(text=text)], artifact_id="ticks", append=number > 0)
        await asyncio.sleep(asked["silence_s"])
        await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing: the benchmark cancels no task."""
        raise NotImplementedError


agent = Ticker()
