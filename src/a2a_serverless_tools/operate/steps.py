"""The steps of a task: what each has returned, and what it took in time and tokens. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from a2a_serverless.tasks.entries import ModelsUsed, Recorded, StepId
from a2a_serverless.tasks.fold import Log, Record
from a2a_serverless.tasks.questions import Asked
from a2a_serverless.tasks.turns import Turn
from a2a_serverless.tasks.usage import total
from a2a_serverless.tasks.waits import (
    CALL,
    CALL_OPEN,
    CALL_SENT,
    CALLBACK,
    POLL,
    kept_of,
    open_waits,
)
from a2a_serverless_tools.operate.wording import iso
from a2a_serverless_tools.operate.words import MOST_OF_A_LINE, step_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step, a sleep or a question, of which the log has a record."""

    id: StepId
    turn: int
    attempt: int
    """The number of the attempt that has recorded it; 0: unknown."""
    version: int
    at: int | None
    """The time of its record, in milliseconds since the epoch."""
    took_ms: int | None
    """At most: since the record before it, else since the message of a turn's first attempt, or the
    claim of a later one. None: unknown."""
    tokens: int
    """What models have used in that time. Steps recorded by one commit share time and tokens, which
    stand with the first of them."""
    result: str
    """Its result in short, as JSON; or what the record says instead."""
    is_discarded: bool
    """A restart has taken it back: it runs again."""


_Kind: TypeAlias = Literal["callback", "poll", "agent", "step"]
_KINDS: Final[Mapping[str, _Kind]] = {
    CALLBACK: "callback",
    POLL: "poll",
    f"{CALL_SENT} ": "agent",
    f"{CALL} ": "agent",
    "": "step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """What an agent's code waits for beside its client and sleeps. Times are milliseconds."""

    kind: _Kind
    """A `step` has failed, and is tried again."""
    id: StepId
    name: str
    """Of the callback, poll, agent or step, with its key."""
    since: int | None
    """When its first record was written; None: unknown."""
    until: int
    """The end of the time of a callback; else when it is looked for again."""
    gives_up_at: int | None
    """When the code stops waiting; None: `until` says it, or never."""
    task_id: str
    """The task of the agent; empty: it is not known, or of another kind."""


def awaited_of(log: Log) -> tuple[Awaited, ...]:
    """Return what the agent's code waits for; the log was read from its beginning."""
    found = []
    since: dict[StepId, int | None] = {}
    for record in log.replayed():
        for entry in record.entries:
            if isinstance(entry, Recorded):
                since.setdefault(entry.id, record.at)
    for of, wait in open_waits(log).items():
        begins, kind = next(each for each in _KINDS.items() if of.name.startswith(each[0]))
        found.append(
            Awaited(
                kind=kind,
                id=of,
                name=step_text(of).removeprefix(begins),
                since=since.get(of),
                until=wait.at,
                gives_up_at=wait.deadline or None,
                task_id=_called_task(log, of) if kind == "agent" else "",
            )
        )
    return tuple(found)


def _called_task(log: Log, wait_id: StepId) -> str:
    sent_id = wait_id._replace(name=wait_id.name.replace(CALL, CALL_SENT, 1))
    sent = kept_of(log).records.get(sent_id)
    if sent is None or sent.form != "json":
        return ""
    return str(json.loads(sent.value).get(CALL_OPEN, ""))


def steps_of(
    turns: Iterable[Turn], records: Iterable[Record], discards: Mapping[int, tuple[int, ...]]
) -> tuple[Step, ...]:
    """Return the steps in the order of their records; of a step that was tried again the last one.

    `discards`: by the version of a restart, the versions that it takes back.
    """
    attempts = {v: (turn, one) for turn in turns for one in turn.attempts for v in one.versions}
    gone = {version for versions in discards.values() for version in versions}
    since: dict[int, int | None] = {}
    tokens = 0
    found: dict[tuple[int, StepId], Step] = {}
    for record in records:
        own = [entry for entry in record.entries if isinstance(entry, Recorded)]
        turn, attempt = attempts.get(record.version, (None, None))
        if attempt is not None and attempt.first == record.version:
            tokens = 0
        used = (entry.usage for entry in record.entries if isinstance(entry, ModelsUsed))
        tokens += sum(total(usage).tokens for usage in used)
        if not own or turn is None or attempt is None:
            continue
        # The first attempt of a turn claims with its first commit, behind its first steps.
        claimed_at = turn.opened_at if attempt is turn.attempts[0] else attempt.started_at
        began = since.get(attempt.first, claimed_at)
        took = None if began is None or record.at is None else max(0, record.at - began)
        for entry in own:
            found.pop((turn.version, entry.id), None)
            found[turn.version, entry.id] = Step(
                id=entry.id,
                turn=turn.number,
                attempt=attempt.number,
                version=record.version,
                at=record.at,
                took_ms=took,
                tokens=tokens,
                result=_result(entry),
                is_discarded=record.version in gone,
            )
            took, tokens = None, 0
        since[attempt.first] = record.at
    return tuple(found.values())


def _result(entry: Recorded) -> str:
    """Return what a record says, in short; a result that is large is stored elsewhere."""
    if entry.is_offloaded:
        return "stored elsewhere, as it is large"
    match entry.form:
        case "json":
            return _short(entry.value.decode(errors="replace"))
        case "error":
            return _short("failed: {}: {}".format(*json.loads(entry.value)))
        case "until":
            return f"until {iso(json.loads(entry.value)[0])}"
        case "cancelled":
            return "cancelled by the agent"
        case "asked":
            until = Asked.of(entry).until
            return f"asked, until {iso(until)}" if until else "asked"
        case "taken":
            return "answered"
        case _:
            return f"{len(entry.value):,} bytes"


def _short(text: str) -> str:
    return text if len(text) <= MOST_OF_A_LINE else f"{text[:MOST_OF_A_LINE]}…"
