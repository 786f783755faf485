"""PostgreSQL and Redis from Debian's packages, for the time of a run.

Installed programs are used as they are. Missing ones are downloaded with apt and unpacked into the
run's own folder, not installed; the folder is removed with all data at the end. Both listen on the
loopback. Their settings are the packages' defaults: PostgreSQL waits for the disk at every commit,
Redis does not.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from a2a_serverless_tools.cloud.emulator import free_port

START_S = 60.0
STOP_S = 20.0
NOBODY = "nobody"
"""The user for PostgreSQL, which refuses to run as root."""


class ServiceMissingError(Exception):
    """A service is not available or did not start; the message says which, and why."""


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A running PostgreSQL with one user, `postgres`."""

    port: int
    psql: str
    environment: Mapping[str, str]

    def create(self, database: str) -> str:
        """Create a database and return its URL, for SQLAlchemy on asyncpg."""
        self.ask(f"CREATE DATABASE {database}")
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}/{database}"

    def written(self) -> int:
        """Return the bytes that were written to the write-ahead log since the start."""
        return int(self.ask("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def ask(self, statement: str) -> str:
        """Return the result of a statement."""
        at = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-At")
        asked = subprocess.run(  # noqa: S603 - our own server
            [self.psql, *at, "-c", statement],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return asked.stdout.strip()


@dataclass(frozen=True, kw_only=True)
class Redis:
    """A running Redis."""

    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def written(self) -> int:
        """Return the bytes of all commands that it got since the start."""
        for line in self.ask("INFO stats").splitlines():
            if line.startswith("total_net_input_bytes:"):
                return int(line.partition(":")[2])
        raise ServiceMissingError("Redis does not say what it has received.")

    def ask(self, command: str) -> str:
        """Return the answer to an inline command."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(f"{command}\r\nQUIT\r\n".encode())
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        return answer.decode()


class Packages:
    """Programs of Debian packages: those of the machine, or unpacked into `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = folder / "root"

    def program(self, package: str, pattern: str) -> str:
        """Return the newest program that matches `pattern`, a path below `/`.

        Raises:
            ServiceMissingError: apt does not provide the package.
        """
        found = self._found(Path("/"), pattern) or self._found(self._root, pattern)
        if not found:
            self._unpack(package)
            found = self._found(self._root, pattern)
        if not found:
            raise ServiceMissingError(f"The package {package} has no {pattern}.")
        return found

    def environment(self) -> dict[str, str]:
        """Return the variables with which unpacked programs find their libraries."""
        libraries = [str(path) for path in self._root.glob("usr/lib/*-linux-gnu*")]
        before = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": ":".join([*libraries, *([before] if before else [])])}

    @staticmethod
    def _found(root: Path, pattern: str) -> str | None:
        found = sorted(root.glob(pattern))
        return str(found[-1]) if found else None

    def _unpack(self, package: str) -> None:
        """Download a package with its missing dependencies, and unpack all of them."""
        archives = self._folder / f"archives-{package}"
        (archives / "partial").mkdir(parents=True)
        apt = ("apt-get", "-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1")
        _run([*apt, "install", "--yes", "--no-install-recommends", "--download-only", package])
        for archive in archives.glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(archive), str(self._root)])


@contextmanager
def postgres(packages: Packages, folder: Path) -> Iterator[Postgres]:
    """Run PostgreSQL for the block.

    Raises:
        ServiceMissingError: it is not available, or did not start.
    """
    binaries = "usr/lib/postgresql/*/bin"
    initdb = packages.program("postgresql", f"{binaries}/initdb")
    server = packages.program("postgresql", f"{binaries}/postgres")
    psql = packages.program("postgresql", f"{binaries}/psql")
    data, port = folder / "postgres", free_port()
    data.mkdir()
    as_nobody = os.geteuid() == 0
    if as_nobody:
        shutil.chown(data, NOBODY)
    options = ("--auth", "trust", "--username", "postgres", "--encoding", "UTF8", "--locale", "C")
    environment = packages.environment()
    _run([initdb, "--pgdata", str(data), *options], environment, as_nobody=as_nobody)
    command = [server, "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", ""]
    with _serving(command, port, folder / "postgres.log", environment, as_nobody=as_nobody):
        running = Postgres(port=port, psql=psql, environment=environment)
        _until_it_answers(running)
        yield running


@contextmanager
def redis(packages: Packages, folder: Path) -> Iterator[Redis]:
    """Run Redis for the block.

    Raises:
        ServiceMissingError: it is not available, or did not start.
    """
    server = packages.program("redis-server", "usr/bin/redis-server")
    port = free_port()
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with _serving(command, port, folder / "redis.log", packages.environment()):
        yield Redis(port=port)


@contextmanager
def _serving(
    command: Sequence[str],
    port: int,
    log: Path,
    environment: Mapping[str, str],
    *,
    as_nobody: bool = False,
) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own server
            command,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            user=NOBODY if as_nobody else None,
            cwd="/",
        )
    try:
        deadline = time.monotonic() + START_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServiceMissingError(f"{command[0]} did not start: {log.read_text()[-500:]}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_it_answers(server: Postgres) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            server.ask("SELECT 1")
        except subprocess.CalledProcessError as error:
            if time.monotonic() > deadline:
                raise ServiceMissingError(f"PostgreSQL does not answer: {error.stderr}") from error
            time.sleep(0.1)
        else:
            return


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, as_nobody: bool = False
) -> None:
    done = subprocess.run(  # noqa: S603 - our own commands
        command,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        user=NOBODY if as_nobody else None,
        cwd="/",
    )
    if done.returncode:
        raise ServiceMissingError(f"{command[0]} failed: {(done.stderr or done.stdout)[-500:]}")
