"""`api`, `worker`, `sweep` and `push` in one process, on one file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal, Self

from a2a.server.agent_execution import AgentExecutor
from a2a.types import AgentCard

from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_extended_card
from a2a_serverless.propagated import modules_of
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import Backends, check_backends, table_backends
from a2a_serverless.worker.adapter import LONG_POLL_S, Presence, Watch, WorkerAdapter
from a2a_serverless.worker.agents import TurnAgents, keeps_conversation, load_agent
from a2a_serverless.worker.heartbeat import Heartbeat
from a2a_serverless_tools.local.background import Background
from a2a_serverless_tools.local.cards import card_of, file_of
from a2a_serverless_tools.local.dotenv import Dotenv
from a2a_serverless_tools.local.http_server import HttpServer, bind, guarded
from a2a_serverless_tools.local.own_file import NAME, empty, held, settings_of
from a2a_serverless_tools.local.pushing import pushing, stream_of
from a2a_serverless_tools.local.reloading import ReloadedAgent, ReloadedCard
from a2a_serverless_tools.local.sweeping import SweepRounds

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_Worker = tuple[WorkerAdapter, Background]


@contextmanager
def _workers(
    backends: Backends,
    agent: Callable[[], AgentExecutor | TurnAgents],
    settings: Settings,
    *,
    count: int,
    watch: Watch | None,
) -> Iterator[None]:
    """Run what the queue delivers for a `with` block.

    An agent that blocks its thread holds up the turns of its own worker alone. At the end of the
    block turns that still run are given back.

    Args:
        backends: storage and queue.
        agent: makes the agent of one worker.
        settings: A2A_WORKER_TURNS is the number of turns that a worker runs at a time, and
            A2A_RUN_LIMIT_S the longest run of one.
        count: the number of workers.
        watch: hears of the turns.
    """
    presence = Presence(backends.storage.table, backends.storage.clock)

    async def serve() -> None:
        operations, free = backends.operations, asyncio.LifoQueue[_Worker]()
        for _ in range(settings.worker_turns):
            for worker in made:
                free.put_nowait(worker)

        async def work(worker: _Worker, handle: Handle[Operation]) -> None:
            adapter, thread = worker
            deadline = adapter.clock.monotonic() + settings.run_limit_s
            await asyncio.wrap_future(thread.start(adapter.process(handle, deadline=deadline)))
            free.put_nowait(worker)

        async with asyncio.TaskGroup() as running:
            while not operations.is_closed:
                worker = await free.get()  # first: a delivery's visibility runs from its receive on
                for handle in await operations.pull(1, LONG_POLL_S):
                    running.create_task(work(worker, handle))
                    break
                else:
                    free.put_nowait(worker)
                    await presence.tell()

    with ExitStack() as running:
        made: list[_Worker] = []
        for number in range(1, count + 1):
            heartbeat = Heartbeat()
            thread = running.enter_context(Background(f"worker-{number}", heartbeat.stay))
            adapter = WorkerAdapter(
                backends, agent(), settings, heartbeat=heartbeat, watch=watch, presence=presence
            )
            made.append((adapter, thread))
        for _, thread in made:
            running.callback(thread.cancel)
        running.enter_context(Background("queue", serve))
        running.callback(lambda: asyncio.run(backends.operations.shutdown()))
        yield


Loads = Literal["once", "changed", "turn"]
"""When an agent is loaded: only at the start, also when its files have changed, or anew for every
turn."""

PUSH_CONCURRENCY: Final = 10
"""The most webhooks that are called at the same time."""

GATEWAY_HEADER_BYTES: Final = 10_240
"""The most bytes of a request's line and headers that API Gateway passes on."""


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
    """Its file, or `FILE.py:NAME` of the agent of which one is made."""
    file: Path | None = None
    """Keeps everything; None: one that is removed at the end."""
    empties: bool = False
    """True to begin with an empty file."""
    port: int = 0
    concurrency: int = 4
    """Workers, each with a thread and an agent of its own, and A2A_WORKER_TURNS turns at a time."""
    push: bool = False
    """True to offer and call webhooks."""
    loads: Loads = "once"
    keeps_agent: bool = False
    may_be_broken: bool = False
    """As for `ReloadedAgent`, like `variables`; neither counts if the agent is loaded once."""
    variables: Dotenv | None = None
    watch: Watch | None = None
    """Hears of the turns."""
    start_anew: Callable[[], None] = lambda: None
    """As for `ReloadedAgent`."""
    beside: Callable[[Running], ASGIApp] = lambda running: running.app
    """Returns the application to serve: the agent's, or one that serves other things beside it."""


