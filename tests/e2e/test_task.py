"""`a2a-serverless task` as a process, on DynamoDB Local."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from a2a_serverless.clock import SystemClock
from a2a_serverless.storage.layout import BY_ID
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.local.provision import table_definition
from tests.e2e.commands import environment, run
from tests.support.databases import Database, drop_index, emulator_client
from tests.support.emulators import Emulator
from tests.support.messages import request

pytestmark = pytest.mark.emulators

TABLE = "task-command"
TOLD = f"table {TABLE}, which A2A_TABLE names\n"


@pytest.fixture
def database(dynamodb_local: Emulator) -> Iterator[Database]:
    """A table of its own."""
    client = emulator_client(dynamodb_local)
    client.create_table(TableName=TABLE, **table_definition(stream=False))
    yield Database(client=client, table=TABLE)
    client.delete_table(TableName=TABLE)
    client.close()


async def test_a_task_is_shown_with_and_without_the_index(
    database: Database, dynamodb_local: Emulator
) -> None:
    """`task ID` shows a task by its id; on a table without the index it asks for the scope."""
    env = environment(**dynamodb_local.environment(), A2A_TABLE=TABLE)
    storage = database.storage(clock=SystemClock())
    head = (await storage.open_task("context", request())).head
    await storage.commit(head, Commit(token="one", claims=True, worker="host 17"))

    shown = run("task", head.task_id, env=env)
    assert (shown.returncode, shown.stderr) == (0, TOLD)
    assert "worker    host 17, claimed it at" in shown.stdout

    drop_index(database.client, TABLE, BY_ID)
    refused = run("task", head.task_id, env=env)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "The table has no index by-id yet" in refused.stderr
    assert refused.stderr.removeprefix(TOLD).count("\n") == 1, refused.stderr

    by_scope = run("task", head.task_id, "--scope", head.scope, env=env)
    assert (by_scope.returncode, by_scope.stderr) == (0, TOLD)
    lengths = re.compile(r"\d[\d.]* (ms|s|min|h|d)\b")  # they grow
    assert lengths.sub("", by_scope.stdout) == lengths.sub("", shown.stdout)


async def test_a_reader_that_leaves_is_no_error(
    database: Database, dynamodb_local: Emulator
) -> None:
    """`task ID | head` ends without a traceback, also where nothing was read."""
    env = environment(**dynamodb_local.environment(), A2A_TABLE=TABLE)
    head = (await database.storage(clock=SystemClock()).open_task("context", request())).head
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        [sys.executable, "-m", "a2a_serverless_tools.cli", "task", head.task_id],
        env=env,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, TOLD.encode())
