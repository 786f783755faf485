#!/usr/bin/env bash
# a2a-sdk 1.3.0 with protobuf 7.36.2, seen on 2026-11-29.
# The SDK's server refuses an HTTP+JSON request that lacks a required field. The first detail of its answer has the type
# google.rpc.ErrorInfo, whose "metadata" maps text to text: one expects protobuf to read it as that type.
# Seen: "metadata" holds a list of objects, and protobuf's JSON parser refuses the detail.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'a2a-sdk[http-server]==1.3.0' 'protobuf==7.36.2' 'googleapis-common-protos==1.76.0' 'httpx==0.28.1' 'starlette==1.10.0'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import json

import httpx
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCard
from google.protobuf.json_format import ParseDict, ParseError
from google.rpc.error_details_pb2 import ErrorInfo
from starlette.applications import Starlette


class Idle(AgentExecutor):
    async def execute(self, context, event_queue): ...

    async def cancel(self, context, event_queue): ...


async def main():
    handler = DefaultRequestHandler(Idle(), InMemoryTaskStore(), AgentCard(name="agent"))
    app = httpx.ASGITransport(Starlette(routes=create_rest_routes(handler)))
    async with httpx.AsyncClient(transport=app, base_url="http://agent.invalid") as client:
        message = {"messageId": "without-parts", "role": "ROLE_USER"}
        headers = {"A2A-Version": "1.0"}
        answer = await client.post("/message:send", json={"message": message}, headers=headers)
    info = answer.json()["error"]["details"][0]
    print(info.pop("@type"), json.dumps(info["metadata"]))
    try:
        ParseDict(info, ErrorInfo())
    except ParseError:
        print("refused")


asyncio.run(main())
PROGRAM
) || { cat "$folder/log" >&2; echo "a2a-sdk's server runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
type.googleapis.com/google.rpc.ErrorInfo {"errors": [{"field": "message.parts", "message": "Field must contain at least one element."}]}
refused
SEEN
)
[ "$seen" = "$expected" ] || { echo "a2a-sdk describes an error otherwise than it did. It says now: $seen" >&2; exit 1; }
