"""Timelines of logs that tests have written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless_tools.operate.details import TaskDetails
from a2a_serverless_tools.operate.timeline import Timeline, timeline


def timeline_of(head: Head, records: Iterable[Record], *, now_ms: int = 0, **how: Any) -> Timeline:
    """The timeline of a task; `how`: other fields of the details, or arguments of `timeline`."""
    own = {name: how.pop(name) for name in [*how] if name in TaskDetails.__dataclass_fields__}
    return timeline(TaskDetails(head=head, records=tuple(records), **own), now_ms=now_ms, **how)
