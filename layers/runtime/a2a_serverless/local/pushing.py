"""PushFunction with its two event sources: the table's stream, and the queue of jobs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from a2a_serverless.local.background import Background
from a2a_serverless.local.environments import Environments, Handler
from a2a_serverless.local.pumps import QueuePump, StreamFilter, StreamPump
from a2a_serverless.local.sources import EventSource, StreamSource
from a2a_serverless.local.template import Template
from a2a_serverless.push.function import PushFunction
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends

TIMEOUT_S = 60.0
"""The timeout of PushFunction in template.yaml."""

STREAM_ENVIRONMENTS = 2
"""Batches at the same time; one of each shard. An emulator's stream has one shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSources:
    """The sources of the function's records; each is made in the loop that reads it."""

    stream: Callable[[], StreamSource]
    queue: Callable[[], EventSource]
    filter: StreamFilter
    """The filter of the stream's records."""


class Pushing:
    """Runs push for a `with` block.

    The two sources have environments of their own: as on AWS, slow webhooks do not hold up the
    stream.

    Args:
        backends: with push.
        settings: which events are pushed, allowed receivers, and for how long one may fail.
        sources: the sources of the records.
        concurrency: webhooks that are called at the same time.
    """

    def __init__(
        self, backends: Backends, settings: Settings, sources: PushSources, *, concurrency: int
    ) -> None:
        self._backends = backends
        self._settings = settings
        self._sources = sources
        self._concurrency = concurrency
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            jobs = self._function(starting, "push-stream", STREAM_ENVIRONMENTS)
            webhooks = self._function(starting, "push", self._concurrency)
            queue = QueuePump(self._sources.queue, webhooks)
            starting.enter_context(Background("push-queue-pump", queue.run))
            stream = StreamPump(self._sources.stream, jobs, self._sources.filter)
            starting.enter_context(Background("push-stream-pump", stream.run))
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _function(self, starting: ExitStack, name: str, limit: int) -> Environments:
        function = Environments(name, self._handler, limit=limit, timeout_s=TIMEOUT_S)
        starting.callback(function.close)
        return function

    def _handler(self, environment: ExitStack) -> Handler:
        push = self._backends.pushing()
        function = PushFunction(self._backends.storage, push.queue, push.keys, self._settings)
        environment.callback(function.close)
        return function.handle


def stream_filter(settings: Settings) -> StreamFilter:
    """Return the filter of template.yaml for the events that these settings push.

    Raises:
        TemplateError: template.yaml is missing, or has a rule that is not known here.
    """
    template = Template.load(parameters={"PushEvents": settings.push_events})
    return StreamFilter(template.event_filter("PushFunction", "Commits"))
