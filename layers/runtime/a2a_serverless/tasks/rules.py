"""The rules of a task: the next HEAD that a commit makes, or the error that it meets.

Optimistic concurrency, terminal guard, fencing and turns are all decided here. Backends only make
one step atomic: if HEAD is still the one that the rules saw, write the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from a2a.types import (
    Message,
    SendMessageRequest,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import (
    ConcurrencyError,
    FencedError,
    NewerReleaseError,
    TaskNotAcceptingMessagesError,
    TaskNotFoundError,
    TaskTerminalStateError,
    TurnFinishedError,
)
from a2a_serverless.tasks.blobs import comparable
from a2a_serverless.tasks.entries import (
    Caller,
    Entry,
    MetadataMerged,
    ModelsUsed,
    Recorded,
    Replied,
    Restarted,
    StatusChanged,
    TurnEnded,
    TurnOpened,
    copied,
    is_plain,
)
from a2a_serverless.tasks.head import (
    ASLEEP,
    LOST,
    MAX_INLINE_BYTES,
    NOT_STARTED,
    RECORDS,
    AttemptEnd,
    CancelMark,
    FailedBy,
    Failure,
    Head,
    Reason,
    SnapshotName,
    Spared,
    is_interrupted,
    is_terminal,
    state_name,
)
from a2a_serverless.tasks.identity import Dialect, digest, new_incarnation, new_token
from a2a_serverless.tasks.usage import summed

LEFT_MS: Final[Mapping[Reason, int]] = {"share": 3_600_000, "conversation": 300_000}
"""Milliseconds after which the sweeper looks at a turn that is left, by what it waits for."""

AS_NEW: Final = "without taskId"
"""How a client sends a message that opens a task, unless it names its tasks itself."""

SNAPSHOT_BYTES: Final = 65_536
"""The least bytes of log from one snapshot of a task to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time limits of turns and cancels, in seconds.

    After `waiting_s` the sweeper sends an unclaimed turn again. It leaves a claimed turn alone for
    `lease_s`; the worker that has the turn renews that lease when less than `renew_before_s` of it
    is left. After `cancel_s` the sweeper ends a canceled task without its agent. A turn that does
    not run keeps its conversation for `hold_s` while others wait for it.
    """

    ttl_s: float = 30 * 24 * 3600
    waiting_s: float = 60
    lease_s: float = 300
    renew_before_s: float = 120
    cancel_s: float = 10
    hold_s: float = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to be created. `ttl_s` overrides the default time to live.

    `push` is the inline configuration that came with the request.
    """

    scope: str
    task_id: str
    context_id: str
    incarnation: str
    request: SendMessageRequest
    caller: Caller = field(default_factory=Caller)
    idempotency_key: str | None = None
    ttl_s: float | None = None
    push: TaskPushNotificationConfig | None = field(default=None, repr=False)
    push_dialect: Dialect = "1.0"
    is_serial: bool = False
    """True: its turns take places in the line of their conversation."""


