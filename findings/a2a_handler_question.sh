#!/usr/bin/env bash
# a2a-handler 0.4.0 with a2a-sdk 1.3.0, seen on 2026-11-29.
# A task waits for its client, and the message of its status asks "Which city?". One expects `handler message send` to
# print the question.
# Seen: it prints the state and the ids, with exit code 0. The question is on neither stdout nor stderr.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'a2a-handler==0.4.0' 'a2a-sdk==1.3.0' 'protobuf==7.36.2' 'httpx==0.28.1'
seen=$(HOME=$folder XDG_CONFIG_HOME=$folder NO_COLOR=1 "$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

SAID = {"messageId": "said", "role": "ROLE_AGENT", "parts": [{"text": "Which city?"}]}
STATUS = {"state": "TASK_STATE_INPUT_REQUIRED", "message": SAID}


class Agent(BaseHTTPRequestHandler):
    def do_GET(self):
        url = f"http://127.0.0.1:{self.server.server_port}/"
        interface = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        self.answer({"name": "agent", "capabilities": {}, "supportedInterfaces": [interface]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        task = {"id": "task", "contextId": "context", "status": STATUS}
        self.answer({"jsonrpc": "2.0", "id": asked["id"], "result": {"task": task}})

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"
handler = Path(sys.executable).with_name("handler")
command = [handler, "message", "send", "--url", url, "--text", "Book a hotel."]
done = subprocess.run(command, capture_output=True, text=True, check=False)
print(done.stdout.strip())
print("on stderr:", done.stderr.strip() or "nothing")
print("exit code:", done.returncode)
PROGRAM
) || { cat "$folder/log" >&2; echo "a2a-handler runs no longer as it did." >&2; exit 1; }
expected=$(cat <<'SEEN'
State: input_required
Context ID: context
Task ID: task
on stderr: nothing
exit code: 0
SEEN
)
[ "$seen" = "$expected" ] || { echo "a2a-handler shows a question otherwise than it did. It says now: $seen" >&2; exit 1; }
