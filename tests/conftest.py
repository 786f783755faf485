"""What holds for every test."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Generator

import pytest
from botocore import loaders

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
    """Give the run a place of its own for `dev.json`, apart from the user's running `dev`.

    All boto3 clients share one loader: each would read the descriptions of AWS's services again.
    """
    config.stash[_runtime] = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="a2a-")
    loaders.create_loader = functools.cache(loaders.create_loader)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove that place."""
    shutil.rmtree(config.stash[_runtime], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Made, Made]:
    """Refuse a test without a docstring: it states the behaviour that a failure has broken."""
    return check((yield), _silence)


def _silence(test: pytest.Function) -> str | None:
    return None if (test.function.__doc__ or "").strip() else "has no docstring"
