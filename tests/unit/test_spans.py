"""Traces: what travels with and without spans, who decides what is recorded, what spans say.

Spans that cannot be made or exported: no task fails, waits or grows by them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from a2a_serverless.errors import TaskNotFoundError, UnavailableError
from a2a_serverless.http.app import create_app
from a2a_serverless.observability import spans
from a2a_serverless.observability.otel import _Pausing
from a2a_serverless.observability.spans import (
    _trace_id,
    incoming,
    loaded,
    span,
    stored,
    trace_context,
)
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.messages import storyteller
from tests.support.observed import ids_of, logged, recorded
from tests.support.workers import Bench, S

logger = logging.getLogger("a2a_serverless.test")

TRACE, ABOVE = "67891233abcdef012345678912345678", "53995c3f42cd8ad8"
PARENT = f"00-{TRACE}-{ABOVE}-01"


@pytest.mark.parametrize(
    ("parent", "state", "read"),
    [
        (PARENT, "a=b,c=d", {"traceparent": PARENT, "tracestate": "a=b,c=d"}),
        (PARENT, "", {"traceparent": PARENT}),
        (PARENT, "a=b\r\nX-Evil: 1", {"traceparent": PARENT}),
        (PARENT, "t@v=a b, c=d", {"traceparent": PARENT, "tracestate": "t@v=a b, c=d"}),
        (PARENT, "my secret", {"traceparent": PARENT}),
        (PARENT, "a=b,a=c", {"traceparent": PARENT}),
        (PARENT, "A=b", {"traceparent": PARENT}),
        (PARENT, "a=ü", {"traceparent": PARENT}),
        (PARENT, ",".join(f"a{number}=b" for number in range(33)), {"traceparent": PARENT}),
        (PARENT, "a=" + "b" * 65_536, {"traceparent": PARENT}),
        (f"{PARENT},{PARENT}", "a=b", {}),
        ("0" * 65_536, "a=b", {}),
        (f"00-{TRACE[:-1]}٣-{ABOVE}-01", "a=b", {}),
        (f"{PARENT}\r\nX-Evil: 1", "a=b", {}),
        (PARENT.upper(), "a=b", {}),
        (f"00-{'0' * 32}-{ABOVE}-01", "a=b", {}),
        (f"00-{TRACE}-{'0' * 16}-01", "a=b", {}),
        (f"ff-{TRACE}-{ABOVE}-01", "a=b", {}),
        ("", "a=b", {}),
    ],
)
def test_a_clients_trace_is_read_with_care(parent: str, state: str, read: dict[str, str]) -> None:
    """A well-formed trace is kept, and its state with it; anything else is left out, and unsaid."""
    given = {"traceparent": parent, "tracestate": state}
    assert incoming(given) == loaded(f"{parent} {state}") == read
    with logged() as lines, recorded() as seen, span("GET", incoming(given)):
        sent = trace_context()
    assert lines == []
    assert sent.get("tracestate", "").replace(", ", ",") == read.get("tracestate", "").replace(
        ", ", ","
    )
    assert (_trace_id(sent) == TRACE) is bool(read)
    assert len(seen.take()) == 1


def test_without_spans_a_trace_is_only_carried() -> None:
    """What a block sends has the ids that it was given, a block without any gets new ones."""
    fields = {"traceparent": PARENT, "tracestate": "a=b"}
    with logged() as lines, span("attempt", fields) as piece:
        piece.set({"a2a.turn": 1})
        piece.event("claimed")
        piece.fail("ValueError")
        assert trace_context() == fields
        assert loaded(stored()) == fields
        logger.info("inside")
        with span("sweep", {}):
            begun = trace_context()
            logger.info("of its own")
    assert trace_context() == {}
    assert stored() is None
    assert _trace_id(begun) not in ("", TRACE)
    assert [line["trace_id"] for line in lines] == [TRACE, _trace_id(begun)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("my secret"), "ValueError"),
        (UnavailableError(), "UnavailableError"),
        (TaskNotFoundError(), None),
        (asyncio.CancelledError(), None),
    ],
)
def test_a_failure_is_marked_by_its_type(error: BaseException, kind: str | None) -> None:
    """Faults are told from refusals, a cancel is neither, and no text gets into a span."""
    with recorded() as seen:
        with pytest.raises(type(error)), span("attempt"):
            raise error
        (found,) = seen.take()
    assert (found.attributes or {}).get("error.type") == kind
    assert found.status.is_ok is (kind is None)
    assert "my secret" not in found.to_json()


@pytest.mark.parametrize(
    ("sampler", "argument", "share"),
    [
        ("", "", 1),
        ("parentbased_always_off", "", 0),
        ("parentbased_traceidratio", "0.05", 0.05),
        ("parentbased_traceidratio", "no number", 1),
        ("", "0.05", 0.05),
        ("", "7", 1),
    ],
)
def test_the_share_is_that_of_the_standard_variables(
    sampler: str, argument: str, share: float
) -> None:
    """The decision for a client's trace is made by what the SDK's own sampler reads."""
    environment = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert spans.sampled_share(environment) == share


def test_no_client_decides_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's flag counts as little as ids that a sampler by ratio would always take."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    lucky = f"00-{'1' * 16}{'0' * 15}1-{ABOVE}-01"
    shares = {"0": 0, "0.25": 250, "1": 1000}
    for share, expected in shares.items():
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
        with recorded():
            flags = [incoming({"traceparent": lucky})["traceparent"][-2:] for _ in range(1000)]
        assert flags.count("01") == pytest.approx(expected, abs=100)
        assert set(flags) <= {"00", "01"}


# -- what cannot be made or exported ------------------------------------------------------------

MANY = 3_000
MOST_WAITING = 2048
"""The queue of the SDK's processor."""


def fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("my secret")


class Raising(SpanExporter):
    """Raises, refuses, or waits until it is let go."""

    def __init__(self, answer: Callable[[], SpanExportResult] = fail) -> None:
        self._answer = answer
        self.asked = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked += 1
        return self._answer()


class BadProcessor(SpanProcessor):
    on_start = on_end = force_flush = fail


class Unhashable(TracerProvider):
    __hash__ = None  # type: ignore[assignment]


class Loading(TracerProvider):
    get_tracer = fail


def with_processor(*made: SpanProcessor) -> TracerProvider:
    provider = TracerProvider()
    for one in made:
        provider.add_span_processor(one)
    return provider


def ended() -> TracerProvider:
    provider = with_processor(BatchSpanProcessor(Raising()))
    provider.shutdown()
    return provider


def disabled() -> TracerProvider:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_SDK_DISABLED", "true")
        return TracerProvider()


PROVIDERS: dict[str, Callable[[], Any]] = {
    "a processor that raises": lambda: with_processor(BadProcessor()),
    "one that was ended": ended,
    "a disabled one": disabled,
    "one without spans": trace.NoOpTracerProvider,
    "one that cannot be hashed": Unhashable,
    "one that makes no tracer": Loading,
}


class Traced(Worker):
    """Makes spans, and leaves each hundredth open."""

    async def handle(self, ctx: TaskContext) -> None:
        with suppress(RuntimeError):  # the provider's, in the author's own code
            tracer = trace.get_tracer("author")
            for number in range(MANY):
                made = tracer.start_span("author's")
                if number % 100:
                    made.end()
        await ctx.step("step", str)
        await ctx.complete("done")