StateForm: TypeAlias = Literal["json", "zlib", "blob"]
"""How a conversation's state is stored: as JSON; compressed; or compressed, as a blob, of which
the item has the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWrite:
    """The state of the conversation, written with a commit.

    `expected_version` None replaces any stored state; 0 demands that there is none.
    """

    value: str | bytes
    """As `form` says."""
    form: StateForm = "json"
    expected_version: int | None = None
    replaced: str = ""
    """The place of the blob with the state that it replaces; empty if it has none, as is known."""
    mark: str = field(default_factory=new_incarnation, compare=False)
    """Random: a blob with the state belongs to this write alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How an attempt gives its turn back until `end.until`, without using up an attempt."""

    end: AttemptEnd
    spared: Spared


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One atomic change of a task.

    `token` names the attempt that writes; None is a writer outside of any attempt. `claims` makes
    that attempt the owner of the open turn; if it is the owner already, that changes nothing.
    `ends_turn` says that the agent's work on the turn is over; terminal states and input-required
    say so by themselves. `idempotency_key` and `push`, an inline configuration, belong to the
    message that opens a turn. `worker` names the process that claims.
    """

    entries: tuple[Entry, ...] = ()
    token: str | None = None
    claims: bool = False
    ends_turn: bool = False
    idempotency_key: str | None = None
    context_write: ContextWrite | None = None
    push: TaskPushNotificationConfig | None = field(default=None, repr=False)
    push_dialect: Dialect = "1.0"
    worker: str = ""
    failed: AttemptEnd | None = None
    """Why this attempt, the turn's last one, ends the task as failed."""
    failed_by: FailedBy = FailedBy.AGENT
    """If the commit ends the task as failed: why. It is counted, and not stored."""
    reference: str = ""
    """The correlation id that the client of a failed task is given; empty: that of `failed`."""
    waits: Waits | None = None
    """With this commit the attempt gives its turn back."""
    leaves: AttemptEnd | None = None
    """With this commit the attempt leaves its turn at a record: asleep until `until`, or, if that
    is 0, for the process that gets the copy which the writer sends."""
    is_serial: bool = False
    """True: the turn that the commit opens takes a place in the line of its conversation."""
    commit_id: str = field(default_factory=new_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A commit as the rules have decided it and as it is stored: the next HEAD and the entries."""

    head: Head
    entries: tuple[Entry, ...]
    token: str | None
    commit_id: str
    at: int
    """The writer's time, in milliseconds since the epoch."""
    worker: str = ""
    """The process that claims the turn."""
    ended: AttemptEnd | None = None
    """The attempt that ends with this commit: the one a claim takes over from, or the writer's."""
    trace: str | None = None
    """The writer's trace context: the webhook that notifies of the commit goes on with it."""
    context_write: ContextWrite | None = None
    key_digest: str = ""
    """Of the idempotency key with which the message of a follow-up came; empty: it had none."""
    push: TaskPushNotificationConfig | None = field(default=None, repr=False)
    """An inline configuration as the client sent it: stored with the commit, or not at all."""
    push_dialect: Dialect = "1.0"

    @property
    def changes_status(self) -> bool:
        """Return True if the task's status is written, even with the same state."""
        return any(isinstance(entry, StatusChanged) for entry in self.entries)

    @property
    def opens_turn(self) -> bool:
        """Return True if the commit accepts a message."""
        return any(isinstance(entry, TurnOpened) for entry in self.entries)


def open_task(new: NewTask, *, now_ms: int, timing: Timing, trace: str | None = None) -> Step:
    """Return the first version of a task: submitted, with its first turn open and due."""
    ttl_s = timing.ttl_s if new.ttl_s is None else new.ttl_s
    status = _stamped(TaskStatus(state=TaskState.TASK_STATE_SUBMITTED), now_ms)
    head = Head(
        scope=new.scope,
        task_id=new.task_id,
        context_id=new.context_id,
        incarnation=new.incarnation,
        version=1,
        state=status.state,
        status_at=now_ms,
        status=status.SerializeToString(),
        metadata=b"",
        created_at=now_ms,
        expires_at=expiry(now_ms, ttl_s),
        turn=1,
        turn_base=1,
        due_at=now_ms + int(timing.waiting_s * 1000),
        key_digest=key_digest(new.idempotency_key),
        serial_from=int(new.is_serial),
    )
    return Step(
        head=_opened_by(head, new.request.message),
        entries=(TurnOpened(new.request, new.caller), StatusChanged(status)),
        token=None,
        commit_id=new_token(),
        at=now_ms,
        trace=trace,
        push=new.push,
        push_dialect=new.push_dialect,
    )


def advance(
    head: Head, commit: Commit, *, now_ms: int, timing: Timing, trace: str | None = None
) -> Step:
    """Return the step that `commit` makes from `head`.

    Raises:
        TaskTerminalStateError: a transition of a task that has ended.
        FencedError: `commit.token` is not the owner of the open turn.
        TurnFinishedError: a claim of a turn that is over.
        TaskNotAcceptingMessagesError: a message for a task that does not wait for one.
        NewerReleaseError: only a newer release may write the task.
    """
    _check(head, commit)
    if head.token == commit.token:
        commit = replace(commit, claims=False)
    entries = _expand(head, commit)
    opens = any(isinstance(entry, TurnOpened) for entry in entries)
    after = replace(head, version=head.version + 1)
    if commit.claims:
        after = _claimed(after, commit, now_ms, timing)
    if opens:
        after = _opened(after, entries, now_ms, timing)
        if commit.is_serial and not after.serial_from:
            after = replace(after, serial_from=after.version)
    after, entries = _with_content(after, entries, now_ms)
    after = _recorded(head, after, commit, entries)
    if commit.waits is not None:
        after = _waiting(after, commit.waits, timing)
    if commit.leaves is not None:
        after = _left(after, commit.leaves, now_ms, timing)
    ends = commit.ends_turn or is_terminal(after.state) or _pauses(entries)
    if ends and after.turn_is_open:
        after = _ended(after, now_ms, timing)
        entries = (*entries, TurnEnded())
    if after.has_failed and not head.is_terminal:
        after = replace(after, failure=_failure(head, commit))
    return Step(
        head=_watched(after, head),
        entries=entries,
        token=commit.token,
        commit_id=commit.commit_id,
        at=now_ms,
        worker=commit.worker if commit.claims else "",
        ended=(left_by(head) if commit.claims else None) or commit.failed,
        trace=trace,
        context_write=commit.context_write,
        key_digest=key_digest(commit.idempotency_key),
        push=commit.push,
        push_dialect=commit.push_dialect,
    )


def is_applied(stored_id: str | None, commit_id: str) -> bool:
    """Return True if a refused commit was stored by an earlier request whose answer was lost.

    `stored_id` is the id of the commit that the log has at the refused commit's version; None if
    it has none. HEAD cannot tell: others may have committed since.
    """
    return stored_id == commit_id


def conflict(current: Head | None, seen: Head) -> TaskNotFoundError | ConcurrencyError:
    """Return the error for a commit on `seen` that was neither stored now nor before.

    The task is gone (a later one may have its id), or another writer has committed.
    """
    if current is None or current.incarnation != seen.incarnation:
        return TaskNotFoundError()
    return ConcurrencyError(current_version=current.version)


def check_open(head: Head | None) -> Head:
    """Return HEAD of a task whose cancel may be requested.

    Raises:
        TaskNotFoundError: there is no such task.
        TaskTerminalStateError: it has ended.
        NewerReleaseError: only a newer release may change it.
    """
    if head is None:
        raise TaskNotFoundError
    if head.is_terminal:
        raise terminal_error(head)
    check_writable(head)
    return head


# -- changes of HEAD without a commit --------------------------------------------------------


def canceling(head: Head, *, by: str, now_ms: int, timing: Timing) -> Head:
    """Return HEAD with a request to cancel by the user `by`; as it is, if it has one.

    Its deadline becomes the due time. No commit, lease or wait moves it, so that the sweeper ends
    the task then, if nothing else has.

    Raises:
        TaskTerminalStateError, NewerReleaseError: as `check_open`.
    """
    own = CancelMark(at=now_ms, by=by)
    if head.cancel == own:  # an earlier try has made it, also if the task has ended since
        return head
    check_open(head)
    if head.cancel is not None:
        return head
    return replace(head, cancel=own, due_at=now_ms + int(timing.cancel_s * 1000))


def postponing(head: Head, *, due_at: int, sends: int) -> Head | None:
    """Return HEAD with another due time and number of copies.

    None if it is not due at all, or once a cancel was requested: its deadline stays.
    """
    if head.due_at is None or head.cancel is not None:
        return None
    return replace(head, due_at=due_at, sends=sends)


def leaving(head: Head, reason: Reason, *, at: int, now_ms: int) -> Head | None:
    """Return HEAD with its open turn left, for `reason`: its message may be acknowledged.

    `at` is the turn's place among those of its caller, the earliest first, in milliseconds. The
    sweeper looks at the turn later, if nothing has woken it by then. None once a cancel was
    requested: its deadline stays the due time.
    """
    if head.cancel is not None:
        return None
    due_at = now_ms + LEFT_MS[reason]
    return replace(head, left=reason, left_at=at, woken=False, due_at=due_at)


def waking(head: Head, *, now_ms: int, timing: Timing) -> Head | None:
    """Return HEAD with its left turn on the queue again: send number `sends` has to be sent.

    A turn that has waited for a share has one from now on, to its end. None once a cancel was
    requested, or if the turn is not left.
    """
    if head.cancel is not None or not head.left:
        return None
    return replace(
        head,
        left="",
        woken=head.left == "share",
        left_at=now_ms,
        sends=head.sends + 1,
        wakes=head.wakes + 1,
        due_at=now_ms + int(timing.waiting_s * 1000),
    )


def renewing(head: Head, *, token: str, due_at: int) -> Head | None:
    """Return HEAD with the lease of the attempt `token` renewed; None if it has not the turn.

    The deadline of a cancel stays.
    """
    if not _has_turn(head, token):
        return None
    return head if head.cancel is not None else replace(head, due_at=due_at)


def releasing(
    head: Head,
    end: AttemptEnd,
    *,
    due_at: int | None = None,
    attempts: int | None = None,
    spared: Spared | None = None,
    starts_over: bool = False,
) -> Head | None:
    """Return HEAD with its turn given back by the attempt `end.token`; None if that has it not.

    The turn has no share of the workers any more. `due_at` also moves the due time, unless a cancel
    has set it; `attempts` sets how many attempts of the turn count, and `spared` how many starts do
    not. `starts_over`: the next attempt begins at the turn's beginning, whatever was recorded.
    """
    if not _has_turn(head, end.token) or head.left:
        return None
    return replace(
        head,
        released=end,
        woken=False,
        left_at=0,
        due_at=head.due_at if due_at is None or head.cancel is not None else due_at,
        attempts=head.attempts if attempts is None else attempts,
        spared=head.spared if spared is None else spared,
        checkpoint=0 if starts_over else head.checkpoint,
    )


def naming(head: Head, snapshot: SnapshotName) -> Head | None:
    """Return HEAD with a later snapshot; as it is, if it has that one; None: it has a later one."""
    if head.snapshot == snapshot:
        return head
    return None if head.snapshot.version >= snapshot.version else replace(head, snapshot=snapshot)


def _has_turn(head: Head, token: str) -> bool:
    return head.token == token and not head.was_released


def expiry(now_ms: int, ttl_s: float) -> int:
    """Return the expiry of an item made now: milliseconds at a whole second, rounded up.

    DynamoDB's time to live counts in seconds. With the rounding, all backends expire an item at the
    same moment.
    """
    return -(-(now_ms + int(ttl_s * 1000)) // 1000) * 1000


def key_digest(idempotency_key: str | None) -> str:
    """Return the digest of an idempotency key as it is stored; empty when there is none."""
    return digest("key", idempotency_key) if idempotency_key else ""


def message_digest(message: Message) -> str:
    """Return HEAD's digest of a messageId."""
    return digest("message", message.message_id)


def content_digest(message: Message) -> str:
    """Return HEAD's digest of a message, independent of the task and context that it names.

    A link to a file counts as the file's content.
    """
    content = copied(message) if is_plain(message) else comparable(message)
    content.ClearField("task_id")
    content.ClearField("context_id")
    return digest("content", content.SerializeToString(deterministic=True).hex())


def _opened_by(head: Head, message: Message) -> Head:
    return replace(
        head,
        message_digest=message_digest(message),
        content_digest=content_digest(message),
    )


def _check(head: Head, commit: Commit) -> None:
    check_writable(head)
    transitions = any(isinstance(entry, StatusChanged) for entry in commit.entries)
    opens = any(isinstance(entry, TurnOpened) for entry in commit.entries)
    if head.is_terminal and (transitions or opens):
        raise terminal_error(head, f"Send the message {AS_NEW}: it starts a new task.")
    if commit.claims and not head.turn_is_open:
        raise TurnFinishedError
    written_by_another = commit.token is not None and head.token != commit.token
    if written_by_another and not commit.claims:
        raise FencedError(current_version=head.version)
    if opens and (not is_interrupted(head.state) or head.next_turn):
        msg = (
            f"The task is {state_name(head.state)} and does not wait for a message: send it"
            f" when the task asks for input, or {AS_NEW} as a new task."
        )
        raise TaskNotAcceptingMessagesError(msg)


def terminal_error(head: Head, way_out: str = "") -> TaskTerminalStateError:
    """Return the error for a task that has ended; `way_out` tells the client what to do."""
    state = f"The task is in terminal state: {state_name(head.state)}."
    return TaskTerminalStateError(f"{state} {way_out}".rstrip())


def check_writable(head: Head) -> None:
    """Refuse to change a task of which this release does not know everything.

    Raises:
        NewerReleaseError: HEAD says that a newer format has to be known.
    """
    if head.needs_newer:
        raise NewerReleaseError


def _expand(head: Head, commit: Commit) -> tuple[Entry, ...]:
    """Add the status that follows from the commit: working for a claim, submitted for a new turn.

    A claim keeps the message of the status in the history: the agent may have asked again after
    the turn's message was accepted.
    """
    entries = commit.entries
    if commit.claims:
        working = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING), archive=True)
        if head.is_at_record:  # nothing is taken back, and the task is still worked on
            return entries
        if head.token is not None:
            return (Restarted(head.restart_base), working, *entries)
        says_so_itself = any(isinstance(entry, StatusChanged) for entry in entries)
        return entries if says_so_itself else (working, *entries)
    if any(isinstance(entry, TurnOpened) for entry in entries) and not head.turn_is_open:
        return (*entries, StatusChanged(TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)))
    return entries


