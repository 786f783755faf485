"""`a2a-serverless task`: shows one task, and what each of its committed versions did."""

from __future__ import annotations

import asyncio
import json
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from a2a_serverless.cli.arguments import Commands, add_command
from a2a_serverless.cli.text import printable, refuse

if TYPE_CHECKING:
    from a2a_serverless.inspect.timeline import Change, Committed, Timeline, Webhook
    from a2a_serverless.storage.log import TaskLog
    from a2a_serverless.tasks.head import AttemptEnd

_SCOPE: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_UNREADABLE: Final = "unreadable"
_LABEL: Final = 10


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    task = add_command(
        commands,
        "task",
        run,
        summary="shows one task: its state, who has it, and what happened to it",
        description="Reads a task of the table A2A_TABLE, and changes nothing. Shows its state and "
        "one line for each committed version, without the contents of messages and artifacts.",
    )
    task.add_argument("id", metavar="ID", help="the task's id")
    task.add_argument(
        "--scope",
        metavar="SCOPE",
        help="the owner's digest, as the command shows it: for an id that several owners have, a "
        "task of a release without the index by-id, or a table without it",
    )
    task.add_argument("--json", action="store_true", help="one JSON object instead of text")
    task.add_backend()


def run(options: Namespace) -> int:
    """Print the task to stdout; return 2 if it is not, or not wholly, shown, and say why."""
    from a2a_serverless.cli.serving import named_aws_errors
    from a2a_serverless.settings import load_settings
    from a2a_serverless.tasks.identity import is_task_id
    from a2a_serverless.wiring import aws_storage, check_storage

    task_id, scope = options.id, options.scope
    if not is_task_id(task_id):
        return refuse(f"{task_id} is no task id: it has 1 to 100 characters of A-Z a-z 0-9 . _ : -")
    if scope is not None and not _SCOPE.fullmatch(scope):
        return refuse(
            f"--scope {scope} is no scope: it has 22 characters of A-Z a-z 0-9 _ -, as this"
            " command shows it without --scope."
        )
    settings = load_settings()
    storage = aws_storage(settings)

    async def look() -> list[Timeline]:
        await check_storage(storage, settings)
        return await _found(storage, task_id, scope)

    with named_aws_errors():
        found = asyncio.run(look())
    if not found:
        return refuse(_not_found(task_id, scope, settings.table))
    if len(found) > 1:
        print(_several_json(found) if options.json else "\n".join(map(_summary, found)))
        scopes = ", ".join(one.scope for one in found)
        return refuse(f"{len(found)} scopes have a task {task_id}: choose with --scope: {scopes}.")
    (shown,) = found
    print(json.dumps(_as_json(shown)) if options.json else "\n".join(_lines(shown)))
    return refuse(_damage(shown)) if shown.unreadable else 0


async def _found(storage: TaskLog, task_id: str, scope: str | None) -> list[Timeline]:
    """Return the task in the scope; without one in every scope that has it."""
    from a2a_serverless.inspect.timeline import timeline
    from a2a_serverless.tasks.identity import Scope

    digests = [scope] if scope else [digest for digest, _ in await storage.find(task_id)]
    surveys = [await storage.for_scope(Scope(digest)).survey(task_id) for digest in digests]
    return [
        timeline(
            survey.head,
            survey.records,
            missing=survey.missing,
            unreadable=survey.unreadable,
            pushes=survey.pushes,
        )
        for survey in surveys
        if survey is not None
    ]


def _not_found(task_id: str, scope: str | None, table: str) -> str:
    if scope is not None:
        return (
            f"The table {table} has no task {task_id} in the scope {scope}: it has expired or was"
            " deleted, or it is in another scope: without --scope the index by-id is searched."
        )
    return (
        f"The table {table} has no task {task_id} in its index by-id: it has expired, was deleted"
        " or never was; or an older release has created it or its first commit is damaged: then"
        f" --scope SCOPE shows it: its items are under TASK#SCOPE#{task_id}."
    )


