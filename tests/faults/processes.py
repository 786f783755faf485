"""The command line as processes that are cheap to start and to kill.

A fork server has loaded the package once; each process is a fork of it that then reads its own
environment and runs `a2a-serverless` from its first line on.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import current_process, get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from a2a_serverless import settings, wiring
from a2a_serverless.push import waiting
from a2a_serverless.queues import sqs  # noqa: F401 - as above
from a2a_serverless.storage import dynamodb as table  # noqa: F401 - as above
from a2a_serverless.tasks import push as tasks_push
from a2a_serverless.worker import context, turn
from a2a_serverless_tools import cli
from a2a_serverless_tools.cli import processes as worker_command
from a2a_serverless_tools.local import sweeping
from tests.faults import bad_days, functions, next_format, traps

ROOT = Path(__file__).parents[2]
PRELOADED = [
    __name__,
    "tests.faults.preloaded",
    "tests.e2e.forks",
    "a2a_serverless_tools.cli.served",
    "a2a_serverless_tools.local.pushing",
    "a2a_serverless_tools.local.stack",
]
"""The modules that the fork server loads before it starts any process."""
START_S = 100.0
STOP_S = 60.0
"""Of an end in order, which waits for requests under way: each may be tried three times."""

SWEEP_PERIOD = "FAULTS_SWEEP_PERIOD_S"
LEASE = "FAULTS_LEASE_S"
DRAIN = "FAULTS_DRAIN_S"
PUSH_WAIT = "FAULTS_PUSH_WAIT_S"
PUSH_HIDDEN = "FAULTS_PUSH_HIDDEN_S"
PARK = "FAULTS_PARK_S"
SHORTENED: Sequence[tuple[str, ModuleType, str, float]] = (
    (SWEEP_PERIOD, sweeping, "PERIOD_S", 1),
    (LEASE, settings, "LEASE_S", 1),
    (LEASE, settings, "RENEW_BEFORE_S", 0.5),
    (DRAIN, worker_command, "DRAIN_S", 1),
    (PARK, context, "PARK_S", 1),
    (PARK, turn, "PARK_S", 1),
    (PUSH_HIDDEN, wiring, "PUSH_VISIBILITY_S", 1),
    (PUSH_WAIT, tasks_push, "LONG_WAIT_MS", 1000),
    (PUSH_WAIT, waiting, "_WOKEN_MS", 1000),
)
"""Times that a deployment cannot choose, shortened so that a test need not wait a minute."""

_TELLS = signal.SIGUSR1
"""Lets a process say what each of its threads does."""

_OURS = ("A2A_", "AWS_", "FAULTS_")


def main(arguments: Sequence[str], variables: Mapping[str, str], output: Path) -> None:
    """What a new process runs; it exits with the command's code."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.register(_TELLS, file=2)
    for name in [name for name in os.environ if name.startswith(_OURS)]:
        del os.environ[name]
    os.environ.update(variables)
    traps.arm(variables)
    bad_days.arm(current_process().name, variables)
    next_format.arm(variables)
    for variable, module, name, factor in SHORTENED:
        if seconds := variables.get(variable):
            value = float(seconds) * factor
            vars(module)[name] = int(value) if name.endswith("_MS") else value
    sys.exit(functions.main() if arguments[0] == functions.NAME else cli.main(list(arguments)))


@dataclass(frozen=True, eq=False)
class Running:
    """One process of the system; what it says is in `output`."""

    name: str
    process: ForkServerProcess
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def has_ended(self) -> bool:
        return not self.process.is_alive()

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8") if self.output.exists() else ""

    async def says(self, pattern: str, *, may_end: bool = False) -> str:
        """The first group of `pattern`, once the process has said it; "" if it `may_end` before."""
        deadline = time.monotonic() + START_S
        while (found := re.search(pattern, self.said())) is None:
            if may_end and self.has_ended:
                return ""
            assert not self.has_ended, f"{self.name} ended: {self.said()}"
            assert time.monotonic() < deadline, f"{self.name} did not say {pattern}: {self.said()}"
            await asyncio.sleep(0.02)
        return found[1] if found.groups() else found[0]

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        os.kill(self.pid, number)
        return await self.ended()

    async def ended(self, within_s: float = STOP_S) -> int:
        """The exit code, negative for a signal, once the process has ended."""
        deadline = time.monotonic() + within_s
        while not self.has_ended:
            if time.monotonic() > deadline:
                os.kill(self.pid, _TELLS)
                await self.says("Current thread", may_end=True)
                raise AssertionError(f"{self.name} runs on: {self.said()}")
            await asyncio.sleep(0.01)
        code = self.process.exitcode
        assert code is not None
        return code


async def close(started: Sequence[Running]) -> None:
    """End what runs at once, and forget it."""
    for running in started:
        running.process.kill()
    for running in started:
        await running.ended()
        running.process.close()


def start(name: str, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Running:
    forks = get_context("forkserver")
    forks.set_forkserver_preload(PRELOADED)
    process = forks.Process(
        target=main, args=(list(arguments), dict(variables), log), name=name, daemon=True
    )
    with import_path():
        process.start()
    return Running(name, process, log)


@contextmanager
def import_path() -> Iterator[None]:
    """Lets the fork server, which the first process starts, find these tests."""
    path = os.pathsep.join([str(ROOT), str(Path(cli.__file__).parents[2])])
    with patch.dict(os.environ, PYTHONPATH=path):
        yield
