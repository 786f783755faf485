"""Where the stores keep what they have: their table, and its keys.

A task's items, and those of its webhooks, are in one partition, which its id names: an id belongs
to one owner, as in the SDK's SQL stores. A digest stands for the owner.

| PK | SK | content |
|---|---|---|
| `STORE#<task id>` | `HEAD` | version, state, owner, and where the log begins that has the task |
| | `LOG#<incarnation>#<version>` | one save: its event, new bytes, and where they go |
| | `LOG#<incarnation>#<version>#<mark>#<part>` | a body that is too large for one item |
| | `CONFIG#<owner>#<id>` | a webhook |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.utils.errors import InvalidParamsError

from a2a_serverless import aws
from a2a_serverless.clock import Clock, SystemClock, now_s
from a2a_serverless.storage.dynamodb import DynamoTable, definition_of
from a2a_serverless.storage.layout import BY_CONTEXT, BY_SCOPE, INDEXES, SHARDS, shard_of
from a2a_serverless.storage.table import Check, Index, Key, Table
from a2a_serverless.tasks.identity import digest

OWN_INDEXES: Final[Mapping[str, Index]] = {name: INDEXES[name] for name in (BY_SCOPE, BY_CONTEXT)}
"""Two of the runtime's indexes, so that the stores can be on its table, too."""

MAX_ID_BYTES: Final = 900
"""The longest id of a task or of a webhook: it is a part of a key."""

_EXPIRY: Final = "expires_at"
_NEVER_S: Final = 10**12
"""Stands behind all times, in seconds since the epoch."""

_BEFORE_EPOCH_NS: Final = 62_135_596_800 * 10**9
"""Protobuf's first time is the beginning of the year 1."""
_LATEST_NS: Final = 315_537_897_600 * 10**9
"""The nanoseconds from then to the end of the year 9999."""
_NO_TIME: Final = "!"
"""Stands before all times."""


# -- tables ------------------------------------------------------------------------------------


async def create_table(name: str, *, client: Any = None) -> None:
    """Create the table in DynamoDB, with its expiry, and wait until it can be used.

    One that is there already, or that another process is creating, is left as it is.

    Args:
        name: the table's name.
        client: a boto3 client of DynamoDB, by default the process's own.

    Raises:
        ClientError: as boto3 raises it, such as for a missing permission.
    """
    client = client or aws.client("dynamodb")
    is_new = True
    try:
        await aws.call(client.create_table, TableName=name, **definition_of(OWN_INDEXES))
    except client.exceptions.ResourceInUseException:
        is_new = False
    await aws.call(client.get_waiter("table_exists").wait, TableName=name)
    if is_new:
        expiry = {"Enabled": True, "AttributeName": _EXPIRY}
        await aws.call(client.update_time_to_live, TableName=name, TimeToLiveSpecification=expiry)


def file_table(path: str | Path) -> Table:
    """Return a table in an SQLite file, which the processes of one machine share.

    Raises:
        ConfigurationError: the file cannot be used; one sentence says why.
    """
    from a2a_serverless.storage.sqlite import SqliteTable  # noqa: PLC0415 - for tests alone

    return SqliteTable(Path(path), OWN_INDEXES)


def memory_table() -> Table:
    """Return a table in this process's memory, lost with it."""
    from a2a_serverless.storage.dictionaries import MemoryTable  # noqa: PLC0415 - for tests alone

    return MemoryTable(OWN_INDEXES)


def opened(table: str | Table, clock: Clock) -> Table:
    """Return a table: that of DynamoDB with a name, or the given one."""
    return DynamoTable(table, OWN_INDEXES, clock=clock) if isinstance(table, str) else table


# -- keys --------------------------------------------------------------------------------------


def fits(identifier: str) -> bool:
    """Return True if something can have this id; nothing else is looked up."""
    return 0 < len(identifier.encode()) <= MAX_ID_BYTES


