"""Damage one guarantee at a time, and tell whether a test notices: `make mutants`.

`mutants.toml` has the damages. The tests are run once, to see which of them come to which damaged
line. Then each damage is made in a process of its own, in the code that is loaded there, and those
tests are run, the shortest first, until one fails. If none does, the guarantee has no test.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import tomllib
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.support.damages import Damage, codes_in

_LONGEST_S = 600
"""A damage with which the tests take longer is noticed: they wait for what it has taken away."""
_MOST = 400
"""Tests of a damage: what the shortest of them do not notice, none is made for."""
_TESTS = "unit/tasks unit/storage unit/push unit/http unit/worker unit/test_addresses.py contract "
_TESTS += "conformance/test_dialects.py"
_MONITORING: Any = getattr(sys, "monitoring", None)
"""Of Python 3.12 or later."""
_TOOL, _NOTICED = 2, 3
_fork = multiprocessing.get_context("fork")


class Mutant(Damage):
    """A damage that tests have to notice."""

    def __init__(self, file: str, promise: str, *texts: str) -> None:
        super().__init__(file, texts)
        self.promise = promise
        self.tests: list[int] = []
        """The numbers of the tests that come to one of its lines."""


class Damages:
    """Plugin: runs the tests once, and then for each damage those that come to it."""

    def __init__(self, mutants: Sequence[Mutant], processes: int) -> None:
        self._mutants = mutants
        self._processes = processes
        self._come: set[tuple[str, int]] = set()
        """The lines to which the test that runs has come, each with its file."""
        self.alive = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do all of it in the place of a run."""
        took_s = self._watched(session)
        if session.testsfailed:
            raise session.Failed("Tests fail without a damage.")
        running: list[tuple[Mutant, Any, float]] = []
        for mutant in self._mutants:
            mutant.tests.sort(key=took_s.__getitem__)
            if len(running) == self._processes:
                self._tell(*running.pop(0))
            process = _fork.Process(target=_run, args=(session, mutant))
            process.start()
            running.append((mutant, process, time.monotonic() + _LONGEST_S))
        for each in running:
            self._tell(*each)
        _say(f"{len(self._mutants) - self.alive} of {len(self._mutants)} damages are noticed.")
        return True

    def _watched(self, session: pytest.Session) -> list[float]:
        """Run the tests; return how long each has taken, in seconds."""
        monitoring, took_s = _MONITORING, list[float]()
        monitoring.use_tool_id(_TOOL, "mutants")
        monitoring.register_callback(_TOOL, monitoring.events.LINE, self._comes)
        for mutant in self._mutants:
            if not (found := mutant.functions()):
                raise session.Failed(f"{mutant.file}: {mutant.promise}: no function has it.")
            for code in [code for each in found for code in codes_in(each.__code__)]:
                monitoring.set_local_events(_TOOL, code, monitoring.events.LINE)
        for number, item in enumerate(session.items):
            self._come.clear()
            monitoring.restart_events()
            began = time.process_time()
            after = session.items[number + 1] if number + 1 < len(session.items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            took_s.append(time.process_time() - began)
            for mutant in self._mutants:
                if any((mutant.path, line) in self._come for line in mutant.lines):
                    mutant.tests.append(number)
        monitoring.free_tool_id(_TOOL)
        return took_s

    def _comes(self, code: CodeType, line: int) -> object:
        self._come.add((code.co_filename, line))
        return _MONITORING.DISABLE

    def _tell(self, mutant: Mutant, process: Any, until: float) -> None:
        process.join(max(0.0, until - time.monotonic()))
        code = process.exitcode  # None: it takes too long
        process.kill()
        if code not in {0, _NOTICED, None}:
            raise RuntimeError(
                f"{mutant.file}: {mutant.promise}: its process has ended with {code}."
            )
        is_alive = code == 0
        self.alive += is_alive
        word = "ALIVE " if is_alive else "noticed"
        _say(f"{word} {mutant.file}: {mutant.promise} ({len(mutant.tests)} tests)")


def _run(session: pytest.Session, mutant: Mutant) -> None:
    """Run the tests of a damage in a process of its own, whose exit code says if one fails."""
    forks = session.config.pluginmanager.getplugin("tests.support.forks")
    forks._begin(session.config, f"mutant{os.getpid()}")
    session.config.pluginmanager.unregister(name="terminalreporter")
    items = [session.items[number] for number in mutant.tests[:_MOST]]
    with mutant.made():
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os._exit(_NOTICED)
    os._exit(0)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # where pytest keeps what is printed


def main() -> int:
    """Print each damage, noticed or alive; return 1 if one is alive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="of a file's path or a promise; all by default")
    parser.add_argument("-n", type=int, default=2, help="damages at a time")
    parser.add_argument("--tests", default=_TESTS, help="paths in tests/")
    args = parser.parse_args()
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    chosen = [
        Mutant(file, promise, *texts)
        for file, each in table.items()
        for promise, texts in each.items()
        if any(word in f"{file}: {promise}" for word in args.words or [""])
    ]
    damages = Damages(chosen, args.n)
    paths = [f"tests/{name}" for name in args.tests.split()]
    code = pytest.main(["-qs", "-pno:cacheprovider", "--timeout=120", *paths], plugins=[damages])
    return int(bool(damages.alive) or code != pytest.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
