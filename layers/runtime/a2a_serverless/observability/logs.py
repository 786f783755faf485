"""The fields on every log line, and what is counted of the ends of tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from a2a_serverless.observability import metrics
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head, Operation, plain_state
from a2a_serverless.tasks.identity import caller_number

_fields: ContextVar[Mapping[str, object]] = ContextVar(
    "a2a_serverless_log_fields", default=MappingProxyType({})
)


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Put fields on every line that is logged in the block, also by the agent and its libraries.

    asyncio tasks and `aws.call` inherit them. A value that is None or empty is left out. A field in
    a line's own `extra` replaces the field here.
    """
    known = {name: value for name, value in fields.items() if value not in {None, ""}}
    token = _fields.set(MappingProxyType({**_fields.get(), **known}))
    try:
        yield
    finally:
        _fields.reset(token)


def with_context(record: logging.LogRecord) -> bool:
    """Give a record the fields of its context, and take the name of its asyncio task; a filter."""
    record.taskName = None
    for name, value in _fields.get().items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True


def task_ended(head: Head, after_ms: int) -> None:
    """Count the end of a task, `after_ms` after its creation."""
    metrics.count("TasksEnded", state=plain_state(head.state))
    metrics.time("TimeToEnd", after_ms)


@contextmanager
def observed_delivery(operation: Operation, receives: int) -> Iterator[None]:
    """Put the ids of the delivery on every line that is logged in the block."""
    with log_context(**operation.ids, receives=receives):
        yield


def count_failed(log: Log, *, is_used_up: bool = False) -> None:
    """Count a task that has failed, by its caller: the alarm needs several callers to ring.

    `log` was read from its beginning. `is_used_up`: all attempts are used up, and the last one did
    not come to its end.
    """
    metrics.number("Callers", caller_number(log.caller.user), whose="failed")
    if is_used_up:
        metrics.number("Callers", caller_number(log.caller.user), whose="used_up")
