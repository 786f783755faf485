"""The CancelRegistry contract of a2akit."""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, field
from typing import Self
from weakref import WeakKeyDictionary, WeakSet

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.log import TaskKey
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.worker.guard import POLL_S, Looks


class CancelScope:
    """Tells one turn that its task is to be canceled.

    It watches until `release`; as an async context manager it releases itself. It belongs to the
    event loop that made it.
    """

    def __init__(self, looks: Looks, key: TaskKey) -> None:
        self.key = key
        self._requested = asyncio.Event()
        self._stop = asyncio.Event()
        self._watching = asyncio.create_task(looks.over(self, self._stop), context=Context())

    async def wait(self) -> None:
        """Return when a cancel is seen."""
        await self._requested.wait()

    def is_set(self) -> bool:
        """Return True once a cancel is seen; never by mistake."""
        return self._requested.is_set()

    async def release(self) -> None:
        """Stop watching; the request stays. Idempotent.

        After the last scope of the process is released, nothing runs on in the background, where
        Lambda would freeze it.
        """
        self._stop.set()
        await self._watching

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.release()

    async def on_look(self, head: Head | None) -> None:
        """Take a look at the task."""
        if head is not None and head.is_being_canceled:
            self._requested.set()


@dataclass(slots=True)
class _Shared:
    """The looks of each event loop, which keep its scopes alive; the same for all views."""

    looks: WeakKeyDictionary[asyncio.AbstractEventLoop, Looks] = field(
        default_factory=WeakKeyDictionary
    )
    scopes: WeakSet[CancelScope] = field(default_factory=WeakSet)


class CancelRegistry:
    """Requests to cancel, seen through one scope, as HEAD keeps them.

    Args:
        storage: the tasks.
        poll_s: seconds from one look at the tasks of all scopes to the next.
    """

    def __init__(
        self, storage: DurableStorage, *, poll_s: float = POLL_S, _shared: _Shared | None = None
    ) -> None:
        self._storage = storage
        self._poll_s = poll_s
        self._shared = _shared or _Shared()

    def for_scope(self, scope: Scope) -> Self:
        """Return the same registry as another owner sees it; cheap."""
        storage = self._storage.for_scope(scope)
        return type(self)(storage, poll_s=self._poll_s, _shared=self._shared)

    async def request_cancel(self, task_id: str) -> None:
        """Request a cancel, as `DurableStorage.request_cancel`."""
        await self._storage.request_cancel(task_id)

    async def is_cancelled(self, task_id: str) -> bool:
        """Return True from the request until the task ends or is deleted."""
        head = await self._storage.head(task_id)
        return head is not None and head.is_being_canceled

    def on_cancel(self, task_id: str) -> CancelScope:
        """Return a scope that is set once a request is seen, also if it was made before.

        A failure of the backend does not set it: then the cancel's deadline ends the task.
        """
        scope = CancelScope(self._looks(), self._key(task_id))
        self._shared.scopes.add(scope)
        return scope

    async def cleanup(self, task_id: str) -> None:
        """Release the scopes of the task. Nothing is written: HEAD's mark ends with the task."""
        for scope in tuple(self._shared.scopes):
            if scope.key == self._key(task_id):
                await scope.release()

    def _looks(self) -> Looks:
        loop = asyncio.get_running_loop()
        looks = Looks(self._storage, self._storage.clock, interval_s=self._poll_s)
        return self._shared.looks.setdefault(loop, looks)

    def _key(self, task_id: str) -> TaskKey:
        return (self._storage.scope.digest, task_id)