def runs_alone(head: Head) -> bool:
    """Return True if the open turn's attempts must have no neighbours in their process.

    An attempt has neither ended the turn nor given it back, so its worker died during it. If the
    turn was the cause, the next worker dies as well, and must not interrupt healthy turns. If the
    turn was only a neighbour of the cause, it is safe from it when it runs alone.
    """
    return head.turn_is_open and (head.alone or head.is_claimed)


def left_by(head: Head) -> AttemptEnd | None:
    """Return the end of the attempt that a claim takes the turn from; None: there was none."""
    if head.token is None:
        return None
    if head.released is not None and head.was_released:
        return head.released
    return AttemptEnd(token=head.token, reason=LOST)


def _claimed(head: Head, commit: Commit, now_ms: int, timing: Timing) -> Head:
    return replace(
        head,
        token=commit.token,
        attempts=head.attempts + 1,
        alone=runs_alone(head),
        due_at=now_ms + int(timing.lease_s * 1000),
        left="",
        # A restart brings back earlier metadata, which only the log knows.
        metadata=head.metadata
        if head.token is None or head.metadata == b"" or head.is_at_record
        else None,
        replied=head.replied and head.token is None,
        released=None,
        parked=head.parked + slept_ms(head, now_ms),
        started_at=head.started_at or now_ms,
    )


