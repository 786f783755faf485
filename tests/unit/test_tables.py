"""The table that A2A_TABLE names."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from a2a_serverless import wiring
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import check_backends, open_backends, open_storage, open_table
from tests.support.messages import request
from tests.support.workers import params_of

opened: list[tuple[str, Clock]] = []


def open_colours(url: str, clock: Clock) -> Table:
    """What an outside package has as its entry point."""
    opened.append((url, clock))
    return MemoryTable(INDEXES)


def open_nothing(url: str, clock: Clock) -> object:
    """What a package of another release may have."""
    return url, clock


def refused(name: str) -> str:
    """The sentence with which a table is refused."""
    with pytest.raises(ConfigurationError) as caught:
        open_table(name, SystemClock())
    return str(caught.value)


def test_a_name_is_a_table_on_dynamodb(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is an ARN, which has colons."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    for name in ("tasks", "arn:aws:dynamodb:eu-west-1:123456789012:table/tasks"):
        assert isinstance(open_table(name, SystemClock()), DynamoTable)


@pytest.mark.parametrize(
    ("query", "level"), [("", 1), ("?synchronous=normal", 1), ("?synchronous=FULL", 2)]
)
def test_a_file_is_named_by_its_path(tmp_path: Path, query: str, level: int) -> None:
    """An option says whether commits survive power cuts."""
    path = tmp_path / "tasks.db"
    for name in (f"file:{path}{query}", f"file://{path}{query}"):
        table = open_table(name, SystemClock())
        assert isinstance(table, SqliteTable)
        with closing(table):
            assert table.path == path
            assert table._connection.execute("PRAGMA synchronous").fetchone() == (level,)


@pytest.mark.parametrize("name", ["file:", "file:x?synchronous=maybe", "file:x?mode=ro"])
def test_a_file_that_is_named_wrongly_is_refused(name: str) -> None:
    """One sentence says how a file is named, and none is made."""
    sentence = f"A2A_TABLE is {name}: a file is file:PATH, or file:PATH?synchronous=full."
    assert refused(name) == sentence


def test_another_package_may_have_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point gets the whole value and the clock; else a sentence says what to install."""
    functions = {"colours": "open_colours", "nothing": "open_nothing"}
    points = [EntryPoint(name, f"{__name__}:{it}", wiring.TABLES) for name, it in functions.items()]
    monkeypatch.setattr(wiring, "entry_points", lambda *, group: points if group else [])
    clock = SystemClock()
    assert isinstance(open_table("colours://host/table", clock), MemoryTable)
    assert opened == [("colours://host/table", clock)]
    sentence = refused("postgresql://host/table")
    assert sentence.startswith("A2A_TABLE begins with postgresql: no installed package has tables")
    assert "(installed: colours, nothing)" in sentence
    assert refused("nothing://x").startswith("The entry point tests.unit.test_tables:open_nothing")


async def test_a_file_has_storage_and_queues(tmp_path: Path) -> None:
    """What one process stores and sends, another one reads and receives."""
    settings = Settings(table=f"file:{tmp_path}/tasks.db", push_queue="push", worker_turns=2)
    api, worker = open_backends(settings), open_backends(settings)
    storage = open_storage(settings)
    await check_backends(worker, settings)
    head = (await api.storage.open_task("context", request())).head
    await api.operations.send(Operation.to_run(params_of(head)))
    (handle,) = await worker.operations.pull(1, 10)
    assert handle.message.params.task_id == head.task_id
    assert await storage.head(head.task_id) is not None
    named = [worker.operations, worker.quarantining(), worker.dead_letters, worker.pushing().jobs]
    names = [queue.name for queue in named if isinstance(queue, TableQueue)]
    assert names == ["queue", "quarantine_queue", "dead_letter_queue", "push"]
    for opened_here in (api.storage, worker.storage, storage):
        assert isinstance(opened_here.table, SqliteTable)
        opened_here.table.close()
