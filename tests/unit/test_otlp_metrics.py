"""The collector of metrics: when it is used, and what it cannot harm."""

from __future__ import annotations

import gc
import logging
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import metric_exporter
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

from a2a_serverless import aws, observability
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability import metrics, otel
from a2a_serverless.observability.otlp_metrics import _LAST_EXPORT_S, OtlpMetrics
from tests.support.otlp import collector
from tests.unit.worker.stand import Log, Patch

AWAY = "http://127.0.0.1:9"
"""Nobody listens on the port of the protocol "discard"."""


@pytest.fixture(autouse=True)
def own_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Exports every 20 ms, outside of Lambda; the last one ends with the test."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    yield
    metrics.close()


@pytest.mark.parametrize(
    ("variables", "sends"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "URL"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "URL/v1/metrics"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "URL", "AWS_LAMBDA_FUNCTION_NAME": "worker"}, False),
    ],
)
def test_the_standard_variables_decide(variables: Any, *, sends: bool, monkeypatch: Patch) -> None:
    """They name a collector, and metrics are not off; a function, which is frozen, sends none."""
    monkeypatch.setattr(observability, "_lines", lambda _: [])
    with collector() as collecting:
        for name, value in variables.items():
            monkeypatch.setenv(name, value.replace("URL", collecting.url))
        observability.start()
        metrics.count("Attempts")
        metrics.close()
        assert (("Attempts", frozenset()) in collecting.series()) is sends
        assert (collecting.asked > 0) is sends


@pytest.mark.parametrize(
    ("interval", "action", "way_out"),
    [
        ("20", "otel_missing", 'pip install "a2a-serverless[otel]"'),
        ("-1", "otel_not_used", "OTEL_* cannot be used: interval value"),
    ],
)
def test_a_process_without_its_collector_goes_on(
    interval: str, action: str, way_out: str, monkeypatch: Patch, caplog: Log
) -> None:
    """One sentence says that the SDK is missing, or that a variable is wrong; work goes on."""
    if action == "otel_missing":
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
        monkeypatch.delitem(sys.modules, "a2a_serverless.observability.otlp_metrics")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", AWAY)
    observability.start()
    metrics.count("Attempts")
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["action"]) == ("WARNING", action)
    assert way_out in record.getMessage()


class Bare(MetricExporter):
    """An exporter with nothing but what the SDK documents."""

    refuses = False

    def __init__(self) -> None:
        if self.refuses:
            raise RuntimeError("no")
        super().__init__()

    def export(self, *_: object, **__: object) -> MetricExportResult:
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: object) -> None: ...


@pytest.mark.parametrize("refuses", [False, True])
def test_a_public_exporter_is_enough(*, refuses: bool, monkeypatch: Patch, caplog: Log) -> None:
    """A release with other private attributes exports; one that cannot be used is what is named."""
    monkeypatch.setattr(Bare, "refuses", refuses)
    monkeypatch.setattr(metric_exporter, "OTLPMetricExporter", Bare)
    monkeypatch.delitem(sys.modules, "a2a_serverless.observability.otlp_metrics")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", AWAY)
    observability.start()
    said = ["Not everything is exported, as this OpenTelemetry cannot be used: no"]
    assert [one.getMessage() for one in caplog.records] == said * refuses


@pytest.mark.long(but=1)
@pytest.mark.parametrize("how", ["away", "refusing"])
def test_a_collector_that_takes_nothing(how: str, monkeypatch: Patch, caplog: Log) -> None:
    """Nothing waits for it, nothing grows, one warning comes, and the end is bounded."""
    caplog.set_level(logging.DEBUG, logger="opentelemetry")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with collector(answers=400) as refusing:
        url = {"away": AWAY, "refusing": refusing.url}[how]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        sink = OtlpMetrics({})
        tracemalloc.start()
        try:
            slowest_s = max(add_some(sink) for _ in range(3))
            while not caplog.records:  # the first export has imported what all need
                time.sleep(0.01)
            gc.collect()  # errors of exports are in cycles with their frames
            before, _ = tracemalloc.get_traced_memory()
            slowest_s = max(slowest_s, *(add_some(sink) for _ in range(10)))
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        began = time.monotonic()
        sink.close()
        assert time.monotonic() - began < 3 * _LAST_EXPORT_S
    assert slowest_s < 20  # a thousand values: if each waited for a time-out, it were 200 s
    assert after - before < 200_000  # ten thousand values that were kept would be 300 kB
    # The SDK's reader warns of its own start where its first round comes before that.
    (record,) = [each for each in caplog.records if each.name.startswith("a2a_serverless.")]
    assert record.__dict__["action"] == "metrics_not_sent"
    assert url not in record.getMessage()


def add_some(sink: OtlpMetrics) -> float:
    """Add a thousand values; return the seconds that it took."""
    began = time.monotonic()
    for number in range(500):
        sink.add("TasksEnded", "Count", 1, {"state": "failed"})
        sink.add("TimeToEnd", "Milliseconds", number, {})
    return time.monotonic() - began


def test_a_collector_that_comes_back_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted while it refused is in the sums that it takes later."""
    with collector(answers=400) as collecting:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collecting.url)
        sink = OtlpMetrics({})
        sink.add("Attempts", "Count", 2, {})
        while collecting.asked < 3:
            time.sleep(0.01)
        collecting.answers = 200
        sink.add("Attempts", "Count", 3, {})
        sink.close()
        assert collecting.series()["Attempts", frozenset()].as_int == 5


@pytest.mark.parametrize(
    ("text", "found"),
    [("{}", {}), ('{"x-key": "k"}', {"headers": {"x-key": "k"}}), ("x-key=k", None), ("[]", None)],
)
def test_headers_of_a_secret(text: str, found: dict[str, Any] | None, monkeypatch: Patch) -> None:
    """The exporter gets what the secret has; what is no object of texts is refused."""
    monkeypatch.setattr(aws.SecretText, "read_now", lambda _: text)
    monkeypatch.setattr(aws, "client", lambda _: None)
    assert otel.headers({}) == {}
    if found is not None:
        assert otel.headers({"A2A_OTEL_SECRET": "mine"}) == found
    else:
        with pytest.raises(ConfigurationError, match="the secret mine has to be"):
            otel.headers({"A2A_OTEL_SECRET": "mine"})
