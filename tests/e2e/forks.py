"""Processes that begin as copies of one which has loaded the package: cheap, and otherwise new.

Each reads its own environment, writes to its own files, and runs `a2a-serverless` from its first
line on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from a2a_serverless_tools import cli
from tests.faults import processes


def main(
    arguments: Sequence[str], env: Mapping[str, str], cwd: Path | None, out: Path, err: Path
) -> None:
    """What a new process runs; it exits with the command's code."""
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(env)
    warnings.simplefilter("ignore")
    if cwd is not None:
        os.chdir(cwd)
    sys.exit(cli.main(list(arguments)))


class Forked:
    """A process with what these tests need of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("a2a-serverless", timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def start(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path | None, out: Path, err: Path
) -> Forked:
    """Start a command; what it says goes to the two files, which may be one."""
    context = get_context("forkserver")
    context.set_forkserver_preload(processes.PRELOADED)
    process = context.Process(
        target=main, args=(list(arguments), dict(env), cwd, out, err), daemon=True
    )
    with processes.import_path():
        process.start()
    return Forked(process)
