"""A Strands agent: streamed text, a conversation that lasts, and a question before it deletes.

The model is a stand-in, so that it runs without a key. Put yours in `Agent(...)`, for example
`BedrockModel()`; nothing else changes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent, ToolContext, tool
from strands.models import Model

from a2a_serverless.frameworks.conversation import is_consent
from a2a_serverless.frameworks.strands import StrandsWorker


class StandIn(Model):  # type: ignore[misc] # the tests of this repository run without its types
    """Acts as a model would: calls the tool, or says what was said before, a word at a time."""

    def update_config(self, **model_config: Any) -> None:
        """Take no configuration."""

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, which is empty."""
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        """Refuse: this model only gives text."""
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield an answer as Bedrock streams it."""
        last = messages[-1]["content"][-1]
        said = texts(messages)
        is_call = "toolResult" not in last and "delete" in said[-1].lower()
        yield {"messageStart": {"role": "assistant"}}
        if is_call:
            use = {"toolUseId": f"delete-{len(messages)}", "name": "delete"}
            given = json.dumps({"what": said[-1]})
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": given}}}}
        else:
            answer = f"You have said: {'; '.join(said)}."
            if "toolResult" in last:
                answer = last["toolResult"]["content"][0]["text"]
            yield {"contentBlockStart": {"start": {}}}
            for word in answer.split():
                yield {"contentBlockDelta": {"delta": {"text": f"{word} "}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if is_call else "end_turn"}}


def texts(messages: Any) -> list[str]:
    """Return what the user has said."""
    return [
        block["text"]
        for message in messages
        for block in message["content"]
        if message["role"] == "user" and "text" in block
    ]


@tool(context=True)  # type: ignore[untyped-decorator] # as above
def delete(what: str, tool_context: ToolContext) -> str:
    """Delete something, once the user has approved it: the task waits for that."""
    approved = is_consent(tool_context.interrupt("approval", reason=f"{what}: are you sure?"))
    return "It is deleted." if approved else "Nothing is deleted."


agent = StrandsWorker(lambda: Agent(model=StandIn(), tools=[delete], callback_handler=None))
