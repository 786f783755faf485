"""An agent of the OpenAI Agents SDK, as it is."""

from __future__ import annotations

import tools
from agents import Agent, function_tool, set_default_openai_api, set_tracing_disabled

set_default_openai_api("chat_completions")
set_tracing_disabled(disabled=True)


@function_tool(needs_approval=True)
def delete(what: str) -> str:
    """Delete something, once the user has approved it."""
    return "It is deleted."


agent = Agent(
    name="Assistant",
    model="fake",
    tools=[delete, *map(function_tool, (tools.draw, tools.first, tools.second))],
)
