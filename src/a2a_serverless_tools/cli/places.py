"""Where the commands for operators look: a stack, the table of the environment, or `dev`'s file."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings, load_settings
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.wiring import (
    check_storage,
    open_backends,
    open_storage,
    table_backends,
    table_file,
)
from a2a_serverless_tools.cli.stacks import described, parameters_of
from a2a_serverless_tools.cli.text import printable
from a2a_serverless_tools.local import own_file
from a2a_serverless_tools.operate.cost import Workers
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.lines import LogLine
from a2a_serverless_tools.operate.logs import KeptLines, Logs

_OUTPUTS: Final[Mapping[str, str]] = {
    "Table": "table",
    "Blobs": "blobs",
    "Queue": "queue",
    "QuarantineQueue": "quarantine_queue",
    "UndecodableQueue": "undecodable_queue",
    "DeadLetterQueue": "dead_letter_queue",
    "PushQueue": "push_queue",
    "PushDeadLetterQueue": "push_dead_letter_queue",
    "Endpoint": "public_url",
}
"""The settings that a stack's outputs name."""
_PARAMETERS: Final = ("PushEvents", "WorkerMemory", "WorkerTimeout", "WorkerTurns")


async def inspector_of(
    options: Namespace,
    *,
    needs_queue: bool = False,
    may_lack_queue: bool = False,
    is_change: bool = False,
) -> Inspector:
    """Return what looks at the place that the arguments and the environment name.

    The `public_url` of its settings is the agent's address; empty: it is not known.

    Args:
        options: the arguments, with those of `Parser.add_place`.
        needs_queue: True for a command that sends to the queue.
        may_lack_queue: True for a command that sends to the queue only if the queue is named.
        is_change: True for a command that changes what it finds.

    Raises:
        ConfigurationError: no place is named, it cannot be used, or a change is meant for one of
            two places.
    """
    settings, logs, workers = settings_of(options)
    if (file := file_of(options, settings, is_change=is_change)) is not None:
        return await in_file(file, settings)
    has_queues = table_file(settings.table) is not None  # in the file itself
    needs_queue = needs_queue or has_queues or (may_lack_queue and bool(settings.queue))
    storage = open_storage(settings)
    await check_storage(storage, settings)
    return Inspector(
        storage,
        settings,
        place=f"the table {settings.table}",
        backends=open_backends(settings) if needs_queue else None,
        logs=logs,
        workers=workers,
    )


async def on_other_table(inspector: Inspector, table: str) -> Inspector:
    """Return an inspector of another table of the same region.

    Raises:
        ConfigurationError: it cannot be used.
    """
    settings = inspector.settings.model_copy(update={"table": table})
    if (file := table_file(table)) is not None and not file.exists():
        raise ConfigurationError(f"There is no file {file}, which --from names.")
    storage = open_storage(settings)
    await check_storage(storage, settings)
    return Inspector(storage, settings, place=f"the table {table}")


def settings_of(options: Namespace) -> tuple[Settings, Logs | None, Workers | None]:
    """Return the settings, with the names out of the stack if one is named, its logs and workers.

    Raises:
        ConfigurationError: the stack cannot be read, or a file is named as well.
    """
    settings = load_settings()
    if options.region:
        os.environ["AWS_DEFAULT_REGION"] = options.region  # boto3 reads it
        os.environ.pop("AWS_REGION", None)
    if options.file and options.stack:
        raise ConfigurationError("--file and --stack name two places: leave one of them out.")
    if not options.stack:
        return settings, None, None
    outputs = outputs_of(options.stack)
    names = {field: outputs.get(output, "") for output, field in _OUTPUTS.items()}
    if "PushEvents" in outputs:
        names["push_events"] = outputs["PushEvents"]
    logs = _StackLogs(options.stack, outputs.get("LogGroup", ""))
    return settings.model_copy(update=names), logs, _workers_of(outputs)


def _workers_of(outputs: Mapping[str, str]) -> Workers:
    """Return what the parameters of a stack say of its workers; an old template has none."""
    memory = outputs.get("WorkerMemory")
    return Workers(
        memory_mb=None if memory is None else int(memory),
        turns=int(outputs.get("WorkerTurns", 1)),
        timeout_s=float(outputs.get("WorkerTimeout", Workers().timeout_s)),
    )


