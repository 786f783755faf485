"""The readers that wait for something new in a task, in memory."""

import asyncio

import pytest

from a2a_serverless.storage.durable import DurableStorage

WITHIN_S = 20.0


class Followers:
    """The calls that have read a task and wait for what comes next: streams and blocking sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen: dict[object, int] = {}
        changed = DurableStorage.changed

        async def noted(
            storage: DurableStorage, task_id: str, version: int, timeout_s: float
        ) -> None:
            self._seen[asyncio.current_task()] = version
            await changed(storage, task_id, version, timeout_s)

        monkeypatch.setattr(DurableStorage, "changed", noted)

    def forget(self) -> None:
        """Count from now on."""
        self._seen.clear()

    async def reach(self, count: int, version: int = 0) -> None:
        """Return when so many have come, and have read up to `version`."""
        async with asyncio.timeout(WITHIN_S):
            while sum(seen >= version for seen in [*self._seen.values()]) < count:  # noqa: ASYNC110 - other loops add to it
                await asyncio.sleep(0.01)


@pytest.fixture
def followers(monkeypatch: pytest.MonkeyPatch) -> Followers:
    return Followers(monkeypatch)
