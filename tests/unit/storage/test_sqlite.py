"""The table in a file: what it survives, and what it says of a file that cannot be used."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import UserDict
from collections.abc import Iterator, KeysView
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.storage import sqlite
from a2a_serverless.storage.layout import BY_ID, INDEXES
from a2a_serverless.storage.sqlite import FORMAT, SqliteTable
from a2a_serverless.storage.table import Check, Delete, Key, Put, Range, are, beginning

NOW_S = 1_700_000_000
PLACE = Key("P", "A")
ITEM = PLACE._asdict() | {"v": 1, "body": b"\x00\xff", "none": None, "text": "é"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def table(path: Path) -> Iterator[SqliteTable]:
    with closing(SqliteTable(path, INDEXES)) as table:
        yield table


async def test_a_column_is_compared_with_what_is_no_number(table: SqliteTable) -> None:
    """As with any other attribute: such a filter is none of SQL."""
    await table.write(Put(item=ITEM | {"expires_at": "soon"}))
    for value, found in (("soon", 1), ("' OR 1", 0)):
        wanted = Range(partition="P", when=are(expires_at=value), only=("PK", "expires_at"))
        assert (await table.counted([wanted], looks=None, shows=1)).number == found


async def test_what_was_made_of_an_item_is_used_for_its_bytes_alone(path: Path) -> None:
    """Another process replaces it, or makes it anew; of a long one nothing is kept."""
    long = "x" * (sqlite._SHORT + 1)
    made = Mock(side_effect=lambda item: [item["v"]])
    with closing(SqliteTable(path, INDEXES)) as table, closing(SqliteTable(path, INDEXES)) as other:
        for number, (value, calls) in enumerate([(1, 1), (2, 1), (1, 0), (long, 2)]):
            if number == 2:
                await other.delete([PLACE])
                assert await table.made(made, [PLACE]) == []
            await other.write(Put(item=ITEM | {"v": value}))
            made.reset_mock()
            assert [await table.made(made, [PLACE]) for _ in range(2)] == [[[value]]] * 2
            assert made.call_count == calls


async def test_a_file_keeps_its_items(path: Path) -> None:
    """To the byte, when it is opened again; by an option each commit waits for the disk."""
    for survives, level in ((False, 1), (True, 2)):
        with closing(SqliteTable(path, INDEXES, survives_power_cuts=survives)) as table:
            assert table._connection.execute("PRAGMA synchronous").fetchone() == (level,)
            assert await table.get(PLACE) == (ITEM if survives else None)
            await table.write(Put(item=ITEM))


async def test_one_thread_looks_for_all_waits_and_ends_behind_the_last(
    table: SqliteTable, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of another process ends those of its partition alone, however many there are."""
    monkeypatch.setattr(sqlite, "_LINGERS_S", 0.01)
    with ExitStack() as watches:
        waits = {
            asyncio.create_task(watches.enter_context(table.watch(name)).wait(60)): name
            for name in "PQ" * 20
        }
        (looker,) = (t for t in threading.enumerate() if str(path) in t.name)
        by_another(path, "INSERT INTO items (PK, SK, item) VALUES ('P', 'B', '{}')")
        async with asyncio.timeout(30):
            await asyncio.wait([wait for wait, name in waits.items() if name == "P"])
        assert {name for wait, name in waits.items() if not wait.done()} == {"Q"}
        for wait in waits:
            wait.cancel()
    assert await table.get(Key("P", "B")) == {"PK": "P", "SK": "B"}
    await asyncio.to_thread(looker.join, 30)
    assert not looker.is_alive()


