"""A table in an SQLite file, which any number of processes of one machine share.

The file is in WAL mode: readers do not wait, and one transaction writes at a time. A process
that is killed loses nothing that was answered. A power cut may lose the last commits, unless the
table is told to survive it, but leaves the file whole.

A write replaces its row under a new number. So the numbers follow the order of the commits, and
those of one partition change with each write to it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import sqlite3
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import quote

from a2a_serverless.clock import Clock, Waker
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.spent import took
from a2a_serverless.storage.dictionaries import part_of, some
from a2a_serverless.storage.directory import DirectoryBlobs
from a2a_serverless.storage.table import (
    NEVER_S,
    Check,
    Counted,
    Index,
    Item,
    Key,
    Range,
    Streamed,
    Watch,
    When,
    Write,
    check_keys,
    check_range,
    check_writes,
    holds,
    outcome,
)
from a2a_serverless.values import dataclass

FORMAT: Final = 1
"""The `user_version` of the files that this release reads and writes."""

BUSY_S: Final = 90.0
"""Seconds for which a request waits for another process that writes, or is paused as it does."""

_POLLS_S: Final = ((2.0, 0.005), (30.0, 0.025))
_FASTEST_POLL_S: Final = _POLLS_S[0][1]
_SLOWEST_POLL_S: Final = 0.1
"""Seconds since the last commit, and those between two looks for the commits of other processes."""

_LINGERS_S: Final = 1.0
"""Seconds without a wait after which the thread ends that looks for commits."""

_ROWS_A_PAGE: Final = 500

_SHORT: Final = 2_000
"""The most characters and bytes of an item of which is kept what was made of it: of 2,048 such
items, it takes less than 10 MB."""

_EXPIRY: Final = "expires_at"
"""The attribute that says when an item has expired, in seconds since the epoch."""

_PAGES_FREED: Final = 1000
"""Pages of the file that are given back after a deletion of expired items, at most."""

_MOUNTS: Final = Path("/proc/self/mounts")
_NETWORKS: Final = frozenset({"9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre"}) | {
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
}
"""Kinds of file systems that processes of several machines share."""

_FORGET: Final = (
    "DELETE FROM items WHERE id IN (SELECT id FROM items WHERE expires_at BETWEEN ? AND ? LIMIT ?)"
)
_COUNT: Final = (
    "CREATE TABLE IF NOT EXISTS deletions (done INTEGER NOT NULL);"
    "INSERT INTO deletions SELECT 0 WHERE NOT EXISTS (SELECT * FROM deletions);"
)
_DELETED: Final = "UPDATE deletions SET done = done + 1"

_COMPARISONS: Final = frozenset({"=", "<", "<=", ">", ">="})
"""The operators that SQL writes alike."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_PRIMARY: Final = 0xFF
"""The bits of an extended error code that are the primary one."""

T = TypeVar("T")

_Newest = tuple[int | None, int]
"""The last row of a partition and the number of deletions: each write changes one of them."""

_NUMBERS: Final = """
SELECT (SELECT max(id) FROM items WHERE PK = ?), done,
done + ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'items'), 0) FROM deletions
"""
"""The last row of a partition, the number of deletions, and all numbers that writes have used: one
for each row, and one for each deletion."""

_lock = threading.Lock()
_all_waits = weakref.WeakValueDictionary[Path, "_Waits"]()
"""The waits of this process, by file."""


_OTHERS: Final = """
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'
"""


def blobs_folder(file: Path) -> Path:
    """Return the folder with the content of a file's items that is too large for them."""
    return file.with_name(f"{file.name}.blobs")


