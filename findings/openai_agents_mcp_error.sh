#!/usr/bin/env bash
# openai-agents 0.24.0 with mcp 2.3.0, seen on 2026-11-30.
# A tool of an MCP server fails: its result has isError, by which a model is to see that the call failed. The SDK tells its
# model of a failed function by "An error occurred while running the tool". One expects as much for a tool of MCP.
# Seen: the model reads the result as if the call had succeeded, and of an error without content "[]".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'openai-agents==0.24.0' 'openai==3.54.0' 'mcp==2.3.0' 'httpx2==2.16.2'
cat >"$folder/server.py" <<'SERVER'
import json
import sys

RESULTS = {
    "failed": {"isError": True, "content": [{"type": "text", "text": "sold out"}]},
    "failed_silently": {"isError": True, "content": []},
    "succeeded": {"content": [{"type": "text", "text": "sold out"}]},
}

for line in sys.stdin:
    request = json.loads(line)
    method, params = request["method"], request.get("params", {})
    if "id" not in request:
        continue
    answer = {"error": {"code": -32601, "message": "Method not found"}}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        answer = {"result": {**result, "serverInfo": {"name": "tools", "version": "1"}}}
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in RESULTS]
        answer = {"result": {"tools": tools}}
    if method == "tools/call":
        answer = {"result": RESULTS[params["name"]]}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
SERVER
seen=$(SERVER="$folder/server.py" "$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import os
import sys

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from agents.mcp import MCPServerStdio
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from openai.types.responses import ResponseOutputText


@function_tool
def own() -> str:
    raise ValueError("sold out")


class Calling(Model):
    """Calls each tool, and then ends."""

    async def get_response(self, system_instructions, input, *args, **kwargs):
        outputs = [each for each in input if each.get("type") == "function_call_output"]
        for each in outputs:
            print(f"{each['call_id']}: {each['output']}")
        if outputs:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            said = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
            output = [ResponseOutputMessage(**said, content=[text])]
        else:
            output = [
                ResponseFunctionToolCall(type="function_call", call_id=name, name=name, arguments="{}")
                for name in ("own", "failed", "failed_silently", "succeeded")
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def main():
    server = {"command": sys.executable, "args": [os.environ["SERVER"]]}
    async with MCPServerStdio(params=server, client_session_timeout_seconds=120) as mcp:
        agent = Agent(name="agent", model=Calling(), tools=[own], mcp_servers=[mcp])
        await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))


asyncio.run(main())
PROGRAM
) || { cat "$folder/log" >&2; echo "The OpenAI Agents SDK, or the MCP SDK, runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
own: An error occurred while running the tool. Please try again.
failed: [{'type': 'input_text', 'text': 'sold out'}]
failed_silently: []
succeeded: [{'type': 'input_text', 'text': 'sold out'}]
SEEN
)
[ "$seen" = "$expected" ] || { echo "The OpenAI Agents SDK gives the error of an MCP tool to a model otherwise than it did. It says now: $seen" >&2; exit 1; }
