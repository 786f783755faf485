"""What happened to a task, event by event, as its turns, commits and HEAD tell it in order. Pure.

Only what is stored is told. A process that died without a trace in the log, for example between a
commit and the acknowledgement of its message, does not appear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from a2a_serverless.tasks.entries import StatusChanged, Unknown
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import INTERRUPTED, TERMINAL, Head, plain_state
from a2a_serverless.tasks.push import GivenUp
from a2a_serverless_tools.inspect.turns import Attempt, Turn
from a2a_serverless_tools.inspect.webhooks import Webhook

What: TypeAlias = Literal[
    "accepted",  # a message, which opened a turn
    "waited for its turn",  # ... and became the current turn later
    "sent again",  # by the sweeper, as it was due
    "started",  # the first attempt of a turn
    "lost",  # an attempt, without a word
    "gave back",  # an attempt, with a reason
    "took over",  # the next attempt, from the one before
    "cancel asked",
    "reached",  # a state that ends or interrupts the task, by an attempt
    "reached without an attempt",  # ... by the API or the sweeper
    "given up",  # a notification, at last
    "missing",  # versions that are not there
    "unknown entry",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened. Fields that do not apply are 0, None or empty."""

    what: What
    at: int | None = None
    """Milliseconds since the epoch; None: unknown."""
    version: int = 0
    """The commit that tells it; 0: HEAD tells it."""
    turn: int = 0
    attempt: int = 0
    worker: str = ""
    after_ms: int | None = None
    """The time since the message was accepted; of a takeover, since the end of the attempt before,
    or since its last commit if its end is not known."""
    follows_an_end: bool = False
    """True if `after_ms` counts from the end of the attempt before."""
    reason: str = ""
    correlation_id: str = ""
    by: str = ""
    """The user who has asked; of what was given up, the receiver."""
    given_up: GivenUp | None = None
    state: str = ""
    discards: tuple[int, ...] = ()
    """Versions whose changes were taken back."""
    missing: tuple[int, int] = (0, 0)
    """The first and the last version of those that are missing."""
    count: int = 0


def story_of(
    head: Head,
    records: tuple[Record, ...],
    turns: Iterable[Turn],
    discards: dict[int, tuple[int, ...]],
    webhooks: Iterable[Webhook] = (),
) -> tuple[Happening, ...]:
    """Return what happened, in the order of the log.

    Args:
        head: the task's HEAD.
        records: its commits in order; some may be missing.
        turns: its turns.
        discards: by the version of a restart, the versions whose changes it has taken back.
        webhooks: its webhooks.
    """
    told = [one for turn in turns for one in _of_turn(head, turn, discards)]
    told += _of_entries(records)
    told += _holes(records)
    told.sort(key=lambda one: one.version)  # stable: those of one version keep their order
    if head.cancel is not None:
        at, by = head.cancel.at, head.cancel.by
        told.insert(_place(told, at), Happening(what="cancel asked", at=at or None, by=by))
    for one in webhooks:
        if (lost := one.given_up) is not None:
            happened = Happening(what="given up", at=lost.at, by=one.receiver, given_up=lost)
            told.insert(_place(told, lost.at), happened)
    return tuple(told)


def _of_turn(head: Head, turn: Turn, discards: dict[int, tuple[int, ...]]) -> Iterator[Happening]:
    of_turn = partial(Happening, turn=turn.number)
    if turn.number:
        yield of_turn(what="accepted", at=turn.opened_at, version=turn.number, by=turn.by)
    if turn.began_at is not None and turn.began_at != turn.opened_at:
        yield of_turn(what="waited for its turn", at=turn.began_at, version=turn.number)
    if head.sends and turn.number == head.turn:  # of the whole turn: its times are not known
        first = turn.attempts[0].first if turn.attempts else turn.number
        yield of_turn(what="sent again", version=first, count=head.sends)
    before: Attempt | None = None
    for attempt in turn.attempts:
        if before is not None:
            yield _end_of(turn, before, attempt.first)
        yield of_turn(
            what="started" if before is None else "took over",
            at=attempt.started_at,
            version=attempt.first,
            attempt=attempt.number,
            worker=attempt.worker,
            after_ms=turn.waited_ms if before is None else _since(before, attempt),
            follows_an_end=attempt.waited_ms is not None,
            discards=discards.get(attempt.first, ()),
        )
        before = attempt
    if before is not None and before.outcome in ("lost", "gave back", "failed"):
        yield _end_of(turn, before, turn.ended or before.last)


def _end_of(turn: Turn, attempt: Attempt, version: int) -> Happening:
    is_lost = attempt.outcome == "lost"
    return Happening(
        what="lost" if is_lost else "gave back",
        at=attempt.last_at if is_lost else attempt.over_at,
        version=version,
        turn=turn.number,
        attempt=attempt.number,
        worker=attempt.worker,
        reason=attempt.reason,
        correlation_id=attempt.correlation_id,
    )


def _since(before: Attempt, attempt: Attempt) -> int | None:
    if attempt.waited_ms is not None:
        return attempt.waited_ms
    last, at = before.last_at, attempt.started_at
    return None if last is None or at is None else at - last


def _of_entries(records: Iterable[Record]) -> Iterator[Happening]:
    for record in records:
        of_entry = partial(Happening, at=record.at, version=record.version)
        for entry in record.entries:
            if isinstance(entry, StatusChanged) and entry.status.state in TERMINAL | INTERRUPTED:
                what: What = "reached" if record.token is not None else "reached without an attempt"
                yield of_entry(what=what, state=plain_state(entry.status.state))
            elif isinstance(entry, Unknown):
                yield of_entry(what="unknown entry", reason=kind_name(entry.kind))


def _holes(records: Iterable[Record]) -> Iterator[Happening]:
    expected = 1
    for record in records:
        if record.version > expected:
            missing = (expected, record.version - 1)
            yield Happening(what="missing", version=expected, missing=missing)
        expected = record.version + 1


def _place(told: list[Happening], at: int) -> int:
    """Return the place in `told` after everything that happened until `at`."""
    return next(
        (place for place, one in enumerate(told) if one.at is not None and one.at > at), len(told)
    )


def kind_name(kind: bytes) -> str:
    """Return the kind of an entry as a character, or as `0x…` if it is not ASCII."""
    return kind.decode() if kind.isascii() else f"0x{kind.hex()}"
