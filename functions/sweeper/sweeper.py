"""SweeperFunction: repairs what is overdue, every minute, and handles the dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from a2a_serverless.cold_start import cold_start

with cold_start():
    from a2a_serverless.errors import InvalidArgumentError
    from a2a_serverless.observability import metrics
    from a2a_serverless.observability.logs import log_context
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import aws_backends
    from a2a_serverless.worker.dead_letters import DeadLetters, ids_in
    from a2a_serverless.worker.sweeper import Sweeper

    settings = load_settings()
    backends = aws_backends(settings, needs=("undecodable_queue",))
    # One loop for the life of the process: what is bound to a loop outlives an invocation.
    loop = asyncio.new_event_loop()

_log = logging.getLogger(__name__)


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Sweep on a schedule event, handle dead letters on an SQS event.

    Returns:
        The counts of the run, or the batch response: records to be kept in the dead letter queue.

    Raises:
        InvalidArgumentError: an event of another source.
    """
    try:
        with log_context(request_id=getattr(context, "aws_request_id", None)):
            if event.get("detail-type") == "Scheduled Event":
                return loop.run_until_complete(_sweep())
            if "Records" in event:
                return loop.run_until_complete(_handle_dead_letters(event["Records"]))
            raise InvalidArgumentError("The sweeper handles schedule events and SQS events.")
    finally:
        metrics.flush()


async def _sweep() -> dict[str, Any]:
    sweeper = Sweeper(
        backends.storage,
        backends.broker,
        backends.registry,
        clock=backends.storage.clock,
        give_up_s=settings.give_up_s,
    )
    return asdict(await sweeper.sweep())


async def _handle_dead_letters(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Groups at once, each in its order."""
    dead_letters = DeadLetters(
        backends.storage, backends.registry, backends.broker, retry=settings.retry()
    )
    groups: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["attributes"]["MessageGroupId"]].append(record)
    failed = await asyncio.gather(
        *(_handle_group(dead_letters, group) for group in groups.values())
    )
    return {
        "batchItemFailures": [
            {"itemIdentifier": message_id} for group in failed for message_id in group
        ]
    }


async def _handle_group(
    dead_letters: DeadLetters, records: Sequence[Mapping[str, Any]]
) -> Sequence[str]:
    """Ids of the records to keep: from the first one that failed on, as FIFO demands."""
    for place, record in enumerate(records):
        try:
            await dead_letters.handle(record["body"])
        except Exception:  # noqa: BLE001 - the invocation's edge: the record is reported failed
            _log.exception(
                "A dead letter was not handled",
                extra={
                    "action": "dead_letter_error",
                    "message_id": record["messageId"],
                    **ids_in(record["body"]),
                },
            )
            return [kept["messageId"] for kept in records[place:]]
    return []