class Stack:
    """A stack that runs for a `with` block. Enter it outside of any event loop.

    `url` is the address of the agent, without a `/` at its end. Without authentication the stack
    only answers requests for this address.

    Raises (on entry):
        ConfigurationError: agent, card, file or port cannot be used.
    """

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings
        self.options = options
        self._card = card_of(options.card)
        load_extended_card(settings)  # so that a mistake in it stops the start
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
        own = starting.enter_context(held(self._path(starting)))
        if self.options.empties:
            empty(own.path)
        bound = bind(self.options.port)
        starting.callback(bound.close)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self.settings = self._deployed(own.path)
        table = starting.enter_context(closing(SqliteTable(own.path, INDEXES)))
        backends = table_backends(self.settings, table)
        asyncio.run(self._take_over(backends))
        starting.enter_context(
            _workers(
                backends,
                agent,
                self.settings,
                count=self.options.concurrency,
                watch=self.options.watch,
            )
        )
        rounds = SweepRounds(backends, self.settings, backends.dead_letters)
        starting.enter_context(Background("sweeper", rounds.forever))
        if backends.push is not None:
            stream = stream_of(backends, self.settings)
            push = pushing(backends, self.settings, stream, concurrency=PUSH_CONCURRENCY)
            starting.enter_context(push)
        app = self._app(backends)
        running = Running(
            app=guarded(app, self.settings, bound.getsockname()[1]),
            backends=backends,
            settings=self.settings,
            url=self.url,
            card=self._card,
        )
        starting.enter_context(HttpServer(self.options.beside(running), bound, lifespan=False))
        own.announce(self.url)

    def _app(self, backends: Backends) -> ASGIApp:
        settings, extended = self.settings, self.settings.extended_card

        def made() -> ASGIApp:
            self._card.CopyFrom(card_of(self.options.card))
            more = load_extended_card(settings)
            return create_app(
                settings, backends, self._card, entrypoint="stream", extended_card=more
            )

        if self.options.loads == "once":
            return made()
        files = [file_of(self.options.card), *([Path(extended)] if extended else [])]
        return ReloadedCard(made, files)

    async def _take_over(self, backends: Backends) -> None:
        """Check the file, and free what a process that was killed has received: it is gone."""
        await check_backends(backends, self.settings)
        if isinstance(backends.operations, TableQueue):
            await backends.operations.free()

    def _path(self, starting: ExitStack) -> Path:
        if self.options.file is not None:
            return self.options.file.resolve()
        folder = TemporaryDirectory(prefix="a2a-", ignore_cleanup_errors=True)
        return Path(starting.enter_context(folder), NAME)

    def _deployed(self, file: Path) -> Settings:
        """Return the settings of a deployment on the file, with API Gateway's limit of headers."""
        settings = settings_of(file, self.settings)
        update = {
            "agent": self.options.agent,  # its prices stand beside it
            "push_queue": settings.push_queue if self.options.push else "",
            "push_issuer": settings.push_issuer or settings.public_url or self.url,
            "max_header_bytes": min(settings.max_header_bytes, GATEWAY_HEADER_BYTES),
        }
        return settings.model_copy(update=update)

    def _agent(self, starting: ExitStack) -> Callable[[], AgentExecutor | TurnAgents]:
        """Load the agent, and return a function that makes the agent of one worker.

        Raises:
            ConfigurationError: the agent cannot be loaded.
        """
        named, loads = self.options.agent, self.options.loads
        if loads == "once":
            self._keep_order(load_agent(named))
            return lambda: load_agent(named)
        agents = ReloadedAgent(
            named,
            is_fresh=loads == "turn",
            keeps_agent=self.options.keeps_agent,
            may_be_broken=self.options.may_be_broken,
            kept=modules_of(self.settings.context_variables),
            variables=self.options.variables,
            start_anew=self.options.start_anew,
        )
        self._keep_order(starting.enter_context(agents).agent)
        return agents.environment

    def _keep_order(self, agent: AgentExecutor) -> None:
        """Run turns of a conversation one after the other if the agent declares to need it."""
        if keeps_conversation(agent):
            self.settings = self.settings.model_copy(update={"conversations": "serial"})
