"""What holds for every test."""

from __future__ import annotations

import functools
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


def pytest_configure() -> None:
    """Let all boto3 clients share one loader: each would read the descriptions of AWS again."""
    loaders.create_loader = functools.cache(loaders.create_loader)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Made, Made]:
    """Refuse a test without a docstring: it states the behaviour that a failure has broken."""
    return check((yield), _silence)


def _silence(test: pytest.Function) -> str | None:
    return None if (test.function.__doc__ or "").strip() else "has no docstring"
