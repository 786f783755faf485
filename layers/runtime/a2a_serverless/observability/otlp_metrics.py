"""Metrics by OTLP over HTTP, for processes outside of Lambda, with OpenTelemetry's own SDK.

The SDK adds values up in memory, under names and dimensions that are few, and a thread of its own
sends the sums each minute (`OTEL_METRIC_EXPORT_INTERVAL`). So no turn waits for a collector, and a
collector that is away makes nothing grow. The standard variables `OTEL_*` say where and how.
"""

from __future__ import annotations

import atexit
import logging
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Counter, Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from a2a_serverless import __version__
from a2a_serverless.observability.metrics import Unit
from a2a_serverless.observability.otel import headers, resource

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

_BUCKETS: Final = (
    *(5, 10, 25, 50, 100, 250, 500),
    *(1 * _SECOND, 2.5 * _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(1 * _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE),
    *(1 * _HOUR, 4 * _HOUR, 12 * _HOUR, 24 * _HOUR),
)
"""The upper bounds of the histograms of times, in milliseconds."""

_LAST_EXPORT_S: Final = 3.0
"""Seconds that the end of a process waits for its last export."""

_WARN_EVERY_S: Final = 60.0

_Instrument = TypeVar("_Instrument", Counter, Histogram)

logger = logging.getLogger(__name__)


class OtlpMetrics:
    """Gives counts to counters, and times and numbers to histograms.

    A number stands for a caller. Its histogram has no buckets: it is count, least and greatest, as
    the alarms read them of CloudWatch. An attribute for each caller would have no bound.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        reader = PeriodicExportingMetricReader(_Exporter(**headers(environment)))
        # Now that variables which it cannot use are named: the SDK logs each trial of an export,
        # and `_Exporter` says it once a minute.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        # Sums of two processes would replace one another without an id of each.
        own = Resource({"service.instance.id": str(uuid.uuid4())})
        of_process = own.merge(resource(environment))
        self._provider = MeterProvider([reader], of_process, shutdown_on_exit=False)
        atexit.register(self.close)  # for a command that fails before it serves
        self._meter = self._provider.get_meter("a2a_serverless", __version__)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def add(self, name: str, unit: Unit, value: float, dimensions: Mapping[str, str]) -> None:
        """Add a value to the sums in memory."""
        attributes = dict(dimensions)
        if unit == "Count":
            (self._counters.get(name) or self._counter(name)).add(value, attributes)
        else:
            (self._histograms.get(name) or self._histogram(name, unit)).record(value, attributes)

    def flush(self) -> None:
        """Do nothing: the exports have a thread and a rhythm of their own."""

    def close(self) -> None:
        """Export a last time, for at most `_LAST_EXPORT_S`; nothing happens the second time."""
        atexit.unregister(self.close)
        with suppress(Exception):  # of the SDK, for a reader that does not end in time
            self._provider.shutdown(_LAST_EXPORT_S * 1000)

    def _counter(self, name: str) -> Counter:
        return self._counters.setdefault(name, _named(self._meter.create_counter(name), name))

    def _histogram(self, name: str, unit: Unit) -> Histogram:
        is_time = unit == "Milliseconds"
        made = self._meter.create_histogram(
            name,
            unit="ms" if is_time else "",
            explicit_bucket_boundaries_advisory=_BUCKETS if is_time else (),
        )
        return self._histograms.setdefault(name, _named(made, name))


def _named(instrument: _Instrument, name: str) -> _Instrument:
    """Return an instrument without values yet, under the name as it is written here.

    The SDK makes instruments with small letters; a series takes its name from the instrument when
    its first value comes.
    """
    instrument.name = name  # type: ignore[attr-defined]
    return instrument


class _Exporter(OTLPMetricExporter):
    """Exports, and warns once a minute at most that it cannot."""

    _warned_at = -_WARN_EVERY_S

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        why = "refused or not reached"
        try:
            result = super().export(metrics_data, timeout_millis, **kwargs)
        except Exception as error:  # noqa: BLE001 - of the SDK's thread, which has to live on
            result, why = MetricExportResult.FAILURE, type(error).__name__
        now = time.monotonic()
        if result is not MetricExportResult.SUCCESS and now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            logger.warning(
                "The collector does not take the metrics (%s), and is asked again with the next"
                " export: see OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS.",
                why,
                extra={"action": "metrics_not_sent"},
            )
        return result
