"""The queue of a conversation, whose turns run one after the other.

It is an item beside the conversation's state, with the positions of the turns in the order in which
their messages were accepted. A position is taken in the transaction that accepts the message. That
of a turn which is alone in its conversation is given up in the transaction that ends the turn; any
other is dropped by `start_next_turn` when it is the first.

A turn is never forgotten: it is parked before the queue is read once more, and a position is
dropped before HEAD of the next turn is read. So one of the two processes sees what the other has
done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from a2a_serverless.tasks.conversation import MOST_WAITING, FirstDecision, Position, on_first
from a2a_serverless.tasks.head import Head
from a2a_serverless.values import dataclass

if TYPE_CHECKING:
    from a2a_serverless.storage.durable import DurableStorage

logger = logging.getLogger(__name__)

_STEPS: Final = 4 * MOST_WAITING
"""The most positions that one call of `start_next_turn` looks at: others may change the queue
meanwhile."""


@dataclass(frozen=True, slots=True)
class ConversationQueue:
    """The turns of a conversation, the first one in front; each write replaces it as a whole.

    No turn takes two positions, so the positions tell a queue from those before it.
    """

    positions: tuple[Position, ...] = ()
    since: int = 0
    """When the first position became the first, in milliseconds."""
    expires_at: int = 0
    """In seconds: that of the task that was created last in the conversation."""

    @classmethod
    def of(cls, item: Item | None) -> ConversationQueue:
        """Return the queue that an item holds; an empty one if there is none.

        Raises:
            UnreadableTaskError: the item is damaged.
        """
        if item is None or "line" not in item:
            return cls()
        try:
            positions = tuple(map(Position.stored, item["line"].split()))
            return cls(positions, int(item["since"]), int(item["expires_at"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"The queue of a conversation ({item['PK']}) is damaged: delete the item."
            raise UnreadableTaskError(msg) from error

    @property
    def mark(self) -> str:
        """Return its positions as they are stored."""
        return " ".join(map(str, self.positions))

    def joined(self, head: Head, turn: int, now_ms: int) -> ConversationQueue:
        """Return the queue with a position for a turn at its end.

        Raises:
            ConversationFullError: it is full.
        """
        if len(self.positions) > MOST_WAITING:
            raise ConversationFullError
        is_latest = turn == 1 or not self.positions
        return ConversationQueue(
            (*self.positions, Position.of(head, turn)),
            since=self.since or now_ms,
            expires_at=seconds(head.expires_at) if is_latest else self.expires_at,
        )

    def without(self, position: Position, now_ms: int) -> ConversationQueue:
        """Return the queue without its first position; as it is, if another one is there."""
        if self.positions[:1] != (position,):
            return self
        rest = self.positions[1:]
        return ConversationQueue(rest, now_ms if rest else 0, self.expires_at)


def joining(
    storage: DurableStorage, head: Head, *, turn: int, queue: ConversationQueue | None = None
) -> Change[ConversationQueue]:
    """Return the change of a conversation's queue by which a turn of HEAD takes a position.

    `queue` is what the queue is taken for at first: a guess saves the read.
    """
    joins = partial(ConversationQueue.joined, head=head, turn=turn, now_ms=storage.clock.now_ms())
    return _change(storage, head.context_id, queue or ConversationQueue(), joins)


def leaving(storage: DurableStorage, head: Head) -> Change[ConversationQueue]:
    """Return the change of a conversation's queue that goes with the end of HEAD's turn."""
    position = Position.of(head)
    # Most turns are alone in their conversation. One that is parked does not have it.
    positions = () if head.turn.parked else (position,)
    queue = ConversationQueue(positions, expires_at=seconds(head.expires_at))
    return _change(storage, head.context_id, queue, _dropping(storage, position))


def _dropping(
    storage: DurableStorage, position: Position
) -> Callable[[ConversationQueue], ConversationQueue]:
    return partial(ConversationQueue.without, position=position, now_ms=storage.clock.now_ms())


def _change(
    storage: DurableStorage,
    context_id: str,
    queue: ConversationQueue,
    decide: Callable[[ConversationQueue], ConversationQueue],
) -> Change[ConversationQueue]:
    return Change(queue, decide, partial(replaced, storage, context_id), ConversationQueue.of)


def replaced(
    storage: DurableStorage, context_id: str, before: ConversationQueue, after: ConversationQueue
) -> Write:
    """Return the write that puts `after` in the place of `before`, refused if it has changed."""
    key = _key(storage, context_id)
    is_same = are(line=before.mark) if before.positions else [Check("line", "absent")]
    item = {
        **key._asdict(),
        **layout.context_owner(storage.scope.digest, context_id, layout.LINE),
        "expires_at": after.expires_at,
    }
    if after.positions:
        item |= {"line": after.mark, "since": after.since}
    # An empty queue stays: its entry in by-scope would cost a unit to remove, and one to make anew.
    return Put(item=item, when=is_same)


async def found_in(storage: DurableStorage, context_id: str) -> dict[str, Item]:
    """Return a conversation's queue and state as they are stored, by sort key, in one request.

    The queue is read first: with a turn in front, the state is that which the one before it stored.
    """
    partition = _key(storage, context_id).PK
    items = await storage.table.all(Range(partition=partition, newest_first=True))
    return {item["SK"]: item for item in items}


async def conversation_queue(storage: DurableStorage, context_id: str) -> ConversationQueue:
    """Return the queue of a conversation."""
    return ConversationQueue.of(await storage.table.get(_key(storage, context_id)))


async def begin(storage: DurableStorage, head: Head) -> None:
    """Send the copy with which a turn begins behind another one, or goes on with a signal.

    Without it, or without a queue, a sweep sends one, as a failure here is only logged.
    """
    if storage.observer.send is None:
        return
    with _log_exceptions(head.context_id, head):
        await storage.observer.send(head)


async def start_next_turn(
    storage: DurableStorage, context_id: str, *, waiting: Head | None = None
) -> None:
    """Let the first turn of a conversation run, after dropping positions that are free.

    Called after a turn has ended or was parked; needless calls do no harm. What fails here is
    logged: a sweep looks at each parked turn again. `waiting` is such a turn: if its position is
    lost with its queue, it is requeued, and takes another one.
    """
    faults.point("before-next-turn")
    with _log_exceptions(context_id, waiting):
        if waiting is not None:
            queue = await conversation_queue(storage, context_id)
            if Position.of(waiting) not in queue.positions:
                await _requeue(storage, waiting)
                return
        for _ in range(_STEPS):
            queue = await conversation_queue(storage, context_id)
            if not queue.positions or await _is_settled(storage, context_id, queue):
                return


@contextmanager
def _log_exceptions(context_id: str, head: Head | None) -> Iterator[None]:
    """Log what fails in the block: the commit before it stands, whatever is answered here."""
    try:
        yield
    except Exception:
        extra = {"action": "next_turn_failed", "context_id": context_id}
        extra |= {"task_id": head.task_id} if head is not None else {}
        logger.exception("The next turn of a conversation, or of a task, was not sent", extra=extra)


async def _is_settled(storage: DurableStorage, context_id: str, queue: ConversationQueue) -> bool:
    """Look at the first turn of a queue; return False if the queue has to be looked at again."""
    position = queue.positions[0]
    try:
        head = await storage.head(position.task_id)
    except UnreadableTaskError:  # no worker can run it: it takes a new position once it is restored
        head = None
    first = on_first(
        head,
        position,
        since=queue.since,
        waiting=len(queue.positions) - 1,
        now_ms=storage.clock.now_ms(),
        hold_s=storage.timing.hold_s,
    )
    if first is FirstDecision.REQUEUE and head is not None:
        return await _requeue(storage, head)
    if first is FirstDecision.DROP:
        drops = _change(storage, context_id, queue, _dropping(storage, position))
        await change(storage.table, storage.clock, drops)
        return False
    return True


async def _requeue(storage: DurableStorage, head: Head) -> bool:
    """Put a parked turn on the queue of operations; return False if HEAD has changed.

    It has waited for its conversation, not for a share: while others wait for one, the worker that
    receives it parks it with them.
    """
    send = storage.observer.send
    if send is None:  # a command on the table alone: the next sweep starts it
        now_ms = storage.clock.now_ms()
        return await storage.postpone(head, due_at=now_ms, sends=head.turn.sends) is not None
    requeued = await storage.requeue(head)
    if requeued is None:
        return False
    faults.point("after-requeue")
    # After the write, which only one process wins: so one copy is sent. If this process dies here,
    # the sweeper sends it.
    await send(requeued)
    return True


async def join_queue(storage: DurableStorage, head: Head) -> ConversationQueue:
    """Take a position for the current turn of a task, which has none; return the queue then.

    In a full queue it takes none, and the queue is empty. So is that of a task that is gone: what a
    deletion has forgotten is not made again.
    """
    queue = await conversation_queue(storage, head.context_id)
    joins = joining(storage, head, turn=head.turn.number, queue=queue)
    try:
        await change(storage.table, storage.clock, joins, also=[codec.unchanged(head)])
    except (ConditionFailedError, ConversationFullError):
        return ConversationQueue()
    return joins.after


async def forget_queue(storage: DurableStorage, context_id: str) -> bool:
    """Delete the queue of a conversation whose tasks are deleted; return True if there was one."""
    return await storage.table.did(Delete(key=_key(storage, context_id), when=[STORED]))


def _key(storage: DurableStorage, context_id: str) -> Key:
    return layout.conversation_queue_key(storage.scope.digest, context_id)
