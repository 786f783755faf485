"""The whole stack in one process: gateway, functions and their event sources, sweeper."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from a2a.server.agent_execution import AgentExecutor
from a2a.types import AgentCard

from a2a_serverless.carried import modules_of
from a2a_serverless.clock import Clock
from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card, load_extended_card
from a2a_serverless.http.function import lambda_handler, observed
from a2a_serverless.http.handler import Entrypoint
from a2a_serverless.queues.fifo import FifoQueue
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.wiring import Backends, aws_backends, check_backends, memory_backends
from a2a_serverless.worker.agents import TurnAgents, load_agent
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless_tools.local.asgi import ASGIApp
from a2a_serverless_tools.local.background import Background
from a2a_serverless_tools.local.dotenv import Dotenv
from a2a_serverless_tools.local.environments import Concurrency, Environments, Handler
from a2a_serverless_tools.local.gateway import Gateway
from a2a_serverless_tools.local.http_server import HttpServer, bind
from a2a_serverless_tools.local.own_address import guarded
from a2a_serverless_tools.local.pumps import QueuePump, StreamFilter
from a2a_serverless_tools.local.pushing import PushSources, aws_sources, pushing
from a2a_serverless_tools.local.reloading import ReloadedAgent
from a2a_serverless_tools.local.routes import Routes, refusals, request_limits
from a2a_serverless_tools.local.simulated_aws import one_step, simulated_aws
from a2a_serverless_tools.local.sources import (
    EventSource,
    MemoryStream,
    SqsSource,
    TableSource,
)
from a2a_serverless_tools.local.sweeping import SweepRounds
from a2a_serverless_tools.local.template import Template
from a2a_serverless_tools.local.throttle import Throttle
from a2a_serverless_tools.local.web_adapter import WebAdapter

BackendName = Literal["memory", "moto", "aws"]

Loads = Literal["once", "changed", "turn"]
"""When an agent is loaded: only at its environment's start, also when its files have changed, or
anew for every turn."""

API_ENVIRONMENTS = 100
"""Requests at the same time: each has a thread, and most of them wait for a task."""

API_TIMEOUT_S = 30.0
"""ApiFunction's timeout."""

STREAM_MARGIN_S = 15.0
"""Seconds by which StreamFunction's timeout is longer than the longest stream."""

ACCOUNT_CONCURRENCY = 1000
"""Requests that Lambda answers at the same time, including open streams: the usual quota."""

PUSH_ENVIRONMENTS = 10
"""The most webhooks that are called at the same time."""

LONG_POLL_S = 1
"""Seconds of a real queue's long poll; stopping the stack waits for it."""
MOTO_POLL_S = 0.05
"""Seconds between two looks at the simulated queue, whose long poll would hold its lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The parts of a running stack, for an application that is served beside the agent."""

    app: ASGIApp
    """The agent's application, which answers all requests that no other application takes."""
    backends: Backends
    settings: Settings
    url: str
    card: AgentCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a stack; the agent is given as `FILE.py:NAME`, and port 0 takes a free one."""

    agent: str
    card: Path
    backend: BackendName = "memory"
    port: int = 0
    concurrency: int = 4
    push: bool = False
    """True to offer and call webhooks; on `aws` only if A2A_PUSH_QUEUE is set."""
    loads: Loads = "once"
    keeps_agent: bool = False
    """As for `ReloadedAgent`, like `variables`; neither counts if the agent is loaded once."""
    variables: Dotenv | None = None
    stage: str = ""
    """The first part of all paths, as a deployment's own URL has it; empty: none."""
    beside: Callable[[Running], ASGIApp] = lambda running: running.app
    """Returns the application to serve: the agent's, or one that serves other things beside it."""


