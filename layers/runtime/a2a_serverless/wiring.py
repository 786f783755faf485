"""The storage and the queues that a process runs on, made from its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import A2AServerlessError, ConfigurationError
from a2a_serverless.observability import logs, spans
from a2a_serverless.push.jobs import PushBackends, PushDeadLetter, PushJob
from a2a_serverless.queues.fifo import FifoQueue, M, send_copy
from a2a_serverless.settings import Settings
from a2a_serverless.storage import layout
from a2a_serverless.storage.blobs import Blobs
from a2a_serverless.storage.durable import DurableStorage, Observer
from a2a_serverless.storage.keys import KeyStore
from a2a_serverless.storage.layout import BY_LINE, INDEXES
from a2a_serverless.storage.leases import PLACES, Leases, Slots
from a2a_serverless.storage.table import Range, Table
from a2a_serverless.tasks.head import Operation
from a2a_serverless.values import dataclass

if TYPE_CHECKING:
    from a2a_serverless.queues.table import TableQueue

Name = Literal[
    "table",
    "queue",
    "quarantine_queue",
    "dead_letter_queue",
    "undecodable_queue",
    "push_queue",
    "push_dead_letter_queue",
]
"""A setting that names a resource of the deployment."""

PUSH_VISIBILITY_S: Final = 90
"""Seconds that a received job of push is hidden, where no function receives it: as deployed,
PushFunction's time-out and 30 s."""

SWEEP_S: Final = 90
"""Seconds that a dead letter on a table is hidden after its receive, as deployed."""

SPARE_RECEIVES: Final = 20
"""Receives of an operation on a table beyond the attempts of its turn, as deployed: then it is a
dead letter."""

INDEXES_OF_WORKER: Final = (BY_LINE,)
"""The indexes that a worker reads, and its role may."""

_NOTHING: Final = "readiness"
"""No task has this id, and no index this partition."""

