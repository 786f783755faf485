"""Lambda's event source mapping: deliveries of a queue become invocations of a function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from a2a_serverless.local.environments import Environments
from a2a_serverless.local.event_sources import EventSource

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds between two attempts to read a queue that fails."""


class QueuePump:
    """Passes records to a function, one each, as many at a time as it has environments.

    Records that the function does not report as failed are deleted. The rest stays in the queue and
    comes again when its visibility ends, which the worker's back-off has set.

    Args:
        make_source: makes the source of records, in the event loop that runs the pump.
        function: the function to invoke.
    """

    def __init__(self, make_source: Callable[[], EventSource], function: Environments) -> None:
        self._make_source = make_source
        self._function = function

    async def run(self) -> None:
        """Pump until cancelled; running invocations go on, and their records are not deleted."""
        while True:
            try:
                await self._pass_on()
            except Exception:
                logger.exception("The queue cannot be read.", extra={"action": "pump_failed"})
                await asyncio.sleep(RETRY_S)

    async def _pass_on(self) -> None:
        source = self._make_source()
        free = asyncio.Semaphore(self._function.limit)
        async with asyncio.TaskGroup() as running:
            await free.acquire()  # before the receive: a delivery's lease runs from then on
            async for record in source.records():
                running.create_task(self._invoke(source, record, free))
                await free.acquire()

    async def _invoke(
        self, source: EventSource, record: Mapping[str, Any], free: asyncio.Semaphore
    ) -> None:
        event = {"Records": [dict(record)]}
        try:
            answer = await asyncio.wrap_future(self._function.invoke(event))
            if _is_done(record, answer):
                await source.delete(record)
        except Exception:
            # As on AWS: the message comes again after its visibility time-out.
            logger.exception("%s failed.", self._function.name, extra={"action": "invoke_failed"})
        finally:
            free.release()


def _is_done(record: Mapping[str, Any], answer: Mapping[str, Any] | None) -> bool:
    """Return True if a partial batch response does not name the one record of its batch.

    Raises:
        KeyError, TypeError: it is malformed; then Lambda counts the whole batch as failed.
    """
    failures = (answer or {}).get("batchItemFailures") or []
    return all(failure["itemIdentifier"] != record["messageId"] for failure in failures)