class SqliteTable(Streamed):
    """Items in a file. Safe under threads, each of which has a connection of its own.

    No request blocks its event loop while another process has the file, and none is refused because
    of other threads of its own: they write one behind the other.

    Args:
        path: the file; it is made if it is missing, readable by its owner alone.
        indexes: the table's indexes, by name.
        survives_power_cuts: True: each commit waits until the disk has it.

    Raises:
        ConfigurationError: one sentence says why the file cannot be used.
    """

    wakes: ClassVar[bool] = True
    lag_s: ClassVar[float] = 0.0

    def __init__(
        self, path: Path, indexes: Mapping[str, Index], *, survives_power_cuts: bool = False
    ) -> None:
        self.path = path.absolute()
        self._synchronous = "FULL" if survives_power_cuts else "NORMAL"
        self._indexes = dict(indexes)
        keys = {name for i in indexes.values() for name in (i.partition, i.sort)}
        self._columns = sorted(keys | {_EXPIRY})
        self._own = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._file: tuple[int, int] | None = None
        # All tables of the process on this file share the thread that looks at it.
        with _lock:
            self._waits = _all_waits.setdefault(self.path, _Waits(self.path))
        weakref.finalize(self, _close, self._all)
        deadline = time.monotonic() + BUSY_S
        while not self._is_open(deadline):
            time.sleep(0.01)  # another process makes the file

    def blobs_beside(self, clock: Clock, *, keep_s: float) -> DirectoryBlobs:
        return DirectoryBlobs(blobs_folder(self.path), clock, keep_s=keep_s)

    def close(self) -> None:
        """Close all connections; the table cannot be used any more."""
        _close(self._all)

    # -- requests ------------------------------------------------------------------------------

    async def load(
        self,
        keys: Iterable[Key],
        *,
        consistent: bool = True,  # noqa: ARG002 - every read is
        once: bool = False,
        only: Sequence[str] = (),
    ) -> dict[Key, Item | None]:
        asked = list(keys)
        check_keys(asked, once=once)
        found = await self.patiently(lambda: self._load(asked))
        return part_of(found, only) if only else found

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        index = check_range(wanted, self._indexes)
        only = wanted.only or (index.attributes if wanted.index else ())
        # An entry of an index is small: its filter asks for nothing else.
        seen = tuple(only) if not wanted.when else tuple(index.attributes) if wanted.index else ()
        async with aclosing(self._pages(wanted, index, seen)) as pages:
            async for page in pages:
                if not wanted.when:  # the page was read with the attributes of `only` alone
                    yield page
                else:
                    yield [some(item, only) for item in page if holds(item, wanted.when)]

    async def counted(self, ranges: Sequence[Range], *, looks: int | None, shows: int) -> Counted:
        wanted = ranges[0] if ranges else Range(partition="")
        index, passes = check_range(wanted, self._indexes), self._filter(wanted.when)
        own = [name for name in wanted.only if self._have_columns([name])]
        if passes is None or index.sort not in own or not wanted.newest_first:
            return await super().counted(ranges, looks=looks, shows=shows)
        sort, shown = f'"{index.sort}"', ", ".join(f'"{name}"' for name in own)
        look = (
            f"SELECT count(*), total(passes), min({sort}) FROM (SELECT {sort}, {passes} AS passes"  # noqa: S608 - names of the layout
            f" FROM items WHERE {{}} ORDER BY {{}} LIMIT {-1 if looks is None else looks})"
        )
        # In no order of their own: SQLite reads only as much of each as the order of all needs.
        show = f"SELECT {shown} FROM items WHERE {{}} AND {passes}"  # noqa: S608

        def read(select: str, among: Sequence[Range], end: str = "") -> list[Any]:
            within = [_within(one, index) for one in among]
            parts = " UNION ALL ".join(select.format(where, order) for where, order, _ in within)
            values = [bound for *_, bounds in within for bound in bounds]
            return self._connection.execute(f"{parts}{end}", values).fetchall()

        def count() -> Counted:
            with self._connection as connection:
                connection.execute("BEGIN")  # both of one moment
                looked = read(look, ranges)
                ends = [last for number, _, last in looked if number == looks]
                near = [replace(one, first=max(ends)) for one in ranges] if ends else ranges
                rows = read(show, near, f" ORDER BY {sort} DESC LIMIT {shows}")
            items = [_named(own, row) for row in rows]
            number = int(sum([passing for _, passing, _ in looked]))
            return Counted(items, number, [{index.sort: last} for last in ends])

        return await self.patiently(count)

    async def made(self, make: Callable[[Item], T], keys: Iterable[Key]) -> list[T]:
        asked = list(keys)
        check_keys(asked)
        rows = await self.patiently(lambda: self._rows_of(asked))
        return [
            _made(make, *row)
            if len(row[2]) + len(row[3] or b"") <= _SHORT
            else make(_decoded(*row))
            for row in rows
        ]

    async def write(self, *writes: Write, exactly: bool = False) -> None:  # noqa: ARG002 - no answer is lost
        check_writes(writes)
        await self.patiently(lambda: self._write(writes))
        # After the commit: whoever is woken finds what was written.
        self._waits.end({write.key.PK for write in writes if getattr(write, "is_news", True)})

    @contextmanager
    def watch(self, partition: str) -> Iterator[Watch]:
        newest, others = None, None
        with suppress(sqlite3.Error):  # then the first look says that something has changed
            connection = self._connection  # first: to open one may wait for another process
            with self._waits.writing:
                newest, used = _newest(connection, partition)
                others = used - self._waits.used
        wait = self._waits.begin(partition, newest, others)
        try:
            yield wait.waker
        finally:
            self._waits.leave(wait)

    async def added(self, after: int, *, limit: int = 100) -> list[tuple[int, Item]]:
        """Return the next rows in the order of their commits, each with its number.

        An item that is written again comes again under its new number. No smaller number appears
        later, because one writer at a time numbers its rows and commits.
        """
        rows = await self.patiently(
            lambda: self._connection.execute(
                "SELECT id, PK, SK, item, bytes FROM items WHERE id > ? ORDER BY id LIMIT ?",
                (after, limit),
            ).fetchall()
        )
        return [(number, _decoded(*row)) for number, *row in rows]

    async def partitions(self, start: str) -> list[str]:
        """Return the names of the partitions that begin with a text, in order."""
        select = "SELECT DISTINCT PK FROM items WHERE PK >= ? AND PK < ? ORDER BY PK"
        rows = await self.patiently(self._rows(select, (start, f"{start}\U0010ffff")))
        return [name for (name,) in rows]

    async def forget(self, *, before_s: int, limit: int) -> int:
        return await self.patiently(lambda: self._forget(before_s, limit))

    async def scrub(self) -> None:
        """Copy the log into the file, where nothing deleted is left, and empty it.

        A process that reads at the same time still needs the log: it is waited for.
        """
        try:
            await self.patiently(self._scrub)
        except UnavailableError as error:
            msg = f"What was deleted is still in the log {self.path.name}-wal. {error}"
            raise UnavailableError(msg) from error

    def _scrub(self) -> None:
        with self._waits.writing:
            (is_busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise _ReadError

    # -- the file ------------------------------------------------------------------------------

    def _is_open(self, deadline: float) -> bool:
        """Open the file; return False if another process has it, until a deadline.

        Raises:
            ConfigurationError: as the constructor.
        """
        try:
            self._open()
        except (ConfigurationError, OSError, sqlite3.Error) as error:
            self.close()
            self._own = threading.local()
            if isinstance(error, ConfigurationError):
                raise
            if not _is_busy(error) or time.monotonic() >= deadline:
                raise ConfigurationError(f"The file {self.path} {_cause_of(error)}.") from error
            return False
        return True

    def _open(self) -> None:
        if network := _network_of(self.path):
            raise ConfigurationError(
                f"The file {self.path} is on a network file system ({network}), where processes"
                " cannot share it: put it on a disk of this machine."
            )
        # Not opened if it exists: to close it again would end the locks of this process.
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with closing(_connected(self.path)) as reading:
            reading.execute("BEGIN")  # both of one moment: another process may make the table
            (version,) = reading.execute("PRAGMA user_version").fetchone()
            (others,) = reading.execute(_OTHERS).fetchone()
        if version > FORMAT:
            raise ConfigurationError(
                f"The file {self.path} was written by a newer release: use that release, or another"
                " file."
            )
        if version == 0 and others:
            raise ConfigurationError(
                f"The file {self.path} is a database of another program: use another file."
            )
        connection = self._connection
        if version == 0:
            connection.executescript(self._schema())
        indexes = {name for _, name, *_ in connection.execute("PRAGMA index_list(items)")}
        if missing := sorted(self._indexes.keys() - indexes):
            raise ConfigurationError(
                f"The file {self.path} has no index {missing[0]}: it is of another release, or no"
                " table; use another file."
            )
        self._file = _identity(self.path)

    def _schema(self) -> str:
        columns = "".join(f'"{name}", ' for name in self._columns)
        indexes = "".join(
            # With the expiry, so that live entries are counted from the index alone.
            f'CREATE INDEX IF NOT EXISTS "{name}" ON items'
            f' ("{i.partition}", "{i.sort}", PK, SK, {_EXPIRY})'
            f' WHERE "{i.partition}" IS NOT NULL AND "{i.sort}" IS NOT NULL;'
            for name, i in self._indexes.items()
        )
        return (
            "BEGIN IMMEDIATE;"
            f"{_COUNT}"
            "CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY AUTOINCREMENT,"
            f" PK TEXT NOT NULL, SK TEXT NOT NULL, {columns} item TEXT NOT NULL, bytes BLOB,"
            f" UNIQUE (PK, SK)); {indexes}"
            "CREATE INDEX IF NOT EXISTS by_partition ON items (PK);"
            f"CREATE INDEX IF NOT EXISTS by_expiry ON items ({_EXPIRY})"
            f" WHERE {_EXPIRY} IS NOT NULL;"
            f" PRAGMA user_version = {FORMAT}; COMMIT;"
        )

    def _connect(self) -> sqlite3.Connection:
        connection = _connected(self.path, timeout=BUSY_S, check_same_thread=False)
        self._all.append(connection)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        if not pages:
            # Before all else, and of a new file alone: it waits for whoever writes to an older one.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ConfigurationError(f"The file {self.path} {_CAUSES[sqlite3.SQLITE_PROTOCOL]}.")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA secure_delete = ON")  # SQLite may have been built without it
        connection.execute("PRAGMA busy_timeout = 0")
        return connection

    @property
    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._own, "connection"):
            self._own.connection = self._connect()
        connection: sqlite3.Connection = self._own.connection
        return connection

    async def patiently(self, request: Callable[[], T]) -> T:
        """Return what a request returns; repeat it while another process has the file.

        Raises:
            UnavailableError: the file was removed, and what is written to it would be lost; or it
                cannot be read or written.
        """
        if _identity(self.path) != self._file:
            raise UnavailableError(
                f"The file {self.path} was removed or replaced while it was in use: end all"
                " processes that use it, and start them again."
            )
        began = time.perf_counter()
        try:
            return await self._repeated(request)
        finally:
            took(began)

    async def _repeated(self, request: Callable[[], T]) -> T:
        deadline, pause_s = time.monotonic() + BUSY_S, 0.0005
        while True:
            try:
                return request()
            except sqlite3.Error as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise UnavailableError(f"The file {self.path} {_cause_of(error)}.") from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.01)

    def _load(self, keys: Sequence[Key]) -> dict[Key, Item | None]:
        found: dict[Key, Item | None] = dict.fromkeys(keys)
        found.update((Key(row[0], row[1]), _decoded(*row)) for row in self._rows_of(keys))
        return found

    def _rows_of(self, keys: Sequence[Key]) -> list[Any]:
        rows: list[Any] = []
        for start in range(0, len(keys), _ROWS_A_PAGE):
            asked = keys[start : start + _ROWS_A_PAGE]
            # A join: for `(PK, SK) IN (VALUES …)` SQLite reads the whole table.
            rows += self._connection.execute(
                f"WITH asked AS (VALUES {', '.join(['(?, ?)'] * len(asked))})"  # noqa: S608 - marks alone
                " SELECT PK, SK, item, bytes FROM asked CROSS JOIN items"
                " ON PK = asked.column1 AND SK = asked.column2",
                [part for key in asked for part in key],
            )
        return rows

    async def _pages(
        self, wanted: Range, index: Index, seen: Collection[str]
    ) -> AsyncGenerator[list[Item], None]:
        """Yield the items of a range in pages, before its filter, with the attributes `seen`."""
        sort, size = f'"{index.sort}"', wanted.page or _ROWS_A_PAGE
        # What has a column of its own is read without its item.
        has_columns = self._have_columns(seen)
        what = ", ".join(f'"{name}"' for name in seen) if has_columns else "item, bytes"
        where, order, values = _within(wanted, index)
        behind, last = "", ()
        while True:
            select = (
                f"SELECT {sort}, PK, SK, {what} FROM items WHERE {where}{behind}"  # noqa: S608 - names of the layout
                f" ORDER BY {order} LIMIT {size}"
            )
            # Each page is a read of its own, from the last row on: a cursor that stays open would
            # hold a snapshot of the file, and the log could not be taken in meanwhile.
            rows = await self.patiently(self._rows(select, [*values, *last]))
            if has_columns:
                yield [_named(seen, row[3:]) for row in rows]
            else:
                yield [_decoded(pk, sk, text, blob, seen) for _, pk, sk, text, blob in rows]
            if len(rows) < size:
                return
            behind = f" AND ({sort}, PK, SK) {'<' if wanted.newest_first else '>'} (?, ?, ?)"
            last, size = rows[-1][:3], _ROWS_A_PAGE

    def _have_columns(self, names: Collection[str]) -> bool:
        """Return True if attributes, at least one, have columns of their own."""
        return bool(names) and {"PK", "SK", *self._columns}.issuperset(names)

    def _filter(self, when: When) -> str | None:
        """Return a filter in SQL; None if it compares more than whole numbers in own columns.

        Or the words of others, such as a state; a damaged item has none.
        """
        tests = ["1"]
        for check in when:
            if not isinstance(check, Check):
                return None
            name, has_column = f'"{check.name}"', self._have_columns([check.name])
            if not has_column and check.operator == "=" and _is_word(check.name, check.value):
                found = f"json_extract(item, '$.{check.name}') = '{check.value}'"
                tests += [f"CASE WHEN json_valid(item) THEN {found} END"]
                continue
            if not has_column or check.operator not in _COMPARISONS or type(check.value) is not int:
                return None
            # SQLite sorts each text behind all numbers.
            tests += [f"typeof({name}) IN ('integer', 'real')"]
            tests += [f"{name} {check.operator} {check.value}"]
        return " AND ".join(tests)

    def _rows(self, select: str, values: Sequence[Any]) -> Callable[[], list[Any]]:
        return lambda: self._connection.execute(select, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection, waits = self._connection, self._waits
        with waits.writing:
            waits.adds = 0
            # At its end the connection's block commits, or rolls back if an error has left it.
            with connection:
                # Nobody else writes between what is read here and what is decided by it.
                connection.execute("BEGIN IMMEDIATE")
                yield connection
            waits.used += waits.adds

    def _write(self, writes: Sequence[Write]) -> None:
        with self._transaction() as connection:
            found = self._load([write.key for write in writes])
            after = outcome(writes, [found[write.key] for write in writes], self._indexes)
            self._replace([item for item in after if item is not None])
            gone = [write.key for write, item in zip(writes, after, strict=True) if item is None]
            if gone:
                connection.executemany("DELETE FROM items WHERE PK = ? AND SK = ?", gone)
                self._count_deletion()

    def _replace(self, items: Sequence[Item]) -> None:
        """Store items in rows of new numbers, by one statement.

        Each statement gives other threads the interpreter, and they keep it for 5 ms.
        """
        if not items:
            return
        self._waits.adds += len(items)
        columns = ("PK", "SK", *self._columns)
        row = f"({', '.join('?' * (len(columns) + 2))})"
        names = ", ".join(f'"{name}"' for name in columns)
        self._connection.execute(
            f"REPLACE INTO items ({names}, item, bytes)"  # noqa: S608 - names of the layout
            f" VALUES {', '.join([row] * len(items))}",
            [
                value
                for item in items
                for value in (*(item.get(name) for name in columns), *_encoded(item))
            ],
        )

    def _count_deletion(self) -> None:
        self._waits.adds += 1
        self._connection.execute(_DELETED)

    def _forget(self, before_s: int, limit: int) -> int:
        with self._transaction() as connection:
            done = connection.execute(_FORGET, (before_s - NEVER_S, before_s - 1, limit)).rowcount
            if done:
                self._count_deletion()
        if done:
            with self._waits.writing:
                connection.execute(f"PRAGMA incremental_vacuum({_PAGES_FREED})").fetchall()
        return done


class _ReadError(sqlite3.OperationalError):
    """Another connection reads what is in the log; SQLite tells of it by a row, and no error."""

    sqlite_errorcode = sqlite3.SQLITE_BUSY


@dataclass(eq=False, slots=True)
class _Wait:
    """A wait for a write to a partition."""

    partition: str
    waker: Waker
    newest: _Newest | None
    """What was stored when it was last looked at; None: not known."""
    others: int | None
    """The numbers that other processes had used then; None: not known."""


class _Waits:
    """The waits of this process for writes to one file.

    A commit of this process ends them at once. One thread looks for commits of other processes
    while there are waits: often behind a commit, seldom in a quiet file, and where no other process
    has written yet.
    """

    def __init__(self, path: Path) -> None:
        self.writing = threading.Lock()
        """Held by the one thread of this process that writes: for milliseconds, so that the others
        can block. They would lose the file for long if each only asked for it now and then."""
        self._path = path
        self._waits: defaultdict[str, set[_Wait]] = defaultdict(set)
        self._is_looking = False
        self._look_now = threading.Event()
        self.used = 0
        """The numbers that this process has used."""
        self.adds = 0
        """Those that the present transaction uses."""
        self._pause_s = _FASTEST_POLL_S
        self._changed_at = 0.0
        self._version: int | None = None
        self._others: int | None = None
        """The numbers that other processes had used at the last look."""
        self._is_alone = True
        """False: another one has written since the first look."""

    def begin(self, partition: str, newest: _Newest | None, others: int | None) -> _Wait:
        wait = _Wait(partition, Waker(), newest, others)
        with _lock:
            self._waits[partition].add(wait)
            self._version = None  # a commit may have come since `newest` was read
            if not self._is_looking:
                self._is_looking = True
                name = f"looks at {self._path}"
                threading.Thread(target=self._look, name=name, daemon=True).start()
            self._hurry()
        return wait

    def leave(self, wait: _Wait) -> None:
        with _lock:
            self._waits[wait.partition].discard(wait)
            if not self._waits[wait.partition]:
                del self._waits[wait.partition]

    def end(self, partitions: Iterable[str]) -> None:
        """End the waits for partitions that this process has written to."""
        with _lock:
            for wait in {w for name in partitions for w in self._waits.get(name, ())}:
                wait.waker.wake()
            self._changed_at = time.monotonic()  # another process may answer soon
            self._hurry()

    def _hurry(self) -> None:
        """Look now, unless the next look is near, or no other process has written yet."""
        if self._pause_s > _FASTEST_POLL_S and not self._is_alone:
            self._look_now.set()

    def _look(self) -> None:
        file = _identity(self._path)
        with suppress(sqlite3.Error), closing(_connected(self._path)) as connection:
            while self._is_needed() and _identity(self._path) == file:
                self._end_changed(connection)
                quiet_s = math.inf if self._is_alone else time.monotonic() - self._changed_at
                self._pause_s = next((p for s, p in _POLLS_S if quiet_s < s), _SLOWEST_POLL_S)
                self._look_now.wait(self._pause_s)
                self._look_now.clear()
        # No wait is left without a look: where the file cannot be read, the next request says why.
        with _lock:
            self._is_looking = False
            for wait in {wait for waits in self._waits.values() for wait in waits}:
                wait.waker.wake()

    def _is_needed(self) -> bool:
        """Return False after a second without waits."""
        with _lock:
            if self._waits:
                return True
            self._pause_s = _LINGERS_S
        self._look_now.wait(_LINGERS_S)
        self._look_now.clear()
        return bool(self._waits)

    def _end_changed(self, connection: sqlite3.Connection) -> None:
        """End the waits for what other processes have changed since they began."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        with _lock:
            if version == self._version:
                return
            self._version = version
            waits = [wait for waits in self._waits.values() for wait in waits]
        with self.writing:
            _, used = _newest(connection, "")
            others = used - self.used
        self._is_alone &= self._others in (None, others)
        self._others = others
        # Read outside the locks: the writers of this process do not wait for the file.
        for wait in waits:
            if wait.others != others:
                self._changed_at = time.monotonic()
                newest, _ = _newest(connection, wait.partition)
                if wait.newest != newest:
                    wait.waker.wake()
                wait.newest, wait.others = newest, others


def _within(wanted: Range, index: Index) -> tuple[str, str, list[Any]]:
    """Return in SQL which rows are in a range, and their order; and the values of the former."""
    sort, values = f'"{index.sort}"', [wanted.partition]
    where = f'"{index.partition}" = ?'
    if wanted.index:
        where += f" AND {sort} IS NOT NULL"
    for operator, bound in ((">=", wanted.first), ("<=", wanted.last)):
        if bound is not None:
            where, values = f"{where} AND {sort} {operator} ?", [*values, bound]  # type: ignore[list-item]
    way = "DESC" if wanted.newest_first else "ASC"
    return where, f"{sort} {way}, PK {way}, SK {way}", values


def _is_word(*values: Any) -> bool:
    """Return True if values are texts that SQL and JSON write without quoting."""
    return all(isinstance(one, str) and one.isascii() and one.isidentifier() for one in values)


def _named(names: Iterable[str], row: Iterable[Any]) -> Item:
    return {name: one for name, one in zip(names, row, strict=True) if one is not None}


def _connected(path: Path, **options: Any) -> sqlite3.Connection:
    """Open a file, and make none."""
    name = f"file:{quote(str(path))}?mode=rw"
    connection: sqlite3.Connection = sqlite3.connect(
        name, uri=True, isolation_level=None, **options
    )
    return connection


def _newest(connection: sqlite3.Connection, partition: str) -> tuple[_Newest, int]:
    """Return the newest of a partition, and the numbers that the file has used."""
    last, done, used = connection.execute(_NUMBERS, (partition,)).fetchone()
    return (last, done), used


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


def _encoded(item: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return an item as JSON, and its bytes one behind the other; JSON has their places."""
    values, blob = {}, b""
    for name, value in item.items():
        if isinstance(value, bytes):
            values[name] = [len(blob), len(value)]
            blob += value
        else:
            values[name] = value
    return json.dumps(values, separators=(",", ":")), blob


def _decoded(
    partition: str, sort: str, text: str, blob: bytes | None, only: Collection[str] = ()
) -> Item:
    """Return an item, or some of its attributes; with its keys alone if its row is damaged."""
    try:
        item: Item = json.loads(text) | {"PK": partition, "SK": sort}
        for name, value in item.items():
            if isinstance(value, list):
                start, size = value
                item[name] = (blob or b"")[start : start + size]
    except (AttributeError, TypeError, ValueError):
        item = {"PK": partition, "SK": sort}
    return some(item, only) if only else item


@lru_cache(2048)
def _made(make: Callable[[Item], T], *row: Any) -> T:
    """Return what a pure function makes of a row's item."""
    return make(_decoded(*row))


_CAUSES: Final[Mapping[int, str]] = {
    sqlite3.SQLITE_BUSY: "is locked by another process: end it, or try again",
    sqlite3.SQLITE_LOCKED: "is locked by another thread: try again",
    sqlite3.SQLITE_READONLY: "cannot be written: make it and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: make its folder, and make both writable",
    sqlite3.SQLITE_FULL: "has no room: the disk is full; what was stored stays",
    sqlite3.SQLITE_NOTADB: "is no SQLite file: name another one",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore it, or name another one",
    sqlite3.SQLITE_PROTOCOL: "cannot be locked: put it on a disk of this machine, no network one",
    sqlite3.SQLITE_IOERR: "cannot be read or written: put it on a whole disk of this machine, no"
    " network one",
}


def _network_of(path: Path) -> str:
    """Return the kind of the network file system that a path is on; empty: none that is known."""
    try:
        mounts = [line.split(" ") for line in _MOUNTS.read_text().splitlines()]
    except OSError:  # another system than Linux: SQLite's own error tells of it
        return ""
    points = {point.replace("\\040", " "): kind for _, point, kind, *_ in mounts}
    holding = [point for point in points if path.resolve().is_relative_to(point)]
    kind = points[max(holding, key=len)] if holding else ""
    return kind if kind in _NETWORKS else ""


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_busy(error: Exception) -> bool:
    """Return True if another writer has the file: it comes free."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _BUSY


def _cause_of(error: Exception) -> str:
    """Return what is wrong with a file, and the way out."""
    if isinstance(error, OSError):
        return f"cannot be opened ({error.strerror}): make its folder, and make both writable"
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    return _CAUSES.get(code, f"cannot be used: {error}")
