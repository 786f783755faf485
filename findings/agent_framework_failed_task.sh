#!/usr/bin/env bash
# agent-framework-a2a 1.0.0b261022 with a2a-sdk 1.3.0, seen on 2026-11-29.
# A remote task fails without an artifact; its status says why, and its history has the caller's message. One expects
# run() to raise, or to return what the agent said.
# Seen: run() raises nothing and returns the caller's own text as the response.
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
ASKED = {"messageId": "asked", "role": "ROLE_USER", "parts": [{"text": "Read the file."}]}
SAID = {"messageId": "said", "role": "ROLE_AGENT", "parts": [{"text": "There is no such file."}]}
STATUS = {"state": "TASK_STATE_FAILED", "message": SAID}
TASK = {"id": "task", "contextId": "context", "status": STATUS, "history": [ASKED]}


def agent(request):
    call = json.loads(request.content)["id"]
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": call, "result": {"task": TASK}})


async def main():
    async with httpx.AsyncClient(transport=httpx.MockTransport(agent)) as http:
        response = await A2AAgent(agent_card=ParseDict(CARD, AgentCard()), http_client=http).run("Read the file.")
    print(response.text)


asyncio.run(main())
PROGRAM
) || { cat "$folder/log" >&2; echo "agent-framework-a2a's agent runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
Read the file.
SEEN
)
[ "$seen" = "$expected" ] || { echo "agent-framework-a2a treats a failed task otherwise than it did. It says now: $seen" >&2; exit 1; }
