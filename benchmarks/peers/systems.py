"""The systems that `benchmarks.peers` compares, each started with its services and ended again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from benchmarks.peers.agent import NOTES
from benchmarks.peers.services import Postgres, Redis
from benchmarks.processes import ROOT, START_S, Server, running
from benchmarks.stream import provision
from tests.support.emulators import dynamodb_local, fauxqs

AGENT: Final = "benchmarks/peers/servers/ours.py:agent"
CARD: Final = ROOT / "benchmarks" / "stream_card.json"
SERVERS: Final = "benchmarks.peers.servers"
READY: Final = r"A2A at (\S+?),"
SLOTS: Final = 10
"""The most turns at a time in each worker of this project; the peers have no such limit."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A running system."""

    dialect: str
    servers: tuple[Server, ...]
    """The processes that answer requests."""
    notes: Path
    """The file with the notes of its agents."""
    victims: tuple[Server, ...] = ()
    """Processes with agents, of which one may be killed while the others go on."""
    written: Callable[[], int] | None = None
    """Returns the bytes written so far; None if no service counts them."""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.said for server in self.servers)


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services on which the systems run, and the folder of the run."""

    folder: Path
    environments: Path
    postgres: Postgres
    redis: Redis
    _databases: list[str] = field(default_factory=list)

    def database(self) -> str:
        """Return the URL of a new database."""
        self._databases.append(f"peer{len(self._databases)}")
        return self.postgres.create(self._databases[-1])

    def python(self, peer: str) -> str:
        """Return the interpreter of a peer's own environment."""
        return str(self.environments / peer / "bin" / "python")

    def version(self, peer: str, package: str) -> str:
        """Return the version of a peer's package in that environment."""
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        command = [self.python(peer), "-c", code]
        asked = subprocess.run(  # noqa: S603 - our own environment
            command, capture_output=True, text=True, check=True
        )
        return asked.stdout.strip()


Start = Callable[[Services, Path], AbstractContextManager[System]]
"""Starts a system in a folder of its own, and ends it."""


@contextmanager
def ours_on_a_file(_: Services, folder: Path) -> Iterator[System]:
    """Run `a2a-serverless dev`: everything is in one process, on a file."""
    notes = _notes(folder)
    command = [*_ours(folder), "dev", "--agent", AGENT, "--card", str(CARD), "--port", "0"]
    command += ["--file", str(folder / "dev.db")]
    with running(command, READY, folder, **{NOTES: str(notes)}) as server:
        yield System(dialect="1.0", servers=(server,), notes=notes)


@contextmanager
def ours_on_emulators(_: Services, folder: Path) -> Iterator[System]:
    """Run two `a2a-serverless api` and two workers on DynamoDB Local and fauxqs."""
    notes, written = _notes(folder), folder / "written"
    written.touch()
    with ExitStack() as stack:
        emulators = [stack.enter_context(start()) for start in (dynamodb_local, fauxqs)]
        names = provision({k: v for e in emulators for k, v in e.environment().items()})
        names[NOTES] = str(notes)
        api = [*_ours(folder), "api", "--card", str(CARD), "--port", "0"]
        servers = [stack.enter_context(running(api, READY, folder, **names)) for _ in range(2)]
        work = [*_ours(folder), "worker", "--agent", AGENT, "--concurrency", str(SLOTS)]
        workers = [
            stack.enter_context(running(work, "(turns at a time)", folder, **names))
            for _ in range(2)
        ]
        yield System(
            dialect="1.0",
            servers=tuple(servers),
            notes=notes,
            victims=tuple(workers),
            written=lambda: sum(map(int, written.read_text().split())),
        )


@contextmanager
def a2akit(services: Services, folder: Path) -> Iterator[System]:
    """Run two replicas of a2akit on one database and one Redis."""
    services.redis.ask("FLUSHALL")
    arguments = (services.database(), services.redis.url)
    with _replicas(services, folder, "a2akit", arguments) as replicas:
        notes, servers = replicas
        yield System(
            dialect="0.3",
            servers=servers,
            notes=notes,
            victims=servers,
            written=lambda: services.postgres.written() + services.redis.written(),
        )


@contextmanager
def sdk(services: Services, folder: Path) -> Iterator[System]:
    """Run two replicas of the official SDK's server on one database."""
    with _replicas(services, folder, "sdk", (services.database(),)) as replicas:
        notes, servers = replicas
        yield System(
            dialect="1.0",
            servers=servers,
            notes=notes,
            victims=servers,
            written=services.postgres.written,
        )


@contextmanager
def fasta2a(services: Services, folder: Path) -> Iterator[System]:
    """Run fasta2a, which has only its memory as storage."""
    notes = _notes(folder)
    command = [services.python("fasta2a"), "-m", f"{SERVERS}.fasta2a"]
    with _replica(command, folder, notes) as server:
        yield System(dialect="1.0", servers=(server,), notes=notes)


SYSTEMS: Final[Mapping[str, Start]] = {
    "a2a-serverless, emulators": ours_on_emulators,
    "a2akit": a2akit,
    "SDK cluster": sdk,
    "a2a-serverless, file": ours_on_a_file,
    "fasta2a": fasta2a,
}
PEERS: Final = {"a2akit": "a2akit", "SDK cluster": "sdk", "fasta2a": "fasta2a"}
"""The environments of the systems that have one of their own."""
PACKAGES: Final = {"a2akit": "a2akit", "sdk": "a2a-sdk", "fasta2a": "fasta2a"}


@contextmanager
def _replicas(
    services: Services, folder: Path, peer: str, arguments: tuple[str, ...]
) -> Iterator[tuple[Path, tuple[Server, ...]]]:
    notes = _notes(folder)
    command = [services.python(peer), "-m", f"{SERVERS}.{peer}", *arguments]
    with ExitStack() as stack:
        # One after the other: each of them makes the tables if they are missing.
        servers = [stack.enter_context(_replica(command, folder, notes)) for _ in range(2)]
        yield notes, tuple(servers)


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


def _ours(folder: Path) -> list[str]:
    return [sys.executable, "-m", f"{SERVERS}.ours", str(folder / "written")]


def _notes(folder: Path) -> Path:
    notes = folder / "notes"
    notes.touch()
    return notes
