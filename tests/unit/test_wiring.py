"""Whether the backends are there."""

from __future__ import annotations

import pytest

from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, check_backends, memory_backends


@pytest.fixture
def backends() -> Backends:
    return memory_backends(Settings())


async def test_backends_that_are_there(backends: Backends) -> None:
    """The check of backends that are there raises nothing."""
    await check_backends(backends, Settings())


async def test_a_missing_table_is_named(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the table cannot be used, one sentence names it, whatever the library raised."""

    async def refuse(*_: object) -> None:
        raise LookupError("no such resource")

    monkeypatch.setattr(backends.storage, "head", refuse)
    with pytest.raises(ConfigurationError, match="The table my-table cannot be used: no such"):
        await check_backends(backends, Settings(table="my-table"))


async def test_a_missing_queue_is_named(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the queue cannot be used, the queue's own sentence is raised."""

    async def refuse() -> None:
        raise ConfigurationError("The queue my-queue does not exist.")

    monkeypatch.setattr(backends.operations, "check", refuse)
    with pytest.raises(ConfigurationError, match="my-queue"):
        await check_backends(backends, Settings())


async def test_an_outage_is_no_misconfiguration(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that does not answer now keeps its own error."""

    async def refuse(*_: object) -> None:
        raise UnavailableError

    monkeypatch.setattr(backends.storage, "head", refuse)
    with pytest.raises(UnavailableError):
        await check_backends(backends, Settings())
