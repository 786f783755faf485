"""The provider of spans, which exports them by OTLP over HTTP; loaded only where that is on.

Where `spans.is_wanted`, `observability.start` calls `set_up`. The SDK reads the standard variables,
such as OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME and OTEL_BSP_SCHEDULE_DELAY; of the samplers
there is one, by ratio (`spans.sampled_share`).

Spans wait in a queue of 2,048, and a thread exports them. What cannot be exported is dropped: no
task waits for it, and none depends on it.
"""

from __future__ import annotations

import atexit
import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from a2a_serverless import __version__, aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability.spans import PAUSE_S, close, hold_off, sampled_share

_LONGEST: Final = 16_384
"""Characters of an attribute, such as a prompt that the agent's instrumentation records."""

logger = logging.getLogger(__name__)


def set_up(environment: Mapping[str, str]) -> None:
    """Make this process's provider of spans, unless it has one already.

    The SDK's own loggers are silenced: they write a line for each span that finds no place. That of
    an agent which sets a provider of its own afterwards, in vain, is not.

    Raises:
        ValueError: a variable has a value that the SDK refuses.
    """
    logging.getLogger("opentelemetry.trace").setLevel(logging.WARNING)
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    longest = None if "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT" in environment else _LONGEST
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sampled_share(environment))),
        resource=resource(environment),
        shutdown_on_exit=False,  # it would wait for a collector for half a minute
        id_generator=_Ids(),
        span_limits=SpanLimits(max_attribute_length=longest),
    )
    provider.add_span_processor(
        BatchSpanProcessor(_Pausing(OTLPSpanExporter(**headers(environment))))
    )
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # variables were named until here
    trace.set_tracer_provider(provider)
    atexit.register(close)


def headers(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the headers of each export as an exporter's argument, of the secret A2A_OTEL_SECRET.

    It is empty where there are none: then those of OTEL_EXPORTER_OTLP_HEADERS hold.

    Raises:
        ConfigurationError: the secret cannot be read, or is no JSON object of texts.
    """
    if not (secret := environment.get("A2A_OTEL_SECRET")):
        return {}
    text = aws.SecretText(secret).read_now()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(it, str) for it in found.values()):
        raise ConfigurationError(
            f'A2A_OTEL_SECRET: the secret {secret} has to be {{"name": "value"}}: write it again.'
        )
    return {"headers": found} if found else {}


def resource(environment: Mapping[str, str]) -> Resource:
    """Return what this process is: service, and the function that it belongs to."""
    function = environment.get("AWS_LAMBDA_FUNCTION_NAME")
    known = {
        "service.name": environment.get("OTEL_SERVICE_NAME")
        or environment.get("POWERTOOLS_SERVICE_NAME")
        or "a2a-serverless",
        "service.version": __version__,
        "cloud.provider": "aws" if function else None,
        "cloud.platform": "aws_lambda" if function else None,
        "cloud.region": environment.get("AWS_REGION") if function else None,
        "faas.name": function,
        "faas.version": environment.get("AWS_LAMBDA_FUNCTION_VERSION"),
        "faas.instance": environment.get("AWS_LAMBDA_LOG_STREAM_NAME"),
    }
    return Resource.create({name: value for name, value in known.items() if value})


class _Ids(IdGenerator):
    """Makes ids without `random`: an agent may seed it, and would get the same ones again."""

    def generate_span_id(self) -> int:
        """Return a new id."""
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        """Return a new id."""
        return secrets.randbits(128) or 1

    def is_trace_id_random(self) -> bool:
        """Return True: all its bits are."""
        return True


class _Pausing(SpanExporter):
    """Exports by another exporter; after a failure it drops all for a minute, and says so once."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._resumes_at = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans, or drop them; raise nothing."""
        if time.monotonic() < self._resumes_at:
            return SpanExportResult.FAILURE
        try:
            result, why = self._exporter.export(spans), "refused or not reached"
        except Exception as error:  # noqa: BLE001 - an exporter's failure is no task's
            result, why = SpanExportResult.FAILURE, type(error).__name__
        if result is not SpanExportResult.SUCCESS:
            self._resumes_at = time.monotonic() + PAUSE_S
            hold_off(PAUSE_S)
            logger.warning(
                "Spans are dropped for %.0f s: the collector that OTEL_EXPORTER_OTLP_ENDPOINT"
                " names does not take them (%s).",
                PAUSE_S,
                why,
                extra={"action": "spans_dropped", "spans": len(spans)},
            )
        return result

    def shutdown(self) -> None:
        """End the other exporter."""
        self._exporter.shutdown()
