"""Plugin: the functions' calls of a run against their permissions, in both directions.

A call without its permission fails every run. A permission without a call fails a run of the
whole suite; another one has not seen all calls. Where a test failed, the call may be missing
because of that failure.
"""

from typing import Any

import pytest

from tests.support import emulators, forks
from tests.support.permissions import granted, implied, transform
from tests.support.recorded_calls import Permission, recorded, recording
from tests.support.template import TEMPLATE

_RECORDING = pytest.StashKey[Any]()
_PROBLEMS = pytest.StashKey[list[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Record the calls of this process, and of those that it forks."""
    running = recording()
    running.__enter__()
    session.config.stash[_RECORDING] = running


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Hand the calls to the process that prints, or, there, hold them against the template."""
    session.config.stash[_RECORDING].__exit__(None, None, None)
    if forks.is_fork(session.config):
        calls = [(*permission, test) for permission, test in recorded().items()]
        forks.hand_over(session.config, "recorded calls", calls)
        return
    for calls in forks.handed_over(session.config, "recorded calls"):
        for function, action, resource, test in calls:
            recorded().setdefault((function, action, resource), test)
    has_run_all = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    problems = list(_problems(is_whole=has_run_all and _is_whole(session.config)))
    session.config.stash[_PROBLEMS] = problems
    if problems and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what does not fit."""
    problems = terminalreporter.config.stash.get(_PROBLEMS, [])
    if problems:
        terminalreporter.section("permissions")
        for problem in problems:
            terminalreporter.line(problem, red=True)
    elif recorded() and not _is_whole(terminalreporter.config):
        terminalreporter.line("Unused permissions were not looked for: not all tests were run.")


def _problems(*, is_whole: bool) -> list[str]:
    if not recorded():
        return []
    resources = transform(TEMPLATE)
    allowed, needs = granted(resources), recorded().keys() | implied(resources)
    missing = [
        f"missing: {_shown(permission)}, as in {test}"
        for permission, test in sorted(recorded().items())
        if permission not in allowed
    ]
    unused = [f"unused: {_shown(permission)}" for permission in sorted(allowed - needs)]
    return missing + unused if is_whole else missing


def _shown(permission: Permission) -> str:
    function, action, resource = permission
    return f"{function} {action} on {resource}"


def _is_whole(config: pytest.Config) -> bool:
    chosen = [config.option.keyword, config.option.deselect]
    is_all = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not any(chosen)
    puts_nothing_off = config.option.markexpr == "long or not long"
    return is_all and puts_nothing_off and emulators.missing() is None
