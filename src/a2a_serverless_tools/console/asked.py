"""What tasks were asked, and by whom, for lists: out of the first commit of each log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.storage.layout import event_sort, task_partition
from a2a_serverless.storage.table import Key, Table
from a2a_serverless.tasks.entries import TurnOpened, decode_entries
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import TaskKey

MOST_OF_A_LINE: Final = 200
"""Characters of a request that a list shows."""
_KEPT: Final = 5_000
"""Tasks that are remembered: what was asked never changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who has asked for a task, and the first line of what was asked."""

    caller: str = ""
    """Empty: it is not known, or there was no authentication."""
    tenant: str = ""
    line: str = ""
    """Empty: the request has no text, or it cannot be read."""


UNKNOWN: Final = Asked()


class Requests:
    """Reads what tasks were asked, each once.

    Args:
        table: has their logs.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known: dict[Key, Asked] = {}

    async def of(self, heads: Iterable[Head]) -> Mapping[TaskKey, Asked]:
        """Return what tasks were asked; one request reads those of a hundred that are not known."""
        keys = {(head.scope, head.task_id): _first(head) for head in heads}
        missing = list(dict.fromkeys(key for key in keys.values() if key not in self._known))
        if missing:
            found = await self._table.load(missing, consistent=False, only=("body",))
            self._known |= {key: _asked(found.get(key)) for key in missing}
            for old in list(self._known)[:-_KEPT]:
                del self._known[old]
        return {task: self._known.get(key, UNKNOWN) for task, key in keys.items()}


def _first(head: Head) -> Key:
    partition = task_partition(head.scope, head.task_id)
    return Key(partition, event_sort(head.incarnation, 1, 0))


def _asked(item: Mapping[str, Any] | None) -> Asked:
    """Return what the first part of a log says; what is damaged counts as unknown."""
    body = None if item is None else item.get("body")
    try:
        entries = decode_entries(body) if isinstance(body, bytes) else ()
    except (A2AServerlessError, ValueError):
        return UNKNOWN
    opened = next((entry for entry in entries if isinstance(entry, TurnOpened)), None)
    if opened is None:
        return UNKNOWN
    texts = [part.text for part in opened.request.message.parts if part.HasField("text")]
    lines = (line.strip() for text in texts for line in text.splitlines())
    line = next(filter(None, lines), "")
    return Asked(caller=opened.caller.user, tenant=opened.caller.tenant, line=line[:MOST_OF_A_LINE])