def slept_ms(head: Head, now_ms: int) -> int:
    """Return the milliseconds for which the turn has slept since its last attempt has left it."""
    if head.released is None or not head.was_released or head.released.reason != ASLEEP:
        return 0
    return max(0, now_ms - (head.released.at or now_ms))


def _recorded(head: Head, after: Head, commit: Commit, entries: tuple[Entry, ...]) -> Head:
    """Move the checkpoint, to which a restart goes back; `after` is what `commit` makes of `head`.

    A record is progress: the turn has all its attempts again, and all its spared starts.
    """
    if commit.token is not None and any(isinstance(entry, Recorded) for entry in entries):
        return replace(
            after,
            checkpoint=after.version,
            attempts=min(after.attempts, 1),
            spared=Spared(),
            wakes=after.sends,
            needs=max(after.needs, RECORDS),
        )
    # Nothing that could be taken back stands behind the checkpoint: it moves along.
    says_nothing = all(isinstance(entry, ModelsUsed) for entry in entries)
    is_quiet = head.is_at_record and (commit.token is None or says_nothing)
    is_taken_back = commit.claims and not commit.entries and head.has_records
    return replace(after, checkpoint=after.version) if is_quiet or is_taken_back else after


def _left(head: Head, end: AttemptEnd, now_ms: int, timing: Timing) -> Head:
    """Give the turn back at a record: it sleeps, or the next copy of its message goes on.

    No attempt is used up, and no share of the workers is kept.
    """
    head = replace(head, released=end, woken=False, left_at=0, attempts=head.attempts - 1)
    if end.until:
        return replace(head, left="asleep", left_at=now_ms, due_at=end.until)
    due_at = now_ms + int(timing.waiting_s * 1000)
    return replace(head, sends=head.sends + 1, wakes=head.wakes + 1, due_at=due_at)