def file_of(options: Namespace, settings: Settings, *, is_change: bool = False) -> Path | None:
    """Return the file of the `dev` that a command looks at; None: it looks at a table.

    That is the file of `--file`; without a stack and a table that of the current folder, or of the
    project around it, and its name is printed, as is that of a table of the environment.

    Raises:
        ConfigurationError: there is no such file; or a change might be meant for the environment's
            table or for the file of the current folder's dev.
    """
    file: Path | None = options.file
    if file is not None:
        if not file.exists():
            raise ConfigurationError(f"There is no file {file}: name that of a dev with --file.")
        return file
    own = own_file.own_file(Path.cwd())
    if settings.table:
        named = table_file(settings.table)
        if named is not None and not named.exists():
            raise ConfigurationError(f"There is no file {named}, which A2A_TABLE names.")
        if options.stack:
            return None
        is_own = named is not None and named.resolve() == own.resolve()
        if is_change and own.exists() and not is_own:
            raise ConfigurationError(
                f"Nothing was changed: A2A_TABLE names the table {settings.table}, and the dev of"
                f" this folder has the file {own}. For the file name it with --file or unset"
                " A2A_TABLE; for the table run the command in another folder."
            )
        print(printable(f"table {settings.table}, which A2A_TABLE names"), file=sys.stderr)
        return None
    if not own.exists():
        raise ConfigurationError(
            f"A2A_TABLE is not set, no --stack is named, and no dev has made a file {own}: name"
            " the table, the stack, or with --file the file of a dev."
        )
    print(printable(f"file {own}"), file=sys.stderr)
    return own


async def in_file(file: Path, settings: Settings) -> Inspector:
    """Return what looks at a file.

    Raises:
        ConfigurationError: it cannot be used.
    """
    settings = own_file.settings_in(file, settings)
    settings = settings.model_copy(update={"public_url": own_file.url_of(file)})
    backends = table_backends(settings, SqliteTable(file, INDEXES))
    await check_storage(backends.storage, settings)
    return Inspector(
        backends.storage,
        settings,
        place=f"the file {file}",
        backends=backends,
        logs=KeptLines(own_file.log_of(file)),
    )


def outputs_of(name: str) -> Mapping[str, str]:
    """Return the outputs of a stack of boto3's region, and some of its parameters.

    Raises:
        ConfigurationError: there is no stack of this name there, it cannot be read, or it was not
            made from our template.
    """
    stack = described(name)
    region = aws.client("cloudformation").meta.region_name
    if stack is None:
        msg = f"There is no stack {name} in {region}: check --stack and --region."
        raise ConfigurationError(msg)
    outputs = {it["OutputKey"]: it["OutputValue"] for it in stack.get("Outputs", ())}
    given = parameters_of(stack)
    outputs |= {it: given[it] for it in _PARAMETERS if it in given}
    if not outputs.keys() >= {"Table", "Queue"}:
        msg = (
            f"The stack {name} in {region} has no outputs Table and Queue: name a stack that"
            " was deployed from template.yaml."
        )
        raise ConfigurationError(msg)
    return outputs


class _StackLogs(Logs):
    """The log group of a stack, in CloudWatch; its name is empty for a stack of an old template."""

    is_at_hand = False

    def __init__(self, stack: str, group: str) -> None:
        self._stack = stack
        self._group = group

    async def about(self, task_id: str, since_ms: int) -> AsyncIterator[LogLine]:
        group = self._group
        if not group:
            msg = f"The stack {self._stack} has no output LogGroup: deploy it again."
            raise ConfigurationError(msg)
        asked: dict[str, Any] = {
            "logGroupName": group,
            "startTime": since_ms,
            "filterPattern": f'{{ $.task_id = "{task_id}" }}',
        }
        client = aws.client("logs")
        while True:
            try:
                page = await aws.call(client.filter_log_events, **asked)
            except aws.ERRORS as error:
                code = aws.error_code(error)
                msg = f"The log group {group} cannot be read ({code}): check logs:FilterLogEvents."
                raise ConfigurationError(msg) from error
            for event in page.get("events", ()):
                yield _line(event)
            token = page.get("nextToken")
            if not token:
                return
            asked["nextToken"] = token


def _line(event: Mapping[str, Any]) -> LogLine:
    text = str(event.get("message", ""))
    try:
        fields = json.loads(text)
    except ValueError:
        fields = {}
    if not isinstance(fields, dict):
        fields = {}
    return LogLine(
        at=int(event.get("timestamp", 0)),
        level=str(fields.get("level", "")),
        action=str(fields.get("action", "")),
        message=str(fields.get("message", text)),
        fields=fields,
    )
