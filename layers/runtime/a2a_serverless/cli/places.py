"""Where the commands for operators look: a stack, the table of the environment, or `dev`."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING

from a2a_serverless.cli.arguments import Parser
from a2a_serverless.errors import ConfigurationError

if TYPE_CHECKING:
    from a2a_serverless.console.inspector import Inspector
    from a2a_serverless.console.stacks import DeployedStack
    from a2a_serverless.settings import Settings


def add_place(command: Parser) -> None:
    """Add `--stack` and `--region`."""
    command.add_argument(
        "--stack",
        metavar="NAME",
        help="a deployed stack, found with your AWS credentials (default: the table A2A_TABLE, "
        "else the dev that you have started)",
    )
    command.add_argument("--region", metavar="REGION", help="the stack's region")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a command looks at."""

    inspector: Inspector
    settings: Settings
    stack: DeployedStack | None = None


async def place_of(
    options: Namespace, *, needs_queue: bool = False, may_lack_queue: bool = False
) -> Place:
    """Return the place that the arguments and the environment name.

    Args:
        options: the arguments, with `stack` and `region`.
        needs_queue: True for a command that sends to the queue.
        may_lack_queue: True for a command that sends to the queue only if the queue is named.

    Raises:
        ConfigurationError: no place is named, or it cannot be used.
    """
    from a2a_serverless.console.dev_file import running_dev
    from a2a_serverless.console.remote import RemoteInspector
    from a2a_serverless.console.stacks import StackLogs
    from a2a_serverless.console.stored import StoredInspector
    from a2a_serverless.wiring import aws_backends, aws_storage, check_storage

    settings, stack = await settings_of(options)
    if not settings.table:
        dev = running_dev()
        if dev is None:
            msg = (
                "A2A_TABLE is not set: it names the table. No --stack is named either, and no dev"
                " of yours is running."
            )
            raise ConfigurationError(msg)
        return Place(inspector=RemoteInspector(dev), settings=settings)
    needs_queue = needs_queue or (may_lack_queue and bool(settings.queue))
    storage = aws_storage(settings)
    await check_storage(storage, settings)
    inspector = StoredInspector(
        storage,
        settings,
        place=f"the table {settings.table}",
        backends=aws_backends(settings) if needs_queue else None,
        logs=StackLogs(stack) if stack else None,
    )
    return Place(inspector=inspector, settings=settings, stack=stack)


async def settings_of(
    options: Namespace,
) -> tuple[Settings, DeployedStack | None]:
    """Return the settings, with the names out of the stack if one is named, and that stack.

    Raises:
        ConfigurationError: the stack cannot be read.
    """
    from a2a_serverless.console.stacks import read_stack
    from a2a_serverless.settings import load_settings

    settings = load_settings()
    if options.region:
        os.environ["AWS_DEFAULT_REGION"] = options.region  # boto3 reads it
        os.environ.pop("AWS_REGION", None)
    if not options.stack:
        return settings, None
    stack = await read_stack(options.stack)
    return stack.settings(settings), stack