def _waiting(head: Head, waits: Waits, timing: Timing) -> Head:
    """Give the turn back, and its share: nothing works on it, and it may wait for long.

    The sweeper looks at it a lease after the wait: it comes by itself.
    """
    return replace(
        head,
        released=waits.end,
        woken=False,
        left_at=0,
        attempts=head.attempts - 1,
        spared=waits.spared,
        due_at=waits.end.until + int(timing.lease_s * 1000),
    )


def _opened(head: Head, entries: Iterable[Entry], now_ms: int, timing: Timing) -> Head:
    message = next(e.request.message for e in entries if isinstance(e, TurnOpened))
    head = _opened_by(head, message)
    if head.turn_is_open:
        # The running attempt keeps the task; the message's turn follows when it has returned.
        return replace(head, next_turn=head.version, status=_without_message(head.status))
    return _current(head, head.version, now_ms, timing)


def _ended(head: Head, now_ms: int, timing: Timing) -> Head:
    ended = replace(head, finished_turn=head.turn, token=None, due_at=None)
    ended = replace(ended, left="", left_at=0, woken=False, needs=0, parked=0)
    if ended.next_turn and not ended.is_terminal:
        # Its message may have been dropped meanwhile: the writer sends a copy.
        head = _current(ended, ended.next_turn, now_ms, timing)
        return replace(head, sends=1, wakes=1)
    return replace(ended, next_turn=0)


