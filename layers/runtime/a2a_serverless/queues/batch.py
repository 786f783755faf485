"""Lambda functions behind event sources: the invocation, its batch, the partial response."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.logs import begun
from a2a_serverless.queues.fifo import EventRecord

T = TypeVar("T")


class EventFunction(ABC):
    """A Lambda function behind event sources, one invocation at a time.

    The event loop lives as long as the function: objects that are bound to it survive from one
    invocation to the next. A subclass calls this constructor at the end of its own, so that no loop
    leaks if its own raises.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def handle(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Process an event; return a partial batch response that names the records to pass again.

        `context` is Lambda's; if it is None, there is no deadline.

        Raises:
            InvalidArgumentError: the event comes from a source that the function does not handle.
        """
        try:
            with begun(request_id=getattr(context, "aws_request_id", None)):
                return self._run(self._answer(event, context))
        finally:
            # Lambda freezes the process after the answer: what is not written by then may be lost.
            metrics.flush()
            spans.flush()

    def close(self) -> None:
        """Close the event loop."""
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an invocation's work on the event loop to its end."""
        return self._loop.run_until_complete(work)

    @abstractmethod
    async def _answer(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Return the answer for `handle`; leave nothing running."""


def left_s(context: Any) -> float | None:
    """Return the seconds that an invocation has left; None without a deadline."""
    return None if context is None else context.get_remaining_time_in_millis() / 1000


async def process_batch(
    records: Iterable[EventRecord], process: Callable[[EventRecord], Awaitable[bool]]
) -> dict[str, Any]:
    """Process the records of an SQS event and return the partial batch response.

    Groups run at the same time, the records of one group in their order. `process` returns True if
    a record is done. If it returns False, the record and the rest of its group are reported as
    failed, as FIFO order demands.
    """
    groups = _groups(records)
    failed = await asyncio.gather(*(_in_order(group, process) for group in groups))
    return partial_response(message_id for group in failed for message_id in group)


def partial_response(failed: Iterable[str]) -> dict[str, Any]:
    """Return the answer that makes an event source pass these records again, and no others.

    A queue's record is named by its message id, a stream's by its sequence number.
    """
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in failed]}


async def _in_order(
    group: Sequence[EventRecord], process: Callable[[EventRecord], Awaitable[bool]]
) -> list[str]:
    """Return the ids of the first record that failed and of those after it."""
    for position, record in enumerate(group):
        if not await process(record):
            return [failed["messageId"] for failed in group[position:]]
    return []


def _groups(records: Iterable[EventRecord]) -> list[list[EventRecord]]:
    """Return the records by their message group, in order."""
    groups: dict[str, list[EventRecord]] = {}
    for record in records:
        group = record.get("attributes", {}).get("MessageGroupId") or record["messageId"]
        groups.setdefault(group, []).append(record)
    return list(groups.values())
