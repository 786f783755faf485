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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from a2a_serverless import faults
from a2a_serverless.errors import ConditionFailedError, UnreadableTaskError
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import seconds
from a2a_serverless.storage.table import (
    STORED,
    Appended,
    Check,
    CopyOf,
    Delete,
    Item,
    Kept,
    Key,
    Range,
    Shifted,
    Update,
    When,
    are,
)
from a2a_serverless.tasks.conversation import MOST_WAITING, First, Place, on_first
from a2a_serverless.tasks.head import Head

if TYPE_CHECKING:
    from a2a_serverless.storage.durable import DurableStorage

logger = logging.getLogger(__name__)

_STEPS: Final = 4 * MOST_WAITING
"""The most places that one call of `pass_on` looks at: others may change the line meanwhile."""


@dataclass(frozen=True, slots=True)
class Line:
    """The turns of a conversation, the first one in front. `since` is when it became the first."""

    places: tuple[Place, ...] = ()
    since: int = 0

    @classmethod
    def of(cls, item: Item | None) -> Line:
        """Return the line that an item holds; an empty one if there is none, or it is damaged."""
        stored, since = (item or {}).get("line"), (item or {}).get("since")
        places = tuple(map(Place.stored, stored)) if isinstance(stored, list) else ()
        return cls(places, since if isinstance(since, int) else 0)


def join(storage: DurableStorage, head: Head, turn: int) -> Update:
    """Return the update that takes a place at the end of the line; refused if it is full.

    The line is stored as long as the task that was created last in the conversation.
    """
    has_room: When = [[Check("line", "shorter", MOST_WAITING + 1), Check("line", "absent")]]
    expires_at = seconds(head.expires_at)
    values = {
        "line": Appended(str(Place.of(head, turn))),
        "since": Kept(storage.clock.now_ms()),
        "expires_at": expires_at if turn == 1 else Kept(expires_at),
        **layout.context_owner(storage.scope.digest, head.context_id, layout.LINE),
    }
    return Update(key=_key(storage, head.context_id), values=values, when=has_room)


def give_up(
    storage: DurableStorage, context_id: str, place: Place, line: Sequence[Place]
) -> Update | None:
    """Return the write that gives up the first place of `line`; None if another one is there.

    It is refused if the line begins otherwise, or has become longer where it would become empty.
    """
    key, text = _key(storage, context_id), str(place)
    if [*line] == [place]:
        return Update(key=key, values={}, remove=["line", "since"], when=are(line=[text]))
    if [*line[:1]] == [place]:
        values = {"line": Shifted(), "since": storage.clock.now_ms()}
        return Update(key=key, values=values, when=[Check("line", "begins", [text])])
    return None


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
    with _going_on(head.context_id, head):
        await storage.observer.send(head)


async def pass_on(storage: DurableStorage, context_id: str, *, waiting: Head | None = None) -> None:
    """Let the first turn of a conversation run, after dropping places that are free.

    Called after a turn has ended or was left; needless calls do no harm. What fails here is logged:
    a sweep looks at each left turn again. `waiting` is such a turn: if its place is lost with its
    line, it is woken, and takes another one.
    """
    faults.point("before-pass-on")
    with _going_on(context_id, waiting):
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
def _going_on(context_id: str, head: Head | None) -> Iterator[None]:
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
    if first is First.WAKE and head is not None:
        return await _wake(storage, head)
    if first is First.DROP and (write := give_up(storage, context_id, place, line.places)):
        await storage.table.did(write)
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
        return await storage.postpone(head, due_at=now_ms, sends=head.sends)
    woken = await storage.wake(head)
    if woken is None:
        return False
    faults.point("after-wake")
    await send(woken)
    return True


async def take_place(storage: DurableStorage, head: Head) -> Line:
    """Take a place for the current turn of a task, which has none; return the line as it is then.

    In a full line it takes none, and the line is empty. So is that of a task that is gone: what a
    deletion has forgotten is not made again.
    """
    same = Update(
        key=layout.head_key(head.scope, head.task_id),
        values={"turn": CopyOf("turn")},
        when=are(incarnation=head.incarnation),
    )
    try:
        await storage.table.write(join(storage, head, head.turn), same)
    except ConditionFailedError:
        return Line()
    return await line_of(storage, head.context_id)


async def forget_line(storage: DurableStorage, context_id: str) -> bool:
    """Delete the line of a conversation whose tasks are deleted; return True if there was one."""
    return await storage.table.did(Delete(key=_key(storage, context_id), when=[STORED]))


def _key(storage: DurableStorage, context_id: str) -> Key:
    return layout.line_item(storage.scope.digest, context_id)
