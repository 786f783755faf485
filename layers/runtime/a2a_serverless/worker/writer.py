"""Writing what an agent emits: batched, in order, and only while the attempt owns its turn."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Self

from a2a_serverless import faults
from a2a_serverless.storage.durable import MAX_COMMIT_BYTES
from a2a_serverless.tasks.entries import Entry, encode_entries
from a2a_serverless.tasks.head import AttemptEnd
from a2a_serverless.tasks.rules import Commit, ContextWrite, Waits
from a2a_serverless.worker.guard import Guard
from a2a_serverless.worker.loops import first_of

FLUSH_AFTER_S = 0.1
"""Seconds that an entry waits for others to share its commit with, unless the last commit began as
long ago."""
PAUSE_ROUNDS = 8
"""Rounds of the event loop without a new entry after which the agent counts as waiting."""
FLUSH_BYTES = 64 * 1024
ROOM_FOR_FRAMES = 64 * 1024
"""Bytes that entries may need beyond the size of their event: frames, and ids that are added."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Entries that wait for their commit."""

    opened_at: float
    entries: list[Entry] = field(default_factory=list)
    size: int = 0
    ends_turn: bool = False
    state: ContextWrite | None = None
    failed: AttemptEnd | None = None
    waits: Waits | None = None
    urgent: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(kw_only=True, eq=False)
class TurnWriter:
    """The one writer of one attempt: one commit is in flight, the next batch waits behind it.

    A batch is committed when it is flushed, or when it has `FLUSH_BYTES`. Otherwise its first entry
    decides. If that entry comes `flush_after_s` or more after the last commit began, the batch is
    committed as soon as the agent pauses. If it comes earlier, the batch waits `flush_after_s` for
    the entries that follow. So after each silence chunks cost at most one commit more.

    A commit that fails ends the writing: the turn is stopped, and what is put from then on is
    dropped, until `discard`. Commits run in a task of the writer's own, so that cancelling the
    agent never interrupts one.
    """

    guard: Guard
    flush_after_s: float = FLUSH_AFTER_S
    failure: Exception | None = field(default=None, init=False)
    _batch: _Batch | None = field(default=None, init=False)
    _opened: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _committing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _began_at: float = field(default=-math.inf, init=False)
    """When the last commit began, in monotonic seconds."""

    @property
    def is_idle(self) -> bool:
        return self._batch is None and not self._committing.locked()

    @property
    def is_full(self) -> bool:
        """Return True if the waiting batch is full: flush before the next `put`."""
        return self._batch is not None and self._batch.size >= FLUSH_BYTES

    def has_room(self, size: int) -> bool:
        """Return True when `size` more bytes fit into the waiting batch's commit."""
        waiting = 0 if self._batch is None else self._batch.size
        return not waiting or waiting + size + ROOM_FOR_FRAMES <= MAX_COMMIT_BYTES

    async def __aenter__(self) -> Self:
        self._pump_task = asyncio.create_task(self._pump())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the commit in flight end, and drop what was not flushed."""
        # Cancelled under the lock: no commit is in flight that could be interrupted.
        async with self._committing:
            self._pump_task.cancel()
        await asyncio.gather(self._pump_task, return_exceptions=True)
        self._drop()

    def put(
        self,
        *entries: Entry,
        state: ContextWrite | None = None,
        failed: AttemptEnd | None = None,
        waits: Waits | None = None,
    ) -> None:
        """Add entries to the batch that waits.

        If the entries end the turn, `state` is the conversation's state to store with them, and
        `failed` the reason why the attempt has failed. `waits`: the commit gives the turn back.
        """
        if self.failure is not None:
            return
        batch = self._waiting()
        batch.entries.extend(entries)
        batch.size += len(encode_entries(entries))
        batch.state = state or batch.state
        batch.failed = failed or batch.failed
        batch.waits = waits or batch.waits
        if batch.size >= FLUSH_BYTES:
            batch.urgent.set()

    async def flush(self, *, ends_turn: bool = False) -> None:
        """Return when all that was put is committed; with `ends_turn`, end the turn as well.

        Raises:
            FencedError, TurnFinishedError: the turn is not this attempt's any more.
            StaleStateError: the conversation's state has changed since it was loaded.
            InvalidArgumentError: the batch cannot be stored.
            UnavailableError: there was no answer; the batch may have been stored.
        """
        await self.drain(ends_turn=ends_turn)
        if self.failure is not None:
            raise self.failure

    async def drain(self, *, ends_turn: bool = False) -> None:
        """Return when all that was put is committed or dropped; `failure` tells which."""
        if self.failure is not None:
            return
        batch = self._waiting() if ends_turn else self._batch
        if batch is None:
            # The commit in flight may hold what was put last.
            async with self._committing:
                return
        batch.ends_turn = batch.ends_turn or ends_turn
        batch.urgent.set()
        # Not `await batch.done`: a cancelled caller would cancel the future of all that wait.
        await asyncio.wait([batch.done])

    def discard(self) -> None:
        """Drop the waiting batch and forget the failure; the writer can be used again."""
        self.failure = None
        self._drop()

    def _waiting(self) -> _Batch:
        if self._batch is None:
            self._batch = _Batch(self.guard.clock.monotonic())
            self._opened.set()
        return self._batch

    def _drop(self) -> None:
        batch, self._batch = self._batch, None
        self._opened.clear()
        if batch is not None and not batch.done.done():
            batch.done.set_result(None)
            batch.urgent.set()

    async def _pump(self) -> None:
        while True:
            await self._opened.wait()
            batch = self._waiting()
            if batch.opened_at - self._began_at >= self.flush_after_s:
                await self._pause_of_agent(batch)
            else:
                await self._company(batch)
            # One commit at a time: the log has the order of `put`.
            async with self._committing:
                if self._batch is batch:  # else it was discarded meanwhile
                    self._began_at = self.guard.clock.monotonic()
                    await self._commit_waiting(batch)

    async def _pause_of_agent(self, batch: _Batch) -> None:
        """Wait until the agent has emitted all that it emits in one go: one commit holds it."""
        seen = rounds = 0
        while rounds < PAUSE_ROUNDS and not batch.urgent.is_set() and self._wait_s(batch) > 0:
            await asyncio.sleep(0)
            rounds = rounds + 1 if len(batch.entries) == seen else 0
            seen = len(batch.entries)

    async def _company(self, batch: _Batch) -> None:
        """Wait for the entries that share the commit of the first one."""
        wait_s = self._wait_s(batch)
        if wait_s > 0 and not batch.urgent.is_set():
            await first_of(self.guard.clock.sleep(wait_s), batch.urgent.wait())

    def _wait_s(self, batch: _Batch) -> float:
        """Return the seconds for which a batch may still wait."""
        return batch.opened_at + self.flush_after_s - self.guard.clock.monotonic()

    async def _commit_waiting(self, batch: _Batch) -> None:
        # Taken out before the commit: what is put meanwhile waits in a batch of its own.
        self._batch = None
        self._opened.clear()
        if not self.guard.must_claim:
            faults.point("between-commits")
        try:
            await self.guard.commit(
                Commit(
                    entries=tuple(batch.entries),
                    ends_turn=batch.ends_turn,
                    context_write=batch.state,
                    failed=batch.failed,
                    waits=batch.waits,
                )
            )
        except Exception as error:  # noqa: BLE001 - the task's edge: `flush` raises it
            self.failure = error  # before `done`: those who wait in `flush` have to find it
            self._drop()
            self.guard.stop(error)
        finally:
            if not batch.done.done():
                batch.done.set_result(None)