_NAMED: Final[Mapping[Name, str]] = {
    "table": "the table",
    "queue": "the queue",
    "quarantine_queue": "the queue for turns that must not share a worker",
    "dead_letter_queue": "the queue for operations whose deliveries ran out",
    "undecodable_queue": "the queue for unreadable messages",
    "push_queue": "the queue of push deliveries",
    "push_dead_letter_queue": "the queue for notifications that were given up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The backends that the functions share, in the anonymous scope.

    `push` is set exactly if push is offered (`settings.pushes`).
    """

    storage: DurableStorage
    operations: FifoQueue[Operation]
    quarantine: FifoQueue[Operation] | None = None
    """Operations of turns that must not share a worker; None if no turns share one."""
    dead_letters: TableQueue[Operation] | None = None
    """Operations whose deliveries ran out, if they are on the table."""
    push: PushBackends | None = None
    streams: Leases | None = None
    """Leases of open streams; None if they are not counted."""

    def quarantining(self) -> FifoQueue[Operation]:
        """Return the quarantine queue.

        Raises:
            ConfigurationError: there is none.
        """
        if self.quarantine is None:
            raise _unnamed("quarantine_queue")
        return self.quarantine

    def waking(self) -> Callable[[float], Awaitable[int]] | None:
        """Return what sends the jobs of webhooks whose wait is over; None: push is not offered."""
        from a2a_serverless.push.waiting import wake_due

        push = self.push
        return None if push is None else partial(wake_due, self.storage, push.jobs)

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
    from a2a_serverless.storage.dictionaries import MemoryTable

    return table_backends(settings, MemoryTable(INDEXES), clock)


def table_backends(settings: Settings, table: Table, clock: Clock | None = None) -> Backends:
    """Return backends on one table, which has the queues too, see `queue_on`."""
    clock = clock or SystemClock()
    made = partial(
        queue_on,
        table,
        Operation,
        settings,
        visibility_s=settings.visibility_s,
        clock=clock,
        undecodable="undecodable_queue",
        dead_letters="dead_letter_queue",
        max_receives=settings.max_attempts + SPARE_RECEIVES,
    )
    operations = made("queue")
    return Backends(
        storage=_storage_on(table, settings, clock, operations),
        operations=operations,
        quarantine=made("quarantine_queue") if settings.worker_turns > 1 else None,
        dead_letters=queue_on(
            table, Operation, settings, "dead_letter_queue", visibility_s=SWEEP_S, clock=clock
        ),
        push=_push_on_table(settings, table, clock) if settings.pushes else None,
        streams=_leases(Slots(table, clock=clock), settings),
    )


def queue_on(
    table: Table,
    kind: type[M],
    settings: Settings,
    name: Name,
    *,
    undecodable: Name = "undecodable_queue",
    dead_letters: Name | None = None,
    **options: Any,
) -> TableQueue[M]:
    """Return a queue on a table, under the name in its setting, or else under that of the setting.

    `undecodable` and `dead_letters` are settings too; `options` are those of TableQueue.
    """
    from a2a_serverless.queues.table import TableQueue

    def named(setting: Name) -> str:
        return getattr(settings, setting) or setting

    return TableQueue(
        kind,
        table,
        name=named(name),
        undecodable=named(undecodable),
        dead_letters=named(dead_letters) if dead_letters else "",
        **options,
    )


def open_backends(settings: Settings, clock: Clock | None = None) -> Backends:
    """Return the backends that the environment names: on AWS, or all on one table.

    Raises:
        ConfigurationError: one of them is not set, or the table cannot be used.
    """
    if not _scheme_of(settings.table):
        return aws_backends(settings, clock)
    clock = clock or SystemClock()
    return table_backends(settings, open_table(settings.table, clock), clock)


def open_storage(settings: Settings, clock: Clock | None = None) -> DurableStorage:
    """Return the storage alone, in the anonymous scope.

    Raises:
        ConfigurationError: `table` is not set, or cannot be used.
    """
    if not settings.table:
        raise _unnamed("table")
    clock = clock or SystemClock()
    return _storage_on(open_table(settings.table, clock), settings, clock)


def _storage_on(
    table: Table, settings: Settings, clock: Clock, operations: FifoQueue[Operation] | None = None
) -> DurableStorage:
    """Return the storage on a table, whose commits are counted and traced.

    Without a queue of operations the turns that it wakes are left to the sweeper.
    """
    layout.SHARDS = settings.shards
    if table.blobs is None:
        table.blobs = open_blobs(settings, table, clock)
    send = None if operations is None else partial(send_copy, operations)
    return DurableStorage(
        table,
        clock=clock,
        timing=settings.timing(),
        observer=replace(OBSERVER, send=send),
        is_serial=settings.is_serial,
    )


OBSERVER: Final = Observer(trace=spans.stored, ended=logs.ended)


def aws_backends(
    settings: Settings,
    clock: Clock | None = None,
    *,
    needs: Iterable[Name] = (),
    has_long_polls: bool = True,
) -> Backends:
    """Return backends on DynamoDB and SQS, as the environment names them.

    `needs` lists the settings that the process requires besides `table` and `queue`, of which
    `table` names a table on DynamoDB;
    `has_long_polls` is as for `SqsFifoQueue`.

    Raises:
        ConfigurationError: one of them is not set.
    """
    from a2a_serverless.queues.sqs import SqsFifoQueue

    for name in ("table", "queue", *needs):
        if not getattr(settings, name):
            raise _unnamed(name)
    clock = clock or SystemClock()
    table = open_table(settings.table, clock)
    queue = partial(
        SqsFifoQueue,
        Operation,
        undecodable_queue=settings.undecodable_queue or None,
        clock=clock,
        visibility_s=settings.visibility_s,
        has_long_polls=has_long_polls,
    )
    operations = queue(settings.queue)
    return Backends(
        storage=_storage_on(table, settings, clock, operations),
        operations=operations,
        quarantine=queue(settings.quarantine_queue) if settings.quarantine_queue else None,
        push=_push_on_aws(settings, table, clock) if settings.pushes else None,
        streams=_leases(Slots(table, clock=clock), settings),
    )


async def check_backends(
    backends: Backends, settings: Settings, indexes: Iterable[str] = INDEXES
) -> None:
    """Check that the table, these indexes and the queues exist, by one cheap request each.

    A role may be allowed no others: `INDEXES_OF_WORKER` are those of a worker's.

    Raises:
        ConfigurationError: one sentence names the table, index or queue that cannot be used.
    """
    await check_storage(backends.storage, settings)
    table = backends.storage.table
    await asyncio.gather(
        *(table.first(1, Range(partition=_NOTHING, index=name)) for name in indexes)
    )
    await backends.operations.check()
    if backends.quarantine is not None:
        await backends.quarantine.check()
    if backends.push is not None:
        await backends.push.check()


async def check_storage(storage: DurableStorage, settings: Settings) -> None:
    """Check that the table exists, by one cheap request.

    Raises:
        ConfigurationError: one sentence names the table, the cause and what to look at.
    """
    try:
        await storage.head(_NOTHING)
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


def _leases(slots: Slots, settings: Settings) -> Leases:
    return Leases(slots, per_caller=settings.streams_per_caller, in_all=settings.streams_in_all)


def _push_on_table(settings: Settings, table: Table, clock: Clock) -> PushBackends:
    on = partial(queue_on, table, clock=clock, undecodable="push_dead_letter_queue")
    jobs = on(PushJob, settings, "push_queue", visibility_s=PUSH_VISIBILITY_S)
    dead_letters = on(PushDeadLetter, settings, "push_dead_letter_queue")
    return _pushing(jobs, dead_letters, table, clock)


def _push_on_aws(settings: Settings, table: Table, clock: Clock) -> PushBackends:
    from a2a_serverless.queues.sqs import SqsFifoQueue

    dead = settings.push_dead_letter_queue
    jobs = SqsFifoQueue(
        PushJob,
        settings.push_queue,
        undecodable_queue=dead or None,
        clock=clock,
        visibility_s=PUSH_VISIBILITY_S,
    )
    dead_letters = SqsFifoQueue(PushDeadLetter, dead, clock=clock) if dead else None
    return _pushing(jobs, dead_letters, table, clock)


def _pushing(
    jobs: FifoQueue[PushJob],
    dead_letters: FifoQueue[PushDeadLetter] | None,
    table: Table,
    clock: Clock,
) -> PushBackends:
    return PushBackends(
        jobs=jobs,
        dead_letters=dead_letters,
        keys=KeyStore(table, clock=clock),
        slots=Slots(table, kind=PLACES, clock=clock),
    )


# -- the table that A2A_TABLE names ------------------------------------------------------------

TABLES: Final = "a2a_serverless.tables"
"""The entry points of other packages: each has the name of a scheme, and is a function of the value
of A2A_TABLE and of a clock that returns a Table with the indexes of `storage/layout.py`."""

FILE: Final = "file"


def _scheme_of(name: str) -> str:
    """Return the scheme of a table that has its queues too; empty: it is one on DynamoDB."""
    scheme, colon, rest = name.partition(":")
    return scheme if colon and (scheme == FILE or rest.startswith("//")) else ""


def open_table(name: str, clock: Clock) -> Table:
    """Open a table by the value of A2A_TABLE.

    Raises:
        ConfigurationError: one sentence says why it cannot be used.
    """
    match _scheme_of(name):
        case "":
            from a2a_serverless.storage.dynamodb import DynamoTable

            return DynamoTable(name, INDEXES, clock=clock)
        case "file":
            return _open_file(name)
        case scheme:
            return _open_outside(scheme, name, clock)


def open_blobs(settings: Settings, table: Table, clock: Clock) -> Blobs | None:
    """Open the store for content that is too large for items of a table, by A2A_BLOBS.

    Raises:
        ConfigurationError: one sentence says why it cannot be used.
    """
    name, keep_s = settings.blobs, (settings.ttl_days + 1) * 86_400
    if name.startswith(f"{FILE}:"):
        from a2a_serverless.storage.directory import DirectoryBlobs

        return DirectoryBlobs(_file(name.removeprefix(f"{FILE}:")), clock, keep_s=keep_s)
    if name:
        from a2a_serverless.storage.s3 import S3Blobs

        return S3Blobs(name, clock)
    return table.blobs_beside(clock, keep_s=keep_s)


def table_file(name: str) -> Path | None:
    """Return the file that A2A_TABLE names; None: it names none."""
    if _scheme_of(name) != FILE:
        return None
    return _file(name.removeprefix(f"{FILE}:").partition("?")[0])


def _file(path: str) -> Path:
    return Path(f"/{path.lstrip('/')}" if path.startswith("//") else path).expanduser()


def _open_file(name: str) -> Table:
    from a2a_serverless.storage.sqlite import SqliteTable

    path, _, query = name.removeprefix(f"{FILE}:").partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    is_safe = {"normal": False, "full": True}.get(options.pop("synchronous", "normal").lower())
    if not path or options or is_safe is None:
        raise ConfigurationError(
            f"A2A_TABLE is {name}: a file is file:PATH, or file:PATH?synchronous=full."
        )
    return SqliteTable(_file(path), INDEXES, survives_power_cuts=is_safe)


def _open_outside(scheme: str, name: str, clock: Clock) -> Table:
    found = {point.name: point for point in entry_points(group=TABLES)}
    if scheme not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigurationError(
            f"A2A_TABLE begins with {scheme}: no installed package has tables of this kind"
            f" (installed: {known}); install one that has the entry point {scheme} in the group"
            f" {TABLES}, or name a table on DynamoDB or file:PATH."
        )
    opened = found[scheme].load()(name, clock)
    if not isinstance(opened, Table):
        raise ConfigurationError(
            f"The entry point {found[scheme].value} of the group {TABLES} returns no Table: use"
            " another release of its package."
        )
    return opened
