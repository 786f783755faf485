"""The items of tasks that were killed at: recorded from real runs, read again without them.

`make record-logs` runs the kill points and writes what each has left in the table to `logs/`. Names
of hosts and processes are replaced; all else is as DynamoDB has it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from a2a_serverless.storage.codec import Commits, head_of
from a2a_serverless.storage.dynamodb import plain
from a2a_serverless.storage.layout import EVENTS, HEAD, PUSH, task_partition
from a2a_serverless.storage.webhooks import push_of
from a2a_serverless.tasks.head import Head
from a2a_serverless_tools.operate.details import TaskDetails
from a2a_serverless_tools.operate.timeline import Timeline, timeline
from tests.faults.harness import World

LOGS: Final = Path(__file__).parent / "logs"
VARIABLE: Final = "A2A_RECORD_LOGS"

Item = dict[str, dict[str, Any]]


async def record(world: World, head: Head, name: str) -> None:
    """Write a task's items to the file of `name`, if `make record-logs` asks for it."""
    if os.environ.get(VARIABLE) != "1":
        return
    found = await asyncio.to_thread(
        world.dynamodb.query,
        TableName=world.made.table,
        ConsistentRead=True,
        KeyConditionExpression="PK = :pk",
        ExpressionAttributeValues={":pk": {"S": task_partition(head.scope, head.task_id)}},
    )
    LOGS.mkdir(exist_ok=True)
    items = [_coded(item, _as_text) for item in _without_hosts(found["Items"])]
    text = json.dumps(items, indent=1, sort_keys=True)
    (LOGS / f"{_file(name)}.json").write_text(text + "\n", encoding="utf-8")


def recorded(name: str) -> Timeline:
    """Return the timeline of the task that was recorded under `name`."""
    text = (LOGS / f"{_file(name)}.json").read_text(encoding="utf-8")
    items = [plain(_coded(item, base64.b64decode)) for item in json.loads(text)]
    (head,) = (head_of(item) for item in items if item["SK"] == HEAD)
    commits = Commits(head.incarnation, 0)
    commits.add(item for item in items if item["SK"].startswith(EVENTS))
    pushes = [push_of(item) for item in items if item["SK"].startswith(PUSH)]
    details = TaskDetails(head=head, records=tuple(commits.records), pushes=tuple(pushes))
    return timeline(details, now_ms=0)


def _file(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _without_hosts(items: Sequence[Item]) -> list[Item]:
    """Name the processes that have claimed in the order in which they did."""
    names: dict[str, str] = {}
    changed: list[Item] = []
    for item in items:
        worker = item.get("worker", {}).get("S")
        named = worker and names.setdefault(worker, f"worker {len(names) + 1}")
        changed.append({**item, "worker": {"S": named}} if named else item)
    return changed


def _as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _coded(item: Mapping[str, Mapping[str, Any]], code: Callable[[Any], Any]) -> Item:
    return {
        name: {"B": code(value["B"])} if "B" in value else dict(value)
        for name, value in item.items()
    }
