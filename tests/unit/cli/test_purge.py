"""`a2a-serverless tasks purge`, in this process: a table and `dev`."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import TaskPushNotificationConfig

from a2a_serverless.errors import UnavailableError
from a2a_serverless.settings import Settings
from a2a_serverless.storage import deletion, sqlite
from a2a_serverless.storage.deletion import Amounts, delete_data
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.sqlite import blobs_folder
from a2a_serverless.storage.table import Item, Range
from a2a_serverless.tasks.identity import Scope, oidc_principal
from a2a_serverless_tools.cli import tasks
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.local.own_file import own_file
from a2a_serverless_tools.local.stack import Options, Stack
from a2a_serverless_tools.operate.purge import Purge
from tests.support.clocks import ManualClock
from tests.support.databases import Stored
from tests.support.messages import request
from tests.unit.cli.conftest import ANN, BOB, Run, opened, typing, wait

ROOT = Path(__file__).parents[3]
AGENT = f"{ROOT / 'examples/echo_executor/agent.py'}:agent"
KEY = "a-key-of-twenty-letters"
CARD = ROOT / "examples/echo_executor/agent_card.json"


@pytest.fixture
def purge(run: Run) -> Run:
    """The command `tasks purge`, for an index that does not lag behind."""
    return partial(run, "tasks", "purge", "--settle", "0")


@pytest.fixture
def storage(storage: DurableStorage) -> DurableStorage:
    """The storage of ann, who has two tasks in one context and one in another, and bob his own."""
    for context, task_id in (("a", "t-0"), ("a", "t-1"), ("b", "t-2")):
        opened(storage, task_id, context)
    hook = TaskPushNotificationConfig(task_id="t-0", id="h", url="https://hooks.example/")
    wait(storage.webhooks.put(hook))
    opened(storage.for_scope(BOB), "t-bob", "a")
    return storage


def items(database: Stored, scope: Scope) -> list[str]:
    """The keys of all items that name a scope."""
    return [one["PK"]["S"] for one in database.items() if scope.digest in one["PK"]["S"]]


def test_every_tenant_of_a_caller(
    purge: Run, database: Stored, storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --tenant nothing is left in any, with it the others stay; a subject is found, too.

    All is counted once; another caller keeps what he has, and twice is fine.
    """
    counts, count = list[Purge](), Purge.count

    async def counted(purge: Purge, *given: Any) -> tuple[Amounts, int]:
        counts.append(purge)
        return await count(purge, *given)

    monkeypatch.setattr(Purge, "count", counted)
    subject = oidc_principal("https://issuer.example", "ann@example.com")
    scopes = [Scope.of(tenant, "ann") for tenant in ("", "acme", "umbrella")]
    oidc = [Scope.of(tenant, subject) for tenant in ("", "acme")]
    for number, scope in enumerate([*scopes[1:], *oidc]):
        opened(storage.for_scope(scope), f"t-{number + 10}", "c")
        wait(Storage(storage.for_scope(scope)).update_context("c", {"said": "my secret"}))
    theirs = items(database, BOB)
    code, out, _ = purge("--user", "ann", "--tenant", "acme", "--yes")
    assert (code, "has 1 task, 1 context with a state" in out) == (0, True)
    assert [bool(items(database, scope)) for scope in scopes] == [True, False, True]
    code, out, err = purge("--user", "ann", "--yes")
    assert (code, err, len(counts)) == (0, "", 2)
    all_of_it = "4 tasks, 1 context with a state, 1 webhook and no uploads"
    found = f"ann has {all_of_it} in the table tasks, in 2 tenants."
    assert out.splitlines() == [found, f"Deleted {all_of_it}: nothing is left."]
    again = (
        "a2a-serverless: ann has nothing in the table tasks, and nothing was deleted. Looked in all"
        f" tenants, of the scopes that begin with {ANN.principal}: check the name; a caller with"
        " tokens is named by --subject and --issuer.\n"
    )
    assert purge("--user", "ann", "--yes") == (3, "", again)
    assert wait(list_tasks(storage, ListTasksQuery(page_size=1))).total_size == 0
    assert not any(items(database, scope) for scope in scopes)
    assert all(items(database, scope) for scope in oidc)
    named = ("--subject", "ann@example.com", "--issuer", "https://issuer.example")
    assert purge(*named, "--yes")[0] == 0
    assert not any(items(database, scope) for scope in oidc)
    assert items(database, BOB) == theirs
    assert "my secret" not in str(database.items())


