"""Lambda's event source mapping of a stream: records become invocations of a function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from a2a_serverless.local.environments import Environments
from a2a_serverless.local.stream_filter import StreamFilter
from a2a_serverless.local.stream_sources import Records, StreamSource

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 10.0
"""The longest wait in seconds between two attempts at the same records."""


class StreamPump:
    """Passes batches of a stream to a function, those of a shard in order.

    Records at which the function fails are tried again, and the shard's next records wait for them,
    as Lambda does for a day. A batch is not split: a record that always fails shall be noticed.

    Args:
        make_source: makes the source of records, in the event loop that runs the pump.
        function: the function to invoke.
        filter_: selects the records that the function gets; by default all.
    """

    def __init__(
        self,
        make_source: Callable[[], StreamSource],
        function: Environments,
        filter_: StreamFilter | None = None,
    ) -> None:
        self._make_source = make_source
        self._function = function
        self._filter = filter_ or StreamFilter()

    async def run(self) -> None:
        """Pump until cancelled."""
        while True:
            try:
                await self._make_source().feed(self._settle)
            except Exception:
                logger.exception("The stream cannot be read.", extra={"action": "pump_failed"})
                await asyncio.sleep(LONGEST_RETRY_S)

    async def _settle(self, records: Records) -> None:
        left = [record for record in records if self._filter.passes(record)]
        pause_s = FIRST_RETRY_S
        while left:
            before = len(left)
            left = await self._invoke(left)
            if left:
                pause_s = FIRST_RETRY_S if len(left) < before else min(pause_s * 2, LONGEST_RETRY_S)
                await asyncio.sleep(pause_s)

    async def _invoke(self, records: Records) -> Records:
        """Invoke the function; return the records to try again."""
        try:
            answer = await asyncio.wrap_future(self._function.invoke({"Records": records}))
            return _unsettled(records, answer)
        except Exception:
            logger.exception("%s failed.", self._function.name, extra={"action": "invoke_failed"})
            return records


def _unsettled(records: Records, answer: Mapping[str, Any] | None) -> Records:
    """Return the records that a partial batch response leaves: the first named, and all after it.

    Raises:
        KeyError, TypeError: it is malformed; then Lambda counts the whole batch as failed.
    """
    failures = (answer or {}).get("batchItemFailures") or []
    failed = {failure["itemIdentifier"] for failure in failures}
    numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
    if not failed:
        return []
    if not failed <= set(numbers):
        return records
    return records[min(numbers.index(number) for number in failed) :]
