"""What a task's log has, in the form in which clients get it."""

from __future__ import annotations

from typing import Any

from a2a.types import StreamResponse, TaskArtifactUpdateEvent
from google.protobuf.json_format import MessageToDict

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.fold import Event, Fold, events_of


async def log_of(storage: DurableStorage, task_id: str) -> list[tuple[str, dict[str, Any]]]:
    """All events of a task and their ids, from what is stored."""
    log = await storage.read(task_id)
    assert log is not None
    fold, events = Fold(task_id, log.head.context_id), []
    for record in log.records:
        fold.add(record)
        for index, event in enumerate(events_of(record, fold)):
            events.append((f"{record.version}.{index}", as_json(event)))
    return events


def as_json(event: Event) -> dict[str, Any]:
    response = (
        StreamResponse(artifact_update=event)
        if isinstance(event, TaskArtifactUpdateEvent)
        else StreamResponse(status_update=event)  # type: ignore[arg-type]  # all else a log has
    )
    return MessageToDict(response)
