"""Plugin: tests in several processes, which are forked when the tests have been collected: `-n 4`.

Collecting takes 20 s and 400 MB. Here it is done once, and the processes share what it has made.

The tests are handed out in pieces of neighbours. A file that has a longer time limit than others
comes first, so that nothing waits for it at the end. Then come those that share a browser or an
emulator, a folder to a process as long as there are others. All others come file by file, in an
order that mixes files that wait with files that compute.

A process that dies fails the test that it was running, and another one goes on with its piece.
"""

import multiprocessing
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

_MOST = 30
"""Tests of a piece."""
_ENDS_WITHIN_S = 60.0
_FORKED = pytest.StashKey[bool]()
_HANDED_OVER = pytest.StashKey[list[tuple[str, Any]]]()

Piece: TypeAlias = tuple[str, list[int]]
"""A block, and the numbers of tests in it that one process runs one after the other."""

_fork = multiprocessing.get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `-n`, which pytest leaves to plugins of its own kind, and `--order`."""
    group = parser.getgroup("processes")
    told = {"metavar": "N", "help": "test in N processes"}
    group._addoption("-n", dest="processes", type=int, default=1, **told)
    group.addoption("--order", default="", metavar="SEED", help="hand out files in another order")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the order, with which a failure can be seen again."""
    is_ordered = config.option.order and config.option.processes > 1
    return f"order: {config.option.order}" if is_ordered else None


def is_fork(config: pytest.Config) -> bool:
    """Whether this process was forked to run tests, and another one prints."""
    return _FORKED in config.stash


def hand_over(config: pytest.Config, name: str, value: object) -> None:
    """Keep what this process has seen for the one that started it."""
    config.stash.setdefault(_HANDED_OVER, []).append((name, value))


def handed_over(config: pytest.Config, name: str) -> list[Any]:
    """Return what the processes have kept under a name."""
    return [value for each, value in config.stash.get(_HANDED_OVER, []) if each == name]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files in the order in which they are handed out."""
    if config.option.processes > 1:
        seed = config.option.order
        numbers = {block: zlib.crc32(f"{seed}{block}".encode()) for block in map(_block, items)}
        items.sort(key=lambda it: (-_limit_s(it), not _shares(it), numbers[_block(it)]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forked processes, if there are several and more than one is asked for."""
    option = session.config.option
    has_failed = session.testsfailed and not option.continue_on_collection_errors
    if option.processes < 2 or len(session.items) < 2 or has_failed or option.collectonly:
        return None
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
    _Run(session).run()
    return True


def _shares(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("browser", "emulators", "foreign")))


def _limit_s(item: pytest.Item) -> float:
    """Return the time limit of a test's file, if it has one of its own and shares nothing."""
    module = None if _shares(item) else item.getparent(pytest.Module)
    mark = module.get_closest_marker("timeout") if module else None
    return float(mark.args[0]) if mark else 0


def _block(item: pytest.Item) -> str:
    """Return what a test shares most with: its file, or the folder that starts an emulator."""
    file = item.nodeid.partition("::")[0]
    return file.rpartition("/")[0] if _shares(item) else file


def _pieces(items: Sequence[pytest.Item]) -> list[Piece]:
    pieces, start = list[Piece](), 0
    for block, members in groupby(items, key=_block):
        end = start + len(list(members))
        numbers = list(range(start, end))
        pieces += [(block, numbers[n : n + _MOST]) for n in range(0, len(numbers), _MOST)]
        start = end
    return pieces


class _Process:
    """A process, as the one sees it that has started it."""

    def __init__(self, session: pytest.Session, name: str, others: Sequence[Connection]) -> None:
        gateway = SimpleNamespace(id=name)
        self.node = SimpleNamespace(gateway=gateway, _workerinfocache=f"[{name}]")
        """Tells the terminal where a test was run."""
        self.block = ""
        self.left: list[int] = []
        """The tests that it has got and not ended; the first one runs."""
        self.connection, theirs = _fork.Pipe()
        ours = [*others, self.connection]
        self._process = _fork.Process(target=_work, args=(session, name, theirs, ours), name=name)
        self._process.start()
        theirs.close()

    def end(self) -> int | None:
        """Let it end, or end it; returns its exit code."""
        self.connection.close()
        self._process.join(_ENDS_WITHIN_S)
        self._process.kill()
        self._process.join()
        return self._process.exitcode


