"""A timeline as JSON, for programs: times in UTC, without contents."""

from __future__ import annotations

from typing import Any

from a2a_serverless.tasks.head import AttemptEnd
from a2a_serverless.tasks.progress import Progress
from a2a_serverless.tasks.push import GivenUp
from a2a_serverless_tools.inspect.timeline import Change, Committed, Timeline
from a2a_serverless_tools.inspect.turns import Attempt, Turn
from a2a_serverless_tools.inspect.webhooks import Delivery, Webhook
from a2a_serverless_tools.inspect.wording import iso, sentence


def as_json(shown: Timeline) -> dict[str, Any]:
    """Return what `a2a-serverless task --json` prints."""
    holder, cancel = shown.holder, shown.cancel
    return {
        "task_id": shown.task_id,
        "scope": shown.scope,
        "context_id": shown.context_id,
        "state": shown.state,
        "created_at": iso(shown.created_at),
        "changed_at": iso(shown.changed_at),
        "expires_at": iso(shown.expires_at),
        "version": shown.version,
        "turn": shown.turn,
        "turn_is_open": shown.turn_is_open,
        "progress": _progress(shown.progress),
        "attempts": shown.attempts,
        "spared": {
            "faults": shown.spared.faults,
            "interruptions": shown.spared.interruptions,
        },
        "holder": holder
        and {
            "worker": holder.worker,
            "since": iso(holder.since),
            "seen_at": iso(holder.seen_at),
            "lease_until": iso(holder.lease_until),
        },
        "given_back": _end(shown.given_back),
        "due_at": iso(shown.due_at),
        "sends": shown.sends,
        "size": shown.size,
        "write_units": shown.units,
        "cancel": cancel and {"at": iso(cancel.at), "by": cancel.by},
        "story": [
            {"at": iso(one.at), "version": one.version or None, "what": one.what}
            | {"sentence": sentence(one)}
            for one in shown.story
        ],
        "turns": [_turn(turn) for turn in shown.turns],
        "webhooks": [_webhook(one) for one in shown.webhooks],
        "commits": [_commit(commit) for commit in shown.commits],
        "unreadable": shown.unreadable,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "turn": turn.number,
        "by": turn.by,
        "opened_at": iso(turn.opened_at),
        "began_at": iso(turn.began_at),
        "ended_at": iso(turn.ended_at),
        "ended": turn.ended,
        "attempts": [_attempt(attempt) for attempt in turn.attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "worker": attempt.worker,
        "waited_ms": attempt.waited_ms,
        "started_at": iso(attempt.started_at),
        "last_at": iso(attempt.last_at),
        "over_at": iso(attempt.over_at),
        "versions": attempt.versions,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "correlation_id": attempt.correlation_id,
    }


def _webhook(one: Webhook) -> dict[str, Any]:
    return {
        "config_id": one.config_id,
        "receiver": one.receiver,
        "version": one.version,
        "told": one.told if one.knows_told else None,
        "told_is_known": one.knows_told,
        "given_up": one.given_up and _given_up(one.given_up),
        "owed": one.owed,
        "failures": one.failures,
        "failing_since": iso(one.failing_since),
        "refusals": one.refusals,
        "receiver_given_up": one.is_given_up,
        "answer": one.answer or None,
        "answered_at": iso(one.answered_at),
        "next_at": iso(one.next_at),
        "deleted": one.is_gone,
        "deliveries": [_delivery(delivery) for delivery in one.deliveries],
    }


def _given_up(lost: GivenUp) -> dict[str, Any]:
    return {
        "count": lost.count,
        "version": lost.version,
        "at": iso(lost.at),
        "reason": lost.reason,
    }


def _delivery(one: Delivery) -> dict[str, Any]:
    return {
        "at": iso(one.at),
        "version": one.version or None,
        "attempt": one.attempt or None,
        "result": one.result,
        "answer": one.answer,
        "wait_ms": one.wait_ms,
    }


def _commit(commit: Committed) -> dict[str, Any]:
    return {
        "version": commit.version,
        "at": iso(commit.at),
        "worker": commit.worker,
        "ended": _end(commit.ended),
        "ended_itself": commit.ended_itself,
        "write_units": commit.units,
        "changes": [_change(change) for change in commit.changes],
    }


def _end(end: AttemptEnd | None) -> dict[str, str | None] | None:
    if end is None:
        return None
    return {
        "at": iso(end.at),
        "reason": end.reason,
        "correlation_id": end.correlation_id,
        "until": iso(end.until or None),
    }


def _progress(progress: Progress | None) -> dict[str, float] | None:
    return None if progress is None else {"done": progress.done, "total": progress.total}


def _change(change: Change) -> dict[str, Any]:
    """Return a change; fields that do not apply to it are left out."""
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
        "progress": _progress(change.progress),
    }
    return {name: value for name, value in values.items() if value not in (None, "", False, 0)}
