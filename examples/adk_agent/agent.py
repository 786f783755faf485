"""An agent of Google's ADK: a tool, a conversation that lasts, and a tool that waits for the user.

The model is a stand-in, so that it runs without a key. Put yours in `LlmAgent(...)`, for example
`model="gemini-2.5-flash"`; nothing else changes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import LongRunningFunctionTool
from google.genai import types

from a2a_serverless.frameworks.adk import AdkExecutor


class StandIn(BaseLlm):  # type: ignore[misc] # the tests of this repository run without its types
    """Acts as a model would: calls a tool, then says what it got, and what was said before."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002 - the ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one answer."""
        parts = [part for content in llm_request.contents for part in content.parts]
        said = [
            part.text
            for content in llm_request.contents
            for part in content.parts
            if content.role == "user" and part.text
        ]
        last = parts[-1].function_response
        if last is None and "book" in said[-1].lower():
            call = types.FunctionCall(name="book", args={"city": said[-1].split()[-1]})
            part = types.Part(function_call=call)
        elif last is None and "weather" in said[-1].lower():
            call = types.FunctionCall(name="weather", args={"city": said[-1].split()[-1]})
            part = types.Part(function_call=call)
        elif last is not None:
            part = types.Part(text=f"It is {last.response['result']}.")
        else:
            part = types.Part(text=f"You have said: {'; '.join(said)}.")
        tokens = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=len(parts), candidates_token_count=1
        )
        content = types.Content(role="model", parts=[part])
        yield LlmResponse(content=content, usage_metadata=tokens)


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"sunny in {city}"


def book(city: str) -> dict[str, str]:
    """Book a hotel in a city; the task waits until the user has approved it."""
    return {"result": f"waiting for your approval of a hotel in {city}"}


assistant = LlmAgent(
    name="assistant",
    model=StandIn(model="stand-in"),
    tools=[weather, LongRunningFunctionTool(book)],
)
agent = AdkExecutor(assistant, "assistant")
