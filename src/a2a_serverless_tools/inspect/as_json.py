"""A timeline as JSON, for programs: times in UTC, without contents."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Final

from a2a_serverless.tasks.head import AttemptEnd
from a2a_serverless_tools.inspect.story import Happening
from a2a_serverless_tools.inspect.timeline import Change, Committed, Timeline
from a2a_serverless_tools.inspect.turns import Turn
from a2a_serverless_tools.inspect.webhooks import Webhook
from a2a_serverless_tools.inspect.wording import iso, sentence

_TIME: Final = re.compile(r"(.+_)?(at|since|until)")
"""The names of fields that are times."""


def as_json(shown: Timeline) -> dict[str, Any]:
    """Return what `a2a-serverless task --json` prints."""
    return _plain(shown, units="write_units") | {
        "progress": shown.progress and _plain(shown.progress),
        "spared": _plain(shown.spared, "waited"),
        "holder": shown.holder and _plain(shown.holder),
        "given_back": _end(shown.given_back),
        "cancel": shown.cancel and _plain(shown.cancel),
        "story": [_happening(one) for one in shown.story],
        "turns": [_turn(turn) for turn in shown.turns],
        "webhooks": [_webhook(one) for one in shown.webhooks],
        "commits": [_commit(commit) for commit in shown.commits],
    }


def _plain(one: Any, *left_out: str, **named: str) -> dict[str, Any]:
    """Return the fields of a dataclass by their names, or by those that `named` gives them."""
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    return {
        named.get(name, name): iso(value) if _TIME.fullmatch(name) else value
        for name, value in values.items()
        if name not in left_out
    }


def _happening(one: Happening) -> dict[str, Any]:
    version = one.version or None
    return {"at": iso(one.at), "version": version, "what": one.what, "sentence": sentence(one)}


def _turn(turn: Turn) -> dict[str, Any]:
    return _plain(turn, number="turn") | {"attempts": [_plain(one) for one in turn.attempts]}


def _webhook(one: Webhook) -> dict[str, Any]:
    plain = _plain(
        one, knows_told="told_is_known", is_given_up="receiver_given_up", is_gone="deleted"
    )
    return plain | {
        "told": one.told if one.knows_told else None,
        "given_up": one.given_up and _plain(one.given_up),
        "answer": one.answer or None,
        "deliveries": [
            _plain(each, "config_id")
            | {"version": each.version or None, "attempt": each.attempt or None}
            for each in one.deliveries
        ],
    }


def _commit(commit: Committed) -> dict[str, Any]:
    changes = [_change(change) for change in commit.changes]
    return _plain(commit, units="write_units") | {"ended": _end(commit.ended), "changes": changes}


def _end(end: AttemptEnd | None) -> dict[str, str | None] | None:
    if end is None:
        return None
    return {
        "at": iso(end.at),
        "reason": end.reason,
        "correlation_id": end.correlation_id,
        "until": iso(end.until or None),
    }


def _change(change: Change) -> dict[str, Any]:
    """Return a change; fields that do not apply to it are left out."""
    values = _plain(change) | {"progress": change.progress and _plain(change.progress)}
    if change.name != "restart":
        del values["discards"]
    return {name: value for name, value in values.items() if value not in (None, "", False, 0)}
