#!/usr/bin/env bash
# strands-agents 1.62.0 with mcp 2.1.1, seen on 2026-11-30.
# A tool of an MCP server answers with a link to a file (resource_link, since MCP 2025-06-18), or with a short recording. One
# expects the agent's model to be told of it, or the call to fail.
# Seen: the model gets a result with the status "success" and no content at all. A text beside the link arrives alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'strands-agents==1.62.0' 'mcp==2.1.1'
cat >"$folder/server.py" <<'SERVER'
import json
import sys

RESULTS = {
    "link": {"content": [{"type": "resource_link", "uri": "https://a.invalid/r.pdf", "name": "r.pdf"}]},
    "recording": {"content": [{"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}]},
    "link_and_text": {
        "content": [
            {"type": "text", "text": "The report:"},
            {"type": "resource_link", "uri": "https://a.invalid/r.pdf", "name": "r.pdf"},
        ]
    },
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
import os
import sys

from mcp import StdioServerParameters, stdio_client
from strands.tools.mcp import MCPClient

server = StdioServerParameters(command=sys.executable, args=[os.environ["SERVER"]])
with MCPClient(lambda: stdio_client(server)) as client:
    for name in ("link", "recording", "link_and_text"):
        result = client.call_tool_sync(tool_use_id="1", name=name, arguments={})
        print(f"{name}: {result['status']} {result['content']}")
PROGRAM
) || { cat "$folder/log" >&2; echo "Strands, or the MCP SDK, runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
link: success []
recording: success []
link_and_text: success [{'text': 'The report:'}]
SEEN
)
[ "$seen" = "$expected" ] || { echo "Strands gives a link of an MCP tool to a model otherwise than it did. It says now: $seen" >&2; exit 1; }
