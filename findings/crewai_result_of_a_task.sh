#!/usr/bin/env bash
# crewai 1.15.30 with a2a-sdk 0.3.26, seen on 2026-11-29.
# A remote agent says "Looking it up.", makes an artifact, "Hello world", and completes with the message "Done." Results
# are artifacts, and messages are not to deliver them (A2A specification 1.0, 3.7, "Messages and Artifacts"). One expects
# the artifact as the result of the delegation, or at least the same result by a stream and by polling.
# Seen: by a stream, all three texts in their order. By polling, the last message and then the artifact.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check --no-compile 'crewai[a2a]==1.15.30' 'a2a-sdk==0.3.26' 'httpx==0.28.1' 'pydantic==2.12.5'
seen=$(HOME="$folder" "$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"
out, sys.stdout = sys.stdout, sys.stderr  # crewai draws what it does there

from crewai.a2a.updates import PollingConfig
from crewai.a2a.utils.delegation import aexecute_a2a_delegation

CARD = {
    "name": "remote",
    "description": "Greets.",
    "version": "1",
    "protocolVersion": "0.3.0",
    "capabilities": {"streaming": True},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [],
}


def text(text):
    return [{"kind": "text", "text": text}]


def status(state, said):
    message = {"kind": "message", "messageId": state, "role": "agent", "parts": text(said)}
    return {"state": state, "message": message}


IDS = {"taskId": "task", "contextId": "context"}
TASK = {"kind": "task", "id": "task", "contextId": "context"}
BEGUN = {**TASK, "status": {"state": "submitted"}}
WORKING, COMPLETED = status("working", "Looking it up."), status("completed", "Done.")
ARTIFACT = {"artifactId": "greeting", "parts": text("Hello world")}
ENDED = {**TASK, "status": COMPLETED, "history": [WORKING["message"]], "artifacts": [ARTIFACT]}
EVENTS = [
    BEGUN,
    {"kind": "status-update", **IDS, "status": WORKING, "final": False},
    {"kind": "artifact-update", **IDS, "artifact": ARTIFACT},
    {"kind": "status-update", **IDS, "status": COMPLETED, "final": True},
]
RESULTS = {"message/stream": EVENTS, "message/send": [BEGUN], "tasks/get": [ENDED]}


class Remote(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("application/json", json.dumps({**CARD, "url": url}))

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results = RESULTS[call["method"]]
        answers = [json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": each}) for each in results]
        if call["method"] == "message/stream":
            self.answer("text/event-stream", "".join(f"data: {each}\n\n" for each in answers))
        else:
            self.answer("application/json", answers[0])

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body.encode())


def delegated(**more):
    card = f"{url}.well-known/agent-card.json"
    return asyncio.run(aexecute_a2a_delegation(card, None, 30, "Greet the world.", **more))["result"]


server = ThreadingHTTPServer(("127.0.0.1", 0), Remote)
url = f"http://127.0.0.1:{server.server_port}/"
threading.Thread(target=server.serve_forever, daemon=True).start()
print("by a stream:", delegated(), file=out)
print("by polling:", delegated(updates=PollingConfig(interval=0.1)), file=out)
PROGRAM
) || { cat "$folder/log" >&2; echo "crewai's delegation runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
by a stream: Looking it up. Hello world Done.
by polling: Done. Hello world
SEEN
)
[ "$seen" = "$expected" ] || { echo "crewai makes the result of a task otherwise than it did. It says now: $seen" >&2; exit 1; }
