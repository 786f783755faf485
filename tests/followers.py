"""Who waits for something new in a task, in memory."""

from __future__ import annotations

import asyncio

import pytest

from a2a_serverless.storage.memory import MemoryStorage

WITHIN_S = 20.0


class Followers:
    """The calls that have read a task and wait for what comes next: streams and blocking sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen: set[object] = set()
        changed = MemoryStorage.changed

        async def noted(
            storage: MemoryStorage, task_id: str, version: int, timeout_s: float
        ) -> None:
            self._seen.add(asyncio.current_task())
            await changed(storage, task_id, version, timeout_s)

        monkeypatch.setattr(MemoryStorage, "changed", noted)

    def forget(self) -> None:
        """Count from now on."""
        self._seen.clear()

    async def reach(self, count: int) -> None:
        """Return when so many have come."""
        async with asyncio.timeout(WITHIN_S):
            while len(self._seen) < count:  # noqa: ASYNC110 - other loops add to it
                await asyncio.sleep(0.01)


@pytest.fixture
def followers(monkeypatch: pytest.MonkeyPatch) -> Followers:
    return Followers(monkeypatch)