@pytest.mark.parametrize("rounds", [1, 999])
def test_what_comes_late_is_deleted_too(
    purge: Run, database: Stored, storage: DurableStorage, monkeypatch: Any, rounds: int
) -> None:
    """A second look finds it; if an older API goes on creating, the command says so, and ends."""
    sent = iter(range(rounds))

    async def one_step(storage: DurableStorage, context_id: str | None = None, **of: Any) -> Any:
        done = await delete_data(storage, context_id, **of)
        is_due = done.is_done or rounds > 1
        if is_due and (number := next(sent, None)) is not None:
            await storage.open_task("late", request(), task_id=f"late-{number}")
        return done

    monkeypatch.setattr(deletion, "delete_data", one_step)
    monkeypatch.setattr(tasks, "_MORE", 5)
    code, out, err = purge("--user", "ann", "--yes")
    if rounds == 1:
        assert (code, "Deleted 4 tasks" in out, items(database, ANN)) == (0, True, [])
    else:
        assert (code, "such as an API of an older release" in err) == (2, True)


def test_what_the_index_shows_late_is_found(
    run: Run, storage: DurableStorage, database: Stored, clock: ManualClock, monkeypatch: Any
) -> None:
    """Where the first look finds nothing, a second one ten seconds later decides."""
    shown_at = clock.now_ms() + 9_000
    of_index = MemoryTable.first

    async def first(table: MemoryTable, limit: int, wanted: Range, *by: Any) -> list[Item]:
        is_late = bool(wanted.index) and clock.now_ms() < shown_at
        return [] if is_late else await of_index(table, limit, wanted, *by)

    monkeypatch.setattr(MemoryTable, "first", first)
    monkeypatch.setattr(MemoryTable, "lag_s", 10.0)
    code, out, _ = run("tasks", "purge", "--user", "ann", "--yes")
    assert (code, "ann has 3 tasks" in out, items(database, ANN)) == (0, True, [])
    assert clock.now_ms() - shown_at >= DeletionBarriers.KEPT_MS + 10_000 - 9_000
    began = clock.now_ms()
    assert run("tasks", "purge", "--user", "nobody", "--yes")[0] == 3
    assert clock.now_ms() - began == 10_000


def test_one_context(purge: Run, storage: DurableStorage) -> None:
    """`purge --context` deletes one context of a caller or scope; other contexts stay."""
    code, out, _ = purge("--scope", ANN.digest, "--context", "a", "--yes")
    deleted = "Deleted 2 tasks, no contexts with a state, 1 webhook and no uploads:"
    assert (code, deleted in out) == (0, True)
    assert [wait(storage.head(t)) is None for t in ("t-0", "t-1", "t-2")] == [True, True, False]
    code, _, err = purge("--user", "bob", "--tenant", "acme", "--context", "b")
    assert (code, "The context b of bob has nothing" in err) == (3, True)
    assert f"Looked in the tenant acme, scope {BOB.digest}: check the name" in err
    assert wait(storage.for_scope(BOB).head("t-bob")) is not None


def test_nothing_is_deleted_without_the_name(
    run: Run, purge: Run, database: Stored, storage: DurableStorage, monkeypatch: Any
) -> None:
    """It is typed, or --yes is given; and it stands behind the word purge."""
    before = items(database, ANN)
    run("tasks", "--user", "ann", "purge", "--yes").refuses("name it behind the word purge")
    code, out, err = purge("--user", "ann")
    assert (code, out.startswith("ann has 3 tasks")) == (2, True)
    assert err.endswith("Nothing was deleted: type ann, or say --yes.\n")
    asked = typing(monkeypatch, "", "y", "yes", "Ann", "bob", "ann")
    for _ in range(5):
        assert purge("--user", "ann").code == 2
    assert items(database, ANN) == before
    assert purge("--user", "ann").code == 0
    assert items(database, ANN) == []
    assert asked == ["Type ann to delete it for good: "] * 6


