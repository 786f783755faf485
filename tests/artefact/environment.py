"""One execution environment of a built function: its process, laid out as Lambda lays it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.artefact.build import Artefact

START_S = 60.0
ANSWER_S = 30.0
"""How long an invocation may take."""
END = object()
_ROOT = "/2018-06-01/runtime"
"""https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html"""
PYTHON = [sys.executable, "-S"]
"""Without the packages of this environment."""


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
        trace = f"Root=1-{int(time.time()):08x}-{root};Parent={parent};Sampled=1"
        deadline_ms = int((time.time() + ANSWER_S) * 1000)
        headers = {
            "Lambda-Runtime-Aws-Request-Id": str(uuid.uuid4()),
            "Lambda-Runtime-Deadline-Ms": str(deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": arn,
            "Lambda-Runtime-Trace-Id": trace,
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


class HandlerError(Exception):
    """The handler raised; `sentence` is the error that Lambda shows, `kind` its class."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__(report)
        self.kind = str(report["errorType"])
        self.sentence = str(report["errorMessage"])


class StartError(HandlerError):
    """The function did not start."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """A built function: where it lies, what it is called with, and its environment variables."""

    name: str
    artefact: Artefact
    folder: Path
    handler: str
    variables: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """All variables of its process, none of ours but the search path for programs.

        Lambda's order on the import path: the function, the layers, the runtime's own packages.
        Nothing is written beside them: their file systems are read-only.
        """
        layers = [str(self.artefact.layer), str(self.artefact.runtime)]
        return {
            "PATH": os.environ["PATH"],
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(self.folder), *layers]),
            "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_FUNCTION_NAME": self.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_FORMAT": "JSON",
            "AWS_LAMBDA_LOG_GROUP_NAME": "logs",
            "AWS_LAMBDA_LOG_STREAM_NAME": "stream",
            "LAMBDA_RUNTIME_DIR": str(self.artefact.runtime),
            "LAMBDA_TASK_ROOT": str(self.folder),
            "_HANDLER": self.handler,
            **self.variables,
        }

    @contextmanager
    def started(self, output: Path, **variables: str) -> Iterator[Environment]:
        """A cold start, through AWS's own runtime client; `variables` replace the function's."""
        with runtime_api(self.name) as api, output.open("wb") as file:
            started_at = time.monotonic()
            process = subprocess.Popen(
                [*PYTHON, "-m", "awslambdaric", self.handler],
                cwd=self.folder,
                env={**self.environment(), **variables, "AWS_LAMBDA_RUNTIME_API": api.address},
                stdout=file,
                stderr=file,
            )
            environment = Environment(self.name, api, process, output)
            try:
                report = environment.next_report(START_S)
                environment.start_s = time.monotonic() - started_at
                if report.kind != "next":
                    raise StartError(report.content)
                yield environment
            finally:
                process.kill()
                process.wait()


class Environment:
    """A started function; `start_s` is how long that took, the process included."""

    def __init__(
        self, name: str, api: RuntimeApi, process: subprocess.Popen[bytes], output: Path
    ) -> None:
        self.name = name
        self._api = api
        self._process = process
        self._output = output
        self.start_s = 0.0

    def invoke(self, event: Any) -> Any:
        """What the handler returns for an event."""
        self._api.events.put(event)
        report = self.next_report(ANSWER_S)
        if report.kind == "error":
            raise HandlerError(report.content)
        assert report.kind == "response", report
        ready = self.next_report(ANSWER_S)
        assert ready.kind == "next", ready
        return report.content

    def next_report(self, within_s: float) -> Report:
        """The next thing that the process says to the service."""
        deadline = time.monotonic() + within_s
        while True:
            has_ended = self._process.poll() is not None
            try:
                return self._api.reports.get(timeout=0.05)
            except Empty:
                said = self.said()
            assert not has_ended, f"{self.name} ended: {said}"
            assert time.monotonic() < deadline, f"{self.name} says nothing: {said}"

    def said(self) -> str:
        return self._output.read_text(encoding="utf-8")
