"""`a2a-serverless export`: writes all that a caller has, as JSON lines."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from a2a_serverless_tools.cli.arguments import EXIT_DAMAGED, Adders, Parser
from a2a_serverless_tools.cli.tasks import add_owner, fault_of_owner, nothing_of, owner_of
from a2a_serverless_tools.cli.text import as_line, counting, refuse

if TYPE_CHECKING:
    from a2a_serverless.storage.deletion import Owner
    from a2a_serverless.storage.durable import DurableStorage
    from a2a_serverless.tasks.blobs import Blob
    from a2a_serverless.tasks.entries import Recorded
    from a2a_serverless.tasks.fold import Log

_SECRETS: Final = ("token", "credentials")
"""The fields of a webhook that are left out: they are its receiver's secrets."""


def _add(export: Parser) -> None:
    export.does(
        _export,
        "Writes a caller's tasks with history, artifacts and metadata, the states of "
        "its conversations, its webhooks without their secrets and its uploads, one JSON object a "
        "line, and changes nothing. The last line has the counts. What is damaged is named in a "
        "line.",
    )
    add_owner(export)
    export.add_argument("--context", metavar="ID", help="only what belongs to this context")
    export.add_argument(
        "--output", metavar="FILE", type=Path, help="a new file for it (default: stdout)"
    )
    export.add_place()


async def _export(options: Namespace) -> int:
    """Write the lines; return 1 if something is damaged, 2 on a refusal, 3 if there is nothing."""
    from a2a_serverless_tools.cli.places import inspector_of

    if (fault := fault_of_owner(options, "export writes")) is not None:
        return refuse(fault)
    inspector = await inspector_of(options)
    output, counts = sys.stdout, Counter[str]()
    if options.output is not None:
        try:  # readable for its owner alone, and never in place of another file
            number = os.open(options.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            return refuse(f"--output {options.output}: {error.strerror}; name a new file.")
        output = os.fdopen(number, "w", encoding="utf-8")
    try:
        with counting("exporting", prints_lines=options.output is None) as done:
            async for line in _exported(inspector.storage, owner_of(options)):
                counts[line["kind"]] += 1
                _print(line, output)
                done(counts.total())
        _print({"kind": "end", "counts": dict(counts)}, output)
    finally:
        if output is not sys.stdout:
            output.close()
    if not counts:
        return nothing_of(options, f"Nothing was found in {inspector.place}")
    return EXIT_DAMAGED if counts["damaged"] else 0


def _print(line: dict[str, Any], output: TextIO) -> None:
    print(as_line(line), file=output)


async def _exported(storage: DurableStorage, owner: Owner) -> AsyncIterator[dict[str, Any]]:
    """Yield what an owner has; one task at a time is in memory.

    A task that changes meanwhile may come twice, the later one as it is then, but is not missed.
    """
    from a2a_serverless.errors import UnreadableTaskError
    from a2a_serverless.storage.deletion import stored_in, uploaded

    for scope in await owner.scopes(storage):
        own = storage.for_scope(scope)
        async for ids in stored_in(own, owner.context_id):
            named = {"scope": scope.digest, **ids}
            try:
                if "task_id" in ids:
                    log = await own.read(ids["task_id"])
                    if log is None:  # it has expired, or was deleted meanwhile
                        continue
                    records = [await _record(own, log, one) for one in _records(log)]
                    yield {
                        "kind": "task",
                        **named,
                        **_task(await own.shown(log), own.clock.now_ms()),
                        "records": records,
                    }
                else:
                    state, version = await own.contexts.load(ids["context_id"])
                    if version:
                        yield {"kind": "state", **named, "version": version, "state": state}
            except UnreadableTaskError as error:
                yield {"kind": "damaged", **named, "reason": str(error)}
            if "task_id" in ids:
                async for line in _webhooks(own, ids["task_id"]):
                    yield {**line, **named}
        if owner.context_id is None:
            async for blob in uploaded(own):
                yield {"scope": scope.digest, **await _upload(own, blob)}


def _task(log: Log, now_ms: int) -> dict[str, Any]:
    """Return a task as the protocol shows it, who has sent its messages, as they came.

    Each turn has the trace of its request, its attempts and its waits.
    """
    from a2a_serverless.observability.spans import kept_trace_id
    from a2a_serverless.tasks.entries import TurnOpened, json_of
    from a2a_serverless.tasks.turns import turns_of
    from a2a_serverless_tools.cli.task_text import worked
    from a2a_serverless_tools.operate.wording import iso

    of_turn = {turn.version: turn for turn in turns_of(log.head, log.records)}
    turns = [
        {
            "turn": record.version,
            "user": entry.caller.user,
            "tenant": entry.caller.tenant,
            "extensions": list(entry.caller.extensions),
            "variables": entry.caller.variables,
            "trace_id": kept_trace_id(record.trace),
            **worked(of_turn[record.version], now_ms),
        }
        for record in log.records
        for entry in record.entries
        if isinstance(entry, TurnOpened)
    ]
    task = json_of(log.fold().task())
    head = log.head
    times = {"created_at": iso(head.created_at), "expires_at": iso(head.expires_at)}
    usage = [asdict(one) for one in head.usage]
    return {**times, "turns": turns, "task": task, "usage": usage}


def _records(log: Log) -> list[Recorded]:
    from a2a_serverless.tasks.entries import Recorded

    return [e for record in log.records for e in record.entries if isinstance(e, Recorded)]


async def _record(storage: DurableStorage, log: Log, entry: Recorded) -> dict[str, Any]:
    """Return a record with its value, also one that is stored beside the log."""
    whole = await storage.whole_record(log.head, entry)
    value = "[not stored any more]" if whole is None else whole.value.decode(errors="replace")
    return {**entry.id._asdict(), "value": value}


async def _webhooks(storage: DurableStorage, task_id: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the push configurations of a task, also of one that cannot be read."""
    from a2a_serverless.errors import UnreadableTaskError
    from a2a_serverless.storage.layout import PUSH, task_partition
    from a2a_serverless.storage.table import beginning
    from a2a_serverless.storage.webhooks import push_of
    from a2a_serverless.tasks.entries import json_of

    partition = task_partition(storage.scope.digest, task_id)
    for item in await storage.table.all(beginning(partition, PUSH)):
        try:
            push = push_of({"version": 0} | item)
        except UnreadableTaskError as error:
            yield {"kind": "damaged", "reason": str(error)}
            continue
        shown = _without_secrets(json_of(push.config))
        yield {"kind": "webhook", "config": shown, "left_out": list(_SECRETS)}


async def _upload(storage: DurableStorage, blob: Blob) -> dict[str, Any]:
    """Return a file that was uploaded, as a part of the protocol; it is in memory meanwhile."""
    from base64 import b64encode

    from a2a_serverless.storage.blobs import whole

    of = {"sha256": blob.digest, "size": blob.size}
    content = await whole(storage.table.blobs, blob)
    if content is None:
        return {"kind": "damaged", **of, "reason": "The upload is gone meanwhile, or damaged."}
    return {"kind": "upload", **of, "part": {"raw": b64encode(content).decode()}}


def _without_secrets(config: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_secrets(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if name not in _SECRETS
    }


ADDERS: Final[Adders] = {"export": _add}
