"""`api`, `worker`, `sweep` and `push` in one process, on one file."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless.clock import Waker
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_extended_card
from a2a_serverless.queues.fifo import FifoQueue, Handle
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import Backends, check_backends, table_backends
from a2a_serverless.worker.adapter import LONG_POLL_S, Presence, Watch, WorkerAdapter
from a2a_serverless.worker.agents import keeps_conversation, load_agent
from a2a_serverless.worker.heartbeat import LOOK_S, Heartbeat
from a2a_serverless_tools.local.background import Background
from a2a_serverless_tools.local.cards import card_of
from a2a_serverless_tools.local.http_server import HttpServer, guarded
from a2a_serverless_tools.local.loops import Loop
from a2a_serverless_tools.local.own_code import Succession
from a2a_serverless_tools.local.own_file import NAME, settings_in
from a2a_serverless_tools.local.pushing import pushing, stream_of
from a2a_serverless_tools.local.sockets import HOST, bind
from a2a_serverless_tools.local.sweeping import SweepRounds

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)

LEAVE_S: Final = 10.0
"""Seconds in which a turn may end after an edit, before the new code begins it again."""


class _Worker(NamedTuple):
    """An agent, and the thread in which it runs."""

    adapter: WorkerAdapter
    thread: Background


class _Places:
    """Room for turns in the workers of this process. Safe under threads.

    Args:
        workers: the workers.
        turns: how many turns each of them runs at a time.
        run: runs a turn, in the worker's thread.
    """

    def __init__(
        self,
        workers: Sequence[_Worker],
        turns: int,
        run: Callable[[WorkerAdapter, Handle[Operation]], Coroutine[Any, Any, None]],
    ) -> None:
        self._workers = workers
        self._run = run
        self._running = [0] * len(workers)
        self._free = self._most = len(workers) * turns
        self._lock = Lock()
        self._left = Waker()
        self._is_awaited = False

    def take(self, *, awaits: bool = False) -> bool:
        """Take a place; return False if none is free, or all threads are blocked.

        `awaits`: without one, the next place that is freed ends the wait for `_left`.
        """
        with self._lock:
            if self._free and not all(map(_is_blocked, self._workers)):
                self._free -= 1
                return True
            self._is_awaited = awaits
        return False

    def put(self) -> None:
        """Free a place."""
        with self._lock:
            self._free += 1
            is_awaited, self._is_awaited = self._is_awaited, False
        if is_awaited:
            self._left.wake()

    async def one(self) -> None:
        """Take a place, once one is free."""
        self._left.clear()
        while not self.take(awaits=True):
            await self._left.wait(LOOK_S)  # a blocked thread does not tell of its end
            self._left.clear()

    async def all(self) -> None:
        """Return when all places are free."""
        while self._free < self._most:
            self._left.clear()
            self._is_awaited = True
            await self._left.wait(LOOK_S)

    def begin(self, handle: Handle[Operation]) -> None:
        """Begin a turn in the thread that runs the fewest; in a blocked one only if all are."""
        with self._lock:
            _, _, at = min(
                (_is_blocked(worker), self._running[at], at)
                for at, worker in enumerate(self._workers)
            )
            self._running[at] += 1
        start, loop = partial(self._start, at, handle), asyncio.get_running_loop()
        loop.call_when_idle(start) if isinstance(loop, Loop) else start()

    def _start(self, at: int, handle: Handle[Operation]) -> None:
        adapter, thread = self._workers[at]
        work = self._run(adapter, handle)
        try:
            turn = thread.start(work)
        except RuntimeError:  # the thread has ended; the delivery comes back when it expires
            work.close()
            self._leave(at)
        else:
            turn.add_done_callback(partial(self._ended, at, handle.message.task_id))

    def _leave(self, at: int) -> None:
        with self._lock:
            self._running[at] -= 1
        self.put()

    def _ended(self, at: int, task_id: str, turn: Future[None]) -> None:
        self._leave(at)
        error = None if turn.cancelled() else turn.exception()
        if error is not None:
            extra = {"action": "delivery_failed", "task_id": task_id}
            logger.error("A turn has failed", exc_info=error, extra=extra)


def _is_blocked(worker: _Worker) -> bool:
    return worker.adapter.heartbeat.is_blocked


@contextmanager
def _workers(
    backends: Backends,
    agent: Callable[[], AgentExecutor],
    settings: Settings,
    options: Options,
) -> Iterator[Background]:
    """Run what the queue delivers for a `with` block; yield what has ended with the last turn.

    A turn that this process opens begins at once where a place is free, and is not pulled. An agent
    that blocks its thread holds up the turns in that thread alone; no other turn begins there while
    another thread answers. At the end of the block turns that still run are given back. A turn that
    a successor has to run does not begin.

    Args:
        backends: storage and queue.
        agent: makes the agent of one worker.
        settings: A2A_WORKER_TURNS is the number of turns that a worker runs at a time, and
            A2A_RUN_LIMIT_S the longest run of one.
        options: the number of workers and of turns, what hears of them, and the successor.
    """
    operations, succession = backends.operations, options.succession
    presence = Presence(backends.storage.table, backends.storage.clock)

    async def serve() -> None:
        turns = max(settings.worker_turns, -(-options.turns // len(workers)))
        operations.places = places = _Places(workers, turns, turn)
        while not operations.is_closed:
            await places.one()  # first: a delivery's visibility runs from its receive on
            handles = await operations.pull(1, LONG_POLL_S)
            for handle in handles:
                places.begin(handle)
            if not handles:
                places.put()
                await presence.tell()
        await places.all()

    async def turn(adapter: WorkerAdapter, handle: Handle[Operation]) -> None:
        deadline = adapter.clock.monotonic() + settings.run_limit_s
        if succession and not await succession.may_begin(handle.sent_at):
            await operations.shutdown()  # first: it does not come back here
            await handle.nack()
        else:
            await adapter.process(handle, deadline=deadline)

    with ExitStack() as running:
        workers: list[_Worker] = []
        for number in range(1, options.concurrency + 1):
            heartbeat = Heartbeat()
            thread = running.enter_context(Background(f"worker-{number}", heartbeat.stay))
            adapter = WorkerAdapter(
                backends,
                agent(),
                settings,
                heartbeat=heartbeat,
                watch=options.watch,
                presence=presence,
            )
            workers.append(_Worker(adapter, thread))
        for worker in workers:
            running.callback(worker.thread.cancel)
        queue = running.enter_context(Background("queue", serve))
        running.callback(lambda: asyncio.run(operations.shutdown()))
        yield queue


PUSH_CONCURRENCY: Final = 10
"""The most webhooks that are called at the same time."""

GATEWAY_HEADER_BYTES: Final = 10_240
"""The most bytes of a request's line and headers that API Gateway passes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a stack; the agent is given as `FILE.py:NAME`."""

    agent: str
    card: Path
    """Its file, or `FILE.py:NAME` of the agent of which one is made."""
    file: Path | None = None
    """Keeps everything; None: one that is removed at the end."""
    bound: socket | None = None
    """The port; None: a free one."""
    frees: bool = True
    """True to free what processes before this one have received, as they are gone."""
    concurrency: int = 4
    """Workers, each with a thread and an agent of its own, and A2A_WORKER_TURNS turns at a time."""
    turns: int = 0
    """How many turns may run at a time at least, where A2A_WORKER_TURNS allows fewer."""
    push: bool = False
    """True to offer and call webhooks."""
    watch: Watch | None = None
    """Hears of the turns."""
    succession: Succession | None = None
    """Loads the agent, and says when another process serves it; None: it is loaded once."""
    beside: Callable[[Stack, ASGIApp], ASGIApp] | None = None
    """Makes of the agent's application one that serves other things beside it."""