def _failure(head: Head, commit: Commit) -> Failure:
    """Return why `commit` ends the task as failed or rejected."""
    end, was_tried = commit.failed, head.was_claimed or commit.token is not None
    reason = end.reason if end else "" if was_tried else NOT_STARTED
    return Failure(
        reason=reason, correlation_id=commit.reference or (end.correlation_id if end else "")
    )


def _watched(after: Head, before: Head) -> Head:
    """Return HEAD with the due time that it has after a commit on `before`."""
    if after.is_terminal:
        return replace(after, due_at=None)
    return after if before.cancel is None else replace(after, due_at=before.due_at)


def _current(head: Head, turn: int, now_ms: int, timing: Timing) -> Head:
    """Make `turn` the current turn: unclaimed, and due in `timing.waiting_s` seconds."""
    return replace(
        head,
        turn=turn,
        turn_base=head.version,
        next_turn=0,
        token=None,
        attempts=0,
        spared=Spared(),
        alone=False,
        sends=0,
        wakes=0,
        parked=0,
        due_at=now_ms + int(timing.waiting_s * 1000),
    )


def _with_content(
    head: Head, entries: tuple[Entry, ...], now_ms: int
) -> tuple[Head, tuple[Entry, ...]]:
    """Stamp the statuses and carry status and metadata over to HEAD."""
    stamped: list[Entry] = []
    for entry in entries:
        kept = entry
        if isinstance(entry, StatusChanged):
            at = max(now_ms, head.status_at + 1)
            kept = replace(entry, status=_stamped(entry.status, at))
            head = replace(
                head,
                state=kept.status.state,
                status_at=at,
                status=_inline(kept.status.SerializeToString()),
            )
            if entry.metadata is not None:
                head = replace(head, metadata=_merged(head.metadata, entry.metadata))
        elif isinstance(entry, MetadataMerged):
            head = replace(head, metadata=_merged(head.metadata, entry.metadata))
        elif isinstance(entry, Replied):
            head = replace(head, replied=True)
        elif isinstance(entry, ModelsUsed):
            head = replace(head, usage=summed((*head.usage, *entry.usage)))
        stamped.append(kept)
    return head, tuple(stamped)


