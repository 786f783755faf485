"""The input of an attempt: the turn's request, and the task as it was when the turn began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from a2a.server.agent_execution import RequestContext
from a2a.types import Task

from a2a_serverless.storage.log import Log, extend
from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.fold import Fold
from a2a_serverless.worker.executor import request_context
from a2a_serverless.worker.translation import TurnView


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The open turn of a task, ready for an attempt."""

    context: RequestContext
    """For `execute()`."""
    view: TurnView
    log: Log
    state: Mapping[str, str]
    """For the headers of the call contexts."""

    def cancel_context(self) -> RequestContext:
        """Return the context of `cancel()`: the Task when the attempt began, and no message."""
        return cancel_context_of(self.log, self.state)


def turn_of(log: Log, state: Mapping[str, str]) -> Turn:
    """Return the current turn of a log that was read from its beginning.

    Entries of earlier attempts are left out: the view is that of the turn's beginning. `state`
    goes to the call context's headers.
    """
    head = log.head
    fold = extend(Fold(head.task_id, head.context_id), log.records[: head.turn - 1])
    given = _given(log, fold) if head.turn > 1 else None
    extend(fold, log.records[head.turn - 1 : head.turn_base])
    request, caller = fold.opening(head.turn)
    context = request_context(fold, caller, request=request, given=given, state=state)
    return Turn(context=context, view=TurnView(fold, given), log=log, state=state)


def cancel_context_of(log: Log, state: Mapping[str, str]) -> RequestContext:
    """Return the context of `cancel()`, made from a log that was read from its beginning."""
    now = log.fold()
    _, caller = now.opening(log.head.turn)
    return request_context(now, caller, request=None, given=now.task(), state=state)


def caller_of(log: Log) -> Caller:
    """Return the sender of the current turn's message; `log` was read from its beginning."""
    opening = log.records[log.head.turn - 1]
    return next(entry.caller for entry in opening.entries if isinstance(entry, TurnOpened))


def _given(log: Log, before: Fold) -> Task:
    """Return the Task of a follow-up, as on the SDK's own server: its message is not in it yet.

    So its status is still the question that the message answers. `before` is the task as the
    message was accepted; of a message that had to wait, the Task shows what was written meanwhile.
    """
    head = log.head
    if head.turn == head.turn_base:
        return before.task()
    opening = replace(log.records[head.turn - 1], entries=())
    behind = log.records[head.turn : head.turn_base]
    without = (*log.records[: head.turn - 1], opening, *behind)
    return extend(Fold(head.task_id, head.context_id), without).task()