async def run(provider: Any) -> str:
    """Run a turn of `Traced` with a provider, as in a function; return its trace id."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trace, "get_tracer_provider", lambda: provider)
        patched.setattr(spans, "_export", spans._Export())
        patched.setenv("AWS_LAMBDA_FUNCTION_NAME", "worker")
        bench = Bench(WorkerExecutor(Traced()))
        with spans.span("request", {}):
            head = await bench.send("hello")
            given = spans._trace_id(spans.trace_context())
        assert await bench.work()
        spans.flush()
        assert (await bench.head(head)).state == S.TASK_STATE_COMPLETED
    return given


@pytest.mark.parametrize("kind", PROVIDERS)
async def test_no_provider_fails_a_task(kind: str) -> None:
    """Whatever an agent has set up, its turn ends well, and a request has a trace id."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    given = await run(PROVIDERS[kind]())
    assert set(given) != {"0"}
    assert len(given) == 32


async def test_what_a_collector_does_not_take_does_not_grow() -> None:
    """Of three thousand spans in a turn 2,048 wait while an export hangs, and the turn does not."""
    let_go = threading.Event()

    def wait() -> SpanExportResult:
        let_go.wait(60)
        return SpanExportResult.SUCCESS

    exporter = Raising(wait)
    processor = BatchSpanProcessor(_Pausing(exporter))
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spans, "_FLUSH_S", 0.01)
        provider = with_processor(processor)
        await run(provider)
    assert exporter.asked == 1
    assert len(processor._batch_processor._queue) == MOST_WAITING
    let_go.set()
    provider.shutdown()


def test_a_collector_that_is_away_is_one_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure nothing is sent for a minute; then it is tried again."""
    now = [1000.0]
    monkeypatch.setattr("a2a_serverless.observability.otel.time.monotonic", lambda: now[0])
    exporter = Raising()
    pausing = _Pausing(exporter)
    with logged() as lines:
        for _ in range(180):
            assert pausing.export([]) is SpanExportResult.FAILURE
            now[0] += 1
    assert exporter.asked == len(lines) == 3
    assert {line["action"] for line in lines} == {"spans_dropped"}
    assert "my secret" not in str(lines)


def test_an_invocation_waits_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an export that is late no invocation waits; one whose provider raises is no error."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "worker")
    monkeypatch.setattr(spans, "_export", spans._Export())
    let_go, begun, asked = threading.Event(), threading.Event(), []

    class Late(SpanProcessor):
        def force_flush(self, timeout_millis: int = 0) -> bool:
            asked.append(timeout_millis)
            begun.set()
            return let_go.wait(60)

    with recorded() as seen:
        seen.provider.add_span_processor(Late())
        began = time.monotonic()
        for within_s in (0.01, 30, 30):
            with spans.span("attempt", {}):
                pass
            spans.flush(within_s)
        assert time.monotonic() - began < 30
        assert begun.wait(30)  # the export's thread may begin after the wait for it
    let_go.set()
    assert len(asked) == 1


HOSTILE: dict[str, list[tuple[bytes, bytes]]] = {
    "two traces": [(b"traceparent", PARENT.encode())] * 2,
    "no ASCII": [(b"traceparent", b"\xff\xfe"), (b"tracestate", b"\xe2\x82\xac=1")],
    "64 KB": [(b"traceparent", b"0" * 65_536), (b"tracestate", b"a=" + b"b" * 65_536)],
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_no_header_fails_a_request_or_forces_a_trace(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile trace is as none, or is not recorded with a share of 0, whatever its flag says."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    settings = Settings(auth="none")
    app = create_app(settings, memory_backends(settings), storyteller())
    transport = httpx.ASGITransport(app)
    sent = [(b"A2A-Version", b"1.0"), *HOSTILE[kind]]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        with recorded() as seen:
            statuses = [
                (await http.request(method, "/tasks", headers=sent)).status_code
                for method in ("GET", "MY-SECRET")
            ]
            found = seen.take()
    assert statuses in ([200, 405], [431, 431])
    own = [span for span in found if span.name != "HTTP"]
    assert {span.name for span in own} <= {"ListTasks", "GET"}
    assert [span for span in found if ids_of(span)[0] == TRACE] == []
    assert "MY-SECRET" not in "".join(span.to_json() for span in found)
