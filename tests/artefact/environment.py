"""One execution environment of a built function: its process, laid out as Lambda lays it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from tests.artefact.build import Artefact
from tests.artefact.runtime_api import ANSWER_S, Report, RuntimeApi, runtime_api

START_S = 60.0
PYTHON = [sys.executable, "-S"]
"""Without the packages of this environment."""


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
