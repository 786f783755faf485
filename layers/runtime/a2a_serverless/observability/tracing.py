"""What the code works on: its piece of a trace, and what is counted of attempts.

One trace leads from a request through the queue to the attempt and to the webhook.

X-Ray knows a trace by its id, and each piece of it by the piece above. The runtime carries the ids
of trace and piece in `X-Amzn-Trace-Id`: with the operation on the queue, with the commits of a
task, with a webhook. Each piece is written as a document of its own that names the carried trace,
not the invocation's, so that the pieces of one request stay together: Lambda begins a new trace for
every message of a queue, and only links the two.

Documents go to the X-Ray daemon, which Lambda runs beside a function whose tracing is active.
Nothing is written if there is no daemon (`AWS_XRAY_DAEMON_ADDRESS`), if the trace was not sampled
where it began, or with `POWERTOOLS_TRACE_DISABLED`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from a2a.types import TaskState

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import A2AServerlessError, UnavailableError
from a2a_serverless.observability import is_true, metrics
from a2a_serverless.observability.logs import log_context
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Operation
from a2a_serverless.tasks.identity import caller_number
from a2a_serverless.tasks.rules import Timing

logger = logging.getLogger(__name__)

HEADER: Final = "x-amzn-trace-id"
"""The name of the carried header, in ASGI and in the operation's context."""

INVOCATION: Final = "_X_AMZN_TRACE_ID"
"""The environment variable in which Lambda's runtime names the trace of the invocation."""

_W3C: Final = ("traceparent", "tracestate")
_LONGEST: Final = 512
"""The most characters of a carried value; no tracer makes a longer one."""

_FORMS: Final = {
    "Root": re.compile(r"1-[0-9a-f]{8}-[0-9a-f]{24}"),
    "Parent": re.compile(r"[0-9a-f]{16}"),
    "Sampled": re.compile(r"[01?]"),
    "Lineage": re.compile(r"[A-Za-z0-9_:|.-]{1,200}"),
}
_DAEMON: Final = re.compile(r"(?:^|udp:)\s*([^\s:]+):(\d+)")
_PROTOCOL: Final = b'{"format":"json","version":1}\n'

_clock = SystemClock()
_current: ContextVar[Mapping[str, str]] = ContextVar(
    "a2a_serverless_trace", default=MappingProxyType({})
)


def _parsed(text: str) -> dict[str, str]:
    """Return the well-formed fields of X-Ray's header; none if it names no trace.

    They are the trace (Root), the parent piece, and the decision to keep the trace (Sampled).
    Lineage, Lambda's count of a function's calls of itself, is only passed on.
    """
    given = dict(part.strip().partition("=")[::2] for part in text[:_LONGEST].split(";"))
    fields = {n: given[n] for n, form in _FORMS.items() if form.fullmatch(given.get(n, ""))}
    return fields if "Root" in fields else {}


def _written(fields: Mapping[str, str]) -> str:
    return ";".join(f"{name}={fields[name]}" for name in _FORMS if name in fields)


@dataclass(slots=True)
class _Segment:
    """A piece of a trace that is under way."""

    annotations: dict[str, str | int | float | bool] = field(default_factory=dict)

    def annotate(self, **annotations: str | float | bool | None) -> None:
        """Add fields by which to search: ids and counts, but no content of a task."""
        self.annotations |= {k: v for k, v in annotations.items() if v is not None}


