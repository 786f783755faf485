"""A table of items: the six requests that storage makes of a database.

An item is a dictionary of plain values with two keys, `PK` (its partition) and `SK`. Conditions and
changes are plain values too. `holds` and `changed` say what they mean: a database calls them inside
of a transaction, or says the same in its own language.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import replace
from operator import eq, ge, gt, le, lt, ne
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
)

from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConditionFailedError, ConfigurationError
from a2a_serverless.values import dataclass

if TYPE_CHECKING:
    from a2a_serverless.storage.blobs import Blobs

__all__ = [
    "MAX_ITEM_BYTES",
    "MAX_KEY_BYTES",
    "MAX_TRANSACTION_BYTES",
    "MAX_WRITES",
    "TABLE",
    "Added",
    "Check",
    "Delete",
    "Index",
    "Item",
    "Key",
    "Operator",
    "Pause",
    "Put",
    "Range",
    "RefusedError",
    "Streamed",
    "Table",
    "Update",
    "Watch",
    "When",
    "Write",
    "changed",
    "check_keys",
    "check_range",
    "check_writes",
    "holds",
    "key_of",
    "outcome",
]
"""What authors of tables import; the rest of this module is the storage's own."""

T = TypeVar("T")

Item: TypeAlias = dict[str, Any]
"""Values are str, int (whole numbers), bytes or None; a reader takes all else for damage."""


class Key(NamedTuple):
    """The place of an item in its table."""

    PK: str
    SK: str


class Index(NamedTuple):
    """The items that have both key attributes, by partition and in the order of the sort key."""

    partition: str
    sort: str
    projects: frozenset[str] = frozenset()
    """The attributes that an entry has besides its keys and those of the table."""

    @property
    def attributes(self) -> frozenset[str]:
        """All attributes of an entry."""
        return self.projects | {"PK", "SK", self.partition, self.sort}


def key_of(item: Mapping[str, Any]) -> Key:
    """Return the place of an item."""
    return Key(item["PK"], item["SK"])


class RefusedError(Exception):
    """The database refuses a request that can never succeed: its caller is wrong."""


# -- conditions ------------------------------------------------------------------------------

Operator = Literal["=", "<>", "<", "<=", ">", ">=", "absent", "present"]