async def test_a_commit_while_a_wait_begins_ends_it(
    table: SqliteTable, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not missed, though the thread has looked at it before it knew of the wait."""
    waits = table._waits
    begin = waits.begin

    def late(*known: Any) -> Any:
        while (seen := waits._version) is None:
            time.sleep(0.001)
        by_another(path, "INSERT INTO items (PK, SK, item) VALUES ('P', 'B', '{}')")
        while waits._version == seen:
            time.sleep(0.001)
        return begin(*known)

    with table.watch("Q"):  # so that the thread looks
        monkeypatch.setattr(waits, "begin", late)
        with table.watch("P") as watch:
            await asyncio.wait_for(watch.wait(60), 30)


async def test_what_is_no_news_ends_no_wait(table: SqliteTable) -> None:
    """Not even by the thread that looks for commits: it tells this process's from others'."""
    waits = table._waits

    def looked() -> None:
        for _ in range(2):  # the first look is over when the second begins
            waits._version = None
            while waits._version is None:
                time.sleep(0.001)

    with table.watch("P") as watch:
        wait = asyncio.create_task(watch.wait(60))
        for sort in "ABC":
            await table.write(Put(item={"PK": "P", "SK": sort}, is_news=False))
        await table.write(Delete(key=Key("Q", "A")))
        await asyncio.to_thread(looked)
        assert not wait.done()
        await table.write(Put(item={"PK": "P", "SK": "D"}))
        await asyncio.wait_for(wait, 30)


async def test_rows_are_numbered_in_the_order_of_their_commits(table: SqliteTable) -> None:
    """The numbers after which rows are read only rise, whatever is deleted or written again."""
    for sort in ("A", "B"):
        await table.write(Put(item={"PK": "P", "SK": sort}))
    first = await table.added(0)
    assert [item["SK"] for _, item in first] == ["A", "B"]
    await table.write(Delete(key=Key("P", "B")))
    await table.write(Put(item={"PK": "P", "SK": "C"}), Put(item={"PK": "P", "SK": "A", "v": 2}))
    later = await table.added(first[-1][0])
    assert [item["SK"] for _, item in later] == ["C", "A"]
    assert await table.added(later[-1][0]) == []


async def test_a_range_has_pages(table: SqliteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page goes on behind the last row, in both orders, also among rows of one sort key."""
    monkeypatch.setattr(sqlite, "_ROWS_A_PAGE", 2)
    for number in range(5):
        item = {"PK": f"P{number}", "SK": "A", "id_key": "i", "created_key": "c"}
        await table.write(Put(item=item))
    for newest_first in (False, True):
        wanted = Range(partition="i", index=BY_ID, newest_first=newest_first)
        pages = [[item["PK"] for item in page] async for page in table.query(wanted)]
        assert list(map(len, pages)) == [2, 2, 1]
        found = [name for page in pages for name in page]
        assert found == sorted(found, reverse=newest_first)


async def test_a_query_that_is_left_has_ended(table: SqliteTable) -> None:
    """A reader of the first page leaves no generator that the loop would have to end."""
    await table.write(Put(item=ITEM))
    left, before = list[object](), sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=left.append)
    try:
        async with aclosing(table.query(Range(partition="P"))) as pages:
            assert len(await anext(pages)) == 1
    finally:
        sys.set_asyncgen_hooks(*before)
    assert left == []


