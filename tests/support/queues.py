"""Queues on dictionaries, at which a test looks without an event loop."""

from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from a2a_serverless.queues.fifo import LONGEST_WAIT_S, EventRecord, M, decode_message
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES

T = TypeVar("T")


class MemoryQueue(TableQueue[M]):
    """A queue on dictionaries of its own."""

    def __init__(self, kind: type[M], **options: Any) -> None:
        super().__init__(kind, MemoryTable(INDEXES), **options)


async def records(queue: TableQueue[M]) -> AsyncGenerator[EventRecord]:
    """Deliveries as an SQS event source passes them to a function, until `shutdown`."""
    while not queue.is_closed:
        for record in await queue._next(1, LONGEST_WAIT_S):
            yield record


def aside(queue: TableQueue[M]) -> TableQueue[M]:
    """The queue of the bodies that cannot be read."""
    return TableQueue(queue.kind, queue._table, name=queue._undecodable, clock=queue._clock)


def left(queue: TableQueue[M]) -> list[M]:
    """The messages that are left, delivered or not, in the order of the sends."""
    return [decode_message(queue.kind, kept.body) for kept in done(queue.waiting())]


def is_empty(queue: object) -> bool:
    """Whether no message is left, delivered or not."""
    assert isinstance(queue, TableQueue)
    return not left(queue)


def take(queue: object) -> dict[str, Any] | None:
    """The next delivery; None when no message is visible."""
    assert isinstance(queue, TableQueue)
    record = done(queue.receive())
    return None if record is None else dict(record)


def done(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing, as none over dictionaries does."""
    try:
        work.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    work.close()
    raise AssertionError("The coroutine waits.")