class Stack:
    """A stack that runs for a `with` block. Enter it outside of any event loop.

    `url` is the address of the agent, without a `/` at its end. Without authentication the stack
    only answers requests for this address.

    Raises (on entry):
        ConfigurationError: agent, card, table, queue or port cannot be used.
    """

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings
        self.options = options
        self._card = load_card(options.card)
        self._extended_card = load_extended_card(settings)
        self.url = ""
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            self._start(starting)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _start(self, starting: ExitStack) -> None:
        """Start from the back end to the front; `starting` stops the parts in reverse order."""
        self.settings.check_sharing()
        agent = self._agent(starting)  # first: a mistake in it stops the start, not the first task
        bound = bind(self.options.port)
        starting.callback(bound.close)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}/{self.options.stage}".rstrip("/")
        if self.options.backend == "moto":
            self._take(starting.enter_context(simulated_aws()).environment())
        self._choose_push()
        backends = self._backends()
        asyncio.run(check_backends(backends, self.settings))
        if backends.push is not None:
            self._start_push(starting, backends)
        self._start_back(starting, backends, agent)
        self._start_front(starting, backends, bound)

    def _take(self, environment: dict[str, str]) -> None:
        names = {name.removeprefix("A2A_").lower(): value for name, value in environment.items()}
        self.settings = self.settings.model_copy(update=names)

    def _choose_push(self) -> None:
        settings, is_memory = self.settings, self.options.backend == "memory"
        queue = settings.push_queue or ("memory" if is_memory else "")
        update = {
            "push_queue": queue if self.options.push else "",
            "push_issuer": settings.push_issuer or settings.public_url or self.url,
        }
        self.settings = settings.model_copy(update=update)

    def _backends(self) -> Backends:
        if self.options.backend == "memory":
            return memory_backends(self.settings)
        return aws_backends(self.settings, has_long_polls=self.options.backend != "moto")

    def _start_push(self, starting: ExitStack, backends: Backends) -> None:
        sources = self._push_sources(starting, backends)
        starting.enter_context(
            pushing(backends, self.settings, sources, concurrency=PUSH_ENVIRONMENTS)
        )

    def _push_sources(self, starting: ExitStack, backends: Backends) -> PushSources:
        table, jobs = backends.storage.table, backends.pushing().queue.jobs
        if isinstance(table, MemoryTable) and isinstance(jobs, TableQueue):
            commits = MemoryStream(table)
            starting.callback(commits.close)
            return PushSources(
                stream=lambda: commits, queue=lambda: TableSource(jobs), filter=StreamFilter()
            )
        return aws_sources(
            self.settings,
            lambda: self._queue(self.settings.push_queue),
            one_step=one_step if self.options.backend == "moto" else None,
        )

    def _agent(self, starting: ExitStack) -> Callable[[], AgentExecutor | TurnAgents]:
        """Load the agent, and return a function that makes the agent of one environment.

        Raises:
            ConfigurationError: the agent cannot be loaded.
        """
        named, loads = self.options.agent, self.options.loads
        if loads == "once":
            load_agent(named)
            return lambda: load_agent(named)
        extended = self.settings.extended_card
        agents = ReloadedAgent(
            named,
            is_fresh=loads == "turn",
            keeps_agent=self.options.keeps_agent,
            kept=modules_of(self.settings.context_variables),
            variables=self.options.variables,
            served=[self.options.card, *([Path(extended)] if extended else [])],
        )
        return starting.enter_context(agents).environment

    def _start_back(
        self,
        starting: ExitStack,
        backends: Backends,
        agent: Callable[[], AgentExecutor | TurnAgents],
    ) -> None:
        def handler(environment: ExitStack) -> Handler:
            function = WorkerFunction(backends, agent(), self.settings)
            return environment.enter_context(closing(function)).handle

        def pump(name: str, queue: FifoQueue[Operation], url: str) -> None:
            function = Environments(
                name,
                handler,
                limit=self.options.concurrency,
                timeout_s=self.settings.run_limit_s,
            )
            starting.callback(function.close)
            pump = QueuePump(lambda: self._source(queue, url), function)
            starting.enter_context(Background(f"{name}-pump", pump.run))

        pump("worker", backends.operations, self.settings.queue)
        if self.settings.worker_turns > 1:
            queue = backends.quarantining()
            pump("quarantine", queue, self.settings.quarantine_queue)
        letters = backends.dead_letters or self._dead_letters()
        rounds = SweepRounds(backends, self.settings, letters)
        starting.enter_context(Background("sweeper", rounds.forever))

    def _start_front(self, starting: ExitStack, backends: Backends, bound: socket.socket) -> None:
        gateway = starting.enter_context(
            front(
                self.settings,
                backends,
                self._card,
                extended_card=self._extended_card,
                stage=self.options.stage,
            )
        )
        running = Running(
            app=guarded(gateway, self.settings, bound.getsockname()[1]),
            backends=backends,
            settings=self.settings,
            url=self.url,
            card=self._card,
        )
        app = self.options.beside(running)
        starting.enter_context(HttpServer(app, bound, lifespan=False))

    def _source(self, queue: FifoQueue[Operation], url: str) -> EventSource:
        return TableSource(queue) if isinstance(queue, TableQueue) else self._queue(url)

    def _dead_letters(self) -> SqsSource | None:
        if not self.settings.dead_letter_queue:
            return None
        return self._queue(self.settings.dead_letter_queue)

    def _queue(self, queue: str) -> SqsSource:
        is_simulated = self.options.backend == "moto"
        return SqsSource(
            queue,
            wait_s=0 if is_simulated else LONG_POLL_S,
            pause_s=MOTO_POLL_S if is_simulated else 0,
        )


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
    """Yield the API as template.yaml has it, with both functions behind it, in one account.

    Args:
        settings: as for `create_app`.
        backends: as for `create_app`.
        card: as for `create_app`.
        extended_card: as for `create_app`.
        stage: as for `Gateway`.
        template: the project's template; by default template.yaml with the defaults of its
            parameters, and CorsOrigins from the settings.
        clock: measures the requests per second.

    Raises:
        ConfigurationError: the settings or template.yaml cannot be used.
    """

    def app(entrypoint: Entrypoint) -> Any:
        return create_app(
            settings, backends, card, entrypoint=entrypoint, extended_card=extended_card
        )

    template = template or Template.load(parameters={"CorsOrigins": settings.cors_origins})
    rate, burst = request_limits(template)
    api, stream = _functions(app, settings)
    with closing(api):
        yield Gateway(
            Routes.of(template),
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
