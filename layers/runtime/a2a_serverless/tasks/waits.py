"""What a turn's code waits for beside its client, and what has ended its waits. Pure.

A wait is a step whose result is not there yet. Its record has the step's id, and says until when it
lasts. What ends it is that time, or a signal: a record of the same id that came from outside.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import field
from enum import Enum
from typing import Final, NamedTuple

from a2a_serverless.tasks.entries import SIGNAL, TIMEOUT, UNTIL, Recorded, StepId
from a2a_serverless.tasks.fold import Log
from a2a_serverless.values import dataclass

SLEEP: Final = "ctx.sleep"
"""The name of the records of sleeps."""
CALLBACK: Final = "ctx.callback "
"""Begins the names of the records of callbacks."""
POLL: Final = "ctx.poll "
"""Begins the names of the records of polls."""
CALL: Final = "ctx.call_agent"
"""Begins the names of the records of a call of another agent; the agent's name follows."""
CALL_SENT: Final = f"{CALL}.sent"
"""Begins the name of that which has the id of the other agent's task, as JSON: `CALL_OPEN`."""
CALL_OPEN: Final = "open"
MAX_SIGNAL_BYTES: Final = 256 * 1024
"""The longest body of a signal."""
FORM: Final = "application/x-www-form-urlencoded"
"""The media type of a form that a browser posts."""
_MAC_BYTES: Final = 16


class Until(NamedTuple):
    """What the record of a wait says beside its id. Times are milliseconds since the epoch."""

    at: int = 0
    """The time at which the code goes on; 0: there is no wait."""
    before: int = 0
    """What was before it: the tries of its step; or, of a sleep, the sleeps of its name and key
    right before it, which are over and have no record of their own."""
    seen: int = 0
    """The version up to which its writer knew the signals from outside."""
    deadline: int = 0
    """The time at which its step gives up; 0: there is none."""

    def record(self, step_id: StepId) -> Recorded:
        """Return the record of the wait."""
        return Recorded(step_id, UNTIL, json.dumps([*self]).encode())

    @classmethod
    def of(cls, entry: Recorded | None) -> Until:
        """Return what a record says that `record` has made; of any other, that there is no wait."""
        if entry is None or entry.form != UNTIL:
            return cls()
        return cls(*map(int, json.loads(entry.value)[:4]))


class Signal(NamedTuple):
    """What came from outside for a wait."""

    body: bytes
    media_type: str = ""
    by: str = ""
    """Who has sent it, as far as is known; empty: who knows the address."""

    def record(self, step_id: StepId) -> Recorded:
        """Return the record that ends the wait of a step."""
        about = json.dumps([self.media_type, self.by]).encode()
        return Recorded(step_id, SIGNAL, len(about).to_bytes(4, "big") + about + self.body)

    @classmethod
    def of(cls, entry: Recorded) -> Signal:
        """Return what a record says that `record` has made."""
        end = 4 + int.from_bytes(entry.value[:4], "big")
        media_type, by = json.loads(entry.value[4:end])[:2]
        return cls(entry.value[end:], media_type, by)


class Waited(NamedTuple):
    """The wait that an address names: of a step, of the code of one incarnation of a task."""

    scope: str
    task_id: str
    incarnation: str
    turn: int
    """That with whose message the code began."""
    step_id: StepId

    def token(self, secret: bytes) -> str:
        """Return the token of the wait's address: anyone who has it may end the wait, once."""
        named = json.dumps([*self[:4], *self.step_id], separators=(",", ":")).encode()
        mac = hmac.digest(secret, named, "sha256")[:_MAC_BYTES]
        return urlsafe_b64encode(mac + named).rstrip(b"=").decode()

    @classmethod
    def of(cls, token: str, secret: bytes) -> Waited | None:
        """Return the wait that a token names; None: it was not made with this secret."""
        try:
            raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError:
            return None
        mac, named = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if urlsafe_b64encode(raw).rstrip(b"=").decode() != token:
            return None  # the decoder drops foreign characters: a wait has one spelling
        if not hmac.compare_digest(mac, hmac.digest(secret, named, "sha256")[:_MAC_BYTES]):
            return None
        scope, task_id, incarnation, turn, *step = json.loads(named)
        return cls(scope, task_id, incarnation, turn, StepId(*step))


@dataclass(slots=True)
class Kept:
    """The records of the agent's code that count, by the steps that they are of.

    Of two records of a step the later one counts, save that a signal ends the wait that it finds:
    neither a time-out counts behind it, nor a wait whose writer did not know it.
    """

    records: dict[StepId, Recorded] = field(default_factory=dict)
    signals: dict[StepId, int] = field(default_factory=dict)
    """The version of the last signal for each step that has had one."""

    def add(self, entry: Recorded, version: int) -> None:
        """Take the next record of the log."""
        signal_at = self.signals.get(entry.id, 0)
        if entry.is_signal:
            self.signals[entry.id] = version
        elif signal_at and (entry.form == TIMEOUT or _is_unaware(entry, signal_at)):
            return
        self.records.update(dict.fromkeys(ids_in(entry), entry))


def _is_unaware(entry: Recorded, signal_at: int) -> bool:
    return entry.form == UNTIL and Until.of(entry).seen < signal_at


def kept_of(log: Log) -> Kept:
    """Return the records that the current turn's code finds in a log read from its beginning."""
    kept = Kept()
    for record in log.replayed():
        for entry in record.entries:
            if isinstance(entry, Recorded):
                kept.add(entry, record.version)
    return kept


class SignalDecision(Enum):
    """What becomes of a signal for a step."""

    TAKE = "take"
    """It is committed, and ends the wait, be that one that stands or one that is to come."""
    DONE = "done"
    """Another one has come first, and counts."""
    OVER = "over"
    """Nothing waits for it any more: the step has a result or its time is over, or the code is."""


def open_waits(log: Log) -> dict[StepId, Until]:
    """Return the waits that stand of the agent's code beside sleeps, the first one first.

    The log was read from its beginning. One whose time is over stands until the code has said so,
    which it does not of a sleep.
    """
    turn = log.head.turn
    if log.head.is_terminal or not (turn.is_open or turn.asks):
        return {}
    found = kept_of(log).records
    waits = {of: each for of, each in found.items() if each.form == UNTIL and of.name != SLEEP}
    return {of: Until.of(each) for of, each in waits.items()}


def on_signal(log: Log | None, turn: int, step_id: StepId) -> SignalDecision:
    """Return what becomes of a signal for a step of the code that began with turn `turn`."""
    if log is None or log.head.is_terminal:
        return SignalDecision.OVER
    current = log.head.turn
    if not (current.is_open or current.asks) or turn != current.began_with:
        return SignalDecision.OVER
    kept = kept_of(log)
    found = kept.records.get(step_id)
    if found is not None and found.form != UNTIL and not found.is_signal:
        return SignalDecision.OVER
    # Also where the step has looked behind it, found nothing, and waits again.
    return SignalDecision.DONE if step_id in kept.signals else SignalDecision.TAKE


def ids_in(entry: Recorded) -> list[StepId]:
    """Return what a record is of: a step, or sleeps behind one another."""
    before = Until.of(entry).before if entry.id.name == SLEEP else 0
    last = entry.id.number
    return [entry.id._replace(number=each) for each in range(last - before, last + 1)]