def test_an_interrupted_one_is_continued(
    purge: Run, database: Stored, storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted `purge` says how far it was, and the next one deletes the remains too."""
    steps = iter(range(10))

    async def one_step(storage: DurableStorage, context_id: str | None = None, **_: Any) -> Any:
        if next(steps) == 1:
            raise UnavailableError("No answer in time.")
        return await delete_data(storage, context_id, limit=1)

    with monkeypatch.context() as failing:
        failing.setattr(deletion, "delete_data", one_step)
        code, _, err = purge("--user", "ann", "--yes")
    assert code == 2
    so_far, cause = err.splitlines()
    assert so_far.startswith("Deleted ")
    assert so_far.endswith(" so far: run it again for the rest.")
    assert "No answer in time" in cause
    assert items(database, ANN)
    code, out, _ = purge("--user", "ann", "--yes")
    assert "of 1 more there are remains" in out
    assert (code, items(database, ANN)) == (0, [])


def test_what_cannot_be_asked(purge: Run, storage: DurableStorage) -> None:
    """Wrong arguments end with one sentence and exit code 2; an empty context deletes nothing."""
    no_name = "purge deletes what one caller has: name it"
    half_a_name = "--subject and --issuer name a caller together"
    refused: list[tuple[tuple[str, ...], str]] = [
        *(((), no_name), (("--user", ""), no_name), (("--context", "c"), no_name)),
        (("--scope", "x"), "--scope x is no scope"),
        (("--scope", ANN.digest, "--tenant", "t"), "--tenant is part of a caller's name"),
        *((names, half_a_name) for names in (("--subject", "a"), ("--user", "a", "--issuer", "i"))),
        (("--user", "ann", "--context", ""), "--context: A context id must have 1 to"),
    ]
    for arguments, named in refused:
        purge(*arguments, "--yes").refuses(named)
        assert wait(storage.head("t-0")) is not None


def test_it_has_a_bar(purge: Run, storage: DurableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar shows how many of the counted tasks are deleted."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = purge("--user", "ann", "--yes")
    assert (code, "deleting tasks" in err, "3/3" in err) == (0, True, True)


# -- dev ---------------------------------------------------------------------------------------


@pytest.fixture
def bare_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite as it is without SECURE_DELETE among the options that it was built with."""
    connected = sqlite._connected

    def bare(path: Path, **options: Any) -> sqlite3.Connection:
        connection = connected(path, **options)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite, "_connected", bare)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A `dev` on a file, which the commands find in its folder."""
    monkeypatch.setattr(DeletionBarriers, "KEPT_MS", 100)  # nobody creates tasks meanwhile
    monkeypatch.delenv("A2A_TABLE", raising=False)
    monkeypatch.chdir(tmp_path)
    settings = Settings(auth="api-key", api_keys=f"ann={KEY}-of-ann,bob={KEY}-of-bob")
    with Stack(settings, Options(agent=AGENT, card=CARD, file=own_file(tmp_path))) as stack:
        yield stack


@pytest.fixture
def ask(stack: Stack) -> Callable[..., Any]:
    """A request of one of its callers; returns the answer."""

    def asking(user: str, method: str, path: str, **options: Any) -> Any:
        headers = {"A2A-Version": "1.0", "X-API-Key": f"{KEY}-of-{user}"}
        with httpx.Client(headers=headers, trust_env=False, timeout=60) as client:
            return client.request(method, f"{stack.url}{path}", **options).json()

    return asking


def test_uploads_of_a_tenant_without_a_task(purge: Run, run: Run, ask: Callable[..., Any]) -> None:
    """They are exported, counted and deleted, and those of others stay."""
    for user, tenant in (("ann", "acme"), ("ann", ""), ("bob", "acme")):
        said = f"{user} of {tenant}".encode()
        wanted = {"size": len(said), "sha256": sha256(said).hexdigest(), "tenant": tenant}
        asked = ask(user, "POST", "/files", json=wanted)
        httpx.put(asked["url"], headers=asked["headers"], content=said, trust_env=False, timeout=60)
    lines = run("export", "--user", "ann").jsons
    exported = {line["scope"]: b64decode(line["part"]["raw"]) for line in lines[:-1]}
    scopes = {tenant: Scope.of(tenant, "ann").digest for tenant in ("", "acme")}
    assert exported == {scope: f"ann of {tenant}".encode() for tenant, scope in scopes.items()}
    assert lines[-1]["counts"] == {"upload": 2}
    code, out, _ = purge("--user", "ann", "--tenant", "acme", "--yes")
    assert (code, "no webhooks and 1 upload in the file" in out) == (0, True)
    code, out, _ = purge("--user", "ann", "--yes")
    assert (code, "no webhooks and 1 upload: nothing is left" in out) == (0, True)
    assert purge("--user", "ann", "--yes").code == 3
    (left,) = [p for p in blobs_folder(own_file(Path.cwd())).rglob("*.*") if p.is_file()]
    assert left.read_bytes() == b"bob of acme"


READING = """
import asyncio, sys
from pathlib import Path
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
table = SqliteTable(Path(sys.argv[1]), INDEXES)
async def read():
    print(len(await table.partitions("TASK#")), flush=True)
    while True:
        await asyncio.sleep(0.01)
        await table.partitions("TASK#")
