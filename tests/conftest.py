"""What holds for every test."""

from __future__ import annotations

import pytest

pytest_plugins = [
    "tests.artefact.report",
    "tests.e2e.flood_report",
    "tests.emulators.fixtures",
    "tests.faults.report",
    "tests.followers",
    "tests.permission_report",
    "tests.secrecy",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test without a docstring: it states the behaviour that a failure has broken."""
    silent = [
        item.nodeid
        for item in items
        if isinstance(item, pytest.Function) and not (item.function.__doc__ or "").strip()
    ]
    if silent:
        raise pytest.UsageError("tests without a docstring: " + ", ".join(sorted(set(silent))))
