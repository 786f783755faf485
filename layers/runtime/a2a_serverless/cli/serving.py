"""The frame of commands that serve: a checked start, and an end by a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, check_backends
from a2a_serverless.worker.loops import run_to_end

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def say(text: str) -> None:
    """Print to stderr, for the person at the terminal; stdout is for programs."""
    print(text, file=sys.stderr, flush=True)


def check(backends: Backends, settings: Settings) -> None:
    """Check that table and queues exist.

    Raises:
        ConfigurationError: one sentence that names what is missing or does not answer.
    """
    with named_aws_errors():
        asyncio.run(check_backends(backends, settings))


@contextmanager
def named_aws_errors() -> Iterator[None]:
    """Turn boto3's exceptions in a `with` block into a `ConfigurationError`."""
    try:
        yield
    except (BotoCoreError, ClientError, UnavailableError) as error:
        raise ConfigurationError(f"AWS cannot be used: {str(error).rstrip('.')}.") from error


@contextmanager
def until_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set; a second signal ends the process at once."""
    ended = threading.Event()

    def end(number: int, _: FrameType | None) -> None:
        if ended.is_set():
            os._exit(128 + number)
        ended.set()

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(backends: Backends, serving: Coroutine[Any, Any, None], *, drain_s: float) -> int:
    """Run `serving` until it ends or a signal comes.

    A signal closes the queue; work that still runs `drain_s` seconds later is cancelled.
    """
    with asyncio.Runner() as runner:
        return run_to_end(runner.get_loop(), _serve(backends, serving, drain_s))


async def _serve(backends: Backends, serving: Coroutine[Any, Any, None], drain_s: float) -> int:
    ended = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    work = asyncio.create_task(serving)
    signalled = asyncio.create_task(ended.wait())
    await asyncio.wait([work, signalled], return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    await backends.operations.shutdown()
    await asyncio.wait([work], timeout=drain_s)
    work.cancel()
    await asyncio.wait([work])
    if not work.cancelled():
        work.result()  # raises what ended it
    return 0
