#!/usr/bin/env bash
# awslabs-mcp-lambda-handler 0.1.15, seen on 2026-11-30.
# A tool for Lambda is a function with one parameter that a caller has to give, and others with defaults. One expects the
# tool's schema to require the one alone, and a Literal to be an enumeration.
# Seen: all parameters are required, so a model is made to invent what the author has settled. The Literal is any text. A
# call with the one parameter works.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'awslabs-mcp-lambda-handler==0.1.15'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import json
from typing import Literal

from awslabs.mcp_lambda_handler import MCPLambdaHandler

server = MCPLambdaHandler(name="hotel", version="1")


@server.tool()
def book(city: str, nights: int = 2, board: Literal["none", "breakfast"] = "none") -> str:
    """Books a hotel."""
    return f"{city}, {nights} nights, {board}"


def asked(method, **params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    event = {
        "httpMethod": "POST",
        "headers": {"content-type": "application/json"},
        "body": json.dumps(body),
    }
    return json.loads(server.handle_request(event, None)["body"])["result"]


(tool,) = asked("tools/list")["tools"]
print("required:", tool["inputSchema"]["required"])
print("board:", tool["inputSchema"]["properties"]["board"])
print("called:", asked("tools/call", name="book", arguments={"city": "Rome"})["content"][0]["text"])
PROGRAM
) || { cat "$folder/log" >&2; echo "The MCP handler for Lambda runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
required: ['city', 'nights', 'board']
board: {'type': 'string'}
called: Rome, 2 nights, none
SEEN
)
[ "$seen" = "$expected" ] || { echo "The MCP handler for Lambda describes a tool's parameters otherwise than it did. It says now: $seen" >&2; exit 1; }
