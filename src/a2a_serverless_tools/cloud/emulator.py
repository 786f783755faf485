"""MiniStack, an AWS in one process: started and ended here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from a2a_serverless.errors import ConfigurationError

VERSION: Final = "1.5.33"
"""The emulator's version: what is substituted for the rest of AWS is true of this one."""
REGION: Final = "us-east-1"
START_S: Final = 120.0
STOP_S: Final = 3.0

CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
"""Those of the emulator's root user, who may do everything."""

_OWN: Final = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True)
class Emulator:
    """A running emulator."""

    port: int
    pid: int
    log: Path
    python: Path
    """What runs it, and the functions."""

    @property
    def url(self) -> str:
        """Where every service is."""
        return f"http://127.0.0.1:{self.port}"

    def environment(
        self, key: str = "test", secret: str = "test", token: str = ""
    ) -> dict[str, str]:
        """Return what programs need to take it for AWS, by default as the root user."""
        session = {"AWS_SESSION_TOKEN": token} if token else {}
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            **session,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            # An account's own settings are no part of this.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self, key: str = "test", secret: str = "test", token: str = "") -> dict[str, Any]:
        """Return the options of a client with these credentials, by default the root user's."""
        session = {"aws_session_token": token} if token else {}
        return {
            "endpoint_url": self.url,
            "aws_access_key_id": key,
            "aws_secret_access_key": secret,
            **session,
        }

    def functions(self) -> dict[int, str]:
        """Return the processes of functions by their id: each with its function's name."""
        found = {}
        for pid in _children(self.pid):
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                named = dict(line.decode().partition("=")[::2] for line in lines if line)
                if name := named.get("AWS_LAMBDA_FUNCTION_NAME"):
                    found[pid] = name
        return found


def free_port() -> int:
    """Return a port of the loopback that no one listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def check_port(port: int) -> None:
    """Refuse a port that is in use.

    Raises:
        ConfigurationError: someone listens on it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            msg = (
                f"Port {port} of 127.0.0.1 is in use: name a free one, or none to have one chosen."
            )
            raise ConfigurationError(msg) from error


async def check_version(python: Path) -> None:
    """Refuse an emulator of another version.

    Raises:
        ConfigurationError: it is another, or none.
    """
    asks = "from importlib.metadata import version; print(version('ministack'))"
    try:
        asking = await asyncio.create_subprocess_exec(
            python, "-c", asks, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        found = (await asking.communicate())[0].decode().strip() or "none"
    except OSError:
        found = "none"
    if found != VERSION:
        folder = python.parents[1]
        raise ConfigurationError(
            f"The emulator in {folder} is ministack {found}, and {VERSION} is needed: remove that"
            " folder, and make makes it again."
        )


@asynccontextmanager
async def started(folder: Path, port: int, python: Path) -> AsyncIterator[Emulator]:
    """Start the emulator on its own Python, which has its packages; end it with the block.

    All that it writes is below `folder`.

    Raises:
        ConfigurationError: it does not start.
    """
    log = folder / "emulator.log"
    for name in ("tmp", "state", "s3"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    process = _launch(folder, port, log, python)
    emulator = Emulator(port, process.pid, log, python)
    try:
        await _until_ready(emulator, process)
        yield emulator
    finally:
        _stop(process)


def _launch(folder: Path, port: int, log: Path, python: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [python, "-P", Path(__file__).parent / "launch.py"],
            env=_environment(folder, port),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C ends what runs on it first
        )


def _environment(folder: Path, port: int) -> Mapping[str, str]:
    """Return the emulator's own variables, which its functions inherit: none of this process's."""
    own = {name: os.environ[name] for name in _OWN if name in os.environ}
    return own | {
        **CREDENTIALS,
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "AUTH": "true",  # IAM decides
        "LAMBDA_EXECUTOR": "local",
        "MINISTACK_REGION": REGION,
        "IOT_MTLS_ENABLED": "0",  # it would listen on all addresses
        "SFTP_ENABLED": "0",
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder / "tmp"),
        "STATE_DIR": str(folder / "state"),
        "S3_DATA_DIR": str(folder / "s3"),
    }


async def _until_ready(emulator: Emulator, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    async with httpx.AsyncClient(timeout=2) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(f"{emulator.url}/_ministack/health")).is_success:
                    return
            if process.poll() is not None or time.monotonic() >= deadline:
                lines = emulator.log.read_text(encoding="utf-8", errors="replace").splitlines()
                why = lines[-1] if lines else "it says nothing"
                raise ConfigurationError(f"The emulator did not start: {why}")
            await asyncio.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the emulator and the functions that it has started, all of them in its session."""
    children = _children(process.pid)
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in [process.pid, *children]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in task.read_text().split()]
    return found
