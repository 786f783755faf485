"""What is counted and timed, and the sinks that take it.

A sink gets each value by `add`, under the same name and dimensions whatever it is. `Emf` writes
lines of CloudWatch's embedded metric format; `otlp_metrics` sends to an OpenTelemetry collector.
Dimensions only have a few values that are known in advance: never an id, a host or a user.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, Protocol, TypeAlias

Unit: TypeAlias = Literal["Count", "Milliseconds", "None"]
_Dimensions: TypeAlias = tuple[tuple[str, str], ...]
_Values: TypeAlias = defaultdict[_Dimensions, defaultdict[tuple[str, Unit], list[float]]]

_MOST_VALUES: Final = 90
"""The most values of a metric in one line. At 100, the format's limit, Powertools would print."""

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes values in any thread. Nothing here raises, and `add` and `flush` do not wait."""

    def add(self, name: str, unit: Unit, value: float, dimensions: Mapping[str, str]) -> None:
        """Take a value: to be added up if its unit is Count, else one of many."""

    def flush(self) -> None:
        """Write out what would be lost if the process were frozen or killed now."""

    def close(self) -> None:
        """Bring out what is left, within a few seconds: the process ends."""


_sinks: tuple[Sink, ...] = ()
_needs_others = False

ALONE: Final = 1_000_000
"""What a caller's number is raised by if the caller alone may make an alarm ring."""


def start(*sinks: Sink, needs_others: bool = False) -> None:
    """Give all that is counted from now on to these sinks, in place of earlier ones.

    `needs_others`: alarms about callers ring if two are hit, and not for one alone.
    """
    global _sinks, _needs_others
    _sinks, _needs_others = sinks, needs_others


def stop() -> None:
    """Stop counting; drop what was not flushed."""
    start()


def close() -> None:
    """Stop counting, and bring out what was counted: within a few seconds."""
    sinks = _sinks
    stop()
    for sink in sinks:
        sink.close()


def count(name: str, value: float = 1, **dimensions: str) -> None:
    """Add `value` to a metric of unit Count."""
    for sink in _sinks:
        sink.add(name, "Count", value, dimensions)


def time(name: str, milliseconds: float, **dimensions: str) -> None:
    """Add one value to a metric of unit Milliseconds."""
    for sink in _sinks:
        sink.add(name, "Milliseconds", max(0.0, milliseconds), dimensions)


def caller(number: int, *, whose: str) -> None:
    """Add to the metric Callers the number that stands for a caller that was hit.

    Alarms read its least and its greatest value: two callers are hit if they differ. The number of
    a caller that suffices alone is above `ALONE`.
    """
    value = number if _needs_others else number + ALONE
    for sink in _sinks:
        sink.add("Callers", "None", value, {"whose": whose})


def flush() -> None:
    """Write out the values that only wait in this process; functions do so in each invocation."""
    for sink in _sinks:
        sink.flush()


class Emf:
    """Writes lines of CloudWatch's embedded metric format, without a call to AWS.

    Values wait until `flush`. What cannot be written is lost, and logged: no turn depends on it.

    Args:
        namespace: of the metrics.
        service: the value of the dimension `service`.
        write: takes a line, without its end.
    """

    def __init__(self, namespace: str, *, service: str, write: Callable[[str], object]) -> None:
        # Loaded now, while the function starts, and not in its first invocation.
        from aws_lambda_powertools.metrics.provider.cloudwatch_emf import cloudwatch  # noqa: PLC0415

        self._provider = cloudwatch.AmazonCloudWatchEMFProvider
        self._namespace, self._service, self._write = namespace, service, write
        self._lock = threading.Lock()
        self._values = self._none()

    @staticmethod
    def _none() -> _Values:
        return defaultdict(lambda: defaultdict(list))

    def add(self, name: str, unit: Unit, value: float, dimensions: Mapping[str, str]) -> None:
        """Keep the value until the next flush."""
        with self._lock:
            self._values[tuple(sorted(dimensions.items()))][name, unit].append(value)

    def flush(self) -> None:
        """Write a line for each set of dimensions, or more where a metric has many values."""
        with self._lock:
            values, self._values = self._values, self._none()
        for dimensions, metrics in values.items():
            for line in self._lines(dict(dimensions), metrics):
                try:
                    self._write(line)
                except (OSError, ValueError) as error:  # stdout is closed, or its reader has left
                    extra = {"action": "metrics_not_written"}
                    logger.warning("Metrics not written: %s", error, extra=extra)

    close = flush

    def _lines(
        self, dimensions: dict[str, str], metrics: Mapping[tuple[str, Unit], list[float]]
    ) -> Iterator[str]:
        """Yield the lines of a set of dimensions, with the sums of counts and each other value."""
        told = {key: [sum(all_)] if key[1] == "Count" else all_ for key, all_ in metrics.items()}
        for begin in range(0, max(map(len, told.values())), _MOST_VALUES):
            # Fresh sets, because by default providers share theirs.
            emf = self._provider(
                metric_set={},
                dimension_set={},
                metadata_set={},
                namespace=self._namespace,
                service=self._service,
                default_dimensions=dimensions,
            )
            for (name, unit), values in told.items():
                for value in values[begin : begin + _MOST_VALUES]:
                    emf.add_metric(name, unit, value)
            yield json.dumps(emf.serialize_metric_set(), separators=(",", ":"))
