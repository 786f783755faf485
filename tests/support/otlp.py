"""A collector on the loopback, which takes spans and metrics by OTLP over HTTP."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Series = tuple[str, frozenset[tuple[str, str]]]
"""A metric's name and its dimensions."""


@dataclass
class Collector:
    """Takes what a process sends, and keeps it. `answers` other than 200 refuses all."""

    answers: int = 200
    holds: threading.Event | None = None
    """Keeps each answer back until it is set."""
    url: str = ""
    asked: int = 0
    received: list[ExportMetricsServiceRequest] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    spans: list[tuple[str, Span]] = field(default_factory=list)
    """The spans, each with the service that has sent it."""

    def take(self, path: str, body: bytes) -> int:
        self.asked += 1
        self.paths.add(path)
        if self.holds is not None:
            self.holds.wait(60)
        if self.answers == 200 and path.endswith("/traces"):
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = text_of(sent.resource.attributes, "service.name")
                self.spans += [(service, span) for one in sent.scope_spans for span in one.spans]
        elif self.answers == 200:
            self.received.append(ExportMetricsServiceRequest.FromString(body))
        return self.answers

    @property
    def resource(self) -> dict[str, str]:
        """The attributes of the newest resource."""
        (of_process,) = self.received[-1].resource_metrics
        return {each.key: each.value.string_value for each in of_process.resource.attributes}

    def named(self, name: str) -> list[Span]:
        return [span for _, span in self.spans if span.name.startswith(name)]

    def series(self) -> dict[Series, Any]:
        """The newest data point of each series."""
        found: dict[Series, Any] = {}
        for metric in self._metrics():
            for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
                dimensions = {(each.key, each.value.string_value) for each in point.attributes}
                found[metric.name, frozenset(dimensions)] = point
        return found

    def _metrics(self) -> Iterator[Any]:
        for request in self.received:
            for of_process in request.resource_metrics:
                for of_scope in of_process.scope_metrics:
                    yield from of_scope.metrics

    def until(self, *names: str, within_s: float = 60) -> None:
        """Wait until these metrics have arrived."""
        deadline = time.monotonic() + within_s
        while missing := set(names) - {name for name, _ in self.series()}:
            assert time.monotonic() < deadline, missing
            time.sleep(0.02)


def text_of(attributes: Any, name: str) -> str:
    """The text of an attribute; empty without it."""
    return "".join(each.value.string_value for each in attributes if each.key == name)


@contextmanager
def collector(**made: Any) -> Iterator[Collector]:
    taking = Collector(**made)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = taking.take(self.path, body)
            answer = ExportMetricsServiceResponse().SerializeToString()
            with suppress(ConnectionError):  # the process has not waited
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    taking.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield taking
    finally:
        if taking.holds is not None:
            taking.holds.set()
        server.shutdown()
        server.server_close()
