"""A server of another framework, as it is, for agents that call it.

`python tests/foreign/called.py SERVER NOTES`, in the environment of the server. Prints its URL, and
appends a line to the file NOTES for each message that its agent works on. Its model is a fake.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn

Note = Callable[[str], None]


def google_adk(port: int, note: Note) -> Any:
    """Return the application that the ADK makes of an agent."""
    from google.adk.a2a.utils.agent_to_a2a import to_a2a  # noqa: PLC0415 - of its environment
    from google.adk.agents import LlmAgent  # noqa: PLC0415
    from google.adk.models import BaseLlm, LlmRequest, LlmResponse  # noqa: PLC0415
    from google.genai import types  # noqa: PLC0415

    class Fake(BaseLlm):  # type: ignore[misc] # its environment has the types, ours does not
        async def generate_content_async(
            self,
            llm_request: LlmRequest,
            stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
        ) -> AsyncGenerator[LlmResponse, None]:
            text = llm_request.contents[-1].parts[-1].text
            note(text)
            part = types.Part(text=f"did {text}")
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    return to_a2a(LlmAgent(name="clerk", model=Fake(model="fake")), host="127.0.0.1", port=port)


def strands(port: int, note: Note) -> Any:
    """Return the application of Strands' own server."""
    from strands import Agent  # noqa: PLC0415 - of its environment
    from strands.models import Model  # noqa: PLC0415
    from strands.multiagent.a2a import A2AServer  # noqa: PLC0415

    class Fake(Model):  # type: ignore[misc] # its environment has the types, ours does not
        def update_config(self, **model_config: Any) -> None: ...

        def get_config(self) -> Any:
            return {}

        def structured_output(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
            text = messages[-1]["content"][-1]["text"]
            note(text)
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": f"did {text}"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    def clerk(_: str) -> Agent:
        return Agent(model=Fake(), name="clerk", description="A clerk.", callback_handler=None)

    return A2AServer(agent_factory=clerk, port=port).to_starlette_app()


def a2akit(_: int, note: Note) -> Any:
    """Return the application of a2akit's server, with all that it keeps in its process."""
    from a2akit import A2AServer, AgentCardConfig, TaskContext, Worker  # noqa: PLC0415 - as above

    class Clerk(Worker):  # type: ignore[misc] # as above
        async def handle(self, ctx: TaskContext) -> None:
            note(ctx.user_text)
            await ctx.complete(f"did {ctx.user_text}")

    card = AgentCardConfig(name="clerk", description="A clerk.")
    return A2AServer(worker=Clerk(), agent_card=card, enable_telemetry=False).as_fastapi_app()


SERVERS = {"google_adk": google_adk, "strands_client": strands, "a2akit": a2akit}


def main(name: str, notes: str) -> None:
    """Serve until a signal."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]

    def note(text: str) -> None:
        with Path(notes).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    app = SERVERS[name](port, note)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
    print(f"http://127.0.0.1:{port}", flush=True)  # noqa: T201 - for the test
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
