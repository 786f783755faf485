"""RemoteA2aAgent of Google's ADK delegates: URL BINDING RECEIVER, of which URL is read.

Prints one JSON line for each operation. Runs in the environment of its framework.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncGenerator

import httpx
from a2a.client import ClientConfig, ClientFactory
from google.adk.agents import LlmAgent
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import AgentTool
from google.genai import types

from tests.foreign.tried import tried

APP, USER = "matrix", "somebody"


class Calling(BaseLlm):  # type: ignore[misc] # its environment has the types, ours does not
    """Hands its message to the remote agent, and says what that has answered."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            part = types.Part(text=last.function_response.response["result"])
        else:
            call = types.FunctionCall(name="remote", args={"request": last.text})
            part = types.Part(function_call=call)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def as_a_tool(url: str, text: str, *, streaming: bool) -> str:
    """What a model reads of the remote agent that is its tool."""
    async with httpx.AsyncClient(timeout=60) as http:
        factory = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming))
        card = f"{url}.well-known/agent-card.json"
        remote = RemoteA2aAgent(name="remote", agent_card=card, a2a_client_factory=factory)
        agent = LlmAgent(name="root", model=Calling(model="fake"), tools=[AgentTool(remote)])
        runner = InMemoryRunner(agent=agent, app_name=APP)
        session = await runner.session_service.create_session(app_name=APP, user_id=USER)
        message = types.Content(role="user", parts=[types.Part(text=text)])
        events = runner.run_async(user_id=USER, session_id=session.id, new_message=message)
        *_, last = [event async for event in events]
        return "".join(part.text or "" for part in last.content.parts)


async def main(url: str) -> None:
    agent = RemoteA2aAgent(name="remote", agent_card=f"{url}.well-known/agent-card.json")
    runner = InMemoryRunner(agent=agent, app_name=APP)

    async def said(session_id: str, text: str) -> str:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        texts = []
        async for event in runner.run_async(
            user_id=USER, session_id=session_id, new_message=message
        ):
            if event.error_message:
                raise RuntimeError(event.error_message)
            parts = event.content.parts if event.content else []
            texts += [part.text for part in parts if part.text]
            # A question comes as the call of a function, with the question as its argument.
            calls = [part.function_call for part in parts if part.function_call]
            texts += [str(value) for call in calls for value in call.args.values()]
        return "".join(texts)

    async def stream() -> str:
        session = await runner.session_service.create_session(app_name=APP, user_id=USER)
        return await said(session.id, "go")

    async def ask() -> str:
        session = await runner.session_service.create_session(app_name=APP, user_id=USER)
        asked.append(session.id)
        return await said(session.id, "ask")

    asked: list[str] = []
    await tried("as a tool", lambda: as_a_tool(url, "go", streaming=False))
    await tried("as a tool, streamed", lambda: as_a_tool(url, "go", streaming=True))
    await tried("last message", lambda: as_a_tool(url, "tell", streaming=False))
    await tried("stream", stream)
    await tried("question", ask)
    await tried("answer", lambda: said(asked[0], "go"))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1]))
