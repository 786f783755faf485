#!/usr/bin/env bash
# mcp 2.3.0, seen on 2026-11-30.
# A tool takes a text, or none: "text: str | None". Its schema says string or null. A model may send any text, one that
# looks like JSON too, and one expects the function to get what was sent, as it does where the parameter is a plain str.
# Seen: the server reads the text as JSON first. "null" reaches the function as None, and a text that is a list or an object
# is refused as no string. Numbers and "true" stay texts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'mcp==2.3.0'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio

from mcp.client.client import Client
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")


@server.tool()
def plain(text: str) -> str:
    return repr(text)


@server.tool()
def optional(text: str | None = None) -> str:
    return repr(text)


async def main():
    async with Client(server) as client:
        for text in ("null", '["a"]', '{"a": 1}', "5", "true"):
            for name in ("plain", "optional"):
                result = await client.call_tool(name, {"text": text})
                said = "refused" if result.is_error else result.content[0].text
                print(f"{name}, {text}: {said}")


asyncio.run(main())
PROGRAM
) || { cat "$folder/log" >&2; echo "The MCP SDK's server runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
plain, null: 'null'
optional, null: None
plain, ["a"]: '["a"]'
optional, ["a"]: refused
plain, {"a": 1}: '{"a": 1}'
optional, {"a": 1}: refused
plain, 5: '5'
optional, 5: '5'
plain, true: 'true'
optional, true: 'true'
SEEN
)
[ "$seen" = "$expected" ] || { echo "The MCP SDK's server reads optional texts otherwise than it did. It says now: $seen" >&2; exit 1; }
