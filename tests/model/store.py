"""The model's storage and queue: what they make atomic, and what the checks see of each step."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from a2a.types import TaskState

from a2a_serverless.errors import TaskNotFoundError
from a2a_serverless.tasks import rules
from a2a_serverless.tasks.entries import Entry, Recorded, Restarted, StatusChanged
from a2a_serverless.tasks.head import ASLEEP, HANDOVER, Head
from tests.model.state import IDLE, Message, Op, Seen, State, Stored, Worker, Write
from tests.model.world import NOW_MS, TIMING, WAKE_MS, Looks, Refusal, World, inc_of, signals_in

DEADLINE_MS = NOW_MS + int(TIMING.cancel_s * 1000)
"""When every cancel of the model is overdue: it is requested at `NOW_MS`."""


class Written(NamedTuple):
    """The answer to a commit: the world after it, and HEAD as its writer computes it."""

    state: State
    head: Seen


def wrong(state: State, promise: str) -> State:
    """The state, with the promise that it breaks; the first one counts."""
    return state if state.wrong else state._replace(wrong=promise)


# -- commits ---------------------------------------------------------------------------------


def insert(world: World, state: State) -> State:
    """Create a task, whose id is not taken."""
    inc = state.incs + 1
    head, stored = world.open_task(inc)
    fresh = state._replace(head=head, log=(stored,), incs=inc, returned=0)
    fresh = fresh._replace(hidden=frozenset(), shown=None)
    return checked(world, fresh)


def commit(
    world: World, state: State, before: Seen, write: Write, writer: str, *, runs: bool = False
) -> Written | Refusal:
    """Commit on `before`, if the rules and the storage's conditions let it.

    `runs` says that the writer's agent is running.
    """
    step = world.advance(before, write, writer)
    current = state.head
    if isinstance(step, Refusal):
        return step
    after, stored = step
    written = world.committed(current, before, after)
    if current is None or written is None:
        lost = rules.conflict(current.head if current else None, before.head)
        return Refusal.OVER if isinstance(lost, TaskNotFoundError) else Refusal.RACE
    state = _watched(state, current, before, write, stored, runs=runs)
    at = stored.record.version - 1
    if at < len(state.log):
        state = wrong(state, "a commit replaces another one")
    log = (*state.log[:at], stored)
    if write.leaves == HANDOVER and after.head.turn.sends <= current.head.turn.sends:
        state = wrong(state, "a hand-over sends a copy whose number was used")
    is_record = bool(write.token) and _has(stored, Recorded)
    if is_record and after.head.turn.is_open and after.head.turn.resends:
        state = wrong(state, "a turn that goes on counts as one whose message was lost")
    recorded = world.looks(state.log).recorded
    if world.looks(log).recorded[: len(recorded)] != recorded:
        state = wrong(state, "a record, or what was said before it, is taken back")
    if write.claims and world.looks(state.log).is_settled and _has(stored, Restarted):
        state = wrong(state, "subscribers are shown a claim that takes nothing back")
    state = state._replace(head=written, log=log)
    if state.hidden:  # the transaction on HEAD is over, or this one could not have begun
        seen = frozenset(item for item in state.hidden if item[1] >= 0)
        state = state._replace(hidden=seen, shown=None)
    return Written(checked(world, state), after)


def is_applied(world: World, state: State, before: Seen, writer: str) -> bool:
    """Whether an unanswered commit is in the log, as its writer can find out.

    It looks at one item: that of the commit's version in the incarnation it was made on.
    """
    head, at = state.head, before.head.version
    is_there = head is not None and head.head.incarnation == before.head.incarnation
    stored = state.log[at].record.commit_id if is_there and at < len(state.log) else None
    return rules.is_applied(stored, writer)


def torn(state: State, before: Seen) -> State:
    """The newest commit, with none of its items visible to queries yet; they see HEAD `before`."""
    version = state.log[-1].record.version
    hidden = {(version, 0), (version, 1), (version, -1)}
    return state.spent("torn")._replace(hidden=state.hidden | hidden, shown=before)


def _has(stored: Stored, kind: type[Entry]) -> bool:
    return any(isinstance(entry, kind) for entry in stored.record.entries)


def _watched(
    state: State, current: Seen, before: Seen, write: Write, stored: Stored, *, runs: bool
) -> State:
    """What no commit may do."""
    head = current.head
    if head.incarnation != before.head.incarnation:
        state = wrong(state, "a writer of an old task writes to its successor")
    if head.is_terminal and any(isinstance(e, StatusChanged) for e in stored.record.entries):
        state = wrong(state, "a terminal state is left")
    if write.token and not write.claims and head.turn.token != write.token:
        state = wrong(state, "an attempt writes past the fence")
    if before.head.cancel is None and state.asked == inc_of(before.head):
        state = wrong(state, "a commit is made by a writer that has not heard of the cancel")
    if write.claims and head.turn.parked == ASLEEP and head.cancel is None:
        state = wrong(state, "a turn is claimed while it sleeps")
    runner = (inc_of(before.head), before.head.turn.number)
    if runs and state.runner[:2] == runner and state.runner[2] != write.token:
        state = wrong(state, "an attempt writes while a later one runs its agent")
    return state


# -- what holds in every state ---------------------------------------------------------------


def checked(world: World, state: State) -> State:
    """The state, marked if it breaks a promise that holds in every state."""
    seen = state.head
    if seen is None or state.wrong:
        return state
    key = (seen, state.log)
    if key not in world.verdicts:
        head, looks = seen.head, world.looks(state.log)
        of_log = _fault_of_head(world, head, state.log) or _fault_of_content(world, head, looks)
        world.verdicts[key] = of_log or looks.fault
    promise = world.verdicts[key]
    was_asked = state.asked == inc_of(seen.head)
    if was_asked and seen.head.cancel is None:
        promise = "the mark of a cancel is lost"
    is_canceled = seen.head.state == TaskState.TASK_STATE_CANCELED
    if not was_asked and (is_canceled or seen.head.cancel is not None):
        promise = "a task is canceled that nobody asked to cancel"
    return wrong(state, promise) if promise else state


def _fault_of_head(world: World, head: Head, log: tuple[Stored, ...]) -> str:
    if fault := _fault_of_due_time(head):
        return fault
    if _fails_early(world, head, log):
        return "a task fails that has attempts left"
    if head.version != len(log) or head.version != log[-1].record.version:
        return "the versions of the log have a gap"
    looks = world.looks(log)
    if looks.state != head.state:
        return "the log does not fold to HEAD's state"
    if looks.endings > 1:
        return "a task ends twice"
    if head.turn.parked == ASLEEP and head.cancel is None:
        waits_for = looks.recorded[-1][1].replace("W", "E")
        if waits_for in [f"E{entry.id.number}" for entry in signals_in(log)]:
            return "a turn sleeps behind the signal that has ended its wait"
    if head.turn.asks and head.cancel is None:
        has_time = looks.recorded[-1][1][0] == "T"
        if head.due_at != (WAKE_MS if has_time else None):
            return "a question is due at another time than its end"
    return ""


def _fault_of_due_time(head: Head) -> str:
    """Whether the sweeper looks at a task when it has to, and not at one that needs nothing."""
    if head.is_being_canceled and head.due_at != DEADLINE_MS:
        return "the deadline of a cancel has moved"
    if head.turn.is_open and head.due_at is None:
        return "an unfinished turn has no watcher"
    if head.turn.parked == ASLEEP and head.cancel is None and head.due_at != WAKE_MS:
        return "a sleeping turn is due at another time than it wakes"
    is_watched = head.turn.is_open or head.is_being_canceled or head.turn.asks
    if head.due_at is not None and not is_watched:
        return "a finished turn stays in the due index"
    return ""


def _fault_of_content(world: World, head: Head, looks: Looks) -> str:
    inc = inc_of(head)
    expected: list[str] = []
    for ordinal, turn in enumerate(looks.turns, start=1):
        script = world.turns[min(ordinal, len(world.turns)) - 1]
        size = 0 if turn in looks.answers else script.size
        full = [f"{inc}.{ordinal}.{number}" for number in range(1, size + 1)]
        written = [text for text in looks.texts if text.startswith(f"{inc}.{ordinal}.")]
        if written != full[: len(written)]:
            return "a chunk is doubled, or out of order"
        was_current = turn <= head.turn.number
        goes_on = turn == head.turn.begun  # its code has asked its client
        is_over = was_current and head.is_over(turn) and not goes_on
        is_ended = is_over and head.state not in _CUT_SHORT
        if is_ended and written != full:
            return "a chunk is missing"
        expected += written
    if list(looks.texts) != expected:
        return "a chunk of another task or turn"
    if not _is_told_once(looks, inc):
        return "a message is missing from the history, or is there twice"
    # A restart shows as one text what has ended before.
    is_whole = "".join(looks.shown) == "".join(looks.texts)
    if head.state == TaskState.TASK_STATE_COMPLETED and not is_whole:
        return "a subscriber has put together another artifact than the task has"
    return ""


def _fails_early(world: World, head: Head, log: tuple[Stored, ...]) -> bool:
    """Whether the task has failed before its turn's attempts were used up.

    The sweeper fails a turn that no attempt has ever claimed.
    """
    if head.state != TaskState.TASK_STATE_FAILED or head.turn.attempts >= world.attempts:
        return False
    was_claimed = any(stored.record.token for stored in log[head.turn.base :])
    return was_claimed or log[-1].record.commit_id != "sweeper"


def _is_told_once(looks: Looks, inc: int) -> bool:
    """Whether the history has every accepted message, in order, and no message twice.

    A question that ended a turn stands before the message that answers it.
    """
    accepted = [f"{inc}.{ordinal}" for ordinal in range(1, len(looks.turns) + 1)]
    if len(set(looks.history)) != len(looks.history):
        return False
    if [text for text in looks.history if text in accepted] != accepted:
        return False
    return set(looks.answered) <= set(pairwise(looks.history))


_CUT_SHORT = {TaskState.TASK_STATE_CANCELED, TaskState.TASK_STATE_FAILED}
"""Ends that may come in the middle of a turn."""


# -- the queue -------------------------------------------------------------------------------


def send(state: State, op: Op) -> State:
    """Put an operation at the end of its group, unless its deduplication id is known."""
    if op in state.sent:
        return state
    return state._replace(queue=(*state.queue, Message(op)), sent=state.sent | {op})


def acknowledge(state: State, worker: Worker) -> State:
    """Remove a message whose delivery has not run out; else nothing."""
    queue = tuple(m for m in state.queue if not _is_held(m, worker))
    return state._replace(queue=queue)


def give_back(state: State, worker: Worker) -> State:
    """Make a message visible again, if the delivery is still this worker's."""
    queue = tuple(m._replace(held=False) if _is_held(m, worker) else m for m in state.queue)
    return state._replace(queue=queue)


