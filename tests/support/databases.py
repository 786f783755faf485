"""The backends that the storage suites run over, each as fresh as it can be had."""

import itertools
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from unittest import mock

import boto3
import pytest
from moto import mock_aws
from moto.dynamodb.responses import DynamoHandler

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb import DynamoTable, _Typed, plain, typed
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Key, key_of
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import OBSERVER
from a2a_serverless_tools.local.provision import table_definition
from tests.support.clocks import ManualClock
from tests.support.emulators import REGION, Emulator
from tests.support.memory import PolledTable
from tests.support.mended_moto import mend_moto
from tests.support.present import present

mend_moto()

TABLE = "tasks"

LONG = os.environ.get("A2A_FAULTS") == "long"
"""Whether tests that draw from seeds draw many (`make faults`)."""

LOCAL = pytest.param("dynamodb", marks=pytest.mark.emulators)
BACKENDS = ["memory", "file", LOCAL]
"""The tables that the suites of storage run over."""

_starts = itertools.count(8_000_000_000_000, -1_000_000_000)


class Dictionaries:
    """A table in dictionaries, whose readers poll as those of DynamoDB.

    Its items are as DynamoDB's API has them, as are those of a `Database`.
    """

    def __init__(self, clock: Clock) -> None:
        self._table = PolledTable(clock)

    def storage(self, **options: Any) -> DurableStorage:
        options.setdefault("scope", new_scope())
        return DurableStorage(self._table, **{"observer": OBSERVER, **options})

    def items(self) -> list[_Typed]:
        return [typed(item) for item in self._table._items.values()]

    def get(self, item_key: _Typed) -> _Typed | None:
        item = self._table._items.get(key_of(plain(item_key)))
        return None if item is None else typed(item)

    def put(self, item: _Typed) -> None:
        new = plain(item)
        self._table._store(key_of(new), self._table._items.get(key_of(new)), new)

    def delete(self, item_key: _Typed) -> None:
        old = key_of(plain(item_key))
        self._table._store(old, self._table._items.get(old), None)


@dataclass(frozen=True, kw_only=True)
class Database:
    """A DynamoDB table on moto or DynamoDB Local."""

    client: Any
    table: str = TABLE

    def opened(self, *, clock: Clock | None = None) -> DynamoTable:
        return dynamo_table(self.table, client=self.client, clock=clock)

    def storage(self, **options: Any) -> DurableStorage:
        options.setdefault("scope", new_scope())
        options.setdefault("client", self.client)
        return dynamo_storage(self.table, **options)

    def items(self) -> list[_Typed]:
        pages = self.client.get_paginator("scan").paginate(TableName=self.table)
        return [item for page in pages for item in page["Items"]]

    def get(self, item_key: _Typed) -> _Typed | None:
        found = self.client.get_item(TableName=self.table, Key=item_key, ConsistentRead=True)
        item: _Typed | None = found.get("Item")
        return item

    def put(self, item: _Typed) -> None:
        self.client.put_item(TableName=self.table, Item=item)

    def delete(self, item_key: _Typed) -> None:
        self.client.delete_item(TableName=self.table, Key=item_key)


Stored: TypeAlias = Dictionaries | Database
"""A table behind the code's back."""


def on_dynamo(storage: DurableStorage) -> DynamoTable:
    assert isinstance(storage.table, DynamoTable)
    return storage.table


def key(partition: str, sort: str) -> _Typed:
    """A primary key, as DynamoDB's API has it."""
    return typed(Key(partition, sort)._asdict())


def dynamo_table(
    name: str = TABLE, *, client: Any = None, clock: Clock | None = None
) -> DynamoTable:
    """A table on DynamoDB, by default on the one that the environment names."""
    return DynamoTable(name, INDEXES, client=client, clock=clock)


def dynamo_storage(
    name: str = TABLE, *, client: Any = None, clock: Clock | None = None, **options: Any
) -> DurableStorage:
    table = dynamo_table(name, client=client, clock=clock)
    return DurableStorage(table, clock=clock or SystemClock(), **{"observer": OBSERVER, **options})


def new_scope() -> Scope:
    """A scope that no other test has: what isolates tests that share one table."""
    return Scope.of("test", uuid.uuid4().hex)


def new_clock() -> ManualClock:
    """A clock long before those of earlier tests: nothing of theirs is due in its time."""
    return ManualClock(next(_starts))


def create_table(client: Any, name: str = TABLE) -> None:
    """The table of a deployment; without stream and expiry, which no test of storage reads."""
    client.create_table(TableName=name, **table_definition(stream=False))


def emulator_client(emulator: Emulator, **config: Any) -> Any:
    """A client with a connection per thread and the retries of production."""
    options = {
        "max_pool_connections": 64,
        "retries": {"mode": "standard", "total_max_attempts": 3},
        "read_timeout": 20,
    }
    return emulator.client(**(options | config))


@contextmanager
def moto_database() -> Iterator[Database]:
    """A table of its own on moto, which answers one request at a time.

    A transaction on moto copies the whole table, and puts the copy back when it is refused: a write
    of another thread breaks the copying, or is lost.
    """
    answering, answer = threading.Lock(), DynamoHandler.call_action

    def one_at_a_time(handler: DynamoHandler) -> Any:
        with answering:
            return answer(handler)

    with mock.patch.object(DynamoHandler, "call_action", one_at_a_time), mock_aws():
        client = boto3.client("dynamodb", region_name=REGION)
        create_table(client)
        yield Database(client=client)


async def versions(storage: DurableStorage, task_id: str) -> list[int]:
    return [record.version for record in present(await storage.read(task_id)).records]
