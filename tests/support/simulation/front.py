"""The API of a deployment: API Gateway by template.yaml, with both functions behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from a2a.types import AgentCard

from a2a_serverless.clock import Clock
from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import lambda_handler, observed
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.simulation.environments import Concurrency, Environments
from tests.support.simulation.gateway import Gateway
from tests.support.simulation.routes import refusals, request_limits, routes_of
from tests.support.simulation.throttle import Throttle
from tests.support.simulation.web_adapter import WebAdapter
from tests.support.template import Template

API_ENVIRONMENTS = 100
"""Requests at the same time: each has a thread, and most of them wait for a task."""

API_TIMEOUT_S = 30.0
"""ApiFunction's timeout."""

STREAM_MARGIN_S = 15.0
"""Seconds by which StreamFunction's timeout is longer than the longest stream."""

ACCOUNT_CONCURRENCY = 1000
"""Requests that Lambda answers at the same time, including open streams: the usual quota."""


@contextmanager
def front(
    settings: Settings,
    backends: Backends,
    card: AgentCard,
    *,
    extended_card: AgentCard | None = None,
    stage: str = "",
    template: Template | None = None,
    clock: Clock | None = None,
) -> Iterator[Gateway]:
    """Yield the API as template.yaml has it, with both functions behind it, in one account."""

    def app(entrypoint: Entrypoint) -> Any:
        return create_app(
            settings, backends, card, entrypoint=entrypoint, extended_card=extended_card
        )

    template = template or Template(parameters={"CorsOrigins": settings.cors_origins})
    rate, burst = request_limits(template)
    api, stream = _functions(app, settings)
    with closing(api):
        yield Gateway(
            routes_of(template),
            refusals(template),
            buffered={api.name: api},
            streamed={stream.name: stream},
            stage=stage,
            throttle=Throttle(rate=rate, burst=burst, clock=clock),
        )


def _functions(
    app: Callable[[Entrypoint], Any], settings: Settings
) -> tuple[Environments, WebAdapter]:
    """Return ApiFunction and StreamFunction, which share the concurrency of one account."""
    concurrency = Concurrency(ACCOUNT_CONCURRENCY)
    stream = WebAdapter(
        "StreamFunction",
        observed(app("stream")),
        timeout_s=settings.stream_limit_s + STREAM_MARGIN_S,
        concurrency=concurrency,
    )
    api = Environments(
        "ApiFunction",
        lambda _: lambda_handler(app("api")),
        limit=API_ENVIRONMENTS,
        timeout_s=API_TIMEOUT_S,
        concurrency=concurrency,
    )
    return api, stream
