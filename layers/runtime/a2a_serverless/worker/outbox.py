"""The outbox of one attempt: what its agent emits, gathered into commits under its lease."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import field, replace
from typing import Final, Self

from a2a_serverless import faults
from a2a_serverless.clock import first_of
from a2a_serverless.observability import metrics
from a2a_serverless.storage.durable import MAX_COMMIT_BYTES
from a2a_serverless.tasks.entries import ArtifactWritten, Entry, ModelsUsed, encode_entries
from a2a_serverless.tasks.pace import Pace, commit_units
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.values import dataclass
from a2a_serverless.worker.lease import Lease, Merged
from a2a_serverless.worker.meter import Meter

logger = logging.getLogger(__name__)

FLUSH_AFTER_S: Final = 0.1
"""Seconds that an entry waits for others to share its commit with, unless the last commit began as
long ago."""
PAUSE_ROUNDS: Final = 8
"""Rounds of the event loop without a new entry after which the agent counts as waiting."""
FLUSH_BYTES: Final = 64 * 1024
ROOM_FOR_FRAMES: Final = 64 * 1024
"""Bytes that entries may need beyond the size of their event: frames, and ids that are added."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Entries that wait for their commit."""

    opened_at: float
    done: asyncio.Future[None]
    entries: list[Entry] = field(default_factory=list)
    size: int = 0
    wanted: Commit = field(default_factory=Commit)
    """What the commit says beside its entries."""
    urgent: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(kw_only=True, eq=False)
