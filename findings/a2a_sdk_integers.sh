#!/usr/bin/env bash
# a2a-sdk 1.3.0 with protobuf 7.36.2, seen on 2026-11-29.
# An agent's caller sends {"count": 3} in a data part. One expects the client to send the integer as it was written:
# many readers of JSON tell 3 and 3.0 apart.
# Seen: the part is a protobuf Value, whose numbers are doubles, and the client sends 3.0 over both of its HTTP
# transports.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'a2a-sdk==1.3.0' 'protobuf==7.36.2' 'httpx==0.28.1'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import json

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.types import AgentCard, SendMessageRequest
from google.protobuf.json_format import ParseDict

PART = {"data": {"count": 3}}
ASKED = {"message": {"messageId": "asked", "role": "ROLE_USER", "parts": [PART]}}
SAID = {"message": {"messageId": "said", "role": "ROLE_AGENT", "parts": [{"text": "done"}]}}


def agent(request):
    body = json.loads(request.content)
    is_rpc = "jsonrpc" in body
    sent = body["params"] if is_rpc else body
    print(json.dumps(sent["message"]["parts"]))
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": body["id"], "result": SAID} if is_rpc else SAID)


async def send(binding):
    interface = {"url": "http://agent.invalid", "protocolBinding": binding, "protocolVersion": "1.0"}
    card = ParseDict({"name": "agent", "supportedInterfaces": [interface]}, AgentCard())
    async with httpx.AsyncClient(transport=httpx.MockTransport(agent)) as http:
        config = ClientConfig(streaming=False, httpx_client=http, supported_protocol_bindings=[binding])
        async for _ in ClientFactory(config).create(card).send_message(ParseDict(ASKED, SendMessageRequest())):
            pass


for binding in ("JSONRPC", "HTTP+JSON"):
    asyncio.run(send(binding))
PROGRAM
) || { cat "$folder/log" >&2; echo "a2a-sdk's client runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
[{"data": {"count": 3.0}}]
[{"data": {"count": 3.0}}]
SEEN
)
[ "$seen" = "$expected" ] || { echo "a2a-sdk sends an integer otherwise than it did. It says now: $seen" >&2; exit 1; }
