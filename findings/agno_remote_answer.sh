#!/usr/bin/env bash
# agno 3.1.10 with a2a-sdk 0.3.26, seen on 2026-11-29.
# A remote agent of A2A 0.3 answers in an artifact of a completed task; its stream has the task, two chunks of that
# artifact and a final status. One expects a RemoteAgent of protocol "a2a" to give the text, in both ways.
# Seen: arun() returns an empty content, since it reads the history alone. With stream=True the first event, a submitted
# task, ends the run: no text is given.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'agno[a2a]==3.1.10' 'a2a-sdk==0.3.26' 'fastapi==0.165.0' 'httpx==0.28.1'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from agno.agent import RemoteAgent

NAMES = {"taskId": "task", "contextId": "context"}


def artifact(*texts):
    return {"artifactId": "answer", "parts": [{"kind": "text", "text": text} for text in texts]}


def task(state, **more):
    return {"kind": "task", "id": "task", "contextId": "context", "status": {"state": state}, **more}


def chunk(text):
    return {"kind": "artifact-update", **NAMES, "append": True, "artifact": artifact(text)}


ENDED = {"kind": "status-update", **NAMES, "status": {"state": "completed"}, "final": True}
STREAM = [task("submitted"), chunk("Hel"), chunk("lo"), ENDED]


class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        streams = asked["method"] == "message/stream"
        results = STREAM if streams else [task("completed", artifacts=[artifact("Hello")])]
        answers = [json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": each}) for each in results]
        body = "".join(f"data: {each}\n\n" for each in answers) if streams else answers[0]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


async def main(url):
    agent = RemoteAgent(url, agent_id="remote", protocol="a2a", a2a_protocol="json-rpc")
    print("arun:", repr((await agent.arun("Hello?")).content))
    events = [event async for event in agent.arun("Hello?", stream=True)]
    print("stream:", [(event.event, event.content) for event in events if hasattr(event, "content")])


server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
Thread(target=server.serve_forever, daemon=True).start()
asyncio.run(main(f"http://127.0.0.1:{server.server_port}/"))
PROGRAM
) || { cat "$folder/log" >&2; echo "agno's remote agent runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
arun: ''
stream: [('RunCompleted', '')]
SEEN
)
[ "$seen" = "$expected" ] || { echo "agno reads a remote answer otherwise than it did. It says now: $seen" >&2; exit 1; }