class Outbox:
    """The one writer of one attempt: one commit is in flight, the next batch waits behind it.

    A batch is committed when it is flushed, or when it has `FLUSH_BYTES`. Otherwise its first entry
    decides. If that entry comes `flush_after_s` or more after the last commit began, the batch is
    committed as soon as the agent pauses. If it comes earlier, the batch waits `flush_after_s` for
    the entries that follow. So after each silence chunks cost at most one commit more.

    Where a partition takes so many units a second, a batch also waits for its `Pace`. It takes
    entries meanwhile, until it is full: then `drain` keeps the agent waiting.

    A commit that fails ends the writing: the turn is stopped, and what is put from then on is
    dropped, until `discard`. Commits run in tasks of the outbox's own, so that cancelling the agent
    never interrupts one.
    """

    lease: Lease
    flush_after_s: float = FLUSH_AFTER_S
    meter: Meter = field(default_factory=Meter)
    accepted_at: int | None = None
    """When the turn's message was accepted, in milliseconds, until its first chunk is stored."""
    failure: Exception | None = field(default=None, init=False)
    on_stored: Callable[[tuple[Entry, ...]], Awaitable[None]] | None = field(
        default=None, init=False
    )
    """Awaited after each commit with its entries; the testing kit can stop the agent there."""
    merged: Merged | None = field(default=None, init=False)
    """Awaited for the state to store with the end, if another task has changed it meanwhile."""
    _batch: _Batch | None = field(default=None, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    """Those of the batch that waits, and of the one that is being committed."""
    _committing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _began_at: float = field(default=-math.inf, init=False)
    """When the last commit began, in monotonic seconds."""

    def __post_init__(self) -> None:
        takes = self.lease.storage.table.partition_units
        self._pace = None if takes is None else Pace(takes)
        # Not the agent's context: tasks that have it count as the agent's, and end with its call.
        self._context = copy_context()

    def is_writing(self) -> bool:
        """Return True while entries wait for their commit, or are being committed."""
        return self._batch is not None or self._committing.locked()

    @property
    def is_full(self) -> bool:
        """Return True if the waiting batch is full: drain before the next `put`."""
        return self._batch is not None and self._batch.size >= FLUSH_BYTES

    async def make_room(self, size: int) -> None:
        """Return when `size` more bytes fit into the waiting batch's commit, and its pace."""
        while (batch := self._batch) is not None and batch.size:
            needed = batch.size + size + ROOM_FOR_FRAMES
            keeps_pace = self._pace is None or self._units_of(needed) <= self._pace.most
            if batch.size < FLUSH_BYTES and needed <= MAX_COMMIT_BYTES and keeps_pace:
                return
            await self.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the commit in flight end, and drop what was not flushed."""
        # Cancelled under the lock: no commit is in flight that could be interrupted.
        async with self._committing:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._drop()

    def put(self, *entries: Entry, wanted: Commit | None = None, fills: bool = False) -> None:
        """Add entries to the batch that waits.

        `wanted` says more of its commit than its entries: the conversation's state to store if they
        end the turn, why the attempt has failed, and that it gives its turn back, parks it or asks.
        `fills`: do not wait for more, as a part of them is stored beside the log.
        """
        if self.failure is not None:
            return
        batch = self._batch or self._open()
        batch.entries.extend(entries)
        batch.size += len(encode_entries(entries)) + (FLUSH_BYTES if fills else 0)
        if wanted is not None:
            batch.wanted = _both(batch.wanted, wanted)
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
        batch = self._batch or (self._open() if ends_turn else None)
        if batch is None:
            # The commit in flight may hold what was put last.
            async with self._committing:
                return
        if ends_turn:
            batch.wanted = replace(batch.wanted, ends_turn=True)
        batch.urgent.set()
        # Not `await batch.done`: a cancelled caller would cancel the future of all that wait.
        await asyncio.wait([batch.done])

    def discard(self) -> None:
        """Drop the waiting batch and forget the failure; the outbox can be used again."""
        self.failure = None
        self._drop()

    def _open(self) -> _Batch:
        loop = asyncio.get_running_loop()
        batch = self._batch = _Batch(self.lease.clock.monotonic(), loop.create_future())
        task = loop.create_task(self._commit(batch), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return batch

    def _drop(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None and not batch.done.done():
            batch.done.set_result(None)
            batch.urgent.set()

    async def _commit(self, batch: _Batch) -> None:
        """Commit a batch, once the agent pauses or has filled it, behind the one before it."""
        # Behind the last one: its units count for the pace only when it has ended, and what is
        # emitted meanwhile joins this batch.
        async with self._committing:
            pass
        if batch.opened_at - self._began_at >= self.flush_after_s:
            await self._pause_of_agent(batch)
        else:
            await self._company(batch)
        if self._pace is not None:
            await self._paced(batch, self._pace)
        # One commit at a time: the log has the order of `put`.
        async with self._committing:
            if self._batch is not batch:  # it was discarded meanwhile
                return
            self._began_at = self.lease.clock.monotonic()
            self._batch = None  # what is put meanwhile waits in a batch of its own
            try:
                await self._store(batch)
            except Exception as error:  # noqa: BLE001 - the task's edge: `flush` raises it
                self.failure = error  # before `done`: those who wait in `flush` have to find it
                self._drop()
                self.lease.stop(error)
            finally:
                if self._pace is not None:
                    self._pace.spend(self._units_of(batch.size), self.lease.clock.monotonic())
                batch.done.set_result(None)

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
            await first_of(self.lease.clock.sleep(wait_s), batch.urgent.wait())

    async def _paced(self, batch: _Batch, pace: Pace) -> None:
        """Wait until the batch keeps to the pace; what is to end the turn at once does not wait.

        Not under the lock of the commits: a batch that waits here can still be dropped.
        """
        stopped = self.lease.stopped
        while self._batch is batch and not stopped.is_set():
            units = self._units_of(batch.size)  # of a batch that may have grown
            wait_s = pace.wait_s(units, self.lease.clock.monotonic())
            if wait_s <= 0:
                return
            await first_of(self.lease.clock.sleep(wait_s), stopped.wait(), tasks=[batch.done])

    def _units_of(self, size: int) -> int:
        head = self.lease.head
        return commit_units(size, len(head.status or b"") + len(head.metadata or b""))

    def _wait_s(self, batch: _Batch) -> float:
        """Return the seconds for which a batch may still wait."""
        return batch.opened_at + self.flush_after_s - self.lease.clock.monotonic()

    async def _store(self, batch: _Batch) -> None:
        if not self.lease.must_claim():
            faults.point("between-commits")
        if self.meter.unsure:
            # The commit before had no answer: HEAD tells whether it was stored, so that nothing is
            # counted twice.
            head = await self.lease.storage.head(self.lease.params.task_id)
            await self.meter.settle(head.usage if head else ())
        with self.meter.taken() if self.meter.pending else nullcontext(()) as used:
            entries = [*batch.entries, ModelsUsed(used)] if used else batch.entries
            commit = replace(batch.wanted, entries=tuple(entries))
            await self.lease.commit(commit, merged=self.merged)
        # Counted behind the commit: what this one has not stored, the next one stores.
        if used:
            await self.meter.stored(used)
        chunks = [each for each in batch.entries if isinstance(each, ArtifactWritten)]
        if chunks and self.accepted_at is not None:
            metrics.time("TimeToFirstChunk", self.lease.clock.now_ms() - self.accepted_at)
            self.accepted_at = None
        if self.on_stored is not None:
            await self.on_stored(tuple(batch.entries))


def _both(earlier: Commit, later: Commit) -> Commit:
    """Return what a batch wants of its commit; where both parts say something, the later counts."""
    has_failed = later.failed is not None
    return replace(
        earlier,
        context_write=later.context_write or earlier.context_write,
        failed=later.failed if has_failed else earlier.failed,
        failed_by=later.failed_by if has_failed else earlier.failed_by,
        backoff=later.backoff or earlier.backoff,
        parks=later.parks or earlier.parks,
        seen=later.seen or earlier.seen,
        asks=earlier.asks if later.asks is None else later.asks,
    )
