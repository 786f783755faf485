"""The command line as child processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import a2a_serverless
import a2a_serverless_tools
from tests.e2e import forks

COMMAND = "a2a_serverless_tools.cli"
ROOT = Path(__file__).parents[2]
RUN_S = 100.0
START_S = 100.0
STOP_S = 40.0

_OURS = ("A2A_", "AWS_", "AGENT_", "PROBE_", "NO_COLOR")


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of its own, and `variables`."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    packages = (a2a_serverless, a2a_serverless_tools)
    roots = os.pathsep.join(str(Path(str(package.__file__)).parents[1]) for package in packages)
    return {**inherited, "PYTHONPATH": roots, "PYTHONWARNINGS": "ignore", **variables}


def until(holds: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def run(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = forks.start(arguments, env=env or environment(), cwd=cwd, out=out, err=err)
        try:
            code = process.wait(RUN_S)
        finally:
            process.kill()
        said = [path.read_text(encoding="utf-8") for path in (out, err)]
    return subprocess.CompletedProcess(arguments, code, *said)


def ran(
    command: Sequence[object], *, timeout: float = RUN_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run any program that ends by itself."""
    words = [str(word) for word in command]
    said: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(words, timeout=timeout, **said, **options)  # noqa: PLW1510


@dataclass(frozen=True)
class Running:
    """A command that serves; what it says goes to a file."""

    process: forks.Forked | subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8")

    @property
    def url(self) -> str:
        """Where it serves, once it says so."""
        return self.wait_for(r"A2A at (\S+),")

    def wait_for(self, pattern: str) -> str:
        """The first group of `pattern` in what the command says."""
        deadline = time.monotonic() + START_S
        while (found := re.search(pattern, self.said())) is None:
            ended = self.process.poll()
            assert ended is None, f"ended with {ended}: {self.said()}"
            assert time.monotonic() < deadline, f"not said: {pattern}; but: {self.said()}"
            time.sleep(0.05)
        return found[1] if found.groups() else found[0]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


def _with_file(arguments: tuple[str, ...], output: Path, cwd: Path | None) -> tuple[str, ...]:
    """Give a `dev` in the repository a file of its own, beside its output."""
    if arguments[0] == "dev" and cwd in (None, ROOT) and "--file" not in arguments:
        return (*arguments, "--file", f"{output}.db")
    return arguments


@contextmanager
def running(
    *arguments: str, env: Mapping[str, str], output: Path, cwd: Path | None = None
) -> Iterator[Running]:
    output.touch()
    arguments = _with_file(arguments, output, cwd)
    process = forks.start(arguments, env=env, cwd=cwd, out=output, err=output)
    yield from _until_end(Running(process, output))


READY = {"api": r"A2A at (\S+),", "worker": "turns at a time"}
READY |= {"push": "webhooks at a time", "sweep": "sweeping"}
"""What a command says when it has started; `api` its URL."""


@dataclass(frozen=True)
class Deployed:
    """Commands that run beside each other, by their names; those that have started."""

    commands: Mapping[str, Running]
    url: str
    folder: Path

    def release(self, task_id: str) -> None:
        """Let the probe agent that holds this task go on."""
        (self.folder / f"release-{task_id}").touch()

    def end(self) -> None:
        assert {command.end() for command in self.commands.values()} == {0}


@contextmanager
def deployed(
    env: Mapping[str, str],
    folder: Path,
    commands: Mapping[str, Sequence[str]],
    cwd: Path | None = None,
) -> Iterator[Deployed]:
    """Commands with these arguments, which write to files of the folder."""
    with ExitStack() as stack:
        started = {}
        for name, arguments in commands.items():
            log = folder / f"{name}.log"
            command = running(name, *arguments, env=env, output=log, cwd=cwd)
            started[name] = stack.enter_context(command)
        said = {name: one.wait_for(READY[name]) for name, one in started.items()}
        yield Deployed(started, said.get("api", ""), folder)


@contextmanager
def running_with(
    python: Path,
    *arguments: str,
    env: Mapping[str, str],
    output: Path,
    cwd: Path | None = None,
    module: str = COMMAND,
) -> Iterator[Running]:
    """The same with another Python, which finds another package; `module` is what it runs."""
    arguments = _with_file(arguments, output, cwd)
    command = [str(python), "-m", module, *arguments]
    with running_program(command, env=env, output=output, cwd=cwd) as started:
        yield started


@contextmanager
def running_program(
    command: Sequence[str], *, env: Mapping[str, str], output: Path, cwd: Path | None = None
) -> Iterator[Running]:
    with output.open("wb") as file:
        process = subprocess.Popen(command, env=dict(env), stdout=file, stderr=file, cwd=cwd)
    yield from _until_end(Running(process, output))


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def kill(dev: Running) -> None:
    """Kill a `dev`; return when the processes that it has started have ended, too."""
    started = children(dev.process.pid)
    assert dev.end(signal.SIGKILL) == -signal.SIGKILL

    def works(pid: int) -> bool:
        with suppress(OSError):  # one that has ended may not have been waited for
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    until(lambda: not any(map(works, started)))


def _until_end(started: Running) -> Iterator[Running]:
    process = started.process
    try:
        yield started
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
