"""Where the commands for operators look: a stack, the table of the environment, or `dev`'s file."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import Parser
from a2a_serverless_tools.cli.text import printable

if TYPE_CHECKING:
    from a2a_serverless.settings import Settings
    from a2a_serverless_tools.console.inspector import Inspector
    from a2a_serverless_tools.console.stacks import DeployedStack


def add_place(command: Parser, *, is_verb: bool = False) -> None:
    """Add `--stack`, `--region` and `--file`; for a verb they may also stand before its name."""
    default = SUPPRESS if is_verb else None
    command.add_argument(
        "--stack",
        metavar="NAME",
        default=default,
        help="a deployed stack, found with your AWS credentials (default: the table A2A_TABLE, "
        "else the file of your dev)",
    )
    command.add_argument("--region", metavar="REGION", default=default, help="the stack's region")
    command.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        default=default,
        help="the file of a dev, which need not run (default: .a2a/dev.db of this folder or "
        "project)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a command looks at."""

    inspector: Inspector
    settings: Settings
    stack: DeployedStack | None = None
    file: Path | None = None
    """That of a `dev`."""


async def place_of(
    options: Namespace, *, needs_queue: bool = False, may_lack_queue: bool = False
) -> Place:
    """Return the place that the arguments and the environment name.

    Args:
        options: the arguments, with those of `add_place`.
        needs_queue: True for a command that sends to the queue.
        may_lack_queue: True for a command that sends to the queue only if the queue is named.

    Raises:
        ConfigurationError: no place is named, or it cannot be used.
    """
    from a2a_serverless.wiring import check_storage, open_backends, open_storage
    from a2a_serverless_tools.console.inspector import Inspector
    from a2a_serverless_tools.console.stacks import StackLogs

    settings, stack = await settings_of(options)
    if (file := file_of(options, settings)) is not None:
        return await in_file(file, settings)
    needs_queue = needs_queue or (may_lack_queue and bool(settings.queue))
    storage = open_storage(settings)
    await check_storage(storage, settings)
    inspector = Inspector(
        storage,
        settings,
        place=f"the table {settings.table}",
        backends=open_backends(settings) if needs_queue else None,
        logs=StackLogs(stack) if stack else None,
    )
    return Place(inspector=inspector, settings=settings, stack=stack)


async def settings_of(options: Namespace) -> tuple[Settings, DeployedStack | None]:
    """Return the settings, with the names out of the stack if one is named, and that stack.

    Raises:
        ConfigurationError: the stack cannot be read, or a file is named as well.
    """
    from a2a_serverless.settings import load_settings
    from a2a_serverless_tools.console.stacks import read_stack

    settings = load_settings()
    if options.region:
        os.environ["AWS_DEFAULT_REGION"] = options.region  # boto3 reads it
        os.environ.pop("AWS_REGION", None)
    if options.file and options.stack:
        raise ConfigurationError("--file and --stack name two places: leave one of them out.")
    if not options.stack:
        return settings, None
    stack = await read_stack(options.stack)
    return stack.settings(settings), stack


def file_of(options: Namespace, settings: Settings) -> Path | None:
    """Return the file of the `dev` that a command looks at; None: it looks at a table.

    That is the file of `--file`; without a stack and a table that of the current folder, or of the
    project around it, and its name is printed.

    Raises:
        ConfigurationError: there is no such file.
    """
    from a2a_serverless import tables
    from a2a_serverless_tools.local.own_file import own_file

    file: Path | None = options.file
    if file is not None:
        if not file.exists():
            raise ConfigurationError(f"There is no file {file}: name that of a dev with --file.")
        return file
    if settings.table:
        named = tables.file_of(settings.table)
        if named is not None and not named.exists():
            raise ConfigurationError(f"There is no file {named}, which A2A_TABLE names.")
        return None
    file = own_file(Path.cwd())
    if not file.exists():
        raise ConfigurationError(
            f"A2A_TABLE is not set, no --stack is named, and no dev has made a file {file}: name"
            " the table, the stack, or with --file the file of a dev."
        )
    print(printable(f"file {file}"), file=sys.stderr)
    return file


async def in_file(file: Path, settings: Settings) -> Place:
    """Return the place of a file.

    Raises:
        ConfigurationError: it cannot be used.
    """
    from a2a_serverless.storage.layout import INDEXES
    from a2a_serverless.storage.sqlite import SqliteTable
    from a2a_serverless.wiring import check_storage, table_backends
    from a2a_serverless_tools.console.inspector import Inspector
    from a2a_serverless_tools.console.lines import KeptLines
    from a2a_serverless_tools.local.own_file import log_of
    from a2a_serverless_tools.local.own_file import settings_of as settings_of_file

    settings = settings_of_file(file, settings)
    backends = table_backends(settings, SqliteTable(file, INDEXES))
    await check_storage(backends.storage, settings)
    inspector = Inspector(
        backends.storage,
        settings,
        place=f"the file {file}",
        backends=backends,
        logs=KeptLines(log_of(file)),
    )
    return Place(inspector=inspector, settings=settings, file=file)
