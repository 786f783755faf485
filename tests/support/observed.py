"""What an operator would see: log lines, metrics and spans, caught in this process."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from a2a_serverless import observability
from a2a_serverless.observability import metrics

Line = dict[str, Any]


@dataclass
class Metrics:
    """The lines of CloudWatch's embedded metric format."""

    lines: list[Line] = field(default_factory=list)

    def write(self, line: str) -> None:
        self.lines.append(json.loads(line))

    def values(self, name: str, **dimensions: str) -> list[float]:
        """All values of a metric under these dimensions, beside that of the service."""
        return [
            value
            for line in self.lines
            for value in line.get(name, [])
            if _dimensions(line) - {("service", line["service"])} == set(dimensions.items())
        ]

    def total(self, name: str, **dimensions: str) -> float:
        return sum(self.values(name, **dimensions))


def _dimensions(line: Line) -> set[tuple[str, str]]:
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    (names,) = directive["Dimensions"]
    return {(name, line[name]) for name in names}


@contextmanager
def counted(service: str = "agent") -> Iterator[Metrics]:
    """Metrics as a function emits them, for the time of a block."""
    caught = Metrics()
    emf = metrics.Emf("A2AServerless", service=service, write=caught.write)
    metrics.start(emf, needs_others=True)
    try:
        yield caught
        metrics.flush()
    finally:
        metrics.stop()


@contextmanager
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, of which a block may make what it likes, and whose level is everybody's."""
    root = logging.getLogger()
    names = [*observability._LIBRARIES, "a2a_serverless"]
    levels = {name: logging.getLogger(name).level for name in names}
    logging.getLogger("a2a_serverless").setLevel(logging.NOTSET)
    handlers, level = root.handlers[:], root.level
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, was in levels.items():
            logging.getLogger(name).setLevel(was)


@contextmanager
def logged(level: str = "INFO", *, shows_texts: bool = False) -> Iterator[list[Line]]:
    """The lines that a function writes, complete at the end of the block."""
    lines: list[Line] = []
    out = io.StringIO()
    with root_logger():
        observability._write_json(out, service="agent", level=level, shows_texts=shows_texts)
        yield lines
    lines += [json.loads(line) for line in out.getvalue().splitlines()]


class Spans:
    """The spans of this process that have ended, as an exporter gets them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def take(self) -> list[ReadableSpan]:
        """Those that have ended since the last time, in the order in which they began."""
        found = sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        self._exporter.clear()
        return found

    def named(self) -> dict[str, ReadableSpan]:
        """The same by name; of spans that share a name the last one."""
        return {span.name: span for span in self.take()}


@contextmanager
def recorded() -> Iterator[Spans]:
    """Spans of a provider that the process has for the time of a block."""
    spans = Spans()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trace, "get_tracer_provider", lambda: spans.provider)
        yield spans
    spans.provider.shutdown()


def ids_of(span: ReadableSpan) -> tuple[str, str]:
    """The ids of a span's trace and of the span itself, in hexadecimal digits."""
    context = span.context
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str | None:
    """The id of the span above; None: it begins a trace."""
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def links_of(span: ReadableSpan) -> dict[Any, str]:
    """The ids of the spans that a span is linked to, by what they are to it."""
    return {
        (link.attributes or {}).get("a2a.link"): f"{link.context.span_id:016x}"
        for link in span.links
    }
