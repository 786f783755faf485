"""The settings, of bounds, of backends that are there, and of the table that A2A_TABLE names."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from unittest import mock

import pytest

from a2a_serverless import wiring
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings, load_settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import INDEXES_OF_WORKER, check_backends, open_table
from tests.support.messages import request
from tests.support.workers import params_of


@pytest.mark.parametrize(
    ("variable", "taken", "refused"),
    [
        ("A2A_BLOCKING_LIMIT_S", "28", "29"),  # API Gateway ends it after 29 s
        ("A2A_STREAMS_PER_CALLER", "1", "0"),
        ("A2A_STREAMS_IN_ALL", "7", "0"),
        ("A2A_PUBLIC_URL", "http://127.0.0.1:8000/agents/", "localhost:8000"),
        ("A2A_PUBLIC_URL", "https://a.example", "https://"),
        ("A2A_PUBLIC_URL", "https://a.example", "https://a?b"),
        ("A2A_VISIBILITY_S", "43200", "43201"),  # SQS hides a message for 12 hours at most
        ("A2A_TTL_DAYS", "1", "inf"),
        ("A2A_CANCEL_TIMEOUT_S", "1", "1e999"),
        ("A2A_WAITING_S", "60", "nan"),
    ],
)
def test_what_cannot_be_is_refused(variable: str, taken: str, refused: str) -> None:
    """One sentence names the variable: of a bound, of no URL, of a time that nothing can store."""
    found = str(getattr(load_settings({variable: taken}), variable.removeprefix("A2A_").lower()))
    assert found.rstrip("/") in (taken.rstrip("/"), f"{taken}.0")
    with pytest.raises(ConfigurationError, match=f"^{variable}: .*[.]$"):
        load_settings({variable: refused})


def test_shared_turns_need_a_worker_that_outlasts_them() -> None:
    """Where no turn fits beside the spare time, it is the worker's time that is too short."""
    settings = load_settings({"A2A_WORKER_TURNS": "2", "A2A_RUN_LIMIT_S": "60"})
    with pytest.raises(ConfigurationError, match="needs an A2A_RUN_LIMIT_S of 76 or more"):
        settings.check_sharing()


