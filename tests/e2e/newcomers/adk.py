"""An agent of Google's ADK, as it is."""

from __future__ import annotations

import tools
from google.adk.agents import LlmAgent
from google.adk.tools import LongRunningFunctionTool


def delete(what: str) -> dict[str, str]:
    """Delete something, once the user has approved it."""
    return {"status": f"{what}: are you sure?"}


agent = LlmAgent(
    name="assistant",
    model="gemini-2.5-flash",
    tools=[LongRunningFunctionTool(delete), tools.draw, tools.first, tools.second],
)
