"""What a model of tRPC-Agent reads of a remote agent that is its tool."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from trpc_agent_sdk.agents import LlmAgent
from trpc_agent_sdk.models import LLMModel, LlmRequest, LlmResponse
from trpc_agent_sdk.runners import Runner
from trpc_agent_sdk.server.a2a_v1 import TrpcRemoteA2aAgent
from trpc_agent_sdk.sessions import InMemorySessionService
from trpc_agent_sdk.tools import AgentTool
from trpc_agent_sdk.types import Content, FunctionCall, Part

APP, USER = "matrix", "somebody"


class Calling(LLMModel):  # type: ignore[misc] # its environment has the types, ours does not
    """Hands its message to the remote agent, and says what that has answered."""

    @classmethod
    def supported_models(cls) -> list[str]:
        return ["calling"]

    async def _generate_async_impl(
        self,
        request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - tRPC-Agent's
        ctx: object = None,
    ) -> AsyncGenerator[LlmResponse, None]:
        last = request.contents[-1].parts[-1]
        call = FunctionCall(id="1", name="remote", args={"request": last.text})
        part = Part(function_call=call)
        if last.function_response:
            answer = last.function_response.response
            part = Part(text=str(answer.get("result", answer)))
        yield LlmResponse(content=Content(role="model", parts=[part]))


async def as_a_tool(url: str, text: str) -> str:
    remote = TrpcRemoteA2aAgent(name="remote", description="Answers.", agent_base_url=url)
    if not await remote.initialize():
        raise ConnectionError(url)
    caller = LlmAgent(name="caller", model=Calling(model_name="calling"), tools=[AgentTool(remote)])
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name=APP, user_id=USER)
    runner = Runner(app_name=APP, agent=caller, session_service=sessions)
    message = Content(role="user", parts=[Part(text=text)])
    events = runner.run_async(user_id=USER, session_id=session.id, new_message=message)
    *_, last = [event async for event in events]
    return str(last.get_text())
