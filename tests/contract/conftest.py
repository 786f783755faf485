"""One suite per contract, run over every backend.

The emulators run once per session. A test has a scope of its own, and the clock decides what is
due, so that tests share a table without seeing one another.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Table
from a2a_serverless.wiring import OBSERVER
from a2a_serverless_tools.contract import Storage
from tests.contract.queues import SqsQueues, TableQueues, fauxqs_queues, moto_queues
from tests.support import databases
from tests.support.clocks import ManualClock
from tests.support.emulators import Emulator, dynamodb_local

ONE_IN = 4
"""Of the tests that every table passes, a run of the whole suite does one in four on a file and one
in four on DynamoDB Local, and `make faults` all. `test_tables` compares each request of both with
dictionaries.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the others to runs that name files, and to `make faults`."""
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    if is_whole and (left := set(filter(_is_left_out, items))):
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=list(left))


_OVER = ("backend", "backends", "stores")
"""The parameters that say over what a test is run."""
_SAMPLED = {"file", "dynamodb", "emulators"}


def _is_left_out(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    if case is None or "test_tables" in item.nodeid:
        return False
    if not _SAMPLED.intersection(map(case.params.get, _OVER)):
        return False
    return zlib.crc32(item.nodeid.encode()) % ONE_IN != 0


@pytest.fixture(scope="session")
def local_dynamodb(installed_emulators: None) -> Iterator[Emulator]:
    """DynamoDB Local with the project's table."""
    with dynamodb_local() as emulator:
        databases.create_table(databases.emulator_client(emulator))
        yield emulator


@pytest.fixture(scope="module")
def table_of_module(local_dynamodb: Emulator) -> str:
    """A table of these tests: what looks at all tasks would walk through those of all modules."""
    name = f"tasks-{uuid4()}"
    with closing(databases.emulator_client(local_dynamodb)) as client:
        databases.create_table(client, name)
    return name


@pytest.fixture
def database(local_dynamodb: Emulator, table_of_module: str) -> Iterator[databases.Database]:
    """A table on DynamoDB Local, with a client that a test may hang hooks on."""
    client = databases.emulator_client(local_dynamodb)
    yield databases.Database(client=client, table=table_of_module)
    client.close()


@pytest.fixture
def client(local_dynamodb: Emulator) -> Iterator[Any]:
    """A client without retries of its own: what repeats here is the runtime."""
    client = databases.emulator_client(
        local_dynamodb, retries={"mode": "standard", "total_max_attempts": 1}
    )
    yield client
    client.close()


@pytest.fixture
def clock() -> ManualClock:
    """The storage's clock."""
    return databases.new_clock()


@pytest.fixture(params=databases.BACKENDS)
def backend(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Table]:
    """The table under test."""
    match request.param:
        case "memory":
            yield MemoryTable(INDEXES)
        case "file":
            with closing(SqliteTable(tmp_path / "table", INDEXES)) as file:
                yield file
        case "dynamodb":
            local: databases.Database = request.getfixturevalue("database")
            yield local.opened(clock=clock)
        case other:
            pytest.fail(f"The fixture backend knows no backend {other}.")


@pytest.fixture
def storage(backend: Table, clock: ManualClock) -> DurableStorage:
    """The storage on it, in a scope of its own."""
    return DurableStorage(backend, scope=databases.new_scope(), clock=clock, observer=OBSERVER)


@pytest.fixture
def tasks(storage: DurableStorage) -> Storage:
    """The Storage contract over it."""
    return Storage(storage)


@pytest.fixture
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableQueues | SqsQueues]:
    """Fresh queues of the backend that the test is run over."""
    match request.param:
        case "memory":
            yield TableQueues(MemoryTable(INDEXES))
        case "file":
            with closing(SqliteTable(tmp_path / "table", INDEXES)) as file:
                yield TableQueues(file)
        case "moto":
            with moto_queues() as moto:
                yield moto
        case "fauxqs":
            emulator: Emulator = request.getfixturevalue("fauxqs")
            with fauxqs_queues(emulator) as fauxqs:
                yield fauxqs
        case other:
            pytest.fail(f"The fixture queues knows no backend {other}.")
