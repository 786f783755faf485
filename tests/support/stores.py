"""The stores for the SDK's own server, and the SDK's SQL stores beside them."""

import asyncio
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from a2a.auth.user import User
from a2a.server.cluster import TaskEventStream, TaskVersion, VersionedEvent, VersionedTaskStore
from a2a.server.context import ServerCallContext
from a2a.server.tasks import PushNotificationConfigStore
from a2a.types import Artifact, Part, Task, TaskArtifactUpdateEvent
from moto import mock_aws

from a2a_serverless import stores
from a2a_serverless.storage.dynamodb import DynamoTable, definition_of
from a2a_serverless.storage.table import Table
from a2a_serverless.stores.layout import OWN_INDEXES
from tests.support.emulators import REGION, Emulator
from tests.support.required import python_of

NEW = TaskVersion.MISSING
TABLE = "a2a-stores"


@dataclass(frozen=True, slots=True)
class Named(User):
    """A caller with a name."""

    name: str

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self.name


def caller(name: str = "") -> ServerCallContext:
    """A call of somebody; without a name: of somebody whom no other test has."""
    return ServerCallContext(user=Named(name or uuid.uuid4().hex))


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The three stores of one backend."""

    tasks: Any
    """A versioned task store with `as_task_store`."""
    stream: TaskEventStream
    configs: PushNotificationConfigStore
    is_sql: bool = False
    """Whether they are the SDK's."""

    def __post_init__(self) -> None:
        assert isinstance(self.tasks, VersionedTaskStore)


def chunk_of(task: Task, text: str, *, append: bool = True) -> TaskArtifactUpdateEvent:
    """A chunk of the artifact "a", which is added to the task, too."""
    if not append:
        task.artifacts.add(artifact_id="a", parts=[])
    written = Artifact(artifact_id="a", parts=[Part(text=text)])
    task.artifacts[-1].parts.extend(written.parts)
    made = TaskArtifactUpdateEvent(task_id=task.id, context_id=task.context_id, append=append)
    made.artifact.CopyFrom(written)
    return made


def on_table(table: Table, **options: Any) -> Stores:
    shared = {name: value for name, value in options.items() if name != "ttl_s"}
    of_configs = {name: value for name, value in options.items() if name != "bucket"}
    return Stores(
        tasks=stores.DynamoDBTaskStore(table, **options),
        stream=stores.DynamoDBTaskEventStream(table, **shared),
        configs=stores.DynamoDBPushNotificationConfigStore(table, **of_configs),
    )


@contextmanager
def moto_bucket(name: str) -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3", region_name=REGION)
        client.create_bucket(Bucket=name)
        yield client


def local_table(emulator: Emulator) -> DynamoTable:
    """The table of `create_table` on DynamoDB Local."""
    client = emulator.client(max_pool_connections=64)
    client.create_table(TableName=TABLE, **definition_of(OWN_INDEXES))
    return DynamoTable(TABLE, OWN_INDEXES, client=client)


@contextmanager
def sql_engines() -> Iterator[Callable[[Path], Any]]:
    """What makes engines of SQLAlchemy on SQLite files; it is not among our own packages."""
    packages = python_of("sdk_sql").parent.parent / "lib"
    (folder,) = packages.glob("python*/site-packages")
    sys.path.append(str(folder))
    try:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        yield lambda file: create_async_engine(f"sqlite+aiosqlite:///{file}")
    finally:
        sys.path.remove(str(folder))


async def on_sql(engine: Any, *, poll_interval_s: float = 0.02) -> Stores:
    """The SDK's SQL stores; by default their stream polls every 0.5 s, too slowly for tests."""
    from a2a.server.cluster.database_event_stream import DatabaseTaskEventStream  # noqa: PLC0415
    from a2a.server.cluster.database_task_store import VersionedDatabaseTaskStore  # noqa: PLC0415
    from a2a.server.tasks.database_push_notification_config_store import (  # noqa: PLC0415
        DatabasePushNotificationConfigStore,
    )

    tasks = VersionedDatabaseTaskStore(engine)
    await tasks.initialize()  # else a read fails that comes before the first save
    return Stores(
        tasks=tasks,
        stream=DatabaseTaskEventStream(engine, poll_interval_s=poll_interval_s),
        configs=DatabasePushNotificationConfigStore(engine),
        is_sql=True,
    )


async def followed(
    stream: TaskEventStream, task_id: str, count: int, *, after: TaskVersion = NEW
) -> list[VersionedEvent]:
    """The next `count` events behind a version."""
    found: list[VersionedEvent] = []
    events = stream.subscribe(task_id, after=after)
    async with asyncio.timeout(20):
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    await events.aclose()
    return found
