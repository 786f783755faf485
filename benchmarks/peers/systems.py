"""The systems that `benchmarks.peers` compares, each started with its services and ended again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import httpx

from benchmarks.peers.agent import NOTES
from benchmarks.peers.services import Packages, Postgres, Redis, postgres, redis
from benchmarks.processes import ROOT, START_S, Server, running
from benchmarks.stream import provision
from tests.support.emulators import dynamodb_local, fauxqs

AGENT: Final = "benchmarks/peers/servers/ours.py:agent"
CARD: Final = ROOT / "benchmarks" / "stream_card.json"
SERVERS: Final = "benchmarks.peers.servers"
READY: Final = r"A2A at (\S+?),"
SLOTS: Final = 10
"""The most turns at a time in each `worker` of this project; `serve` has 32, the peers no limit."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A running system."""

    dialect: str
    servers: tuple[Server, ...]
    """The processes that answer requests."""
    notes: Path
    """The file with the notes of its agents."""
    victims: tuple[Server, ...]
    """The processes that run agents, of which one may be killed."""
    written: Callable[[], int] | None = None
    """Returns the bytes written so far; None if no service counts them."""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.said for server in self.servers)


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services on which systems run, each started when the first one needs it."""

    folder: Path
    environments: Path
    running: ExitStack
    _databases: list[str] = field(default_factory=list)

    @cached_property
    def packages(self) -> Packages:
        return Packages(self.folder)

    @cached_property
    def postgres(self) -> Postgres:
        return self.running.enter_context(postgres(self.packages, self.folder))

    @cached_property
    def redis(self) -> Redis:
        return self.running.enter_context(redis(self.packages, self.folder))

    def database(self) -> str:
        """Return the URL of a new database."""
        self._databases.append(f"peer{len(self._databases)}")
        return self.postgres.create(self._databases[-1])

    def python(self, peer: str) -> str:
        """Return the interpreter of a peer's own environment."""
        return str(self.environments / peer / "bin" / "python")

    def version(self, peer: str) -> str:
        """Return the version of a peer in that environment."""
        code = f"import importlib.metadata as m; print(m.version({PEERS[peer].package!r}))"
        command = [self.python(peer), "-c", code]
        asked = subprocess.run(  # noqa: S603 - our own environment
            command, capture_output=True, text=True, check=True
        )
        return asked.stdout.strip()


Start = Callable[[Services, Path], AbstractContextManager[System]]
"""Starts a system in a folder of its own, and ends it."""


@contextmanager
def ours_in_one_process(_: Services, folder: Path) -> Iterator[System]:
    """Run `a2a-serverless serve` on a file."""
    notes = _notes(folder)
    command = [*_ours(folder), "serve", "--agent", AGENT, "--card", str(CARD), "--port", "0"]
    command += ["--file", str(folder / "tasks.db"), "--no-console", "--no-push"]
    with running(command, READY, folder, **{NOTES: str(notes)}) as server:
        yield System(dialect="1.0", servers=(server,), notes=notes, victims=(server,))


@contextmanager
def ours_in_two_processes(_: Services, folder: Path) -> Iterator[System]:
    """Run `a2a-serverless api` and a worker on a file."""
    names = {NOTES: str(_notes(folder)), "A2A_TABLE": f"file:{folder / 'tasks.db'}"}
    with _api_and_workers(folder, names, 1) as system:
        yield system


@contextmanager
def ours_on_emulators(_: Services, folder: Path) -> Iterator[System]:
    """Run two `a2a-serverless api` and two workers on DynamoDB Local and fauxqs."""
    written = folder / "written"
    written.touch()
    with ExitStack() as stack:
        emulators = [stack.enter_context(start()) for start in (dynamodb_local, fauxqs)]
        names = provision({k: v for e in emulators for k, v in e.environment().items()})
        names[NOTES] = str(_notes(folder))
        system = stack.enter_context(_api_and_workers(folder, names, 2))
        yield replace(system, written=lambda: sum(map(int, written.read_text().split())))


@contextmanager
def a2akit(services: Services, folder: Path, *, is_alone: bool) -> Iterator[System]:
    """Run a2akit: alone on a SQLite file, or two replicas on one PostgreSQL and one Redis."""
    arguments = (_file(folder), "memory")
    if not is_alone:
        services.redis.ask("FLUSHALL")
        arguments = (services.database(), services.redis.url)
    with _replicas(services, folder, "a2akit", arguments, count=2 - is_alone) as system:
        written = None if is_alone else _written_to(services.postgres, services.redis)
        yield replace(system, dialect="0.3", written=written)


@contextmanager
def sdk(services: Services, folder: Path) -> Iterator[System]:
    """Run two replicas of the official SDK's server on one PostgreSQL."""
    with _replicas(services, folder, "sdk", (services.database(),), count=2) as system:
        yield replace(system, written=_written_to(services.postgres))


@contextmanager
def sdk_alone(services: Services, folder: Path, *, is_durable: bool) -> Iterator[System]:
    """Run one process of the official SDK's server, on a SQLite file or in memory."""
    arguments = (_file(folder),) if is_durable else ()
    with _replicas(services, folder, "sdk", arguments, count=1) as system:
        yield system


