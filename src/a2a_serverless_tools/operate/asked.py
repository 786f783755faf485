"""What tasks were asked, and by whom, for lists: out of the first commit of each log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.storage.layout import event_sort, task_partition
from a2a_serverless.storage.table import Key, Table
from a2a_serverless.tasks.entries import decode_entries
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless_tools.operate.finding import Noted
from a2a_serverless_tools.operate.words import UNKNOWN, Asked, asked_in

_KEPT: Final = 5_000
"""Tasks that are remembered: what was asked never changes."""


class Requests:
    """Reads what tasks were asked, each once.

    Args:
        table: has their logs.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known: dict[Key, Asked] = {}

    async def of(self, tasks: Iterable[Head | Noted]) -> Mapping[TaskKey, Asked]:
        """Return what tasks were asked; one request reads those of a hundred that are not known."""
        keys = {(one.scope, one.task_id): _first(one) for one in tasks}
        missing = list(dict.fromkeys(key for key in keys.values() if key not in self._known))
        if missing:
            found = await self._table.load(missing, consistent=False, only=("body",))
            self._known |= {key: _asked(found.get(key)) for key in missing}
            for old in list(self._known)[:-_KEPT]:
                del self._known[old]
        return {task: self._known.get(key, UNKNOWN) for task, key in keys.items()}


def _first(task: Head | Noted) -> Key:
    partition = task_partition(task.scope, task.task_id)
    return Key(partition, event_sort(task.incarnation, 1, 0))


def _asked(item: Mapping[str, Any] | None) -> Asked:
    """Return what the first part of a log says; what is damaged counts as unknown."""
    body = None if item is None else item.get("body")
    try:
        entries = decode_entries(body) if isinstance(body, bytes) else ()
    except (A2AServerlessError, ValueError):
        return UNKNOWN
    return asked_in(entries)
