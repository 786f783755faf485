"""What holds for every test."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Generator

import pytest
import yaml

from tests.support import read_once
from tests.support.collection import Made, check

pytest_plugins = [
    "a2a_serverless_tools.testing.fixtures",
    "tests.emulators.fixtures",
    "tests.faults.report",
    "tests.support.followers",
    "tests.support.long",
    "tests.support.permission_report",
    "tests.support.rounds",
    "tests.support.secrecy",
    "tests.support.terminals",
]


def pytest_configure() -> None:
    """Read once what never changes: descriptions of AWS and root certificates.

    Templates are read by libyaml, which takes a tenth of the time.
    """
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]
    read_once.keep_descriptions()
    read_once.keep_root_certificates()
    _keep_levels()
    # A shell that starts the suite in the background makes it ignore Ctrl-C, which tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep_levels() -> None:
    """Set a logger's level only where it changes.

    pytest sets levels in each phase of a test, and each time all loggers forget what is enabled.
    """
    set_level = logging.Logger.setLevel

    def changed(logger: logging.Logger, level: int | str) -> None:
        if level not in {logger.level, logging.getLevelName(logger.level)}:
            set_level(logger, level)

    logging.Logger.setLevel = changed  # type: ignore[assignment,method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is collected out of garbage collections: it lives until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Made, Made]:
    """Refuse a test without a docstring: it states the behaviour that a failure has broken."""
    return check((yield), _silence)


def _silence(test: pytest.Function) -> str | None:
    return None if (test.function.__doc__ or "").strip() else "has no docstring"
