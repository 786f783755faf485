"""An agent of Google's ADK behind the ADK's own executor, with a tool.

The model is a stand-in, so that it runs without a key. Put yours in `LlmAgent(...)`, for example
`model="gemini-2.5-flash"`; nothing else changes. The ADK keeps its session in memory: give the
runner a session service of yours where a conversation has to outlive the worker's process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types


class StandIn(BaseLlm):  # type: ignore[misc] # the tests of this repository run without its types
    """Acts as a model would: calls the tool, then says what it got."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002 - the ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one answer."""
        last = llm_request.contents[-1].parts[-1]
        if last.function_response is None:
            call = types.FunctionCall(name="weather", args={"city": last.text.split()[-1]})
            part = types.Part(function_call=call)
        else:
            part = types.Part(text=f"It is {last.function_response.response['result']}.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"sunny in {city}"


assistant = LlmAgent(name="assistant", model=StandIn(model="stand-in"), tools=[weather])
agent = A2aAgentExecutor(runner=InMemoryRunner(assistant, app_name="assistant"))
