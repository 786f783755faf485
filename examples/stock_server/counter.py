"""A card and an executor of the official SDK: it counts, a number each tenth of a second."""

from __future__ import annotations

import asyncio

from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from a2a.utils.errors import InvalidParamsError


class Counter(AgentExecutor):
    """Counts up to the number in the user's text."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.message is None or not context.task_id or not context.context_id:
            raise InvalidParamsError(message="There is no message.")
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        text = context.get_user_input()
        for number in range(int(text) if text.isdecimal() else 3):
            await updater.add_artifact(
                [Part(text=f"{number + 1} ")], artifact_id="count", append=number > 0
            )
            await asyncio.sleep(0.1)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.cancel()


def card_at(url: str) -> AgentCard:
    """Return the agent's card."""
    return AgentCard(
        name="Counter",
        description="Counts up to a number.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0"),
            AgentInterface(url=url, protocol_binding="HTTP+JSON", protocol_version="1.0"),
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="count", name="Count", description="Counts.", tags=["count"])],
    )
