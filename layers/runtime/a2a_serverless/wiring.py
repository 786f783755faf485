"""The storage and the queues that a process runs on, made from its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import A2AServerlessError, ConfigurationError
from a2a_serverless.push.jobs import PushJob, PushLetter, PushQueue
from a2a_serverless.push.keys import KeyStore
from a2a_serverless.queues.fifo import FifoQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.leases import PLACES, Slots, StreamLeases
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.operations import Operation

Name = Literal[
    "table",
    "queue",
    "quarantine_queue",
    "undecodable_queue",
    "push_queue",
    "push_dead_letter_queue",
]
"""A setting that names a resource of the deployment."""

PUSH_VISIBILITY_S: Final = 90
"""Seconds that a job in memory is hidden after its receive: as deployed, PushFunction's time-out
and 30 s."""

_NAMED: Final[Mapping[Name, str]] = {
    "table": "the table",
    "queue": "the queue",
    "quarantine_queue": "the queue for turns that must not share a worker",
    "undecodable_queue": "the queue for unreadable messages",
    "push_queue": "the queue of push deliveries",
    "push_dead_letter_queue": "the queue for notifications that were given up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PushBackends:
    """The backends of push: the queue of jobs, the public keys, and the places of slow requests."""

    queue: PushQueue
    keys: KeyStore
    slots: Slots
    """The slots of the places for slow requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The backends that the functions share, in the anonymous scope.

    `push` is set exactly if push is offered (`settings.pushes`).
    """

    storage: DurableStorage
    operations: FifoQueue[Operation]
    quarantine: FifoQueue[Operation] | None = None
    """Operations of turns that must not share a worker; None if no turns share one."""
    push: PushBackends | None = None
    streams: StreamLeases | None = None
    """Leases of open streams; None if they are not counted."""

    def quarantining(self) -> FifoQueue[Operation]:
        """Return the quarantine queue.

        Raises:
            ConfigurationError: there is none.
        """
        if self.quarantine is None:
            raise _unnamed("quarantine_queue")
        return self.quarantine

    def pushing(self) -> PushBackends:
        """Return the backends of push.

        Raises:
            ConfigurationError: push is not offered.
        """
        if self.push is None:
            raise _unnamed("push_queue")
        return self.push


def memory_backends(settings: Settings, clock: Clock | None = None) -> Backends:
    """Return backends in this process's memory."""
    from a2a_serverless.queues.memory import MemoryQueue
    from a2a_serverless.storage.dictionaries import MemoryTable

    clock = clock or SystemClock()
    table = MemoryTable(INDEXES)
    queue = partial(MemoryQueue, Operation, visibility_s=settings.visibility_s, clock=clock)
    return Backends(
        storage=DurableStorage(table, clock=clock, timing=settings.timing()),
        operations=queue(),
        quarantine=queue(name="Quarantine.fifo") if settings.worker_turns > 1 else None,
        push=_push_in_memory(table, clock) if settings.pushes else None,
        streams=_leases(Slots(table, clock=clock), settings),
    )


def aws_backends(
    settings: Settings,
    clock: Clock | None = None,
    *,
    needs: Iterable[Name] = (),
    has_long_polls: bool = True,
) -> Backends:
    """Return backends on DynamoDB and SQS, as the environment names them.

    `needs` lists the settings that the process requires besides `table` and `queue`;
    `has_long_polls` is as for `SqsFifoQueue`.

    Raises:
        ConfigurationError: one of them is not set.
    """
    from a2a_serverless.queues.sqs import SqsFifoQueue

    for name in ("table", "queue", *needs):
        if not getattr(settings, name):
            raise _unnamed(name)
    clock = clock or SystemClock()
    table = _table_on_aws(settings, clock)
    queue = partial(
        SqsFifoQueue,
        Operation,
        undecodable_queue=settings.undecodable_queue or None,
        clock=clock,
        visibility_s=settings.visibility_s,
        has_long_polls=has_long_polls,
    )
    return Backends(
        storage=DurableStorage(table, clock=clock, timing=settings.timing()),
        operations=queue(settings.queue),
        quarantine=queue(settings.quarantine_queue) if settings.quarantine_queue else None,
        push=_push_on_aws(settings, table, clock) if settings.pushes else None,
        streams=_leases(Slots(table, clock=clock), settings),
    )


def aws_storage(settings: Settings, clock: Clock | None = None) -> DurableStorage:
    """Return the storage on DynamoDB alone, in the anonymous scope.

    Raises:
        ConfigurationError: `table` is not set.
    """
    if not settings.table:
        raise _unnamed("table")
    clock = clock or SystemClock()
    table = _table_on_aws(settings, clock)
    return DurableStorage(table, clock=clock, timing=settings.timing())


def _table_on_aws(settings: Settings, clock: Clock) -> Table:
    from a2a_serverless.storage.dynamodb import DynamoTable

    return DynamoTable(settings.table, INDEXES, clock=clock)


async def check_backends(backends: Backends, settings: Settings) -> None:
    """Check that table and queues exist, by one cheap request each.

    Raises:
        ConfigurationError: one sentence names the table or queue that cannot be used.
    """
    await check_storage(backends.storage, settings)
    await backends.operations.check()
    if backends.quarantine is not None:
        await backends.quarantine.check()
    if backends.push is not None:
        await backends.push.queue.check()


async def check_storage(storage: DurableStorage, settings: Settings) -> None:
    """Check that the table exists, by one cheap request.

    Raises:
        ConfigurationError: one sentence names the table, the cause and what to look at.
    """
    try:
        await storage.head("readiness")  # no task has this id
    except A2AServerlessError:
        raise
    except Exception as error:
        # An error of the backend's library: the table cannot be used.
        msg = (
            f"The table {settings.table} cannot be used: {str(error).rstrip('.')};"
            " check A2A_TABLE, the region and the credentials."
        )
        raise ConfigurationError(msg) from error


def _unnamed(name: Name) -> ConfigurationError:
    return ConfigurationError(f"A2A_{name.upper()} is not set: it names {_NAMED[name]}.")


def _leases(slots: Slots, settings: Settings) -> StreamLeases:
    return StreamLeases(
        slots, per_caller=settings.streams_per_caller, in_all=settings.streams_in_all
    )


def _push_in_memory(table: Table, clock: Clock) -> PushBackends:
    from a2a_serverless.queues.memory import MemoryQueue

    jobs = MemoryQueue(PushJob, visibility_s=PUSH_VISIBILITY_S, clock=clock)
    queue = PushQueue(jobs, MemoryQueue(PushLetter, clock=clock))
    return _pushing(queue, table, clock)


def _push_on_aws(settings: Settings, table: Table, clock: Clock) -> PushBackends:
    from a2a_serverless.queues.sqs import SqsFifoQueue

    dead = settings.push_dead_letter_queue
    jobs = SqsFifoQueue(PushJob, settings.push_queue, undecodable_queue=dead or None, clock=clock)
    letters = SqsFifoQueue(PushLetter, dead, clock=clock) if dead else None
    return _pushing(PushQueue(jobs, letters), table, clock)


def _pushing(queue: PushQueue, table: Table, clock: Clock) -> PushBackends:
    return PushBackends(
        queue=queue,
        keys=KeyStore(table, clock=clock),
        slots=Slots(table, kind=PLACES, clock=clock),
    )
