#!/usr/bin/env bash
# google-adk 2.13.0 with a2a-sdk 1.3.0, seen on 2026-11-29.
# A model calls a remote agent as its tool, by AgentTool and RemoteA2aAgent. The remote agent streams one artifact in
# three chunks, each appended to the one before. One expects the tool's result to be the artifact.
# Seen: the result is the last chunk alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'google-adk[a2a]==2.13.0' 'google-genai==2.34.0' 'a2a-sdk==1.3.0' 'protobuf==7.36.2' 'httpx==0.28.1'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import json

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.types import AgentCard
from google.adk.agents import LlmAgent
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai.types import Content, FunctionCall, Part
from google.protobuf.json_format import ParseDict

CARD = {
    "name": "remote",
    "description": "Tells a story.",
    "capabilities": {"streaming": True},
    "supportedInterfaces": [
        {"url": "http://agent.invalid", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
}
IDS = {"taskId": "task", "contextId": "context"}


def chunk(text, append, last):
    artifact = {"artifactId": "story", "parts": [{"text": text}]}
    return {"artifactUpdate": {**IDS, "artifact": artifact, "append": append, "lastChunk": last}}


EVENTS = [
    {"task": {"id": "task", "contextId": "context", "status": {"state": "TASK_STATE_WORKING"}}},
    chunk("Once upon a time", False, False),
    chunk(" there was", True, False),
    chunk(" an end.", True, True),
    {"statusUpdate": {**IDS, "status": {"state": "TASK_STATE_COMPLETED"}}},
]


def remote(request):
    call = json.loads(request.content)["id"]
    results = [json.dumps({"jsonrpc": "2.0", "id": call, "result": each}) for each in EVENTS]
    lines = "".join(f"data: {each}\n\n" for each in results)
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=lines)


class Model(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        (part,) = llm_request.contents[-1].parts
        if part.function_response:
            print(part.function_response.response)
            said = Part(text="done")
        else:
            said = Part(function_call=FunctionCall(name="remote", args={"request": "a story"}))
        yield LlmResponse(content=Content(role="model", parts=[said]))


async def main():
    async with httpx.AsyncClient(transport=httpx.MockTransport(remote)) as http:
        factory = ClientFactory(ClientConfig(httpx_client=http))
        card = ParseDict(CARD, AgentCard())
        agent = RemoteA2aAgent(name="remote", agent_card=card, a2a_client_factory=factory)
        caller = LlmAgent(name="caller", model=Model(model="model"), tools=[AgentTool(agent)])
        runner = InMemoryRunner(agent=caller, app_name="app")
        session = await runner.session_service.create_session(app_name="app", user_id="user")
        hello = Content(role="user", parts=[Part(text="hello")])
        async for _ in runner.run_async(user_id="user", session_id=session.id, new_message=hello):
            pass


asyncio.run(main())
PROGRAM
) || { cat "$folder/log" >&2; echo "google-adk's tool runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
{'result': ' an end.'}
SEEN
)
[ "$seen" = "$expected" ] || { echo "google-adk gives the chunks of an artifact to a model otherwise than it did. It says now: $seen" >&2; exit 1; }