def check_id(identifier: str, what: str) -> str:
    """Return an id that fits a key.

    Raises:
        InvalidParamsError: it is empty or too long.
    """
    if not fits(identifier):
        raise InvalidParamsError(f"The id of a {what} must have 1 to {MAX_ID_BYTES} bytes.")
    return identifier


def partition_of(task_id: str) -> str:
    """Return the PK of all that belongs to a task."""
    return f"STORE#{task_id}"


def head_key(task_id: str) -> Key:
    """Return the key of a task's HEAD."""
    return Key(partition_of(task_id), "HEAD")


def log_sort(incarnation: str, version: int) -> str:
    """Return the SK of what one version has changed, and the beginning of those of its parts."""
    return f"LOG#{incarnation}#{version:012d}"


def config_sort(owner: str = "", config_id: str = "") -> str:
    """Return the SK of a webhook, or the beginning of those of one owner, or of all."""
    return f"CONFIG#{owner}#{config_id}" if owner else "CONFIG#"


def owner_key(owner: str) -> str:
    """Return what stands for an owner in keys and items, however long its name is."""
    return digest("store owner", owner)


def owner_partitions(owner: str) -> list[str]:
    """Return the partitions of the index of an owner's tasks."""
    return [f"STORE#{owner}#{shard}" for shard in range(SHARDS)]


def owner_partition(owner: str, task_id: str) -> str:
    """Return the one that has a task."""
    return owner_partitions(owner)[shard_of(task_id)]


def context_partition(owner: str, context_id: str) -> str:
    """Return the partition of the index of a context's tasks."""
    return digest("store context", owner, context_id)


def list_place(timestamp_ns: int | None, task_id: str) -> str:
    """Return a task's place in lists, as text that sorts as the SDK does.

    Args:
        timestamp_ns: the nanoseconds from the epoch to the time of the status; None: it has none.
        task_id: the id, which decides among those of one time.

    Raises:
        InvalidParamsError: there is no such time.
    """
    if timestamp_ns is None:
        return f"{_NO_TIME}#{task_id}"
    at_ns = timestamp_ns + _BEFORE_EPOCH_NS
    if not 0 <= at_ns < _LATEST_NS:
        raise InvalidParamsError("A time is in the years 1 to 9999.")
    return f"{at_ns:021d}#{task_id}"


def read_place(place: str) -> tuple[int | None, str]:
    """Return the time and the id of a place in lists."""
    at, _, task_id = place.partition("#")
    return None if at == _NO_TIME else int(at) - _BEFORE_EPOCH_NS, task_id


# -- time to live ------------------------------------------------------------------------------


def living(clock: Clock) -> Check:
    """Return the check that an item has not expired.

    DynamoDB deletes an expired item late: until then this alone hides it.
    """
    return Check(_EXPIRY, ">", now_s(clock))


class OwnedStore:
    """Keeps what belongs to owners, for a time, on one table.

    Args:
        table: the name of a DynamoDB table, or a table.
        owner_resolver: returns the owner of a call, as for the SDK's stores.
        ttl_s: the seconds after its last save for which a thing is kept; None: for ever.
        clock: by default the system's.

    Raises:
        ValueError: `ttl_s` is not above 0.
    """

    def __init__(
        self,
        table: str | Table,
        *,
        owner_resolver: OwnerResolver = resolve_user_scope,
        ttl_s: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if ttl_s is not None and ttl_s <= 0:
            raise ValueError(f"ttl_s is a number of seconds above 0, or None; not {ttl_s!r}.")
        self._clock = clock or SystemClock()
        self._table = opened(table, self._clock)
        self._owner_resolver, self._ttl_s = owner_resolver, ttl_s

    def _owner(self, context: ServerCallContext) -> str:
        return owner_key(self._owner_resolver(context))

    def _expires_at(self, ttls: int = 1) -> int:
        """Return when something expires that is saved for some times to live."""
        return _NEVER_S if self._ttl_s is None else now_s(self._clock) + ttls * self._ttl_s