def _damage(shown: Timeline) -> str:
    return (
        f"Not all of the task {shown.task_id} can be read: {'; '.join(shown.unreadable)};"
        " look with the newest release that has run here, or restore the table as"
        " docs/operations.md says."
    )


# -- text ------------------------------------------------------------------------------------


def _lines(shown: Timeline) -> Iterator[str]:
    """Yield the lines of a task; no character of a client or agent reaches the terminal as such."""
    for name, value in _fields(shown):
        yield printable(f"{name:<{_LABEL}}{value}")
    yield ""
    width = len(str(shown.commits[-1].version)) if shown.commits else 1
    for commit in shown.commits:
        at = _iso(commit.at) or "at an unknown time      "
        yield printable(f"{at}  {commit.version:>{width}}  {_what(commit)}")


def _fields(shown: Timeline) -> Iterator[tuple[str, object]]:
    yield "task", shown.task_id
    yield "scope", shown.scope
    yield "context", _or_unreadable(shown.context_id)
    yield "state", _or_unreadable(shown.state)
    yield "created", _or_unreadable(_iso(shown.created_at))
    yield "changed", _or_unreadable(_iso(shown.changed_at))
    yield "expires", _or_unreadable(_iso(shown.expires_at))
    turn, attempts = _or_unreadable(shown.turn), _or_unreadable(shown.attempts)
    yield "turn", f"{turn} ({'open' if shown.turn_is_open else 'over'}), attempts {attempts}"
    yield "held by", _holder(shown)
    yield "due", _iso(shown.due_at) or "never"
    size, version = _or_unreadable(shown.size), _or_unreadable(shown.version)
    yield "size", f"{size} bytes, version {version}"
    if shown.cancel is None:
        yield "cancel", "not asked for"
    else:
        by = shown.cancel.by or "an unnamed user"
        at = _iso(shown.cancel.at or None) or "an unknown time"
        yield "cancel", f"asked for by {by} at {at}"
    for webhook in shown.webhooks:
        yield "webhook", f"{webhook.config_id}: {_webhook(webhook)}"


def _webhook(webhook: Webhook) -> str:
    if webhook.is_given_up:
        return (
            f"given up after {webhook.refusals} refusals of its own, told up to version"
            f" {webhook.told_up_to}; its client has to set it again"
        )
    text = f"told up to version {webhook.told_up_to}"
    if webhook.refusals:
        text += f", has refused {webhook.refusals}"
    if webhook.failing_since is not None:
        text += f", failing since {_iso(webhook.failing_since)}, attempts {webhook.failures}"
    return text


def _holder(shown: Timeline) -> str:
    if shown.given_back is not None:
        return f"nobody; the last attempt gave it back: {_end(shown.given_back)}"
    if shown.holder is None:
        return "nobody; the turn waits for a worker" if shown.turn_is_open else "nobody"
    worker = shown.holder.worker or "a worker without a name"
    since = _iso(shown.holder.since)
    return f"{worker} since {since}" if since else worker


def _summary(shown: Timeline) -> str:
    """Return one line about a task that others share the id with."""
    state, created = _or_unreadable(shown.state), _or_unreadable(_iso(shown.created_at))
    return printable(f"scope {shown.scope}: {state}, created {created}")


def _what(commit: Committed) -> str:
    said = [_change(change) for change in commit.changes]
    if commit.ended is not None:
        which = "this attempt" if commit.ended_itself else "the attempt before"
        said.append(f"{which} ended: {_end(commit.ended)}")
    text = "; ".join(said) or "nothing"
    return f"{text}  [{commit.worker}]" if commit.worker else text


