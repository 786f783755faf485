"""`a2a-serverless tasks purge` on DynamoDB Local."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from a2a_serverless import aws
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless_tools import cli
from tests.support.databases import Database, create_table
from tests.support.emulators import Emulator
from tests.support.messages import request

TABLE = "purged"
ALL = "120 tasks, no contexts with a state, no webhooks and no uploads"


@pytest.mark.emulators
async def test_a_caller_of_many_tasks(
    local_dynamodb: Emulator,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Counted in two steps, deleted with their logs and the count that a list has stored."""
    for name, value in local_dynamodb.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("A2A_TABLE", TABLE)
    monkeypatch.delenv("A2A_QUEUE", raising=False)
    aws.forget_clients()
    create_table(database.client, TABLE)
    own = replace(database, table=TABLE)
    storage = own.storage()
    scope = storage.scope.digest
    opened = [storage.open_task(f"c-{n % 7}", request(str(n))) for n in range(120)]
    await asyncio.gather(*opened)
    assert (await list_tasks(storage, ListTasksQuery(page_size=1))).total_size == 120

    async def purged() -> tuple[int, list[str]]:
        command = ("tasks", "purge", "--scope", scope, "--yes", "--settle", "0")
        code = await asyncio.to_thread(cli.main, command)
        return code, capsys.readouterr().out.splitlines()

    assert await purged() == (
        0,
        [
            f"{scope} has {ALL} in the table {TABLE}.",
            f"Deleted {ALL}: nothing is left.",
        ],
    )
    keys = [item["PK"]["S"] for item in own.items()]
    assert [key for key in keys if scope in key] == []
    assert await purged() == (3, [])
    aws.forget_clients()
