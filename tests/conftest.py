"""What holds for every test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator

import pytest

from tests.support.collection import Made, check

pytest_plugins = [
    "a2a_serverless_tools.testing.fixtures",
    "tests.artefact.report",
    "tests.e2e.flood_report",
    "tests.emulators.fixtures",
    "tests.faults.report",
    "tests.support.followers",
    "tests.support.permission_report",
    "tests.support.secrecy",
]


_runtime = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a place of its own for `dev.json`, apart from the user's running `dev`."""
    config.stash[_runtime] = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="a2a-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove that place."""
    shutil.rmtree(config.stash[_runtime], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Made, Made]:
    """Refuse a test without a docstring: it states the behaviour that a failure has broken."""
    return check((yield), _silence)


def _silence(test: pytest.Function) -> str | None:
    return None if (test.function.__doc__ or "").strip() else "has no docstring"