_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison of one attribute. A missing attribute, or one of another type, passes `<>` only.

    Texts are compared by code point, bytes by byte; None is a value like any other, without order.
    """

    name: str
    operator: Operator
    value: Any = None

    def passes(self, item: Mapping[str, Any] | None) -> bool:
        """Return True if an item as it is stored passes; None: there is no item."""
        is_stored = item is not None and self.name in item
        if self.operator in ("absent", "present"):
            return is_stored is (self.operator == "present")
        value = item[self.name] if item is not None and is_stored else None
        number = isinstance(value, float) and isinstance(self.value, int)
        if not is_stored or not (number or type(value) is type(self.value)):
            return self.operator == "<>"
        return _COMPARED[self.operator](value, self.value)


When: TypeAlias = Sequence[Check | Sequence[Check]]
"""All have to pass; of an inner sequence one is enough."""

NEW: Final = Check("PK", "absent")
"""There is no such item."""
STORED: Final = Check("PK", "present")
"""There is such an item."""


def are(**values: Any) -> list[Check]:
    """Return the checks that attributes have these values."""
    return [Check(name, "=", value) for name, value in values.items()]


def holds(item: Mapping[str, Any] | None, when: When) -> bool:
    """Return True if an item as it is stored meets a condition; None: there is no item."""
    for check in when:
        if isinstance(check, Check):
            if not check.passes(item):
                return False
        elif not [one for one in check if one.passes(item)]:
            return False
    return True


# -- changes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Added:
    """The stored number, or 0, plus this one."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Replace an item as a whole."""

    item: Item
    when: When = ()
    is_news: bool = True
    """False: who watches its partition has nothing to do with it, and need not be woken."""

    @property
    def key(self) -> Key:
        return Key(self.item["PK"], self.item["SK"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Change attributes of an item, or make it; attributes that are not named stay."""

    key: Key
    values: Mapping[str, Any]
    """By name: a value, or `Added`."""
    remove: Sequence[str] = ()
    when: When = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete an item, if there is one."""

    key: Key
    when: When = ()


Write: TypeAlias = Put | Update | Delete


def changed(item: Mapping[str, Any] | None, write: Write) -> Item | None:
    """Return an item as it is after a write; None: there is none.

    Raises:
        RefusedError: it adds to something else than a number.
    """
    match write:
        case Put():
            return dict(write.item)
        case Delete():
            return None
        case _:
            before = write.key._asdict() if item is None else dict(item)
            values = {name: _value(before, name, new) for name, new in write.values.items()}
            return {n: v for n, v in (before | values).items() if n not in write.remove}


def _value(before: Item, name: str, new: Any) -> Any:
    match new:
        case Added(number):
            stored = before.get(name, 0)
            if not isinstance(stored, int):
                raise RefusedError(f"The attribute {name} is no number to add to.")
            return stored + number
        case _:
            return new


# -- queries ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Items of one partition of the table, or of an index, in the order of the sort key."""

    partition: str
    index: str = ""
    """The name of an index; empty: the table itself."""
    first: str | int | None = None
    last: str | int | None = None
    """Bounds of the sort key, both included; None: no bound."""
    when: When = ()
    """A filter: an item that does not pass is looked at, and left out."""
    newest_first: bool = False
    """Whether the order is the reverse one."""
    only: Sequence[str] = ()
    """The attributes that are wanted; empty: all."""
    page: int | None = None
    """How many items the first page looks at, at most; later pages may look at more."""


def beginning(partition: str, start: str, **options: Any) -> Range:
    """Return the range of the items whose sort key begins with `start`."""
    return Range(partition=partition, first=start, last=f"{start}\U0010ffff", **options)


class Counted(NamedTuple):
    """The first items of several ranges that pass their filters, and how many pass."""

    items: list[Item]
    """In no order, and perhaps more than were asked for; perhaps without those before any end."""
    number: int
    """How many of those that were looked at pass, `items` among them."""
    ends: list[Item]
    """Of each range that may have more: the last one that was looked at, perhaps its sort key
    alone."""


# -- what every table refuses, because DynamoDB does -----------------------------------------

MAX_WRITES: Final = 100
"""Writes of one transaction, and keys of one request that is not repeated."""
MAX_ITEM_BYTES: Final = 400 * 1024
MAX_TRANSACTION_BYTES: Final = 4 * 1024 * 1024
MAX_KEY_BYTES: Final = (2048, 1024)
"""The longest PK and SK."""

TABLE: Final = Index("PK", "SK")
"""The table's own keys, as those of an index."""


def check_writes(writes: Sequence[Write]) -> None:
    """Refuse what no transaction may have.

    Raises:
        RefusedError: none or more than `MAX_WRITES` writes, two on one item, a key that no item
            has, an update that changes nothing, a key, or one attribute twice, or a comparison by
            order with None.
    """
    if not 1 <= len(writes) <= MAX_WRITES:
        raise RefusedError(f"A transaction has 1 to {MAX_WRITES} writes, not {len(writes)}.")
    check_keys([write.key for write in writes])
    for write in writes:
        _checked_names(write.when)
        if isinstance(write, Update):
            names = [*write.values, *write.remove]
            if not names or len(set(names)) < len(names) or {"PK", "SK"} & set(names):
                raise RefusedError("An update changes attributes that are no keys, each once.")


def check_keys(keys: Collection[Key], *, once: bool = False) -> None:
    """Refuse keys that no item has, and a key that is named twice.

    Raises:
        RefusedError: there is such a key; with `once`, also for more than `MAX_WRITES`.
    """
    if len(set(keys)) < len(keys):
        raise RefusedError("A request names each item once.")
    if once and len(keys) > MAX_WRITES:
        raise RefusedError(f"A request that is not repeated has at most {MAX_WRITES} keys.")
    for key in keys:
        for part, longest in zip(key, MAX_KEY_BYTES, strict=True):
            # No character has more than four bytes.
            if not part or (4 * len(part) > longest and len(part.encode()) > longest):
                raise RefusedError("A key is empty or too long.")


def outcome(
    writes: Sequence[Write], before: Sequence[Item | None], indexes: Mapping[str, Index]
) -> list[Item | None]:
    """Return the items that a transaction leaves, given those that it finds.

    Raises:
        ConditionFailedError: with the items whose conditions fail, by the places of their writes.
        RefusedError: as `changed` and `_check_stored`.
    """
    failed = {
        place: item
        for place, (write, item) in enumerate(zip(writes, before, strict=True))
        if not holds(item, write.when)
    }
    if failed:
        raise ConditionFailedError(failed)
    after = [changed(item, write) for item, write in zip(before, writes, strict=True)]
    _check_stored(after, indexes)
    return after


def _check_stored(items: Iterable[Item | None], indexes: Mapping[str, Index]) -> None:
    """Refuse items that are too large, or have values by which an index cannot sort.

    Raises:
        RefusedError: an item has more than `MAX_ITEM_BYTES`, all together more than
            `MAX_TRANSACTION_BYTES`, or a key of an index is no text or number, or empty.
    """
    total = 0
    for item in items:
        if item is None:
            continue
        size = _size_of(item)
        total += size
        if size > MAX_ITEM_BYTES:
            raise RefusedError(f"An item of {size} bytes exceeds {MAX_ITEM_BYTES} bytes.")
        for index in indexes.values():
            for name in (index.partition, index.sort):
                value = item.get(name, 0)
                if value == "" or not isinstance(value, str | int):
                    raise RefusedError(f"The key {name} of an index is empty or no text or number.")
    if total > MAX_TRANSACTION_BYTES:
        raise RefusedError(f"A transaction of {total} bytes exceeds {MAX_TRANSACTION_BYTES} bytes.")


def _size_of(item: Mapping[str, Any]) -> int:
    """Return the bytes of an item, as DynamoDB counts them."""
    size = sum([len(name.encode()) for name in item])
    for value in item.values():
        match value:
            case str():
                size += len(value) if value.isascii() else len(value.encode())
            case None:
                size += 1
            case bytes():
                size += len(value)
            case int():
                size += (len(str(abs(value))) + 1) // 2 + 1 + (value < 0)
            case _:
                raise RefusedError(f"An item has no value of type {type(value).__name__}.")
    return size


def check_range(wanted: Range, indexes: Mapping[str, Index]) -> Index:
    """Return the index of a range, or the table's own keys.

    Raises:
        ConfigurationError: there is no such index.
        RefusedError: the range filters by its keys, asks for what the index does not project, or
            ends before it begins.
    """
    if wanted.index and wanted.index not in indexes:
        raise ConfigurationError(f"The table has no index {wanted.index}.")
    index = indexes[wanted.index] if wanted.index else TABLE
    filtered = _checked_names(wanted.when)
    if {index.partition, index.sort} & filtered:
        raise RefusedError("A filter has no keys of its range.")
    if wanted.index and (filtered | set(wanted.only)) - index.attributes:
        raise RefusedError(f"The index {wanted.index} does not have all attributes that are asked.")
    first, last = wanted.first, wanted.last
    if first is not None and last is not None and first > last:  # type: ignore[operator]
        raise RefusedError("A range does not end before it begins.")
    return index


def _checked_names(when: When) -> set[str]:
    """Return the attributes that a condition compares; refuse None compared by order."""
    names: set[str] = set()
    for several in when:
        for check in [several] if isinstance(several, Check) else several:
            names.add(check.name)
            if check.value is None and check.operator in ("<", "<=", ">", ">="):
                raise RefusedError("None has no order.")
    return names


# -- the table -------------------------------------------------------------------------------


class Watch(Protocol):
    """Notices the writes to one partition since the watch began."""

    async def wait(self, timeout_s: float) -> None:
        """Return when the partition may have changed, at the latest after `timeout_s`."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The watch of a table that does not tell of writes."""

    clock: Clock

    async def wait(self, timeout_s: float) -> None:
        await self.clock.sleep(timeout_s)


NEVER_S: Final = 5 * 365 * 86_400
"""An item that expired longer ago is not forgotten: the deletion that marked it is unfinished."""


class Table(ABC):
    """One table.

    Every method raises UnavailableError if the database does not answer within the retry budget,
    ConfigurationError if the table lacks an index, and RefusedError as `check_writes`, `check_keys`
    and `check_range` do.
    """

    wakes: ClassVar[bool] = False
    """True where a watch returns soon after each write, so that no reader has to poll."""
    blobs: Blobs | None = None
    """Where content is stored that is too large for items; None: in items all the same."""
    lag_s: ClassVar[float] = 10.0
    """The seconds after which an index is taken to show a write; DynamoDB promises no bound."""
    partition_units: ClassVar[int | None] = None
    """The write units that a partition takes in a second; None: as many as come."""

    def blobs_beside(self, clock: Clock, *, keep_s: float) -> Blobs | None:  # noqa: ARG002
        """Return a store for the content of this table's items that is too large for them.

        It keeps what is stored for `keep_s`. None: such content stays in the items, unless
        A2A_BLOBS names a store.
        """
        return None

    @abstractmethod
    async def load(
        self,
        keys: Iterable[Key],
        *,
        consistent: bool = True,
        once: bool = False,
        only: Sequence[str] = (),
    ) -> dict[Key, Item | None]:
        """Return items by their keys; None: there is none.

        Args:
            keys: the places of the items, each once.
            consistent: False: for half the price, what was just written may be missing.
            once: the request, for at most 100 keys, is not repeated; a key for which the database
                had no capacity is left out.
            only: the attributes that are wanted besides PK and SK; empty: all.
        """

    @abstractmethod
    def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        """Yield the items of a range in pages, which may be empty.

        Each page of the table is read consistently. An index may lag behind, and its entries have
        only what it projects.
        """

    async def count(self, wanted: Range) -> int:
        """Return how many items of a range pass its filter."""
        return sum([len(page) async for page in self.query(wanted)])

    @abstractmethod
    async def write(self, *writes: Write, exactly: bool = False) -> None:
        """Do all writes or none, each on another item.

        A single write costs half as much, but after a lost answer its condition may be reported as
        failed because the write itself was done. Several writes are done exactly once, and so is a
        single one with `exactly`.

        Raises:
            ConditionFailedError: nothing was written; the items whose conditions failed, by the
                places of their writes.
        """

    async def delete(self, keys: Iterable[Key]) -> None:
        """Delete items, in no order and not as one step."""
        for key in keys:
            await self.write(Delete(key=key))

    @abstractmethod
    def watch(self, partition: str) -> AbstractContextManager[Watch]:
        """Begin to watch a partition."""

    async def get(self, key: Key) -> Item | None:
        """Return one item; None: there is none."""
        return (await self.load([key]))[key]

    async def first(
        self, limit: int | None, wanted: Range, is_wanted: Callable[[Item], bool] = lambda _: True
    ) -> list[Item]:
        """Return the first `limit` wanted items of a range that pass its filter; None: all."""
        found: list[Item] = []
        # One more: a key range includes its end, which is not wanted.
        wanted = replace(wanted, page=None if limit is None else limit + 1)
        async with aclosing(self.query(wanted)) as pages:
            async for page in pages:
                found += filter(is_wanted, page)
                if limit is not None and len(found) >= limit:
                    break
        return found[:limit]

    async def counted(self, ranges: Sequence[Range], *, looks: int | None, shows: int) -> Counted:
        """Look at the first `looks` items of each range; None: at all of them.

        Return the first `shows` of all those that pass their filters, and the number of all that
        do. The ranges, which differ in their partitions, ask for the sort key, and for what they
        filter by.
        """
        # Not filtered by the table, so that the last one tells how far it has looked.
        looking = [self.first(looks, replace(one, when=())) for one in ranges]
        seen = list(zip(ranges, await asyncio.gather(*looking), strict=True))
        passing = [[i for i in items if holds(i, one.when)] for one, items in seen]
        ends = [items[-1] for _, items in seen if len(items) == looks]
        shown = [item for items in passing for item in items[:shows]]
        return Counted(shown, sum(map(len, passing)), ends)

    async def made(self, make: Callable[[Item], T], keys: Iterable[Key]) -> list[T]:
        """Return what a pure function makes of the items that exist, of those with these keys.

        What it has made of the same bytes before may be returned again: so nobody changes it.
        """
        return [make(item) for item in (await self.load(keys)).values() if item is not None]

    async def all(self, wanted: Range) -> list[Item]:
        """Return the items of a range."""
        return [item async for page in self.query(wanted) for item in page]

    async def forget(self, *, before_s: int, limit: int) -> int:
        """Delete items that have expired; return how many.

        A database that does so by itself has nothing to do here.

        Args:
            before_s: the seconds since the epoch before which an item has expired: those that its
                `expires_at` has, as long as they are not `NEVER_S` before.
            limit: the most items that are deleted.
        """
        del before_s, limit
        return 0

    async def scrub(self) -> None:  # noqa: B027 - no database has to
        """Remove from the database's own files what deleted items have left there.

        A database whose files are out of reach has nothing to do here.

        Raises:
            UnavailableError: another process keeps it from that. The items stay deleted.
        """

    async def did(self, write: Write) -> bool:
        """Do one write; return False if its condition failed."""
        try:
            await self.write(write)
        except ConditionFailedError:
            return False
        return True


class Streamed(Table):
    """A table that tells of what is written, so that what is committed can be pushed."""

    @abstractmethod
    async def added(self, after: int, *, limit: int = 100) -> list[tuple[int, Item]]:
        """Return the next items in the order of their commits, each with its number.

        An item that is written again comes again under a new number, as it is by then: so a webhook
        that replaces another one is told. No smaller number may appear later.

        Args:
            after: the last number that was read; 0: none was.
            limit: the most items.
        """
