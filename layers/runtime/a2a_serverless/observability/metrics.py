"""Metrics by CloudWatch's embedded metric format: lines on stdout, without a call to AWS.

Counts wait in the process until `flush`, which the functions call once in each invocation.
Dimensions only have a few values that are known in advance: never an id, a host or a user.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

_Dimensions: TypeAlias = tuple[tuple[str, str], ...]
_Metric: TypeAlias = tuple[str, str]
"""Name and unit."""

_COUNT: Final = "Count"
_MOST_VALUES: Final = 90
"""The most values of a metric in one line. At 100, the format's limit, Powertools would print."""


@dataclass(slots=True)
class _Sink:
    namespace: str
    service: str
    write: Callable[[str], object]
    values: defaultdict[_Dimensions, defaultdict[_Metric, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )


logger = logging.getLogger(__name__)

_lock = threading.Lock()
_sink: _Sink | None = None


def start(namespace: str, *, service: str, write: Callable[[str], object]) -> None:
    """Start to count, into `namespace` and under the dimension `service`; `write` takes lines."""
    global _sink  # noqa: PLW0603 - one process, one sink
    # Loaded now, while the function starts, and not in its first invocation.
    from aws_lambda_powertools.metrics.provider.cloudwatch_emf import cloudwatch  # noqa: F401, PLC0415

    _sink = _Sink(namespace, service, write)


def stop() -> None:
    """Stop counting; drop what was not flushed."""
    global _sink  # noqa: PLW0603 - as above
    _sink = None


def count(name: str, value: float = 1, **dimensions: str) -> None:
    """Add `value` to a metric of unit Count."""
    _add(name, _COUNT, value, dimensions)


def time(name: str, milliseconds: float, **dimensions: str) -> None:
    """Add one value to a metric of unit Milliseconds."""
    _add(name, "Milliseconds", max(0.0, milliseconds), dimensions)


def number(name: str, value: int, **dimensions: str) -> None:
    """Add one value to a metric without a unit, such as the number that stands for a caller."""
    _add(name, "None", value, dimensions)


def _add(name: str, unit: str, value: float, dimensions: Mapping[str, str]) -> None:
    with _lock:
        if _sink is not None:
            _sink.values[tuple(sorted(dimensions.items()))][name, unit].append(value)


def flush() -> None:
    """Write the counts since the last flush: a line for each set of dimensions.

    Counts that cannot be written are lost, and logged: no turn depends on them.
    """
    with _lock:
        if _sink is None or not _sink.values:
            return
        sink, flushed = _sink, dict(_sink.values)
        _sink.values.clear()
    for dimensions, metrics in flushed.items():
        for line in _lines(sink, dict(dimensions), metrics):
            try:
                sink.write(line)
            except (OSError, ValueError) as error:  # stdout is closed, or its reader has left
                extra = {"action": "metrics_not_written"}
                logger.warning("Metrics not written: %s", error, extra=extra)


def _lines(
    sink: _Sink, dimensions: dict[str, str], metrics: Mapping[_Metric, list[float]]
) -> Iterator[str]:
    """Yield one line with all counts, then the lines of each other metric."""
    from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import (  # noqa: PLC0415 - see start
        AmazonCloudWatchEMFProvider,
    )

    def line(values: list[tuple[str, str, float]]) -> str:
        # Fresh sets, because by default providers share theirs.
        emf = AmazonCloudWatchEMFProvider(
            metric_set={},
            dimension_set={},
            metadata_set={},
            namespace=sink.namespace,
            service=sink.service,
            default_dimensions=dimensions,
        )
        for name, unit, value in values:
            emf.add_metric(name, unit, value)
        return json.dumps(emf.serialize_metric_set(), separators=(",", ":"))

    counts = [(name, unit, sum(v)) for (name, unit), v in metrics.items() if unit == _COUNT]
    if counts:
        yield line(counts)
    for (name, unit), values in metrics.items():
        for start_at in range(0, 0 if unit == _COUNT else len(values), _MOST_VALUES):
            some = values[start_at : start_at + _MOST_VALUES]
            yield line([(name, unit, value) for value in some])
