"""An executor of the official SDK that asks a model."""

from __future__ import annotations

import base64

import tools
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part
from openai import AsyncOpenAI

from a2a_serverless.steps import step

model = AsyncOpenAI()


class Assistant(AgentExecutor):
    """Asks before it deletes, works in steps, and else says what the model says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        text = context.get_user_input()
        if context.current_task is not None:
            await updater.add_artifact([Part(text="It is deleted.")])
            await updater.complete()
            return
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        if "Delete" in text:
            asked = updater.new_agent_message([Part(text=f"{text}: are you sure?")])
            await updater.requires_input(asked)
            return
        if "two steps" in text:
            await step("first", tools.first)
            await updater.add_artifact([Part(text=await step("second", tools.second))])
        else:
            await self.ask(text, context.message.parts, updater)
        await updater.complete()

    async def ask(self, text: str, parts: list[Part], updater: TaskUpdater) -> None:
        """Stream the model's answer."""
        content = [{"type": "text", "text": text}]
        said = [{"role": "user", "content": content}]
        for part in parts:
            if part.HasField("raw"):
                url = f"data:image/png;base64,{base64.b64encode(part.raw).decode()}"
                content.append({"type": "image_url", "image_url": {"url": url}})
                drawing = Part(raw=part.raw, media_type="image/png", filename="drawing.png")
                await updater.add_artifact([drawing])
                said.append({"role": "tool", "tool_call_id": "1", "content": "drawn"})
        answer = await model.chat.completions.create(model="fake", messages=said, stream=True)
        is_first = True
        async for chunk in answer:
            for choice in chunk.choices:
                spoken = [Part(text=choice.delta.content or "")]
                await updater.add_artifact(spoken, artifact_id="answer", append=not is_first)
                is_first = False

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


agent = Assistant()
