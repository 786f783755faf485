"""A Worker that asks a model."""

from __future__ import annotations

import base64

import tools
from openai import AsyncOpenAI

from a2a_serverless.worker import TaskContext, Worker

model = AsyncOpenAI()


class Assistant(Worker):
    """Asks before it deletes, works in steps, and else says what the model says."""

    async def handle(self, ctx: TaskContext) -> None:
        """Answer a message."""
        if ctx.history:
            await ctx.complete("It is deleted.")
        elif "Delete" in ctx.user_text:
            await ctx.request_input(f"{ctx.user_text}: are you sure?")
        elif "two steps" in ctx.user_text:
            await ctx.step("first", tools.first)
            await ctx.complete(await ctx.step("second", tools.second))
        else:
            await self.ask(ctx)

    async def ask(self, ctx: TaskContext) -> None:
        """Stream the model's answer."""
        content = [{"type": "text", "text": ctx.user_text}]
        for file in ctx.files:
            url = f"data:image/png;base64,{base64.b64encode(file.content).decode()}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        said = [{"role": "user", "content": content}]
        if ctx.files:
            said.append({"role": "tool", "tool_call_id": "1", "content": await tools.draw()})
        answer = await model.chat.completions.create(model="fake", messages=said, stream=True)
        async for chunk in answer:
            for choice in chunk.choices:
                text = choice.delta.content or ""
                await ctx.emit_text_artifact(text, artifact_id="answer", append=True)
        await ctx.respond()


agent = Assistant()
