"""An agent of Pydantic AI, streamed."""

from __future__ import annotations

import tools
from pydantic_ai import Agent, DeferredToolRequests

from a2a_serverless.frameworks.pydantic_ai import PydanticAIWorker

assistant = Agent(
    "openai-chat:fake",
    output_type=[str, DeferredToolRequests],
    tools=[tools.draw, tools.first, tools.second],
)


@assistant.tool_plain(requires_approval=True)
def delete(what: str) -> str:
    """Delete something, once the user has approved it."""
    return "It is deleted."


agent = PydanticAIWorker(assistant, stream=True)
