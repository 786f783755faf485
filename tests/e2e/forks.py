"""Processes that begin as copies of one which has loaded the package: cheap, and otherwise new.

Each reads its own environment, writes to its own files, and runs `a2a-serverless` from its first
line on. So do the processes that a `dev` of these starts: it has loaded no agent, as they have not.
`running_with` shows that new interpreters do the same.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from a2a_serverless_tools import cli
from a2a_serverless_tools.local import replacing
from tests.faults import processes


def main(
    arguments: Sequence[str], env: Mapping[str, str], cwd: Path | None, out: Path, err: Path
) -> None:
    """What a new process runs; it exits with the command's code."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    os.environ.clear()
    os.environ.update(env)
    warnings.simplefilter("ignore")
    if cwd is not None:
        os.chdir(cwd)
    own = SimpleNamespace(Popen=_Served, TimeoutExpired=subprocess.TimeoutExpired)
    vars(replacing)["subprocess"] = own
    sys.exit(cli.main(list(arguments)))


class _Served(subprocess.Popen[bytes]):
    """A process that `dev` starts, as a copy of `dev`."""

    def _execute_child(
        self, args: Sequence[str], _executable: Any, _first: Any, _closes: Any, kept: Any, *_: Any
    ) -> None:
        # Not in a fork, whose hooks swallow what a signal's handler raises.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        self.pid = os.fork()
        if self.pid == 0:
            _serve(args, {0, 1, 2, *kept}, before)
        self._child_created = True
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(args: Sequence[str], kept: Collection[int], blocked: set[Any]) -> NoReturn:
    """Run `serve` in a copy of a process, of whose files it keeps some, and of its state none.

    `args`: the whole command. `blocked`: the signals that it does not get at its start.
    """
    code = 1
    try:
        for descriptor in [int(each.name) for each in Path("/dev/fd").iterdir()]:
            if descriptor not in kept:
                with suppress(OSError):  # of the list itself
                    os.close(descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        logging.getLogger().handlers.clear()
        atexit._clear()
        code = cli.main(args[args.index("serve") :])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:  # noqa: BLE001 - nothing of it may return to what the copy was made in
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Forked:
    """A process with what these tests need of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid or 0
        self.terminate, self.kill = process.terminate, process.kill

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


def start(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path | None, out: Path, err: Path
) -> Forked:
    """Start a command; what it says goes to the two files, which may be one."""
    context = get_context("forkserver")
    context.set_forkserver_preload(processes.PRELOADED)
    given = (list(arguments), dict(env), cwd, out, err)
    process = context.Process(target=main, args=given, daemon=True)
    with processes.import_path():
        process.start()
    return Forked(process)
