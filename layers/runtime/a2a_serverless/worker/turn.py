"""What an attempt is given: the turn's request, and the task as it was when the turn began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from a2a.server.agent_execution import RequestContext
from a2a.types import Task

from a2a_serverless.storage.log import Log
from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.worker.executor import request_context
from a2a_serverless.worker.translation import TurnView


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The open turn of a task, ready for an attempt."""

    context: RequestContext
    """For `execute()`."""
    cancel_context: RequestContext
    """For `cancel()`: the Task as it is now, and no message."""
    view: TurnView


def turn_of(log: Log, state: Mapping[str, str]) -> Turn:
    """The current turn of a log that was read from its beginning.

    Whatever earlier attempts have written is left out: the view stands where the turn began.
    `state` goes to the call context's headers.
    """
    head = log.head
    began = log.records[: head.turn_base]
    fold = _fold(log, began)
    request, caller = fold.opening(head.turn)
    given: Task | None = None
    if head.turn > 1:
        # As on the SDK's own server: a follow-up's Task does not have its message yet, and still
        # has the question that it answers as its status.
        before = [_without_entries(r) if r.version == head.turn else r for r in began]
        given = _fold(log, before).task()
    return Turn(
        context=request_context(fold, caller, request=request, given=given, state=state),
        cancel_context=cancel_context_of(log, state),
        view=TurnView(fold, given),
    )


def cancel_context_of(log: Log, state: Mapping[str, str]) -> RequestContext:
    """The context of `cancel()`, made from a log that was read from its beginning."""
    now = log.fold()
    _, caller = now.opening(log.head.turn)
    return request_context(now, caller, request=None, given=now.task(), state=state)


def caller_of(log: Log) -> Caller:
    """Who has sent the current turn's message, by a log that was read from its beginning."""
    opening = log.records[log.head.turn - 1]
    return next(entry.caller for entry in opening.entries if isinstance(entry, TurnOpened))


def _fold(log: Log, records: Iterable[Record]) -> Fold:
    fold = Fold(log.head.task_id, log.head.context_id)
    for record in records:
        fold.add(record)
    return fold


def _without_entries(record: Record) -> Record:
    return replace(record, entries=())
