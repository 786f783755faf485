"""The frame of commands that serve: a checked start, and an end by a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.wiring import Backends, check_backends
from a2a_serverless.worker.function import flush_now_and_then
from a2a_serverless.worker.loops import run_to_end

_HEALTH_S = 5.0
"""Seconds within which a health check has to send its request."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def check(backends: Backends, settings: Settings, indexes: Iterable[str] = INDEXES) -> None:
    """Check that table, these indexes and queues exist.

    Raises:
        ConfigurationError: one sentence that names what is missing or does not answer.
    """
    with named_aws_errors():
        asyncio.run(check_backends(backends, settings, indexes))


@contextmanager
def named_aws_errors() -> Iterator[None]:
    """Turn boto3's exceptions in a `with` block into a `ConfigurationError`."""
    try:
        yield
    except UnavailableError as error:
        raise ConfigurationError(str(error)) from error
    except (BotoCoreError, ClientError) as error:
        raise ConfigurationError(f"AWS cannot be used: {str(error).rstrip('.')}.") from error


@contextmanager
def until_signal(
    numbers: Iterable[signal.Signals] = _SIGNALS,
) -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set; a second signal ends the process at once.

    The metrics of a process that is observed are brought out at the end of the block.
    """
    ended = threading.Event()

    def end(number: int, _: FrameType | None) -> None:
        if ended.is_set():
            os._exit(128 + number)
        ended.set()

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        metrics.close()


def serve(
    backends: Backends,
    serving: Coroutine[Any, Any, None],
    *,
    drain_s: float,
    health_port: int | None = None,
) -> int:
    """Run `serving` until it ends or a signal comes.

    A signal closes the queue; work that still runs `drain_s` seconds later is cancelled.
    `health_port` answers health checks; metrics are written each minute, and at the end, before the
    process waits for threads that agents have left behind.

    Raises:
        ConfigurationError: `health_port` cannot be used.
    """
    try:
        with asyncio.Runner() as runner:
            work = _serve(backends, serving, drain_s, health_port)
            try:
                return run_to_end(runner.get_loop(), work)
            finally:
                metrics.close()
    finally:
        serving.close()  # it has not begun where the port could not be used


async def _serve(
    backends: Backends,
    serving: Coroutine[Any, Any, None],
    drain_s: float,
    health_port: int | None,
) -> int:
    ended = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with _health(health_port, lambda: not ended.is_set()):
        work = asyncio.create_task(serving)
        flushing = asyncio.create_task(flush_now_and_then(SystemClock()))
        signalled = asyncio.create_task(ended.wait())
        await asyncio.wait([work, signalled], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        await backends.operations.shutdown()
        await asyncio.wait([work], timeout=drain_s)
        work.cancel()
        flushing.cancel()
        await asyncio.wait([work, flushing])
    if not work.cancelled():
        work.result()  # raises the error that ended it
    return 0


@asynccontextmanager
async def _health(port: int | None, is_working: Callable[[], bool]) -> AsyncIterator[None]:
    """Answer every request on `port` by 200 while the process works, else by 503."""
    if port is None:
        yield
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_HEALTH_S):
                await reader.readline()
                status = "200 OK" if is_working() else "503 Service Unavailable"
                head = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, port=port)
    except OSError as error:
        msg = f"The port {port} for health checks cannot be used: {error.strerror}."
        raise ConfigurationError(msg) from error
    async with server:
        yield