def _change(change: Change) -> str:
    match change.name:
        case "restart":
            discards = _ranges(change.discards) or "nothing"
            return f"restart from version {change.base}, discards {discards}"
        case "status":
            text = f"status {change.subject}"
        case "turn ended":
            return "end of the turn"
        case "chunk":
            text = f"chunk of artifact {change.subject}, {change.size} bytes"
        case "unknown":
            return f"unknown entry of kind {change.subject!r}, {change.size} bytes"
        case name:
            text = f"{name} {change.subject}".rstrip()
            text += f" from {change.by}" if change.by else ""
            text += f", {change.size} bytes"
    text += ", the last" if change.is_last else ""
    return text + (f", {change.references} parts elsewhere" if change.references else "")


def _ranges(versions: Sequence[int]) -> str:
    """Return versions in rising order as `2-4, 7`."""
    spans: list[list[int]] = []
    for version in versions:
        if spans and spans[-1][-1] == version - 1:
            spans[-1][1:] = [version]
        else:
            spans.append([version])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _end(end: AttemptEnd) -> str:
    reason = end.reason or "no reason given"
    return f"{reason} (correlation id {end.correlation_id})" if end.correlation_id else reason


def _or_unreadable(value: str | int | None) -> str | int:
    return _UNREADABLE if value is None else value


def _iso(at_ms: int | None) -> str | None:
    """Return a time in UTC; as the number that is stored where no calendar has it."""
    if at_ms is None:
        return None
    try:
        at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- JSON ------------------------------------------------------------------------------------


def _several_json(found: Sequence[Timeline]) -> str:
    scopes = [
        {"scope": one.scope, "state": one.state, "created_at": _iso(one.created_at)}
        for one in found
    ]
    return json.dumps({"task_id": found[0].task_id, "scopes": scopes})


def _as_json(shown: Timeline) -> dict[str, Any]:
    holder, cancel = shown.holder, shown.cancel
    return {
        "task_id": shown.task_id,
        "scope": shown.scope,
        "context_id": shown.context_id,
        "state": shown.state,
        "created_at": _iso(shown.created_at),
        "changed_at": _iso(shown.changed_at),
        "expires_at": _iso(shown.expires_at),
        "version": shown.version,
        "turn": shown.turn,
        "turn_is_open": shown.turn_is_open,
        "attempts": shown.attempts,
        "holder": holder and {"worker": holder.worker, "since": _iso(holder.since)},
        "given_back": _end_as_json(shown.given_back),
        "due_at": _iso(shown.due_at),
        "size": shown.size,
        "cancel": cancel and {"at": _iso(cancel.at), "by": cancel.by},
        "webhooks": [_webhook_as_json(webhook) for webhook in shown.webhooks],
        "commits": [_commit_as_json(commit) for commit in shown.commits],
        "unreadable": shown.unreadable,
    }


def _commit_as_json(commit: Committed) -> dict[str, Any]:
    return {
        "version": commit.version,
        "at": _iso(commit.at),
        "worker": commit.worker,
        "ended": _end_as_json(commit.ended),
        "ended_itself": commit.ended_itself,
        "changes": [_change_as_json(change) for change in commit.changes],
    }


def _webhook_as_json(webhook: Webhook) -> dict[str, Any]:
    return {
        "id": webhook.config_id,
        "told_up_to": webhook.told_up_to,
        "failures": webhook.failures,
        "failing_since": _iso(webhook.failing_since),
        "refusals": webhook.refusals,
        "given_up": webhook.is_given_up,
    }


def _end_as_json(end: AttemptEnd | None) -> dict[str, str] | None:
    return None if end is None else {"reason": end.reason, "correlation_id": end.correlation_id}


def _change_as_json(change: Change) -> dict[str, Any]:
    """Return a change; what says nothing about it is left out."""
    values = {
        "name": change.name,
        "subject": change.subject,
        "by": change.by,
        "size": change.size,
        "is_last": change.is_last,
        "is_critical": change.is_critical,
        "base": change.base,
        "discards": change.discards if change.name == "restart" else None,
        "references": change.references,
    }
    return {name: value for name, value in values.items() if value not in (None, "", False, 0)}