class Stack:
    """A stack that runs for a `with` block. Enter it outside of any event loop.

    `url` is the address of the agent, without a `/` at its end. Without authentication the stack
    only answers requests for this address. `backends` are what the parts work with.

    Raises (on entry):
        ConfigurationError: agent, card, file or port cannot be used.
    """

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings
        self.options = options
        self.card = card_of(options.card)
        load_extended_card(settings)  # so that a mistake in it stops the start
        self.url = ""
        self.backends: Backends
        self._server: HttpServer
        self._running = ExitStack()
        self._behind = ExitStack()
        """What works behind the HTTP application."""
        self._queues: list[FifoQueue[Any]] = []
        self._taking: list[Background] = []
        """The queues that are consumed here, and what consumes them."""

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            self._start(starting)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def leave(self) -> None:
        """Leave file and port to a successor: begin nothing, and end what has begun.

        Turns that still run `LEAVE_S` later are given back, and the successor runs them. The end of
        the block waits for answers and streams.
        """
        for queue in self._queues:
            asyncio.run(queue.shutdown())
        self._server.leave()
        until = time.monotonic() + LEAVE_S
        for thread in self._taking:
            thread.join(max(0.0, until - time.monotonic()))
        self._behind.close()

    def _start(self, starting: ExitStack) -> None:
        """Start from the back end to the front; `starting` stops the parts in reverse order."""
        self.settings.check_sharing()
        agent = self._agent()  # first: a mistake in it stops the start, not the first task
        path = self._path(starting)
        bound = self.options.bound or bind(0)
        starting.callback(bound.close)
        port = bound.getsockname()[1]
        self.url = f"http://{HOST}:{port}"
        self.settings = self._deployed(path)
        table = starting.enter_context(closing(SqliteTable(path, INDEXES)))
        self.backends = backends = table_backends(self.settings, table)
        asyncio.run(self._take_over(backends))
        behind = starting.enter_context(self._behind)
        workers = _workers(backends, agent, self.settings, self.options)
        self._queues.append(backends.operations)
        self._taking.append(behind.enter_context(workers))
        rounds = SweepRounds(backends, self.settings, backends.dead_letters)
        behind.enter_context(Background("sweeper", rounds.forever))
        if backends.push is not None:
            stream = stream_of(backends, self.settings)
            push = pushing(backends, self.settings, stream, concurrency=PUSH_CONCURRENCY)
            self._queues.append(backends.push.jobs)
            self._taking.append(behind.enter_context(push))
        extended = load_extended_card(self.settings)
        app: ASGIApp = create_app(
            self.settings, backends, self.card, entrypoint="stream", extended_card=extended
        )
        app = guarded(app, self.settings, port)
        if self.options.beside is not None:
            app = self.options.beside(self, app)
        self._server = starting.enter_context(HttpServer(app, bound, lifespan=False))

    async def _take_over(self, backends: Backends) -> None:
        """Check the file, and free what a process that was killed has received: it is gone."""
        await check_backends(backends, self.settings)
        jobs = None if backends.push is None else backends.push.jobs
        received = (backends.operations, backends.quarantine, backends.dead_letters, jobs)
        for queue in received if self.options.frees else ():
            if isinstance(queue, TableQueue):
                await queue.free()

    def _path(self, starting: ExitStack) -> Path:
        if self.options.file is not None:
            path = self.options.file.resolve()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return path
        folder = TemporaryDirectory(prefix="a2a-", ignore_cleanup_errors=True)
        return Path(starting.enter_context(folder), NAME)

    def _deployed(self, file: Path) -> Settings:
        """Return the settings of a deployment on the file, with API Gateway's limit of headers."""
        settings = settings_in(file, self.settings)
        update = {
            "agent": self.options.agent,  # its prices stand beside it
            "push_queue": settings.push_queue if self.options.push else "",
            "push_issuer": settings.push_issuer or settings.public_url or self.url,
            "max_header_bytes": min(settings.max_header_bytes, GATEWAY_HEADER_BYTES),
        }
        return settings.model_copy(update=update)

    def _agent(self) -> Callable[[], AgentExecutor]:
        """Load the agent, and return a function that loads the agent of one worker.

        The agent's file is run once for each, its other modules once for all. If that fails, a
        worker shares the first one's.

        Raises:
            ConfigurationError: the agent cannot be loaded.
        """
        succession = self.options.succession
        load = succession.agent if succession else partial(load_agent, self.options.agent)
        first = load()
        self._keep_order(first)

        def own() -> AgentExecutor:
            try:
                return load()
            except ConfigurationError as error:
                text = "%s Turns at the same time share one instance of the agent."
                logger.warning(text, error, extra={"action": "agent_shared"})
                return first

        return own

    def _keep_order(self, agent: AgentExecutor) -> None:
        """Run turns of a conversation one after the other if the agent declares to need it."""
        if keeps_conversation(agent):
            self.settings = self.settings.model_copy(update={"conversations": "serial"})
