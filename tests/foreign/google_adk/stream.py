"""RemoteA2aAgent of Google's ADK as it comes: stream.py URL BINDING send TEXT; and as a tool.

It chooses the binding itself: BINDING is not read. Prints one JSON line for each of the ADK's
events. Runs in the environment of its framework.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
from a2a.client import ClientConfig, ClientFactory
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import AgentTool
from google.genai import types


class Calling(BaseLlm):  # type: ignore[misc] # its environment has the types, ours does not
    """Hands its message to the remote agent, and says what that has answered."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        call = types.FunctionCall(name="remote", args={"request": last.text})
        part = types.Part(function_call=call)
        if last.function_response:
            part = types.Part(text=last.function_response.response["result"])
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def remote(url: str, **options: Any) -> RemoteA2aAgent:
    card = f"{url}.well-known/agent-card.json"
    return RemoteA2aAgent(name="remote", agent_card=card, **options)


async def events_of(agent: BaseAgent, text: str) -> AsyncIterator[Any]:
    """Send an agent a message; yield the ADK's events."""
    runner = InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=text)])
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        yield event


def text_of(event: Any) -> str:
    return "".join(part.text or "" for part in (event.content.parts if event.content else []))


async def as_a_tool(url: str, text: str, *, streaming: bool) -> str:
    """What a model reads of the remote agent that is its tool."""
    async with httpx.AsyncClient(timeout=60) as http:
        factory = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming))
        tool = AgentTool(remote(url, a2a_client_factory=factory))
        agent = LlmAgent(name="root", model=Calling(model="fake"), tools=[tool])
        *_, last = [event async for event in events_of(agent, text)]
        return text_of(last)


async def main(url: str, text: str) -> None:
    async for event in events_of(remote(url), text):
        told = {
            "task": (event.custom_metadata or {}).get("a2a:task_id"),
            "says": text_of(event),
            "error": event.error_message,
        }
        sys.stdout.write(f"{json.dumps(told)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1], sys.argv[4]))