def incoming(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace context to carry on for a request; its headers have lower-case names.

    In a Lambda function that is called with events, the invocation's own trace counts: API
    Gateway's header has neither Lambda's piece of the trace nor Lambda's decision to keep it. (The
    Lambda Web Adapter puts the invocation's trace into the header.)
    """
    found = {name: headers[name] for name in _W3C if 0 < len(headers.get(name, "")) <= _LONGEST}
    fields = _parsed(os.environ.get(INVOCATION) or headers.get(HEADER, ""))
    return {HEADER: _written(fields), **found} if fields else found


def carried() -> dict[str, str]:
    """Return the trace context of the calling code, for a message or a request that it sends."""
    return dict(_current.get())


def header() -> str | None:
    """Return X-Ray's header for the calling code; None outside a trace."""
    return _current.get().get(HEADER)


def system_attributes(carried: Mapping[str, str]) -> dict[str, Any]:
    """Return the attribute by which SQS links the traces of consumer and sender; `{}` if untraced.

    SQS counts it neither as content nor as an attribute of the message.
    """
    found = _parsed(carried.get(HEADER, ""))
    value = {"DataType": "String", "StringValue": _written(found)}
    return {"AWSTraceHeader": value} if found else {}


@contextmanager
def segment(
    name: str, carried: Mapping[str, str], **annotations: str | float | bool | None
) -> Iterator[_Segment]:
    """Record the block as a piece of the carried trace; what the block sends belongs to the piece.

    The document is written at the end of the block. It names the type of an exception, but not its
    text. In it the runtime's own exceptions are errors; UnavailableError and all others are faults.
    """
    piece = _Segment()
    piece.annotate(**annotations)
    above = _parsed(carried.get(HEADER, ""))
    daemon = _daemon() if above.get("Sampled") == "1" else None
    if daemon is None:
        with _carrying(carried, above):
            yield piece
        return
    own_id, began = secrets.token_hex(8), _clock.now_ms() / 1000

    def write(_: object, failure: BaseException | None, __: object) -> None:
        document = _document(name, above, own_id, began)
        _send({**document, "annotations": piece.annotations, **_failed(failure)}, daemon)

    with ExitStack() as at_end:
        at_end.push(write)
        with _carrying({**carried, HEADER: _written({**above, "Parent": own_id})}, above):
            yield piece


@contextmanager
def _carrying(carried: Mapping[str, str], header: Mapping[str, str]) -> Iterator[None]:
    token = _current.set(MappingProxyType(dict(carried)))
    try:
        with log_context(trace_id=header.get("Root")):
            yield
    finally:
        _current.reset(token)


def _document(name: str, above: Mapping[str, str], own_id: str, began: float) -> dict[str, Any]:
    """Return the fields that X-Ray demands; without a parent the piece is the trace's first."""
    document: dict[str, Any] = {
        "name": name,
        "id": own_id,
        "trace_id": above["Root"],
        "start_time": began,
        "end_time": _clock.now_ms() / 1000,
    }
    if "Parent" in above:
        document |= {"type": "subsegment", "parent_id": above["Parent"]}
    return document


def _failed(failure: BaseException | None) -> dict[str, Any]:
    if not isinstance(failure, Exception):  # none, or one that ends the process or the asyncio task
        return {}
    is_foreseen = isinstance(failure, A2AServerlessError)
    is_foreseen = is_foreseen and not isinstance(failure, UnavailableError)
    exception = {"id": secrets.token_hex(8), "type": type(failure).__name__}
    return {("error" if is_foreseen else "fault"): True, "cause": {"exceptions": [exception]}}


def _daemon() -> tuple[str, int] | None:
    """Return the daemon's address; None if nothing is to be written."""
    if is_true(os.environ.get("POWERTOOLS_TRACE_DISABLED")):
        return None
    found = _DAEMON.search(os.environ.get("AWS_XRAY_DAEMON_ADDRESS", ""))
    return (found[1], int(found[2])) if found else None


def _send(document: Mapping[str, Any], daemon: tuple[str, int]) -> None:
    datagram = _PROTOCOL + json.dumps(document, separators=(",", ":")).encode()
    # A lost trace must neither delay nor fail the task.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.setblocking(False)  # noqa: FBT003 - has no name
        out.sendto(datagram, daemon)


# -- turns -----------------------------------------------------------------------------------


@contextmanager
def observed_attempt(
    log: Log, operation: Operation, *, clock: Clock, timing: Timing
) -> Iterator[None]:
    """Observe the block as an attempt at the open turn, with the agent's own log lines.

    `log` is the task's log before the attempt, read from its beginning. The turn's first attempt
    ends its time in the queue. A sampled trace gets the piece `attempt`.

    The metrics are written before the agent starts, so that they show the attempt even if the agent
    kills its process.
    """
    head = log.head
    number = head.attempts + head.spared.faults + head.spared.interruptions + 1
    metrics.count("Attempts")
    if number == 1 and head.state == TaskState.TASK_STATE_SUBMITTED:
        queued_ms = clock.now_ms() - head.status_at
        metrics.time("TimeQueued", queued_ms)
        if queued_ms >= timing.waiting_s * 1000:
            metrics.number("Callers", caller_number(log.caller.user), whose="waited")
    metrics.flush()
    trace = segment(
        "attempt",
        _trace(log, operation),
        task_id=head.task_id,
        turn=head.turn,
        attempt=number,
    )
    with log_context(context_id=head.context_id, turn=head.turn, attempt=number), trace:
        logger.info("Attempt begins", extra={"action": "attempt"})
        yield


@contextmanager
def observed_cancel(log: Log, operation: Operation) -> Iterator[None]:
    """Observe the cancel of a task that no agent works on: the piece `cancel` of a sampled trace.

    `log` was read from its beginning.
    """
    head = log.head
    trace = segment("cancel", _trace(log, operation), task_id=head.task_id, turn=head.turn)
    with log_context(context_id=head.context_id, turn=head.turn), trace:
        yield


def _trace(log: Log, operation: Operation) -> Mapping[str, str]:
    """Return the trace of the request behind this work: the cancel, or the current turn's send.

    The request's own operation brings its trace. A copy from the sweeper brings none, and the
    operation of a turn that waits behind the current one brings another request's. In these cases
    the X-Ray header in the commit that opened the current turn counts.
    """
    brought, turn = operation.request_context, log.head.turn
    is_its_own = operation.operation == "cancel" or operation.params.turn == turn
    if brought and is_its_own:
        return brought
    opened_in = log.at(turn).trace
    return {HEADER: opened_in} if opened_in else {}