@contextmanager
def langgraph(services: Services, folder: Path) -> Iterator[System]:
    """Run LangGraph's agent server with the runtime that needs no service."""
    with _replicas(services, folder, "langgraph", (str(folder),), count=1) as system:
        yield replace(system, dialect="langgraph")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table: how its system is started, and what the page says of it."""

    start: Start
    runs: str
    killed: str
    """What is left when its processes are killed."""
    power: str
    """What is left when the power goes."""
    peer: str = ""
    """The environment of a peer; empty: this project."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What a peer's environment has, and where that is from."""

    package: str
    url: str


PEERS: Final[Mapping[str, Peer]] = {
    "sdk": Peer(package="a2a-sdk", url="https://github.com/a2aproject/a2a-python"),
    "a2akit": Peer(package="a2akit", url="https://github.com/Coding-Crashkurse/a2akit"),
    "langgraph": Peer(package="langgraph-api", url="https://pypi.org/project/langgraph-api/"),
}
TASKS_ALONE: Final = "tasks; a turn that ran does not go on"
BUT_THE_LAST: Final = "all but the last commits"
SYSTEMS: Final[Mapping[str, Column]] = {
    "SDK, memory": Column(
        peer="sdk",
        start=partial(sdk_alone, is_durable=False),
        runs="one process, everything in memory",
        killed="nothing",
        power="nothing",
    ),
    "SDK, SQLite": Column(
        peer="sdk",
        start=partial(sdk_alone, is_durable=True),
        runs="one process, its database store on a file",
        killed=TASKS_ALONE,
        power=BUT_THE_LAST,
    ),
    "a2akit, SQLite": Column(
        peer="a2akit",
        start=partial(a2akit, is_alone=True),
        runs="one process, tasks on a file, the queue in memory",
        killed=TASKS_ALONE,
        power=BUT_THE_LAST,
    ),
    "LangGraph": Column(
        peer="langgraph",
        start=langgraph,
        runs="one process of its agent server, in memory",
        killed="what a thread has written to files, which it does every 10 seconds",
        power="what has reached the disk of those files",
    ),
    "a2a-serverless, serve": Column(
        start=ours_in_one_process,
        runs="`serve --no-console --no-push`: one process on a file",
        killed="tasks, queue and turns",
        power=BUT_THE_LAST,
    ),
    "a2a-serverless, api and worker": Column(
        start=ours_in_two_processes,
        runs="one process of `api` and one of `worker` on a file",
        killed="tasks, queue and turns",
        power=BUT_THE_LAST,
    ),
    "SDK cluster": Column(
        peer="sdk",
        start=sdk,
        runs="two replicas on PostgreSQL, with its database store and event stream",
        killed=TASKS_ALONE,
        power="every commit",
    ),
    "a2akit cluster": Column(
        peer="a2akit",
        start=partial(a2akit, is_alone=False),
        runs="two replicas on PostgreSQL and Redis, both for requests and agents",
        killed="tasks, queue and turns",
        power="every commit of a task; of the queue what Redis saved some minutes before",
    ),
    "a2a-serverless, emulators": Column(
        start=ours_on_emulators,
        runs="two `api` and two `worker` processes on DynamoDB Local and fauxqs",
        killed="tasks, queue and turns",
        power="nothing: both emulators are in memory (on AWS every commit)",
    ),
}


@contextmanager
def _api_and_workers(folder: Path, names: Mapping[str, str], count: int) -> Iterator[System]:
    """Run `count` processes of `api`, and as many workers."""
    api = [*_ours(folder), "api", "--card", str(CARD), "--port", "0"]
    work = [*_ours(folder), "worker", "--agent", AGENT, "--concurrency", str(SLOTS)]
    with ExitStack() as stack:
        servers, workers = (
            tuple(
                stack.enter_context(running(command, ready, folder, **names)) for _ in range(count)
            )
            for command, ready in ((api, READY), (work, "(turns at a time)"))
        )
        notes = Path(names[NOTES])
        yield System(dialect="1.0", servers=servers, notes=notes, victims=workers)


@contextmanager
def _replicas(
    services: Services, folder: Path, peer: str, arguments: tuple[str, ...], *, count: int
) -> Iterator[System]:
    """Run `count` processes of a peer, each of which serves requests and runs agents."""
    notes = _notes(folder)
    command = [services.python(peer), "-m", f"{SERVERS}.{peer}", *arguments]
    with ExitStack() as stack:
        # One after the other: each of them makes the tables if they are missing.
        servers = tuple(stack.enter_context(_replica(command, folder, notes)) for _ in range(count))
        yield System(dialect="1.0", servers=servers, notes=notes, victims=servers)


@contextmanager
def _replica(command: list[str], folder: Path, notes: Path) -> Iterator[Server]:
    """Run a server that prints its address before it takes connections."""
    with running(command, READY, folder, **{NOTES: str(notes)}) as server:
        deadline = time.monotonic() + START_S
        while True:
            try:
                httpx.get(server.said, trust_env=False)
            except httpx.TransportError:
                if server.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                break
        yield server


def _written_to(*services: Postgres | Redis) -> Callable[[], int]:
    return lambda: sum(service.written() for service in services)


def _file(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / 'tasks.db'}"


def _ours(folder: Path) -> list[str]:
    return [sys.executable, "-m", f"{SERVERS}.ours", str(folder / "written")]


def _notes(folder: Path) -> Path:
    notes = folder / "notes"
    notes.touch()
    return notes
