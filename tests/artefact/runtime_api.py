"""Lambda's Runtime API for one execution environment, as far as a function sees it.

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
"""

import json
import secrets
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind

ANSWER_S: Final = 30.0
"""How long an invocation may take."""
END: Final = object()
_ROOT: Final = "/2018-06-01/runtime"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the runtime client told: `next` (it waits for an event), `response` or `error`."""

    kind: str
    content: Any = None


class RuntimeApi:
    """Hands out events and keeps the reports; `address` is what AWS_LAMBDA_RUNTIME_API holds.

    `END` among the events ends a request that waits for one.
    """

    def __init__(self, function: str) -> None:
        self._function = function
        self.events: Queue[Any] = Queue()
        self.reports: Queue[Report] = Queue()
        self.address = ""

    def next(self, _: Request) -> Response:
        """Wait for an event, in a thread."""
        self.reports.put(Report(kind="next"))
        if (event := self.events.get()) is END:
            return Response(status_code=500)
        root, parent = secrets.token_hex(12), secrets.token_hex(8)
        arn = f"arn:aws:lambda:us-east-1:123456789012:function:{self._function}"
        deadline_ms = int((time.time() + ANSWER_S) * 1000)
        headers = {
            "Lambda-Runtime-Aws-Request-Id": str(uuid.uuid4()),
            "Lambda-Runtime-Deadline-Ms": str(deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": arn,
            "Lambda-Runtime-Trace-Id": (
                f"Root=1-{int(time.time()):08x}-{root};Parent={parent};Sampled=1"
            ),
        }
        return JSONResponse(event, headers=headers)

    async def told(self, request: Request) -> Response:
        """Keep what an invocation, or the start, has come to."""
        body = json.loads(await request.body() or b"null")
        self.reports.put(Report(kind=request.url.path.rpartition("/")[2], content=body))
        return JSONResponse({"status": "OK"}, 202)


@contextmanager
def runtime_api(function: str) -> Iterator[RuntimeApi]:
    """A Runtime API on a free port, for the block."""
    api = RuntimeApi(function)
    told = ("invocation/{id}/response", "invocation/{id}/error", "init/error")
    routes = [Route(f"{_ROOT}/{path}", api.told, methods=["POST"]) for path in told]
    routes.append(Route(f"{_ROOT}/invocation/next", api.next))
    with HttpServer(Starlette(routes=routes), bind(0), lifespan=False) as server:
        api.address = urlsplit(server.url).netloc
        try:
            yield api
        finally:
            api.events.put(END)
