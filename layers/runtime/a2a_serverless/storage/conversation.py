"""The line of a conversation, whose turns run one after the other.

It is an item beside the conversation's state, with the places of the turns in the order in which
their messages were accepted. A place is taken in the transaction that accepts the message. That of
a turn which is alone in its conversation is given up in the transaction that ends the turn; any
other is dropped by `pass_on` when it is the first.

A turn is never forgotten: it is left before the line is read once more, and a place is dropped
before HEAD of the next turn is read. So one of the two processes sees what the other has done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from a2a_serverless import faults
from a2a_serverless.errors import (
    ConditionFailedError,
    ConversationFullError,
    UnreadableTaskError,
)
from a2a_serverless.storage import codec, layout
from a2a_serverless.storage.changes import Change, change
from a2a_serverless.storage.codec import seconds
from a2a_serverless.storage.table import STORED, Check, Delete, Item, Key, Put, Range, Write, are
from a2a_serverless.tasks.conversation import MOST_WAITING, FirstDecision, Place, on_first
from a2a_serverless.tasks.head import Head

if TYPE_CHECKING:
    from a2a_serverless.storage.durable import DurableStorage

logger = logging.getLogger(__name__)

_STEPS: Final = 4 * MOST_WAITING
"""The most places that one call of `pass_on` looks at: others may change the line meanwhile."""


@dataclass(frozen=True, slots=True)
class Line:
    """The turns of a conversation, the first one in front; each write replaces it as a whole.

    No turn takes two places, so the places tell a line from those before it.
    """

    places: tuple[Place, ...] = ()
    since: int = 0
    """When the first place became the first, in milliseconds."""
    expires_at: int = 0
    """In seconds: that of the task that was created last in the conversation."""

    @classmethod
    def of(cls, item: Item | None) -> Line:
        """Return the line that an item holds; an empty one if there is none.

        Raises:
            UnreadableTaskError: the item is damaged.
        """
        if item is None or "line" not in item:
            return cls()
        try:
            places = tuple(map(Place.stored, item["line"].split()))
            return cls(places, int(item["since"]), int(item["expires_at"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"The line of a conversation ({item['PK']}) is damaged: delete the item."
            raise UnreadableTaskError(msg) from error

    @property
    def mark(self) -> str:
        """Return its places as they are stored."""
        return " ".join(map(str, self.places))

    def joined(self, head: Head, turn: int, now_ms: int) -> Line:
        """Return the line with a place for a turn at its end.

        Raises:
            ConversationFullError: it is full.
        """
        if len(self.places) > MOST_WAITING:
            raise ConversationFullError
        is_latest = turn == 1 or not self.places
        return Line(
            (*self.places, Place.of(head, turn)),
            since=self.since or now_ms,
            expires_at=seconds(head.expires_at) if is_latest else self.expires_at,
        )

    def without(self, place: Place, now_ms: int) -> Line:
        """Return the line without its first place; as it is, if another one is there."""
        if self.places[:1] != (place,):
            return self
        rest = self.places[1:]
        return Line(rest, now_ms if rest else 0, self.expires_at)


def joining(
    storage: DurableStorage, head: Head, *, turn: int, line: Line | None = None
) -> Change[Line]:
    """Return the change of a conversation's line by which a turn of HEAD takes a place.

    `line` is what the line is taken for at first: a guess saves the read.
    """
    joins = partial(Line.joined, head=head, turn=turn, now_ms=storage.clock.now_ms())
    return _change(storage, head.context_id, line or Line(), joins)


def leaving(storage: DurableStorage, head: Head) -> Change[Line]:
    """Return the change of a conversation's line that goes with the end of HEAD's turn."""
    place = Place.of(head)
    # Most turns are alone in their conversation. One that is parked does not have it.
    places = () if head.turn.parked else (place,)
    line = Line(places, expires_at=seconds(head.expires_at))
    return _change(storage, head.context_id, line, _dropping(storage, place))


def _dropping(storage: DurableStorage, place: Place) -> Callable[[Line], Line]:
    return partial(Line.without, place=place, now_ms=storage.clock.now_ms())


def _change(
    storage: DurableStorage, context_id: str, line: Line, decide: Callable[[Line], Line]
) -> Change[Line]:
    return Change(line, decide, partial(replaced, storage, context_id), Line.of)


def replaced(storage: DurableStorage, context_id: str, before: Line, after: Line) -> Write:
    """Return the write that puts `after` in the place of `before`, refused if it has changed."""
    key = _key(storage, context_id)
    is_same = are(line=before.mark) if before.places else [Check("line", "absent")]
    item = {
        **key._asdict(),
        **layout.context_owner(storage.scope.digest, context_id, layout.LINE),
        "expires_at": after.expires_at,
    }
    if after.places:
        item |= {"line": after.mark, "since": after.since}
    # An empty line stays: its entry in by-scope would cost a unit to remove, and one to make anew.
    return Put(item=item, when=is_same)


async def found_in(storage: DurableStorage, context_id: str) -> dict[str, Item]:
    """Return what is stored of a conversation, its line and its state, by sort key, in one request.

    The line is read first: with a turn in front, the state is the one that the turn before it left.
    """
    partition = _key(storage, context_id).PK
    items = await storage.table.all(Range(partition=partition, newest_first=True))
    return {item["SK"]: item for item in items}


async def line_of(storage: DurableStorage, context_id: str) -> Line:
    """Return the line of a conversation."""
    return Line.of(await storage.table.get(_key(storage, context_id)))


async def begin(storage: DurableStorage, head: Head) -> None:
    """Send the copy with which a turn begins that has waited for the end of the one before it.

    Without it, or without a queue, a sweep sends one, as a failure here is only logged.
    """
    if storage.observer.send is None:
        return
    with _log_exceptions(head.context_id, head):
        await storage.observer.send(head)


async def pass_on(storage: DurableStorage, context_id: str, *, waiting: Head | None = None) -> None:
    """Let the first turn of a conversation run, after dropping places that are free.

    Called after a turn has ended or was left; needless calls do no harm. What fails here is logged:
    a sweep looks at each left turn again. `waiting` is such a turn: if its place is lost with its
    line, it is woken, and takes another one.
    """
    faults.point("before-pass-on")
    with _log_exceptions(context_id, waiting):
        if waiting is not None:
            line = await line_of(storage, context_id)
            if Place.of(waiting) not in line.places:
                await _wake(storage, waiting)
                return
        for _ in range(_STEPS):
            line = await line_of(storage, context_id)
            if not line.places or await _is_settled(storage, context_id, line):
                return


@contextmanager
def _log_exceptions(context_id: str, head: Head | None) -> Iterator[None]:
    """Log what fails in the block: the commit before it stands, whatever is answered here."""
    try:
        yield
    except Exception:
        extra = {"action": "pass_on_failed", "context_id": context_id}
        extra |= {"task_id": head.task_id} if head is not None else {}
        logger.exception("The next turn of a conversation, or of a task, was not sent", extra=extra)


async def _is_settled(storage: DurableStorage, context_id: str, line: Line) -> bool:
    """Look at the first turn of a line; return False if the line has to be looked at again."""
    place = line.places[0]
    try:
        head = await storage.head(place.task_id)
    except UnreadableTaskError:  # no worker can run it: it takes a new place once it is restored
        head = None
    first = on_first(
        head,
        place,
        since=line.since,
        waiting=len(line.places) - 1,
        now_ms=storage.clock.now_ms(),
        hold_s=storage.timing.hold_s,
    )
    if first is FirstDecision.WAKE and head is not None:
        return await _wake(storage, head)
    if first is FirstDecision.DROP:
        drops = _change(storage, context_id, line, _dropping(storage, place))
        await change(storage.table, storage.clock, drops)
        return False
    return True


async def _wake(storage: DurableStorage, head: Head) -> bool:
    """Put a left turn on the queue; return False if HEAD has changed.

    It has waited for its conversation, not for a share: while others wait for one, the worker that
    receives it leaves it in line with them.
    """
    send = storage.observer.send
    if send is None:  # a command on the table alone: the next sweep passes on
        now_ms = storage.clock.now_ms()
        return await storage.postpone(head, due_at=now_ms, sends=head.turn.sends) is not None
    woken = await storage.requeue(head)
    if woken is None:
        return False
    faults.point("after-wake")
    # After the write, which only one process wins: so one copy is sent. If this process dies here,
    # the sweeper sends it.
    await send(woken)
    return True


async def take_place(storage: DurableStorage, head: Head) -> Line:
    """Take a place for the current turn of a task, which has none; return the line as it is then.

    In a full line it takes none, and the line is empty. So is that of a task that is gone: what a
    deletion has forgotten is not made again.
    """
    line = await line_of(storage, head.context_id)
    joins = joining(storage, head, turn=head.turn.number, line=line)
    try:
        await change(storage.table, storage.clock, joins, also=[codec.unchanged(head)])
    except (ConditionFailedError, ConversationFullError):
        return Line()
    return joins.after


async def forget_line(storage: DurableStorage, context_id: str) -> bool:
    """Delete the line of a conversation whose tasks are deleted; return True if there was one."""
    return await storage.table.did(Delete(key=_key(storage, context_id), when=[STORED]))


def _key(storage: DurableStorage, context_id: str) -> Key:
    return layout.line_item(storage.scope.digest, context_id)