async def test_a_batch_is_one_read_by_its_keys(table: SqliteTable) -> None:
    """However many items are asked for, SQLite finds them by one search of the table's keys."""
    keys = [Key("P", str(number)) for number in range(60)]
    for key in keys[::2]:
        await table.write(Put(item={**key._asdict(), "v": key.SK, "body": b"\xff"}))
    statements: list[str] = []
    table._connection.set_trace_callback(statements.append)
    found = await table.load(keys, only=["v"])
    table._connection.set_trace_callback(None)
    assert found == {
        key: None if place % 2 else {**key._asdict(), "v": key.SK} for place, key in enumerate(keys)
    }
    (statement,) = statements
    plan = [row[3] for row in table._connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert "SEARCH items" in plan[-1]
    assert not [step for step in plan if step.startswith("SCAN items")]


async def test_a_list_is_counted_without_its_items(table: SqliteTable, path: Path) -> None:
    """Attributes with columns are read alone; a damaged row is an item without attributes."""
    entry = {"id_key": "i", "created_key": "c"}
    await table.write(Put(item=ITEM | entry | {"expires_at": NOW_S, "state": "a"}))
    in_state = Range(partition="P", when=are(state="a"), only=["SK", "state"], newest_first=True)
    assert (await table.counted([in_state], looks=None, shows=1)).number == 1
    wanted = Range(partition="i", index=BY_ID, only=["PK", "created_key"])
    whole = Range(partition="P", only=["created_key", "v", "body", "none", "absent"])
    (stored,) = await table.all(whole)
    assert stored == {"created_key": "c", "v": 1, "body": b"\x00\xff", "none": None}
    for damage in ("damaged", "{", "[]", '{"v": [1]}', '{"v": {}, "w": [1, 2, 3]}'):
        by_another(path, "UPDATE items SET item = ?", damage)
        assert await table.all(wanted) == [{"PK": "P", "created_key": "c"}]
        assert (await table.counted([in_state], looks=None, shows=1)).number == 0
        found = await table.get(PLACE)
        assert found is not None
        assert not ITEM.keys() - {"PK", "SK"} & found.keys()


async def test_a_count_shows_only_what_it_has_looked_at(table: SqliteTable) -> None:
    """However many items have expired, it is bounded."""
    for number, expires_at in enumerate((9, 1, 1)):
        await table.write(Put(item={"PK": "P", "SK": f"{number}", "expires_at": expires_at}))
    live = [Check("expires_at", ">", 5)]
    wanted = Range(partition="P", when=live, only=["SK"], newest_first=True)
    assert await table.counted([wanted], looks=2, shows=3) == ([], 0, [{"SK": "1"}])
    assert await table.counted([wanted], looks=4, shows=3) == ([{"SK": "0"}], 1, [])


PAUSED = """
import os, pathlib, signal, sys
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable

with SqliteTable(pathlib.Path(sys.argv[1]), INDEXES)._transaction() as connection:
    connection.execute("INSERT INTO items (PK, SK, item) VALUES ('P', 'B', '{}')")
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def paused(path: Path) -> subprocess.Popen[bytes]:
    """A process that has stopped in the middle of its transaction."""
    process = subprocess.Popen([sys.executable, "-c", PAUSED, path])
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return process


@pytest.mark.long(but=1)
@pytest.mark.parametrize("paused_s", [0.05, 61])
async def test_a_process_that_is_paused_in_a_transaction_is_waited_for(
    table: SqliteTable, path: Path, monkeypatch: pytest.MonkeyPatch, paused_s: float
) -> None:
    """For more than a minute, while readers and the event loop go on; then it says what to do."""
    other = paused(path)
    try:
        with monkeypatch.context() as hurrying:
            hurrying.setattr(sqlite, "BUSY_S", 0.2)
            with pytest.raises(UnavailableError, match="locked by another process: end it, or try"):
                await table.write(Put(item=ITEM))
        writing = asyncio.create_task(table.write(Put(item=ITEM)))
        await asyncio.sleep(paused_s)
        assert not writing.done()
        assert await table.all(Range(partition="P")) == []
        other.send_signal(signal.SIGCONT)
        async with asyncio.timeout(30):
            await writing
        assert other.wait(30) == 0
    finally:
        other.kill()
        other.wait()
    assert await table.all(Range(partition="P")) == [ITEM, {"PK": "P", "SK": "B"}]


class Held(UserDict[str, Any]):
    """An item in the middle of whose transaction a thread stands still."""

    reached, go_on = threading.Event(), threading.Event()

    def keys(self) -> KeysView[str]:
        """Wait: the transaction reads the item."""
        self.reached.set()
        assert self.go_on.wait(30)
        return super().keys()


@pytest.mark.parametrize("write", [Put(item=ITEM), None])
def test_a_thread_waits_for_another_one_of_its_process(
    table: SqliteTable, path: Path, monkeypatch: pytest.MonkeyPatch, write: Put | None
) -> None:
    """However long that writes, it refuses nothing; a second table on the file waits as well."""
    monkeypatch.setattr(sqlite, "BUSY_S", 0)
    Held.reached.clear()
    Held.go_on.clear()
    with closing(SqliteTable(path, INDEXES)) as second, ThreadPoolExecutor(2) as threads:
        asked = second.write(write) if write else second.forget(before_s=NOW_S, limit=1)
        held: Any = Held(PK="P", SK="first")
        first = threads.submit(asyncio.run, table.write(Put(item=held)))
        assert Held.reached.wait(30)
        waiting = threads.submit(asyncio.run, asked)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        Held.go_on.set()
        first.result(30)
        waiting.result(30)
    assert asyncio.run(table.get(Key("P", "first"))) is not None


def by_another(path: Path, statement: str, *values: object) -> None:
    """Let another process change the file."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(statement, values)


def refused(path: Path) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(ConfigurationError) as caught:
        SqliteTable(path, INDEXES)
    return str(caught.value).replace(str(path), "FILE")


def test_what_cannot_be_a_table_is_named(path: Path, tmp_path: Path) -> None:
    """One sentence names file, cause and way out; nothing is changed; a new file is its owner's."""
    assert refused(path / "x" / "y").endswith("make its folder, and make both writable.")
    assert refused(tmp_path).startswith("The file FILE cannot be opened (Is a directory): ")
    path.write_text("no database, but a text that is as long as a header: " * 9)
    assert refused(path) == "The file FILE is no SQLite file: name another one."
    assert path.read_text().startswith("no database")
    for number, (statement, why) in enumerate(
        (
            (f"PRAGMA user_version = {FORMAT + 1}", "was written by a newer release: use that"),
            ("CREATE TABLE people (name TEXT)", "is a database of another program"),
        )
    ):
        file = tmp_path / f"{number}"
        by_another(file, statement)
        before = file.read_bytes()
        assert refused(file).startswith(f"The file FILE {why}")
        assert file.read_bytes() == before
    path.unlink()
    SqliteTable(path, {name: i for name, i in INDEXES.items() if name != BY_ID}).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert refused(path).startswith("The file FILE has no index by-id: ")


async def test_a_full_disk_loses_nothing(table: SqliteTable) -> None:
    """Writes without room, or to a read-only file, are refused; what was stored stays readable."""
    await table.write(Put(item=ITEM))
    (pages,) = table._connection.execute("PRAGMA page_count").fetchone()
    table._connection.execute(f"PRAGMA max_page_count = {pages}")
    small, large = (
        Put(item={"PK": "P", "SK": sort, "v": "x" * size})
        for sort, size in (("small", 1), ("large", 300_000))
    )
    with pytest.raises(UnavailableError, match=r"has no room: the disk is full; .* stays\.$"):
        await table.write(small, large)
    table._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(UnavailableError, match="cannot be written: make it and its folder wri"):
        await table.write(Delete(key=PLACE))
    found = await table.load([small.key, large.key, PLACE])
    assert found == {small.key: None, large.key: None, PLACE: ITEM}


async def test_what_fails_at_its_end_is_undone(table: SqliteTable) -> None:
    """A transaction whose deletion fails has put nothing."""
    await table.write(Put(item=ITEM))
    table._connection.execute(
        "CREATE TEMP TRIGGER stays BEFORE DELETE ON items BEGIN SELECT RAISE(FAIL, 'it stays'); END"
    )
    put = Put(item={"PK": "P", "SK": "B"})
    with pytest.raises(UnavailableError, match="it stays"):
        await table.write(put, Delete(key=PLACE))
    assert await table.load([put.key, PLACE]) == {put.key: None, PLACE: ITEM}


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_removed_file_takes_no_more(table: SqliteTable, path: Path, *, is_replaced: bool) -> None:
    """What would be written to a file that is gone is refused, and no other file is made."""
    path.rename(path.with_name("removed"))
    if is_replaced:
        path.touch()
    write, refused = table.write(Put(item=ITEM)), "was removed or replaced while it was in use"
    with pytest.raises(UnavailableError, match=refused):
        asyncio.run(write)
    with ThreadPoolExecutor(1) as other, pytest.raises(UnavailableError, match=refused):
        other.submit(lambda: asyncio.run(table.get(PLACE))).result()
    assert path.exists() is is_replaced


WRITER = """
import asyncio, itertools, pathlib, sys
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Added, Key, Put, Update

async def write(table, name):
    for number in itertools.count():
        row = Put(item={"PK": name, "SK": f"{number:06}", "v": "x" * 1000})
        counts = [Update(key=Key(p, "COUNT"), values={"n": Added(1)}) for p in (name, "both")]
        await table.write(row, *counts)

asyncio.run(write(SqliteTable(pathlib.Path(sys.argv[1]), INDEXES), sys.argv[2]))
"""


async def test_killed_writers_leave_whole_transactions(table: SqliteTable, path: Path) -> None:
    """Two processes write to the file and are killed in the middle: rows and counts agree."""
    names = ("a", "b")
    writers = [started(path, name) for name in names]
    try:
        with table.watch("both") as watch:
            async with asyncio.timeout(120):
                while not all([(await counted(table, name)) > 20 for name in names]):
                    await watch.wait(1)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    counts = [await counted(table, name) for name in names]
    rows = [await table.count(beginning(name, "0")) for name in names]
    assert counts == rows
    assert await counted(table, "both") == sum(counts)
    assert table._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def started(path: Path, name: str) -> subprocess.Popen[bytes]:
    """A process that writes until it is killed."""
    return subprocess.Popen([sys.executable, "-c", WRITER, path, name])


async def counted(table: SqliteTable, name: str) -> int:
    """The transactions of a writer, or of both."""
    item = await table.get(Key(name, "COUNT"))
    return 0 if item is None else int(item["n"])


async def test_expired_items_are_forgotten_some_at_a_time(table: SqliteTable) -> None:
    """What is past its time goes, as many as are asked; an unfinished deletion's mark stays."""
    for number in range(5):
        await table.write(Put(item={"PK": "P", "SK": f"{number}", "expires_at": NOW_S + number}))
    await table.write(Put(item=ITEM), Put(item={"PK": "P", "SK": "deleted", "expires_at": 1}))
    assert [await table.forget(before_s=NOW_S + 3, limit=2) for _ in range(3)] == [2, 1, 0]
    (page,) = [page async for page in table.query(Range(partition="P"))]
    assert [item["SK"] for item in page] == ["3", "4", "A", "deleted"]


def test_the_room_of_what_is_forgotten_is_given_back(table: SqliteTable, path: Path) -> None:
    """The file shrinks again."""
    for number in range(40):
        large = {"PK": "P", "SK": f"{number}", "expires_at": NOW_S, "v": "x" * 100_000}
        asyncio.run(table.write(Put(item=large)))
    sizes = []
    for _ in range(2):
        by_another(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append(path.stat().st_size)
        asyncio.run(table.forget(before_s=NOW_S + 1, limit=100))
    assert sizes[1] < sizes[0] / 10


@pytest.mark.long
def test_processes_that_start_at_once_share_a_new_file(path: Path) -> None:
    """Each opens it, and none fails because another one makes it."""
    code = (
        "import sys, pathlib; from a2a_serverless.storage.layout import INDEXES;"
        "from a2a_serverless.storage.sqlite import SqliteTable;"
        "SqliteTable(pathlib.Path(sys.argv[1]), INDEXES)"
    )
    starts = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(6)]
    assert [start.wait(60) for start in starts] == [0] * 6


@pytest.mark.parametrize(
    ("mounts", "network"),
    [
        ("disk / ext4 rw 0 0\nserver:/x {folder} nfs4 rw 0 0", "nfs4"),
        ("server:/x / nfs4 rw 0 0\ndisk {folder} ext4 rw 0 0", ""),
        ("//server/x {folder} cifs rw 0 0\ndisk /elsewhere ext4 rw 0 0", "cifs"),
    ],
)
def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str, network: str
) -> None:
    """Locks and shared memory do not reach other machines: no file is made there."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    table = tmp_path / "mounts"
    table.write_text(mounts.format(folder=str(folder).replace(" ", "\\040")) + "\n")
    monkeypatch.setattr(sqlite, "_MOUNTS", table)
    path = folder / "tasks.db"
    if network:
        assert refused(path) == (
            f"The file FILE is on a network file system ({network}), where processes cannot share"
            " it: put it on a disk of this machine."
        )
    else:
        SqliteTable(path, INDEXES).close()
    assert path.exists() is not bool(network)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (sqlite3.SQLITE_PROTOCOL, "cannot be locked: put it on a disk of this machine, no network"),
        (sqlite3.SQLITE_IOERR_LOCK, "cannot be read or written: put it on a whole disk of this"),
        (sqlite3.SQLITE_CORRUPT, "is damaged: restore it, or name another one"),
    ],
)
async def test_a_file_that_fails_later_is_unavailable(
    table: SqliteTable, path: Path, monkeypatch: pytest.MonkeyPatch, code: int, sentence: str
) -> None:
    """An error of the disk is one sentence, and what was stored stays."""
    await table.write(Put(item=ITEM))

    def fail(_: object) -> None:
        error = sqlite3.OperationalError("of the disk")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(table, "_write", fail)
    with pytest.raises(UnavailableError) as caught:
        await table.write(Put(item=ITEM | {"v": 2}))
    assert str(caught.value).startswith(f"The file {path} {sentence}")
    assert await table.get(PLACE) == ITEM
