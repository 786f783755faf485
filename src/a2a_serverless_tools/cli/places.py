"""Where the commands for operators look: a stack, the table of the environment, or `dev`."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import Parser, has_own_agent
from a2a_serverless_tools.cli.text import printable
from a2a_serverless_tools.scaffold.source import project_around

if TYPE_CHECKING:
    from a2a_serverless.settings import Settings
    from a2a_serverless_tools.console.dev_file import RunningDev
    from a2a_serverless_tools.console.inspector import Inspector
    from a2a_serverless_tools.console.stacks import DeployedStack


def add_place(command: Parser, *, is_verb: bool = False) -> None:
    """Add `--stack`, `--region` and `--dev`; for a verb they may also stand before its name."""
    default = SUPPRESS if is_verb else None
    command.add_argument(
        "--stack",
        metavar="NAME",
        default=default,
        help="a deployed stack, found with your AWS credentials (default: the table A2A_TABLE, "
        "else your dev)",
    )
    command.add_argument("--region", metavar="REGION", default=default, help="the stack's region")
    command.add_argument(
        "--dev",
        metavar="ADDRESS",
        default=default,
        help="a dev of yours, by its address or port (default: that of this folder or project)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a command looks at."""

    inspector: Inspector
    settings: Settings
    stack: DeployedStack | None = None


async def place_of(
    options: Namespace,
    *,
    changes: bool = False,
    needs_queue: bool = False,
    may_lack_queue: bool = False,
) -> Place:
    """Return the place that the arguments and the environment name.

    Args:
        options: the arguments, with those of `add_place`.
        changes: as for `dev_of`; also True where a person may change something afterwards.
        needs_queue: True for a command that sends to the queue.
        may_lack_queue: True for a command that sends to the queue only if the queue is named.

    Raises:
        ConfigurationError: no place is named, or it cannot be used.
    """
    from a2a_serverless.wiring import check_storage, open_backends, open_storage
    from a2a_serverless_tools.console.remote import RemoteInspector
    from a2a_serverless_tools.console.stacks import StackLogs
    from a2a_serverless_tools.console.stored import StoredInspector

    settings, stack = await settings_of(options)
    if not settings.table:
        dev = dev_of(options, changes=changes)
        if dev is None:
            msg = (
                "A2A_TABLE is not set: it names the table. No --stack is named either, and no dev"
                " of yours is running."
            )
            raise ConfigurationError(msg)
        return Place(inspector=RemoteInspector(dev), settings=settings)
    needs_queue = needs_queue or (may_lack_queue and bool(settings.queue))
    storage = open_storage(settings)
    await check_storage(storage, settings)
    inspector = StoredInspector(
        storage,
        settings,
        place=f"the table {settings.table}",
        backends=open_backends(settings) if needs_queue else None,
        logs=StackLogs(stack) if stack else None,
    )
    return Place(inspector=inspector, settings=settings, stack=stack)


async def settings_of(
    options: Namespace,
) -> tuple[Settings, DeployedStack | None]:
    """Return the settings, with the names out of the stack if one is named, and that stack.

    If a dev is named, they name no table and no queue.

    Raises:
        ConfigurationError: the stack cannot be read, or a dev is named as well.
    """
    from a2a_serverless.settings import load_settings
    from a2a_serverless_tools.console.stacks import read_stack

    settings = load_settings()
    if options.region:
        os.environ["AWS_DEFAULT_REGION"] = options.region  # boto3 reads it
        os.environ.pop("AWS_REGION", None)
    if options.dev:
        if options.stack:
            raise ConfigurationError("--dev and --stack name two places: leave one of them out.")
        none = dict.fromkeys(("table", "queue", "undecodable_queue", "push_dead_letter_queue"), "")
        return settings.model_copy(update=none), None
    if not options.stack:
        return settings, None
    stack = await read_stack(options.stack)
    return stack.settings(settings), stack


def dev_of(options: Namespace, *, changes: bool) -> RunningDev | None:
    """Return the dev that a command asks, and print which one; None if none is running.

    That is the one that `--dev` names, or that of the current folder, or of the project around it.
    Otherwise it is the one that was started last; but a command that `changes` something takes it
    only if no other one runs, and if the folder has no agent of its own. If the folder has one, a
    command that reads says that this dev is not the folder's.

    Raises:
        ConfigurationError: it is not clear which one is to be changed, or none runs at `--dev`.
    """
    from a2a_serverless_tools.console.dev_file import running_devs

    devs, here = running_devs(), Path.cwd()
    own = _named(devs, options.dev) if options.dev else _started_in(devs, here)
    if options.dev and not own:
        msg = f"No dev of yours is running at {options.dev}; running: {_places(devs) or 'none'}."
        raise ConfigurationError(msg)
    if not devs:
        return None
    is_foreign = not own and has_own_agent()
    is_clear = len(own) == 1 or (len(devs) == 1 and not is_foreign)
    if changes and not is_clear:
        what = f"{len(own)} devs of {here} are" if own else f"no dev of {here} is"
        msg = f"Nothing was done: {what} running. Choose with --dev ADDRESS: {_places(devs)}."
        raise ConfigurationError(msg)
    chosen = (own or devs)[0]
    foreign = ", which is not of this folder" if is_foreign else ""
    others = "" if len(devs) == 1 or is_clear else f"; {len(devs) - 1} more run: see --dev"
    print(printable(f"dev at {_places([chosen])}{foreign}{others}"), file=sys.stderr)
    return chosen


def _named(devs: Sequence[RunningDev], address: str) -> list[RunningDev]:
    """Return the devs at an address, or at a port of this machine."""
    named = _host_and_port(address)
    return [dev for dev in devs if named in (at := _host_and_port(dev.url), at.rpartition(":")[2])]


def _host_and_port(address: str) -> str:
    """Return what an address says beside `http://`, with the number of `localhost`."""
    bare = address.lower().removeprefix("http://").rstrip("/")
    host, colon, port = bare.rpartition(":")
    return f"{'127.0.0.1' if host == 'localhost' else host}{colon}{port}"


def _started_in(devs: Sequence[RunningDev], here: Path) -> list[RunningDev]:
    """Return the devs of a folder; if it has none, those of the project around it."""
    known = [(dev, Path(dev.folder)) for dev in devs if dev.folder]
    project = project_around(here)
    return [dev for dev, folder in known if folder == here] or [
        dev for dev, folder in known if project and project_around(folder) == project
    ]


def _places(devs: Sequence[RunningDev]) -> str:
    return ", ".join(f"{dev.url} in {dev.folder}" if dev.folder else dev.url for dev in devs)