def has_run_out(state: State, worker: Worker) -> bool:
    """Whether a delivery is not this worker's any more."""
    return not any(_is_held(message, worker) for message in state.queue)


def with_worker(state: State, index: int, worker: Worker) -> State:
    workers = state.workers
    return state._replace(workers=(*workers[:index], worker, *workers[index + 1 :]))


def delivered(world: World, state: State, most_receives: int) -> Iterator[tuple[str, State]]:
    """Each queue's first message of the group goes to a free worker, or to the dead letters."""
    for alone in (False, True):
        index = next((i for i, m in enumerate(state.queue) if m.op.alone is alone), None)
        if index is not None and not state.queue[index].held:
            yield from _delivered(world, state, index, most_receives)


def _delivered(world: World, state: State, index: int, most: int) -> Iterator[tuple[str, State]]:
    first, before, behind = state.queue[index], state.queue[:index], state.queue[index + 1 :]
    rest = (*before, *behind)
    if first.receives >= most:
        dead = state._replace(queue=rest, dead=(*state.dead, first.op))
        yield f"queue: {named(first.op)} becomes a dead letter", dead
        return
    free = next((i for i, w in enumerate(state.workers) if w.phase == "idle"), None)
    if free is None:
        return
    held = Message(first.op, first.receives + 1, held=True)
    token = next_token(state, "ABC"[free])
    worker = IDLE._replace(phase="load", op=first.op, receives=held.receives, token=token)
    after = with_worker(state._replace(queue=(*before, held, *behind)), free, worker)
    label = f"worker {'ABC'[free]} receives {named(first.op)}, time {held.receives}"
    yield f"queue: {label}", after


def named(op: Op) -> str:
    copy = f", copy {op.copy}" if op.copy else ""
    where = ", in quarantine" if op.alone else ""
    return f"{op.kind}(i{op.inc}, turn {op.turn}{copy}{where})"


def next_token(state: State, slot: str) -> str:
    """The token of a worker's next attempt, by those that the log knows."""
    tokens = {stored.record.token for stored in state.log if stored.record.token}
    return f"{slot}{sum(token[0] == slot for token in tokens) + 1}"


def _is_held(message: Message, worker: Worker) -> bool:
    return message.held and message.op == worker.op and message.receives == worker.receives
