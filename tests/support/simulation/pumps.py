"""Lambda's event source mappings: a queue's records become invocations of a function, one by one.

The filter of a stream is that of
https://docs.aws.amazon.com/lambda/latest/dg/invocation-eventfiltering.html. It knows the rules that
template.yaml uses; any other rule is an error, its meaning is not guessed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.local.background import repeat, surviving
from a2a_serverless_tools.local.sources import Records
from tests.support.simulation.environments import Environments
from tests.support.simulation.sources import EventSource

QUEUE_RETRY_S = 1.0
"""Seconds between two attempts to read a queue that fails."""


class QueuePump:
    """Passes records to a function, one each, as many at a time as it has environments.

    Records that the function does not report as failed are deleted. The others stay in the queue,
    and come again when their visibility ends, which the worker's back-off has set.
    """

    def __init__(self, make_source: Callable[[], EventSource], function: Environments) -> None:
        self._make_source = make_source
        self._function = function

    async def run(self) -> None:
        """Pump until cancelled; then running invocations go on, but their records stay."""
        await repeat(
            self._pass_on,
            pause_s=QUEUE_RETRY_S,
            failure="The queue cannot be read.",
            action="pump_failed",
        )

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
        try:
            # After a failure the message comes again at the end of its visibility, as on AWS.
            with surviving(f"{self._function.name} failed.", action="invoke_failed"):
                failed = await _failures(self._function, [dict(record)])
                if record["messageId"] not in failed:
                    await source.delete(record)
        finally:
            free.release()


async def _failures(function: Environments, records: Records) -> set[Any]:
    """Invoke the function; return the identifiers in its partial batch response."""
    answer = await asyncio.wrap_future(function.invoke({"Records": records}))
    return {failure["itemIdentifier"] for failure in (answer or {}).get("batchItemFailures") or []}


class StreamFilter:
    """Patterns; a record has to match one of them."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = [_check(json.loads(pattern)) for pattern in patterns]

    def passes(self, record: Mapping[str, Any]) -> bool:
        """Return True if the function gets the record."""
        return not self._patterns or any(_matches(p, record) for p in self._patterns)


def _check(pattern: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pattern whose rules are all known here."""
    for value in pattern.values():
        if isinstance(value, dict):
            _check(value)
        elif not isinstance(value, list) or not all(map(_is_known, value)):
            msg = f"template.yaml: {json.dumps(value)} is no filter rule known here."
            raise ConfigurationError(msg)
    return pattern


def _is_known(rule: Any) -> bool:
    return isinstance(rule, str) or (
        isinstance(rule, dict) and len(rule) == 1 and rule.keys() <= {"prefix", "exists"}
    )


def _matches(pattern: Mapping[str, Any], value: Any) -> bool:
    """Return True if every name of the pattern matches, a leaf by one of its rules."""
    fields = value if isinstance(value, dict) else {}
    return all(
        _matches(below, fields.get(name))
        if isinstance(below, dict)
        else any(_applies(rule, fields.get(name)) for rule in below)
        for name, below in pattern.items()
    )


def _applies(rule: str | dict[str, Any], value: Any) -> bool:
    match rule:
        case {"prefix": prefix}:
            return isinstance(value, str) and value.startswith(prefix)
        case {"exists": wanted}:
            return (value is not None) is wanted
        case _:
            return bool(value == rule)
