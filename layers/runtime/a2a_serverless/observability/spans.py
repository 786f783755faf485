"""One trace from a request over the queue to the attempts at its turn and to the webhooks.

The ids of a trace travel as the fields of W3C Trace Context: with an operation on the queue, with
the commits of a task, with the job of a webhook, and out with its call. They do so in every
process, and are on every line of the log (`trace_id`). A client that names no trace begins one.

Spans are made by `opentelemetry-api` where the process has a provider: the one that `otel.set_up`
makes, or one that was there before, such as that of `opentelemetry-instrument`. Spans of the agent
and its libraries are children of its attempt. Without a provider nothing is made.

The client chooses the ids of the trace that it continues, but not whether it is recorded: that is
decided here, for each of its requests, by OTEL_TRACES_SAMPLER_ARG.

No task fails by its spans, whatever provider, processor and exporter an agent has set up: what they
raise is dropped.

Names and attributes are those of the semantic conventions 1.41.0 (`_SCHEMA`); `a2a.*` are our own.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import sys
import time
from asyncio import CancelledError
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from queue import SimpleQueue
from threading import Event, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from a2a_serverless import __version__
from a2a_serverless.errors import A2AServerlessError, UnavailableError
from a2a_serverless.values import dataclass

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span as RecordedSpan
    from opentelemetry.trace import SpanContext, Tracer, TracerProvider

_FLUSH_S: Final = 0.25
"""Seconds that an invocation waits for its spans, once its work is acknowledged."""
ANSWER_S: Final = 0.005
"""Seconds that a client's answer waits for them."""
PAUSE_S: Final = 60.0
"""Seconds without an export after one that failed. No invocation waits for so long, either, once
one has waited in vain."""
CLOSE_S: Final = 2.0
"""Seconds that a process waits at its end."""

_SCHEMA: Final = "https://opentelemetry.io/schemas/1.41.0"
_TRACEPARENT: Final = "traceparent"
_TRACESTATE: Final = "tracestate"

TraceContext: TypeAlias = Mapping[str, str]
"""The fields of W3C Trace Context; empty: no trace."""
Attributes: TypeAlias = Mapping[str, object]
"""What a span is found by: ids and counts, but no content of a task. What is None is left out."""
Link: TypeAlias = tuple[TraceContext, str]
"""Another piece of work, and what it is to this one."""
Kind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]

_PARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_LONGEST_STATE: Final = 512
_MOST_MEMBERS: Final = 32
_MEMBER: Final = re.compile(
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_SAMPLED: Final = 1
_SAMPLED_IN_FUNCTION: Final = 0.05
_CHANCE: Final = random.SystemRandom()
"""The system's random numbers: an agent may seed those of `random`."""

_current: ContextVar[TraceContext] = ContextVar(
    "a2a_serverless_trace", default=MappingProxyType({})
)


# -- what travels --------------------------------------------------------------------------------


def incoming(headers: TraceContext) -> dict[str, str]:
    """Return the trace that a client's request goes on with; its headers have lower-case names.

    With spans, it has our own decision to record it. `{}`: the request begins a trace.
    """
    given = _well_formed(headers) if _TRACEPARENT in headers else {}
    if given and _tracer() is not None:
        is_sampled = _CHANCE.random() < sampled_share()
        given[_TRACEPARENT] = f"{given[_TRACEPARENT][:-2]}{int(is_sampled):02x}"
    return given


def sampled_share(environment: Mapping[str, str] = os.environ) -> float:
    """Return the share of traces that are recorded, 0 to 1: OTEL_TRACES_SAMPLER_ARG.

    By default it is 0.05 in a Lambda function, and 1 elsewhere. It is 0 where OTEL_TRACES_SAMPLER
    names a sampler that is always off; other names are ignored.
    """
    if "off" in environment.get("OTEL_TRACES_SAMPLER", ""):
        return 0.0
    try:
        usual = _SAMPLED_IN_FUNCTION if "AWS_LAMBDA_FUNCTION_NAME" in environment else 1
        return min(1.0, max(0.0, float(environment.get("OTEL_TRACES_SAMPLER_ARG") or usual)))
    except ValueError:
        return 1.0  # as the SDK


def trace_context() -> dict[str, str]:
    """Return the trace context of the calling code, for a message or a request that it sends."""
    if _tracer() is not None:
        context = _api().get_current_span().get_span_context()
        if context.is_valid:
            return _fields_of(context)
    return dict(_current.get())


def stored() -> str | None:
    """Return the trace context of the calling code as a commit keeps it; None outside a trace."""
    fields = trace_context()
    return " ".join(fields.values()) if fields else None


def loaded(text: str | None) -> dict[str, str]:
    """Return the trace context that a commit keeps; `{}` if it has none, or a damaged one."""
    parent, _, state = (text or "").partition(" ")
    return _well_formed({_TRACEPARENT: parent, _TRACESTATE: state})


def elsewhere(text: str | None) -> dict[str, str] | None:
    """Return the trace context that a commit keeps, if the calling code is of another trace.

    None: it is of the same trace, or the commit keeps none.
    """
    if not text or text[:35] == trace_context().get(_TRACEPARENT, "")[:35]:
        return None
    return loaded(text) or None


def kept_trace_id(text: str | None) -> str:
    """Return the id of the trace in what a commit keeps; empty as `loaded`."""
    return _trace_id(loaded(text))


def current_trace_id() -> str:
    """Return the id of the trace that the calling code belongs to; empty outside a trace."""
    return _trace_id(_current.get())


def _trace_id(fields: TraceContext) -> str:
    """Return the id of a trace, 32 hexadecimal digits; empty without one."""
    return fields.get(_TRACEPARENT, "")[3:35]


def _well_formed(given: TraceContext) -> dict[str, str]:
    """Return the fields of `given` that are well-formed: they go into headers of requests."""
    parent, state = given.get(_TRACEPARENT, ""), given.get(_TRACESTATE, "")
    if _PARENT.fullmatch(parent) is None:
        return {}
    return (
        {_TRACEPARENT: parent, _TRACESTATE: state} if _is_state(state) else {_TRACEPARENT: parent}
    )


def _is_state(text: str) -> bool:
    """Return True if a state has members as the standard wants; the SDK would log others."""
    if len(text) > _LONGEST_STATE:
        return False
    members = [member.strip(" \t") for member in text.split(",")]
    keys = {member.partition("=")[0] for member in members}
    is_plain = len(keys) == len(members) <= _MOST_MEMBERS
    return is_plain and all(_MEMBER.fullmatch(member) for member in members)


# -- spans ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Span:
    """A span under way; what is said of it goes nowhere if nothing is recorded.

    Errors of the agent's own tracer provider are ignored.
    """

    _recorded: RecordedSpan | None = None

    def set(self, attributes: Attributes, *, name: str = "") -> None:
        """Add attributes, and give the span another name, if one is given."""
        if self._recorded is not None:
            with suppress(Exception):
                self._recorded.set_attributes(_known(attributes))
                if name:
                    self._recorded.update_name(name)

    def event(self, name: str, attributes: Attributes = MappingProxyType({})) -> None:
        """Note what happens now."""
        if self._recorded is not None:
            with suppress(Exception):
                self._recorded.add_event(name, _known(attributes))

    def fail(self, kind: str) -> None:
        """Mark what the span stands for as failed, by a kind of error from a few."""
        self.set({"error.type": kind})
        if self._recorded is not None:
            with suppress(Exception):
                self._recorded.set_status(_api().StatusCode.ERROR)

    def interrupt(self, kind: str) -> None:
        """Say what has ended the work before its end, without a failure of it."""
        self.set({"a2a.interrupted_by": kind})

    def drop(self) -> None:
        """Leave the span out of its trace, as only one that ends is sent."""
        self._recorded = None

    def end(self) -> None:
        """End the span."""
        if self._recorded is not None:
            with suppress(Exception):
                self._recorded.end()


def current() -> Span:
    """Return the innermost span of the calling code."""
    return Span(None if _tracer() is None else _api().get_current_span())


@contextmanager
def span(
    name: str,
    within: TraceContext | None = None,
    *,
    kind: Kind = "internal",
    links: Iterable[Link] = (),
    began_ms: int | None = None,
    attributes: Attributes = MappingProxyType({}),
) -> Iterator[Span]:
    """Make the block a span: what it sends, and every span in it, are its children.

    `within` is the trace that it continues; None: that of the calling code; `{}`: it begins one,
    which also without spans has an id for log lines and for what is sent. `links` may be a
    generator: it runs only if the span is recorded.

    An exception that leaves the block names its type on the span, and no text, which may be a
    task's. A cancellation and the runtime's own exceptions interrupt it, but UnavailableError, as
    every other one, is a failure.
    """
    tracer, recorded = _tracer(), None
    if tracer is not None:
        about = {"kind": kind.upper(), "attributes": attributes, "began_ms": began_ms}
        recorded = _started(tracer, name, within, links, about)
    with ExitStack() as block:
        made = Span(recorded)
        if recorded is not None:
            parent: TraceContext = _fields_of(recorded.get_span_context())
            block.callback(_export.note, recorded)
            block.callback(made.end)
            block.enter_context(
                _api().use_span(recorded, record_exception=False, set_status_on_exception=False)
            )
        elif within:
            parent = within
        elif within is None:
            parent = trace_context()
        else:
            parent = {_TRACEPARENT: f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"}
        token = _current.set(MappingProxyType(dict(parent)))
        block.callback(_current.reset, token)
        try:
            yield made
        except (Exception, CancelledError) as error:
            is_foreseen = isinstance(error, A2AServerlessError | CancelledError)
            is_failure = not is_foreseen or isinstance(error, UnavailableError)
            (made.fail if is_failure else made.interrupt)(type(error).__name__)
            raise


def _started(
    tracer: Tracer,
    name: str,
    within: TraceContext | None,
    links: Iterable[Link],
    about: dict[str, Any],
) -> RecordedSpan | None:
    """Return a new span; None where what should make it raises, or makes none."""
    began_ms = about["began_ms"]
    with suppress(Exception):
        made = tracer.start_span(
            name,
            context=None if within is None else _context_of(within),
            kind=_api().SpanKind[about["kind"]],
            attributes=_known(about["attributes"]),
            links=[_link_to(link) for link in links],
            start_time=None if began_ms is None else began_ms * 1_000_000,
        )
        if made.get_span_context().is_valid:  # not so where the SDK is disabled
            return made
    return None


def messaging(
    operation: Literal["send", "process"],
    destination: str,
    system: str,
    within: TraceContext | None = None,
    attributes: Attributes = MappingProxyType({}),
) -> AbstractContextManager[Span]:
    """Return the span in which messages are sent to a queue, or one of them is processed.

    `within`: the fields that the processed message has brought.
    """
    about = {
        "messaging.system": system,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
        **attributes,
    }
    kind: Kind = "producer" if operation == "send" else "consumer"
    return span(f"{operation} {destination}", within, kind=kind, attributes=about)


# -- the end of an invocation --------------------------------------------------------------------


class _Export:
    """Has spans exported at once, one export at a time, by a thread."""

    def __init__(self) -> None:
        self._is_owed = False
        self._thread: Thread | None = None
        self._orders = SimpleQueue[tuple[Any, float]]()
        self._done = Event()
        self._waits_at = 0.0

    def note(self, ended: RecordedSpan) -> None:
        """Take note of a span that has ended."""
        self._is_owed = self._is_owed or ended.get_span_context().trace_flags.sampled

    def hold_off(self, seconds: float) -> None:
        """Skip exports for so long."""
        self._waits_at = time.monotonic() + seconds

    def flush(self, within_s: float) -> None:
        """Export what has ended; wait `within_s` seconds at most, and not where one was late."""
        provider: Any = _api().get_tracer_provider() if self._is_owed else None
        if time.monotonic() < self._waits_at or not hasattr(provider, "force_flush"):
            return
        self._is_owed = False
        if self._thread is None or not self._thread.is_alive():  # such as in a forked process
            self._thread = Thread(target=self._run, name="spans", daemon=True)
            self._thread.start()
            self._done.set()
        if self._done.is_set():
            self._done.clear()
            self._orders.put((provider, within_s))
        if not self._done.wait(within_s):
            self.hold_off(PAUSE_S)

    def _run(self) -> None:
        while True:
            provider, within_s = self._orders.get()
            with suppress(Exception):
                provider.force_flush(round(within_s * 1000))
            self._done.set()


_export: Final = _Export()


def flush(within_s: float = _FLUSH_S) -> None:
    """Export the spans of an invocation before its environment is frozen; elsewhere do nothing.

    It comes after commit and acknowledgement. What is not exported in time goes on with the next
    invocation, and for `PAUSE_S` seconds no invocation waits.
    """
    if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
        _export.flush(within_s)


def hold_off(seconds: float) -> None:
    """Skip the exports at the ends of invocations for so long: the collector takes nothing."""
    _export.hold_off(seconds)


def close() -> None:
    """Export what has ended before the process ends; wait `CLOSE_S` seconds at most."""
    _export.flush(CLOSE_S)


# -- the API of OpenTelemetry ----------------------------------------------------------------------


def is_wanted(
    environment: Mapping[str, str] = os.environ, signal: Literal["TRACES", "METRICS"] = "TRACES"
) -> bool:
    """Return True if the standard variables name a collector, and do not switch a signal off."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    is_off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    is_off = is_off or environment.get(f"OTEL_{signal}_EXPORTER") == "none"
    return not is_off and any(environment.get(name) for name in names)


def _tracer() -> Tracer | None:
    """Return what makes this process's spans; None if it has no provider."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    with suppress(Exception):  # such as that another thread still loads the API
        provider = api.get_tracer_provider()
        if not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
            return _tracer_of(provider)
    return None


@lru_cache(maxsize=1)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("a2a_serverless", __version__, _SCHEMA)


def _api() -> Any:
    """Return the API's module; None if it is not loaded, so that there can be no provider."""
    return sys.modules.get("opentelemetry.trace")


def _context_of(fields: TraceContext) -> Context:
    from opentelemetry.context import Context  # noqa: PLC0415 - loaded, as the API is

    if not fields:
        return Context()
    api = _api()
    return api.set_span_in_context(api.NonRecordingSpan(_span_context(fields)), Context())  # type: ignore[no-any-return]


def _span_context(fields: TraceContext) -> SpanContext:
    api, parts = _api(), fields[_TRACEPARENT].split("-")
    return api.SpanContext(  # type: ignore[no-any-return]
        trace_id=int(parts[1], 16),
        span_id=int(parts[2], 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(parts[3], 16) & _SAMPLED),
        trace_state=api.TraceState.from_header([fields.get(_TRACESTATE, "")]),
    )


def _fields_of(context: SpanContext) -> dict[str, str]:
    flags = int(context.trace_flags) & _SAMPLED
    fields = {_TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"}
    state = context.trace_state.to_header()
    return fields | ({_TRACESTATE: state} if state else {})


def _link_to(link: Link) -> Any:
    fields, what = link
    return _api().Link(_span_context(fields), {"a2a.link": what})


def _known(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
