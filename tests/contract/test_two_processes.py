"""Two processes that change one HEAD all the time, on a file and on DynamoDB Local."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Table
from tests.support import messages
from tests.support.databases import LONG, Database, new_scope
from tests.support.emulators import Emulator

WRITER = """
import asyncio, pathlib, sys
from dataclasses import replace
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.tasks.identity import Scope

def counted(head):
    return replace(head, turn=replace(head.turn, sends=head.turn.sends + 1))

async def write(table, scope, task_id, times):
    storage = DurableStorage(table, scope=Scope(scope))
    head = await storage.head(task_id)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(times):
        head = await storage.change(head, counted)
        assert head is not None

kind, place, scope, task_id, times = sys.argv[1:]
file = kind == "file"
table = SqliteTable(pathlib.Path(place), INDEXES) if file else DynamoTable(place, INDEXES)
asyncio.run(write(table, scope, task_id, int(times)))
"""


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("file", 10_000 if LONG else 200),
        pytest.param("dynamodb", 10_000 if LONG else 200, marks=pytest.mark.emulators),
    ],
)
@pytest.mark.timeout(900)
async def test_of_two_processes_changes_none_is_lost(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, changes: int
) -> None:
    """Each has decided on the HEAD that was there, so that HEAD counts all changes of both."""
    if kind == "file":
        with closing(SqliteTable(tmp_path / "table", INDEXES)) as table:
            await _race(table, (kind, str(tmp_path / "table")), dict(os.environ), changes)
    else:
        database: Database = request.getfixturevalue("database")
        emulator: Emulator = request.getfixturevalue("local_dynamodb")
        variables = os.environ | emulator.environment()
        await _race(database.opened(), (kind, database.table), variables, changes)


async def _race(
    table: Table, place: tuple[str, str], variables: dict[str, str], changes: int
) -> None:
    storage = DurableStorage(table, scope=new_scope())
    head = (await storage.open_task("ctx", messages.request())).head
    asked = [*place, head.scope, head.task_id, str(changes // 2)]
    writers = [_started(asked, variables) for _ in range(2)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:  # not before both are ready: else one is done when the other begins
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.close()
    codes = []
    for writer in writers:
        with writer:
            codes.append(writer.wait())
    assert codes == [0, 0]
    after = await storage.head(head.task_id)
    assert after is not None
    assert after.turn.sends == changes


def _started(asked: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *asked],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=variables,
    )