asyncio.run(read())
"""


def told(ask: Callable[..., Any], user: str, text: str) -> str:
    """Send some messages with a text, which the agent does not repeat."""
    parts = [{"text": "hi"}, {"data": text * 300}]
    for number in range(20):
        said = {"messageId": f"{number}", "role": "ROLE_USER", "parts": parts}
        assert "task" in ask(user, "POST", "/message:send", json={"message": said})
    return text


def files_with(text: str) -> list[str]:
    """The files of `dev` with a text, by another process: this one would lose its locks on them."""
    command = ["/usr/bin/env", "grep", "-rlaF", text, ".a2a"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.split()


@pytest.mark.long(but=1)
def test_a_purge_leaves_no_text_in_the_file(
    bare_sqlite: None, purge: Run, ask: Callable[..., Any]
) -> None:
    """Neither in its pages nor in its log, while other processes have it open, and read."""
    ann, bob = told(ask, "ann", "a secret of ann's "), told(ask, "bob", "a word of bob's ")
    assert files_with(ann)
    command = [sys.executable, "-c", READING, str(own_file(Path.cwd()))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reading:
        try:
            assert reading.stdout is not None
            assert reading.stdout.readline() == b"40\n"
            assert purge("--user", "ann", "--yes").code == 0
            assert files_with(ann) == []
            assert ".a2a/dev.db" in files_with(bob)
        finally:
            reading.kill()


@pytest.mark.long
def test_a_purge_says_so_where_a_reader_keeps_the_log(
    bare_sqlite: None, purge: Run, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks are gone, and the caller may send again; the next purge empties the log."""
    ann = told(ask, "ann", "a secret of ann's ")
    file = own_file(Path.cwd())
    with closing(sqlite3.connect(file, isolation_level=None)) as reading:
        monkeypatch.setattr(sqlite, "BUSY_S", 0.2)
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM items").fetchall()
        for code, deleted in ((2, True), (2, False)):
            said = purge("--user", "ann", "--yes")
            assert (said.code, "Deleted 20 tasks" in said.err) == (code, deleted)
            assert "What was deleted is still in the log dev.db-wal. The file" in said.err
            assert "locked by another process: end it, or try again" in said.err
    assert ask("ann", "GET", "/tasks")["totalSize"] == 0
    assert files_with(ann)
    assert purge("--user", "ann", "--yes").code == 3
    assert files_with(ann) == []
    told(ask, "ann", "sent afterwards ")
