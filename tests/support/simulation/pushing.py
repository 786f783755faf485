"""PushFunction behind its two event sources: the table's stream, and the queue of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from a2a_serverless.push.function import PushFunction
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.local.background import Background
from a2a_serverless_tools.local.sources import StreamSource
from tests.support.simulation.environments import Environments, Handler
from tests.support.simulation.pumps import QueuePump, StreamFilter, StreamPump
from tests.support.simulation.sources import EventSource
from tests.support.template import read

TIMEOUT_S = 60.0
"""The timeout of PushFunction in template.yaml."""

STREAM_ENVIRONMENTS = 2
"""The most batches at the same time, one of each shard. An emulator's stream has one shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSources:
    """The sources of the function's records; each is made in the loop that reads it."""

    stream: Callable[[], StreamSource]
    queue: Callable[[], EventSource]
    filter: StreamFilter
    """The filter of the stream's records."""


@contextmanager
def pushing(
    backends: Backends, settings: Settings, sources: PushSources, *, concurrency: int
) -> Iterator[None]:
    """Run push for a `with` block.

    The two sources have environments of their own: as on AWS, slow webhooks do not hold up the
    stream.
    """

    def make_handler(environment: ExitStack) -> Handler:
        push = backends.pushing()
        own = settings.model_copy(update={"push_concurrency": concurrency})
        function = PushFunction(backends.storage, push, own)
        return environment.enter_context(closing(function)).handle

    def environments(name: str, limit: int) -> closing[Environments]:
        return closing(Environments(name, make_handler, limit=limit, timeout_s=TIMEOUT_S))

    with (
        environments("push-stream", STREAM_ENVIRONMENTS) as jobs,
        environments("push", concurrency) as webhooks,
    ):
        queue = QueuePump(sources.queue, webhooks)
        stream = StreamPump(sources.stream, jobs, sources.filter)
        with Background("push-queue-pump", queue.run), Background("push-stream-pump", stream.run):
            yield


def stream_filter(settings: Settings) -> StreamFilter:
    """Return the filter of template.yaml for the events that these settings push."""
    chosen = _DOCUMENT["Mappings"]["PushFilters"][settings.push_events]["Pattern"]
    return StreamFilter([chosen, WEBHOOKS_SET])


_DOCUMENT = read()
_COMMITS = _DOCUMENT["Resources"]["PushFunction"]["Properties"]["Events"]["Commits"]["Properties"]
WEBHOOKS_SET: str = _COMMITS["FilterCriteria"]["Filters"][1]["Pattern"]
"""The filter of webhooks that were set."""
