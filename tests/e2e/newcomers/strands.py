"""An agent of Strands, one for each turn."""

from __future__ import annotations

import tools
from strands import Agent, ToolContext, tool
from strands.models.openai import OpenAIModel

from a2a_serverless.frameworks.conversation import is_consent
from a2a_serverless.frameworks.strands import StrandsWorker


@tool(context=True)
def delete(what: str, tool_context: ToolContext) -> str:
    """Delete something, once the user has approved it."""
    approved = is_consent(tool_context.interrupt("approval", reason=f"{what}: are you sure?"))
    return "It is deleted." if approved else "Nothing is deleted."


TOOLS = [delete, tool(tools.draw), tool(tools.first), tool(tools.second)]


def assistant() -> Agent:
    """Make an agent, which is one conversation."""
    return Agent(model=OpenAIModel(model_id="fake"), tools=TOOLS, callback_handler=None)


agent = StrandsWorker(assistant)
