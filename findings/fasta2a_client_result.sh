#!/usr/bin/env bash
# fasta2a 2.1.1 with a2a-sdk 1.3.0, seen on 2026-11-30.
# The client of fasta2a sends "message/send", the method's name in A2A 0.3. The official server, which answers 0.3 too,
# completes the task and returns it. One expects the client to return the task, or to raise an error.
# Seen: the client reads results in the form of 1.0, where the task is a member "task". It drops what it does not know: the
# result is an empty dictionary, and so is each event of a stream. Nothing is raised.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'fasta2a==2.1.1' 'a2a-sdk[http-server]==1.3.0' 'protobuf==7.36.2' 'httpx==0.28.1' 'starlette==1.10.0'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import json

import httpx
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCard, Part
from fasta2a.client import A2AClient
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette

URL = "http://agent.invalid"
CARD = {
    "name": "remote",
    "description": "Says hello.",
    "version": "1",
    "capabilities": {"streaming": True},
    "supportedInterfaces": [
        {"url": URL, "protocolBinding": "JSONRPC", "protocolVersion": version}
        for version in ("1.0", "0.3")
    ],
}


class Hello(AgentExecutor):
    async def execute(self, context, event_queue):
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.add_artifact([Part(text="Hello")])
        await updater.complete()

    async def cancel(self, context, event_queue):
        raise NotImplementedError


def message(message_id):
    return {"role": "user", "message_id": message_id, "parts": [{"text": "go"}]}


async def main():
    card = ParseDict(CARD, AgentCard())
    handler = DefaultRequestHandler(
        agent_executor=Hello(), task_store=InMemoryTaskStore(), agent_card=card
    )
    app = Starlette(routes=create_jsonrpc_routes(handler, rpc_url="/", enable_v0_3_compat=True))
    bodies = []

    async def keep(response):
        await response.aread()
        bodies.append(response.text)

    transport, hooks = httpx.ASGITransport(app), {"response": [keep]}
    async with httpx.AsyncClient(transport=transport, event_hooks=hooks) as http:
        client = A2AClient(URL, http)
        answer = await client.send_message(message("1"))
        task = json.loads(bodies[0])["result"]
        print("sent by the server:", task["status"]["state"], task["artifacts"][0]["parts"])
        print("read by the client:", answer["result"])
        print("in a stream:", [event["result"] async for event in client.stream_message(message("2"))])


asyncio.run(main())
PROGRAM
) || { cat "$folder/log" >&2; echo "fasta2a's client, or the SDK's server, runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
sent by the server: completed [{'kind': 'text', 'text': 'Hello'}]
read by the client: {}
in a stream: [{}, {}, {}]
SEEN
)
[ "$seen" = "$expected" ] || { echo "fasta2a reads an answer of A2A 0.3 otherwise than it did. It says now: $seen" >&2; exit 1; }