@pytest.mark.parametrize(
    ("part", "raised", "told"),
    [
        (
            "storage.head",
            LookupError("no such resource"),
            "The table my-table cannot be used: no such",
        ),
        ("storage.head", UnavailableError(), None),
        ("operations.check", ConfigurationError("The queue my-queue does not exist."), "my-queue"),
    ],
)
async def test_a_missing_backend_is_named(
    part: str, raised: Exception, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence names what cannot be used; an outage keeps its own error."""
    backends = wiring.memory_backends(Settings())
    owner, name = part.split(".")
    monkeypatch.setattr(getattr(backends, owner), name, mock.AsyncMock(side_effect=raised))
    with pytest.raises(ConfigurationError if told else type(raised), match=told):
        await check_backends(backends, Settings(table="my-table"))


async def test_a_missing_index_is_named() -> None:
    """A process does not start on a table that lacks an index: the sentence names it."""
    for missing in INDEXES:
        table = MemoryTable({name: index for name, index in INDEXES.items() if name != missing})
        with pytest.raises(ConfigurationError, match=f"no index {missing}"):
            await check_backends(wiring.table_backends(Settings(), table), Settings())


async def test_a_worker_asks_for_its_own_indexes_alone() -> None:
    """A worker starts where it may read no index but its own, as with the role of fargate.yaml."""
    table = MemoryTable({name: INDEXES[name] for name in INDEXES_OF_WORKER})
    await check_backends(wiring.table_backends(Settings(), table), Settings(), INDEXES_OF_WORKER)


def test_settings_of_one_variable() -> None:
    """A2A_SETTINGS has further settings; a value may have commas. Streams have a default bound."""
    text = "A2A_FLUSH_MS=500, A2A_PUSH_ALLOWED_HOSTS=10.0.0.0/8, hooks.internal,A2A_TASK_COST=0.5"
    found = load_settings({"A2A_SETTINGS": text, "A2A_TTL_DAYS": "7"})
    assert (found.streams_per_caller, found.streams_in_all) == (50, 500)
    assert (found.flush_ms, found.task_cost, found.ttl_days) == (500, 0.5, 7)
    assert found.push_allowed_hosts == "10.0.0.0/8,hooks.internal"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A2A_FLUSH=5", "A2A_SETTINGS has A2A_FLUSH, which is no setting; A2A_FLUSH_MS is one."),
        ("A2A_FLUSH_MS=x", "A2A_SETTINGS: A2A_FLUSH_MS: Input should be a valid integer"),
        ("A2A_FLUSH_MS=1", "A2A_SETTINGS: A2A_FLUSH_MS: Input should be greater than"),
        ("OTEL_TRACES_SAMPLER_ARG=2", "A2A_SETTINGS: OTEL_TRACES_SAMPLER_ARG: Input should be"),
        ("A2A_TTL_DAYS=1,A2A_TTL_DAYS=1", "A2A_SETTINGS has A2A_TTL_DAYS twice"),
        ("A2A_API_KEYS=a=b", "A2A_SETTINGS has A2A_API_KEYS, which is a secret"),
        ("flush_ms=5", "A2A_SETTINGS has an entry that is not of the form NAME=value"),
        ("A2A_FLUSH_MS=50,flush=5", "A2A_SETTINGS has an entry that is not of the form"),
        ("A2A_BLOBS=mine", "A2A_SETTINGS has A2A_BLOBS, and the environment has another value"),
    ],
)
def test_settings_of_one_variable_that_are_refused(text: str, words: str) -> None:
    """One sentence names the entry."""
    with pytest.raises(ConfigurationError) as refused:
        load_settings({"A2A_SETTINGS": text, "A2A_BLOBS": "other"})
    assert str(refused.value).startswith(words)


opened: list[tuple[str, Clock]] = []


def open_colours(url: str, clock: Clock) -> Table:
    """What an outside package has as its entry point."""
    opened.append((url, clock))
    return MemoryTable(INDEXES)


def open_nothing(url: str, clock: Clock) -> object:
    """What a package of another release may have."""
    return url, clock


def refusal_of(name: str) -> str:
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
    assert refusal_of(name) == sentence


def test_another_package_may_have_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point gets the whole value and the clock; else a sentence says what to install."""
    functions = {"colours": "open_colours", "nothing": "open_nothing"}
    points = [EntryPoint(name, f"{__name__}:{it}", wiring.TABLES) for name, it in functions.items()]
    monkeypatch.setattr(wiring, "entry_points", lambda *, group: points if group else [])
    clock = SystemClock()
    assert isinstance(open_table("colours://host/table", clock), MemoryTable)
    assert opened == [("colours://host/table", clock)]
    sentence = refusal_of("postgresql://host/table")
    assert sentence.startswith("A2A_TABLE begins with postgresql: no installed package has tables")
    assert "(installed: colours, nothing)" in sentence
    assert "entry point tests.unit.test_settings:open_nothing" in refusal_of("nothing://x")


def test_what_is_not_named_cannot_be_opened() -> None:
    """The sentence has the variable."""
    with pytest.raises(ConfigurationError, match="A2A_TABLE is not set"):
        wiring.open_storage(Settings())
    with pytest.raises(ConfigurationError, match="A2A_PUSH_QUEUE is not set"):
        wiring.memory_backends(Settings()).pushing()


async def test_large_content_may_be_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """A2A_BLOBS names it, whatever the table is; else it is beside the table's file."""
    for blobs, folder in ((f"file:{tmp_path}/large", "large"), ("", "tasks.db.blobs")):
        storage = wiring.open_storage(Settings(table=f"file:{tmp_path}/tasks.db", blobs=blobs))
        await storage.open_task("context", request("x" * 1_000_000))
        assert [path for path in (tmp_path / folder).rglob("*") if path.is_file()]


async def test_a_file_has_storage_and_queues(tmp_path: Path) -> None:
    """What one process stores and sends, another one reads and receives."""
    settings = Settings(table=f"file:{tmp_path}/tasks.db", push_queue="push", worker_turns=2)
    api, worker = wiring.open_backends(settings), wiring.open_backends(settings)
    storage = wiring.open_storage(settings)
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
