#!/usr/bin/env bash
# agent-framework-a2a 1.0.0b261022 with a2a-sdk 1.3.0, seen on 2026-11-29.
# A remote task stops until its caller has authenticated: TASK_STATE_AUTH_REQUIRED, a pause as TASK_STATE_INPUT_REQUIRED
# is. One expects run() to return what the agent asks for in both.
# Seen: for AUTH_REQUIRED it returns no message, no request to the user and no token to go on with, and raises nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'agent-framework-a2a==1.0.0b261022' 'agent-framework-core==1.23.0' 'a2a-sdk==1.3.0' 'protobuf==7.36.2' 'httpx==0.28.1'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import json

import httpx
from a2a.types import AgentCard
from agent_framework_a2a import A2AAgent
from google.protobuf.json_format import ParseDict

CARD = {
    "name": "agent",
    "supportedInterfaces": [
        {"url": "http://agent.invalid", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
}


def paused(state):
    def agent(request):
        asked = {"messageId": "asked", "role": "ROLE_AGENT", "parts": [{"text": "Please sign in."}]}
        task = {"id": "task", "contextId": "context", "status": {"state": state, "message": asked}}
        call = json.loads(request.content)["id"]
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": call, "result": {"task": task}})

    return agent


async def run(state):
    async with httpx.AsyncClient(transport=httpx.MockTransport(paused(state))) as http:
        response = await A2AAgent(agent_card=ParseDict(CARD, AgentCard()), http_client=http).run("hello")
    print(state, [message.text for message in response.messages], len(response.user_input_requests))
    assert response.continuation_token is None


asyncio.run(run("TASK_STATE_INPUT_REQUIRED"))
asyncio.run(run("TASK_STATE_AUTH_REQUIRED"))
PROGRAM
) || { cat "$folder/log" >&2; echo "agent-framework-a2a's agent runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
TASK_STATE_INPUT_REQUIRED ['Please sign in.'] 1
TASK_STATE_AUTH_REQUIRED [] 0
SEEN
)
[ "$seen" = "$expected" ] || { echo "agent-framework-a2a treats a pause otherwise than it did. It says now: $seen" >&2; exit 1; }
