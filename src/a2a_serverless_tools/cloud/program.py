"""The program of `make cloud-up`: deploy, say what to try, and wait to be interrupted.

Exit codes: 2 it could not be deployed or was refused, 130 it was interrupted. Whatever the end, all
that was started has ended by then.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, TypeVar

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import EXIT_UNUSABLE
from a2a_serverless_tools.cloud.door import opened
from a2a_serverless_tools.cloud.emulator import (
    VERSION,
    check_port,
    check_version,
    free_port,
    started,
)
from a2a_serverless_tools.cloud.stack import Deployed, PhaseError, build

PROGRAM: Final = "make cloud-up"
EXIT_INTERRUPTED: Final = 130
_TO_TRY: Final = """
The stack {stack} is deployed. Its agent: {url}
A client's key: {key}

    .venv/bin/a2a-serverless send --key {key} {url} 'Two days in Oslo'

    curl -s {url}.well-known/agent-card.json
    curl -sN -H 'X-API-Key: {key}' -H 'A2A-Version: 1.0' -H 'Content-Type: application/json' \\
        {url}message:stream -d '{{"message": {{"messageId": "m1", "role": "ROLE_USER",
            "parts": [{{"text": "Two days in Oslo"}}]}}}}'

For operators, in another terminal:

    export AWS_ENDPOINT_URL={aws} AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
    .venv/bin/a2a-serverless tasks --stack {stack} --region us-east-1
    .venv/bin/a2a-serverless console --stack {stack} --region us-east-1

Ctrl-C ends it, and leaves nothing."""

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Deploy the project of this folder, and wait; return the exit code."""
    options = _parser().parse_args(arguments)
    # Programs are started in other folders; a link stays one, as Python finds its packages by it.
    options.sam, options.emulator = options.sam.absolute(), options.emulator.absolute()
    try:
        return asyncio.run(until_signal(_up(options)))
    except (ConfigurationError, PhaseError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_UNUSABLE


async def until_signal(running: Awaitable[int]) -> int:
    """Wait for the end; Ctrl-C and SIGTERM end it, with what it has started."""
    task = asyncio.ensure_future(running)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        say("interrupted")
        return EXIT_INTERRUPTED


async def phase(name: str, does: Awaitable[T]) -> T:
    """Wait for a phase, and say how long it took."""
    began = time.monotonic()
    result = await does
    say(f"{name}: {time.monotonic() - began:.1f} s")
    return result


def say(line: str) -> None:
    """Print a line at once, wherever the output goes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _up(options: argparse.Namespace) -> int:
    """Start the emulator, build and deploy; end all of it when interrupted."""
    ports = [options.port or free_port(), free_port()]
    check_port(ports[0])
    await check_version(options.emulator)
    async with AsyncExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="a2a-cloud-")))
        emulator = await phase(
            f"ministack {VERSION}",
            ending.enter_async_context(started(folder, ports[1], options.emulator)),
        )
        await phase("sam build", build(folder / "build", Path.cwd()))
        door = await ending.enter_async_context(
            opened(emulator, folder / "build", folder, ports[0])
        )
        deployed = Deployed(
            emulator=emulator,
            door=door,
            sam=options.sam,
            build=folder / "build",
            name=options.stack,
        )
        await phase("sam deploy", deployed.deploy())
        key = await asyncio.to_thread(deployed.first_key)
        say(_TO_TRY.format(key=key, stack=deployed.name, url=door.url, aws=emulator.url))
        await asyncio.Event().wait()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--sam", type=Path, required=True, help="SAM's command")
    parser.add_argument(
        "--emulator", type=Path, required=True, help="the Python that has the emulator"
    )
    parser.add_argument("--port", type=int, help="the agent's port (default: a free one)")
    parser.add_argument(
        "--stack", default="a2a-cloud", help="the stack's name (default: %(default)s)"
    )
    return parser
