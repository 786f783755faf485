"""An agent of the OpenAI Agents SDK: streamed text, and a tool that the user has to approve.

The model is a stand-in, so that it runs without a key. Put yours in `Agent(...)`, for example
`model="gpt-5"`, and take `RUN` out if you want traces; nothing else changes.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, RunConfig, function_tool
from agents.models.interface import Model
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseTextDeltaEvent

from a2a_serverless.frameworks.openai_agents import OpenAIAgentsWorker


def reply(call: ModelCall) -> list[Any]:
    """Answer as a model would: call the tool, say what it returned, or say what was said before."""
    last = call.input[-1]
    if last.get("type") == "function_call_output":
        return [assistant_message(str(last["output"]))]
    said = [item["content"] for item in call.input if item.get("role") == "user"]
    if "delete" in said[-1].lower():
        return [function_call("delete", {"what": said[-1]}, call_id=uuid.uuid4().hex)]
    return [assistant_message(f"You have said: {'; '.join(said)}.")]


class StandIn(Model):  # type: ignore[misc] # the tests of this repository run without its types
    """Gives `reply`, also in a stream."""

    async def get_response(self, *call: Any, **settings: Any) -> Any:
        """Return one answer."""
        return await scripted().get_response(*call, **settings)

    async def stream_response(self, *call: Any, **settings: Any) -> AsyncIterator[Any]:
        """Yield the events of one answer, a word at a time."""
        async for event in scripted().stream_response(*call, **settings):
            is_text = isinstance(event, ResponseTextDeltaEvent)
            for word in event.delta.split() if is_text else ():
                yield event.model_copy(update={"delta": f"{word} "})
            if not is_text:
                yield event


def scripted() -> ScriptedModel:
    """Return the SDK's model for tests, for one call."""
    return ScriptedModel([ModelStep.respond(reply)])


@function_tool(needs_approval=True)  # type: ignore[untyped-decorator] # as above
def delete(what: str) -> str:
    """Delete something, once the user has approved it."""
    return f"Done: {what}."


RUN = RunConfig(tracing_disabled=True)

agent = OpenAIAgentsWorker(Agent(name="Assistant", model=StandIn(), tools=[delete]), RUN)
