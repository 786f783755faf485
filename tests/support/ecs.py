"""The ECS agent and the API of ECS, played by a server on 127.0.0.1 for one worker."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Json = dict[str, Any]

CLUSTER = "arn:aws:ecs:eu-central-1:123456789012:cluster/workers"
SERVICE = "worker"
TASK = "arn:aws:ecs:eu-central-1:123456789012:task/workers/5"
EARLIER = TASK[:-1] + "3"
OTHERS = [TASK[:-1] + "7", TASK[:-1] + "9"]
NEWEST = "ecs-svc/2"


def described(*, running: int | None = None, desired: int = 1) -> Json:
    """A service as DescribeServices has it; all workers of its newest deployment run, or some."""
    newest = {"id": NEWEST, "status": "PRIMARY", "runningCount": running or desired}
    return {
        "desiredCount": desired,
        "deployments": [newest, {"id": "ecs-svc/1", "status": "ACTIVE"}],
    }


def granted(seconds: float, *, now_ms: int | None = None) -> Json:
    """The ECS agent's answer to a worker that is protected for `seconds` from now on."""
    now = datetime.fromtimestamp((now_ms or time.time() * 1000) / 1000, UTC)
    ends = (now + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    return {"protection": {"ProtectionEnabled": True, "ExpirationDate": ends, "TaskArn": TASK}}


ENDED: Json = {"protection": {"ProtectionEnabled": False, "ExpirationDate": None, "TaskArn": TASK}}


def refused(reason: str) -> Json:
    """The ECS agent's answer when ECS refuses."""
    return {"failure": {"Arn": TASK, "Detail": None, "Reason": reason}}


class Ecs:
    """Records what is asked. `answer` is what comes instead of a protection.

    Attributes:
        asked: whether to be protected, and what `noted` was when the answer was given.
        tasks: those of the newest deployment, each on a page of its own.
    """

    def __init__(self, *, noted: Callable[[], object], answer: Json | None = None) -> None:
        self.asked: list[tuple[bool, object]] = []
        self.tasks = [TASK]
        self.is_protected = False
        self._answer = answer
        self._noted = noted
        ecs = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                said = json.loads(self._body())
                self._send(ecs._protect(is_on=said["ProtectionEnabled"]))

            def do_GET(self) -> None:
                self._send({"Cluster": CLUSTER, "TaskARN": TASK, "ServiceName": SERVICE})

            def do_POST(self) -> None:
                asked, action = json.loads(self._body()), self.headers["X-Amz-Target"]
                assert asked.pop("cluster") == CLUSTER
                if action.endswith(".DescribeServices"):
                    assert asked == {"services": [SERVICE]}
                    self._send({"services": [described()]})
                else:
                    assert action.endswith(".ListTasks")
                    page = int(asked.pop("nextToken", 0))
                    assert asked == {"startedBy": NEWEST}
                    more = {"nextToken": str(page + 1)} if page + 1 < len(ecs.tasks) else {}
                    self._send({"taskArns": ecs.tasks[page : page + 1], **more})

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers["Content-Length"]))

            def _send(self, answer: Json) -> None:
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def environment(self) -> dict[str, str]:
        """What ECS sets in a container, and what leads the client of ECS here."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {
            "ECS_AGENT_URI": f"{url}/api",
            "ECS_CONTAINER_METADATA_URI_V4": f"{url}/v4",
            "AWS_ENDPOINT_URL_ECS": url,
        }

    def _protect(self, *, is_on: bool) -> Json:
        if not self.asked:
            time.sleep(0.3)  # a worker that does not wait for the answer has begun its turn by then
        self.asked.append((is_on, self._noted()))
        if is_on and self._answer is not None:
            return self._answer
        self.is_protected = is_on
        return granted(10) if is_on else ENDED

    def scale_in(self, pid: int) -> bool:
        """End a worker as scale-in and deployments do: return False for one that is protected."""
        if not self.is_protected:
            os.kill(pid, signal.SIGTERM)
        return not self.is_protected

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