def _pauses(entries: Iterable[Entry]) -> bool:
    """Return True if the commit leaves the task input-required, which ends the turn by itself."""
    states = [entry.status.state for entry in entries if isinstance(entry, StatusChanged)]
    return bool(states) and states[-1] == TaskState.TASK_STATE_INPUT_REQUIRED


def _stamped(status: TaskStatus, at_ms: int) -> TaskStatus:
    copy = copied(status)
    copy.timestamp.FromMilliseconds(at_ms)
    return copy


def _inline(raw: bytes) -> bytes | None:
    return raw if len(raw) <= MAX_INLINE_BYTES else None


def _without_message(status: bytes | None) -> bytes | None:
    if status is None:
        return None
    try:
        parsed = TaskStatus.FromString(status)
    except DecodeError:  # damaged: from now on the log alone has it
        return None
    parsed.ClearField("message")
    raw: bytes = parsed.SerializeToString()
    return raw


def _merged(metadata: bytes | None, update: Struct) -> bytes | None:
    if metadata is None:
        return None
    try:
        merged = Struct.FromString(metadata)
    except DecodeError:  # damaged: from now on the log alone has it
        return None
    merge_metadata(merged, update)
    return _inline(merged.SerializeToString(deterministic=True))


def merge_metadata(metadata: Struct, update: Struct) -> None:
    """Merge shallowly, the last writer wins; nested values are replaced as a whole."""
    for key, value in update.fields.items():
        metadata.fields[key].CopyFrom(value)


def wants_snapshot(head: Head) -> bool:
    """Return True if a task has written so much since its last snapshot that it gets another one.

    So a reader gets, besides a snapshot, the log of one turn and `SNAPSHOT_BYTES` more, or a 32nd
    part of the snapshot if that is more. All snapshots of a task together are about 32 times as
    long as the task at most.
    """
    enough = max(SNAPSHOT_BYTES, head.snapshot.length // 32)
    return not head.turn_is_open and head.size - head.snapshot.size >= enough


def is_behind(created_at: int, until: int) -> bool:
    """Return True if what was, or would be, created then is behind a fence that counts `until`.

    It is deleted, however late it is stored: the fence need not be up any more.
    """
    return created_at < until


def is_last_look(*, began: int, ended: int, since: int, until: int, settles_ms: int) -> bool:
    """Return True if a look that finds nothing behind a fence says that nothing is left.

    The fence has been up from `since` to the look's end, and what was stored in front of it is in
    the index by the look's beginning.
    """
    return began >= since + settles_ms and ended < until
