"""A Strands agent behind a Worker: streamed text, and the conversation kept across tasks.

The model is a stand-in, so that it runs without a key. Put yours in `Agent(...)`, for example
`BedrockModel()`; nothing else changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from strands import Agent
from strands.models import Model

from a2a_serverless.worker import TaskContext, Worker


class StandIn(Model):  # type: ignore[misc] # the tests of this repository run without its types
    """Acts as a model would: says what it was told last, a word at a time."""

    def update_config(self, **model_config: Any) -> None:
        """Take no configuration."""

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, which is empty."""
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        """Refuse: this model has text alone."""
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield an answer as Bedrock streams it."""
        said = " ".join(block.get("text", "") for block in messages[-1]["content"])
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        for word in f"You said: {said}".split():
            yield {"contentBlockDelta": {"delta": {"text": f"{word} "}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


class Chat(Worker):
    """One run of the agent per message; the conversation belongs to the context."""

    async def handle(self, ctx: TaskContext) -> None:
        """Stream the agent's text as one artifact, and keep the conversation with the answer."""
        agent = Agent(
            model=StandIn(), messages=await ctx.load_context() or [], callback_handler=None
        )
        async for event in agent.stream_async(ctx.user_text):
            if text := event.get("data"):
                await ctx.emit_text_artifact(text, append=True)
        await ctx.update_context(agent.messages)
        await ctx.respond(f"{len(agent.messages)} messages in this conversation.")


agent = Chat()