class _Run:
    """The tests of a session on their way through processes."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        self._pieces = _pieces(session.items)
        self._processes: dict[Connection, _Process] = {}
        self._started = 0

    def run(self) -> None:
        """Return when all tests were run; raises as pytest's own loop where it is to stop."""
        try:
            for _ in range(min(self._config.option.processes, len(self._pieces))):
                self._start()
            while self._processes:
                for connection in wait(list(self._processes)):
                    self._hear(self._processes[connection])  # type: ignore[index]
        finally:
            for process in self._processes.values():
                process.end()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _start(self) -> None:
        self._started += 1
        process = _Process(self._session, f"process{self._started}", list(self._processes))
        self._processes[process.connection] = process

    def _hear(self, process: _Process) -> None:
        try:
            told, value = process.connection.recv()
        except (EOFError, ConnectionResetError):
            told, value = "died", None
        match told:
            case "next":
                process.connection.send(self._next(process))
            case "runs":
                del process.left[: process.left.index(value)]
            case "report":
                hook = self._config.hook
                report = hook.pytest_report_from_serializable(config=self._config, data=value)
                self._log(report, process)
            case "end":
                self._config.stash.setdefault(_HANDED_OVER, []).extend(value)
                del self._processes[process.connection]
                process.end()
            case "died":
                self._has_died(process)

    def _next(self, process: _Process) -> list[int]:
        """Return what a process runs next: of its own block, or of one that no other has."""
        if not self._pieces or self._session.shouldfail or self._session.shouldstop:
            return []
        taken = {each.block for each in self._processes.values() if each is not process}
        order = [(block != process.block, block in taken) for block, _ in self._pieces]
        process.block, numbers = self._pieces.pop(order.index(min(order)))
        process.left += numbers
        return numbers

    def _has_died(self, process: _Process) -> None:
        del self._processes[process.connection]
        code = process.end()
        if not process.left:
            raise RuntimeError(f"A process of tests has ended with {code} outside of a test.")
        number, *others = process.left
        self._pieces[:0] = [(process.block, others)] if others else []
        if self._pieces:
            self._start()
        item = self._session.items[number]
        reason = f"The process that ran this test has ended with {code}."
        dead = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
        self._log(dead, process)

    def _log(self, report: pytest.TestReport, process: _Process) -> None:
        vars(report)["node"] = process.node
        self._config.hook.pytest_runtest_logreport(report=report)


class _Reporter:
    """Stands for the terminal in a process of tests: what it would show is sent."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._tw = config.get_terminal_writer()
        """Where pytest-timeout writes what all threads do."""
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(self, "terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))


def _work(session: pytest.Session, name: str, pipe: Connection, others: list[Connection]) -> None:
    """Run, in a process of its own, what is sent."""
    config = session.config
    for each in others:
        each.close()
    _begin(config, name)
    _Reporter(config, pipe)
    with suppress(ConnectionError, EOFError, KeyboardInterrupt):  # Ctrl-C, seen here or there
        _run(session, pipe)
    status = pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK
    config.hook.pytest_sessionfinish(session=session, exitstatus=status)
    config._ensure_unconfigure()
    with suppress(ConnectionError):
        pipe.send(("end", config.stash.get(_HANDED_OVER, [])))


def _run(session: pytest.Session, connection: Connection) -> None:
    numbers = _numbers(connection)
    number = next(numbers, None)
    while number is not None and not session.shouldfail and not session.shouldstop:
        following = next(numbers, None)
        connection.send(("runs", number))
        item = session.items[number]
        after = None if following is None else session.items[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        number = following


def _begin(config: pytest.Config, name: str) -> None:
    """Let go of what processes cannot share: the file of captured output, a folder, the cache."""
    if capture := config.pluginmanager.getplugin("capturemanager"):
        capture.stop_global_capturing()
        capture.start_global_capturing()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    config.stash[_FORKED], config.stash[_HANDED_OVER] = True, []
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)
    vars(config)["workerinput"] = {"workerid": name}  # by which pytest's cache knows such processes


def _numbers(connection: Connection) -> Iterator[int]:
    while True:
        connection.send(("next", None))
        if not (numbers := connection.recv()):
            return
        yield from numbers
