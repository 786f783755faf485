"""The rules of a task: the next HEAD that a commit makes, or the error that it meets.

Optimistic concurrency, terminal guard, fencing and turns are all decided here. Backends only make
one step atomic: if HEAD is still the one that the rules saw, write the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
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
    FAILED,
    HANDOVER,
    INTERRUPTED,
    LOST,
    MAX_INLINE_BYTES,
    NOT_STARTED,
    QUESTIONS,
    RECORDS,
    AttemptEnd,
    CancelMark,
    FailedBy,
    Failure,
    Head,
    Reason,
    SnapshotName,
    Turn,
    Uncounted,
    state_name,
)
from a2a_serverless.tasks.identity import Dialect, code_version, digest, new_incarnation, new_token
from a2a_serverless.tasks.usage import summed
from a2a_serverless.values import dataclass

PARKED_MS: Final[Mapping[Reason, int]] = {"share": 3_600_000, "conversation": 300_000}
"""Milliseconds after which the sweeper looks at a turn that is parked, by what it waits for."""

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
    not run keeps its conversation for `hold_s` while others wait for it. One that has waited for a
    worker for `late_s` counts as late.
    """

    ttl_s: float = 30 * 24 * 3600
    waiting_s: float = 60
    lease_s: float = 300
    renew_before_s: float = 120
    cancel_s: float = 10
    hold_s: float = 3600
    late_s: float = 30


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
class Backoff:
    """How an attempt gives its turn back until `end.until`, without using up an attempt."""

    end: AttemptEnd
    uncounted: Uncounted


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
    backoff: Backoff | None = None
    """With this commit the attempt gives its turn back."""
    parks: AttemptEnd | None = None
    """With this commit the attempt parks its turn at a record: asleep until `until`, or, if that
    is 0, for the process that gets the copy which the writer sends."""
    seen: int = 0
    """The version up to which the attempt knows the signals from outside. Behind a later one its
    turn does not fall asleep: it is handed over."""
    asks: int | None = None
    """With this commit the attempt ends its turn and asks the client: its records count on, and its
    code goes on in the next turn. The time at which that begins without an answer, in milliseconds;
    0: never. None: it does not ask."""
    goes_on: bool = False
    """True: the code of a task that has asked its client goes on without an answer, in a turn
    without a message."""
    is_serial: bool = False
    """True: the turn that the commit opens takes a position in the queue of its conversation."""
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
    def kinds(self) -> set[type[Entry]]:
        """Return the types of the entries: what the commit changes."""
        return {type(entry) for entry in self.entries}

    @property
    def opens_turn(self) -> bool:
        """Return True if a turn was accepted with the commit, with a message or without one."""
        return self.head.version in (self.head.turn.number, self.head.next_turn)


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
        turn=Turn(number=1, base=1),
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
        TurnFinishedError: a claim of a turn that is over, or a signal for code that is.
        TaskNotAcceptingMessagesError: a turn for a task that does not wait for its client.
        NewerReleaseError: only a newer release may write the task.
    """
    kinds = {type(entry) for entry in commit.entries}
    signals = Recorded in kinds and commit.token is None and not commit.goes_on
    _check(head, commit, kinds, signals=signals)
    if head.turn.token == commit.token:  # a second claim would count another attempt
        commit = replace(commit, claims=False)
    entries = _expand(head, commit, kinds)
    after = _claimed(head, commit, now_ms, timing) if commit.claims else head
    after = replace(after, version=head.version + 1)
    if TurnOpened in kinds or commit.goes_on:
        after = _opened(after, commit, entries, now_ms, timing)
    after, entries = _with_content(after, entries, now_ms)
    after = _recorded(head, after, commit, {type(entry) for entry in entries})
    if commit.backoff is not None:
        after = _waiting(after, commit.backoff, timing)
    if signals:
        after = _signaled(after, now_ms, timing)
    if commit.parks is not None:
        after = _parked(after, commit.parks, commit.seen, now_ms, timing)
    pauses = after.state == TaskState.TASK_STATE_INPUT_REQUIRED and StatusChanged in kinds
    is_over = commit.ends_turn or after.is_terminal or pauses or commit.asks is not None
    if is_over and after.turn.is_open:
        after = _ended(after, commit.asks, now_ms, timing)
        entries = (*entries, TurnEnded())
    if after.state in FAILED and not head.is_terminal:
        after = replace(after, failure=_failure(head, commit))
    if after.is_terminal:
        after = replace(after, due_at=None)
        if after.turn.begun:  # the task was ended while it waited for its client
            after = replace(after, turn=replace(after.turn, begun=0, begun_base=0), needs=0)
    elif head.cancel is not None:
        after = replace(after, due_at=head.due_at)
    return Step(
        head=after,
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
    return replace(head, due_at=due_at, turn=replace(head.turn, sends=sends))


def parking(head: Head, reason: Reason, *, at: int, now_ms: int) -> Head | None:
    """Return HEAD with its open turn parked, for `reason`: its message may be acknowledged.

    `at` is the turn's position among those of its caller, the earliest first, in milliseconds. The
    sweeper looks at the turn later, if nothing has requeued it by then. None once a cancel was
    requested: its deadline stays the due time.
    """
    if head.cancel is not None:
        return None
    turn = replace(head.turn, parked=reason, waits_since=at, has_share=False)
    return replace(head, turn=turn, due_at=now_ms + PARKED_MS[reason])


def requeueing(head: Head, *, now_ms: int, timing: Timing) -> Head | None:
    """Return HEAD with its parked turn on the queue again: send number `sends` has to be sent.

    A turn that has waited for a share has one from now on, to its end. One that sleeps goes on, be
    it for its time or before. None once a cancel was requested, or if the turn is not parked.
    """
    turn, released = head.turn, head.turn.released
    if head.cancel is not None or not turn.parked:
        return None
    if turn.parked == ASLEEP and released is not None:
        released = replace(released, until=min(released.until, now_ms))
    turn = replace(
        turn,
        parked="",
        released=released,
        has_share=turn.parked == "share",
        waits_since=now_ms,
        sends=turn.sends + 1,
        requeued=turn.requeued + 1,
    )
    return replace(head, turn=turn, due_at=now_ms + int(timing.waiting_s * 1000))


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
    uncounted: Uncounted | None = None,
    starts_over: bool = False,
) -> Head | None:
    """Return HEAD with its turn given back by the attempt `end.token`; None if that has it not.

    The turn has no share of the workers any more. `due_at` also moves the due time, unless a cancel
    has set it; `attempts` sets how many attempts of the turn count, and `uncounted` how many starts
    do not. `starts_over`: the next attempt begins at the turn's beginning, whatever was recorded.
    """
    turn = head.turn
    # A parked turn has no message: its position and its due time are all that bring it back.
    if not _has_turn(head, end.token) or turn.parked:
        return None
    turn = replace(
        _given_back(turn, end),
        attempts=turn.attempts if attempts is None else attempts,
        uncounted=turn.uncounted if uncounted is None else uncounted,
        checkpoint=0 if starts_over else turn.checkpoint,
    )
    is_moved = due_at is not None and head.cancel is None
    return replace(head, turn=turn, due_at=due_at if is_moved else head.due_at)


def naming(head: Head, snapshot: SnapshotName) -> Head | None:
    """Return HEAD with a later snapshot; as it is, if it has that one; None: it has a later one."""
    if head.snapshot == snapshot:
        return head
    return None if head.snapshot.version >= snapshot.version else replace(head, snapshot=snapshot)


def _has_turn(head: Head, token: str) -> bool:
    return head.turn.token == token and head.turn.released is None


def _given_back(turn: Turn, end: AttemptEnd) -> Turn:
    return replace(turn, released=end, has_share=False, waits_since=0)


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


def _check(head: Head, commit: Commit, kinds: set[type[Entry]], *, signals: bool) -> None:
    """Raise what `advance` does.

    `kinds` are the types of the commit's entries; `signals`: one of them came from outside.
    """
    check_writable(head)
    opens = TurnOpened in kinds
    if head.is_terminal and (opens or StatusChanged in kinds):
        raise terminal_error(head, f"Send the message {AS_NEW}: it starts a new task.")
    if commit.claims and not head.turn.is_open:
        raise TurnFinishedError
    if signals and (head.is_terminal or not (head.turn.is_open or head.turn.asks)):
        raise TurnFinishedError
    written_by_another = commit.token is not None and head.turn.token != commit.token
    if written_by_another and not commit.claims:
        raise FencedError(current_version=head.version)
    is_taken = head.state in INTERRUPTED and not head.next_turn
    if (opens and not is_taken) or (commit.goes_on and not head.turn.asks):
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


def _expand(head: Head, commit: Commit, kinds: set[type[Entry]]) -> tuple[Entry, ...]:
    """Add the status that follows from the commit: working for a claim, submitted for a new turn.

    A claim keeps the message of the status in the history: the agent may have asked again after
    the turn's message was accepted.
    """
    entries = commit.entries
    if commit.claims:
        working = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING), archive=True)
        if head.is_at_record:  # nothing is taken back, and the task is still worked on
            return entries
        if head.turn.token is not None:
            return (Restarted(head.turn.restart_base), working, *entries)
        return entries if StatusChanged in kinds else (working, *entries)
    if (TurnOpened in kinds or commit.goes_on) and not head.turn.is_open:
        submitted = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        return (*entries, StatusChanged(submitted, archive=commit.goes_on))
    return entries


def runs_alone(head: Head) -> bool:
    """Return True if the open turn's attempts must have no neighbours in their process.

    An attempt has neither ended the turn nor given it back, so its worker died during it. If the
    turn was the cause, the next worker dies as well, and must not interrupt healthy turns. If the
    turn was only a neighbour of the cause, it is safe from it when it runs alone.
    """
    return head.turn.alone or head.turn.is_claimed


def left_by(head: Head) -> AttemptEnd | None:
    """Return the end of the attempt that a claim takes the turn from; None: there was none."""
    turn = head.turn
    if turn.token is None:
        return None
    return turn.released or AttemptEnd(token=turn.token, reason=LOST)


def _claimed(head: Head, commit: Commit, now_ms: int, timing: Timing) -> Head:
    turn = head.turn
    claimed = replace(
        turn,
        token=commit.token,
        released=None,
        attempts=turn.attempts + 1,
        alone=runs_alone(head),
        parked="",
        slept_ms=turn.slept_ms + slept_ms(head, now_ms),
    )
    is_first = turn.token is None
    # A restart brings back earlier metadata, which only the log knows.
    takes_back = not (is_first or head.metadata == b"" or head.is_at_record)
    return replace(
        head,
        turn=claimed,
        due_at=now_ms + int(timing.lease_s * 1000),
        metadata=None if takes_back else head.metadata,
        replied=head.replied and is_first,
        started_at=head.started_at or now_ms,
        code=code_version(commit.worker) or "",
    )


def slept_ms(head: Head, now_ms: int) -> int:
    """Return the milliseconds for which the turn has slept since its last attempt has parked it."""
    released = head.turn.released
    if released is None or released.reason != ASLEEP:
        return 0
    return max(0, now_ms - (released.at or now_ms))


def _recorded(head: Head, after: Head, commit: Commit, kinds: set[type[Entry]]) -> Head:
    """Move the checkpoint, to which a restart goes back; `after` is what `commit` makes of `head`.

    `kinds` are the types of all that is stored with it.

    A record is progress: the turn has all its attempts again, and all its uncounted starts.
    """
    turn = after.turn
    if commit.token is not None and Recorded in kinds:
        turn = replace(
            turn,
            checkpoint=after.version,
            attempts=min(turn.attempts, 1),
            uncounted=Uncounted(),
            requeued=turn.sends,
        )
        return replace(after, turn=turn, needs=max(after.needs, RECORDS))
    # Nothing that could be taken back stands behind the checkpoint: it moves along.
    is_quiet = head.is_at_record and (commit.token is None or kinds <= {ModelsUsed})
    is_taken_back = commit.claims and not commit.entries and head.turn.checkpoint > 0
    if not (is_quiet or is_taken_back):
        return after
    return replace(after, turn=replace(turn, checkpoint=after.version))


def _signaled(head: Head, now_ms: int, timing: Timing) -> Head:
    """Note a signal from outside; a turn that sleeps goes on, with the copy the writer sends."""
    head = replace(head, needs=max(head.needs, QUESTIONS))
    if not head.turn.is_open:
        return head
    if head.turn.parked == ASLEEP:
        head = requeueing(head, now_ms=now_ms, timing=timing) or head
    return replace(head, turn=replace(head.turn, signaled=head.version))


def _parked(head: Head, end: AttemptEnd, seen: int, now_ms: int, timing: Timing) -> Head:
    """Give the turn back at a record: it sleeps, or the next copy of its message goes on.

    No attempt is used up, and no share of the workers is kept. It does not sleep behind a signal
    that its attempt, which knows those up to `seen`, does not know.
    """
    if end.until and head.turn.signaled > seen:
        end = replace(end, reason=HANDOVER, until=0)
    turn = _given_back(head.turn, end)
    turn = replace(turn, attempts=turn.attempts - 1)
    if end.until:
        asleep = replace(turn, parked="asleep", waits_since=now_ms)
        return replace(head, turn=asleep, due_at=end.until)
    turn = replace(turn, sends=turn.sends + 1, requeued=turn.requeued + 1)
    return replace(head, turn=turn, due_at=now_ms + int(timing.waiting_s * 1000))


def _waiting(head: Head, backoff: Backoff, timing: Timing) -> Head:
    """Give the turn back, and its share: nothing works on it, and it may wait for long.

    The sweeper looks at it a lease after the wait: it comes by itself.
    """
    turn = _given_back(head.turn, backoff.end)
    turn = replace(turn, attempts=turn.attempts - 1, uncounted=backoff.uncounted)
    return replace(head, turn=turn, due_at=backoff.end.until + int(timing.lease_s * 1000))


def _opened(
    head: Head, commit: Commit, entries: Iterable[Entry], now_ms: int, timing: Timing
) -> Head:
    """Return HEAD with the turn that a commit opens: the current one, or the next one."""
    for entry in entries:
        if isinstance(entry, TurnOpened):
            head = _opened_by(head, entry.request.message)
    before, version = head.turn, head.version
    if commit.is_serial and not head.serial_from:
        head = replace(head, serial_from=version)
    if before.is_open:
        # The running attempt keeps the task; the message's turn follows when it has returned.
        return replace(head, next_turn=version, status=_without_message(head.status))
    turn = Turn(number=version, base=version, begun=before.begun, begun_base=before.begun_base)
    return _current(head, turn, now_ms, timing)


def _ended(head: Head, asks: int | None, now_ms: int, timing: Timing) -> Head:
    """Return HEAD with its turn over; a message that was accepted meanwhile opens the next one.

    `asks` is that of the commit: the agent's code goes on in the next turn.
    """
    turn, goes_on = head.turn, asks is not None and not head.is_terminal
    begun, begun_base = (
        (turn.begun or turn.number, turn.begun_base or turn.base) if goes_on else (0, 0)
    )
    head = replace(head, needs=QUESTIONS if goes_on else 0)
    if head.next_turn and not head.is_terminal:
        # Its message may have been dropped meanwhile: the writer sends a copy.
        following = Turn(
            number=head.next_turn,
            base=head.version,
            sends=1,
            requeued=1,
            begun=begun,
            begun_base=begun_base,
        )
        return _current(head, following, now_ms, timing)
    over = Turn(
        number=turn.number,
        base=turn.base,
        is_open=False,
        released=turn.released,
        attempts=turn.attempts,
        uncounted=turn.uncounted,
        sends=turn.sends,
        requeued=turn.requeued,
        begun=begun,
        begun_base=begun_base,
    )
    return replace(head, turn=over, next_turn=0, due_at=asks or None if goes_on else None)


def _failure(head: Head, commit: Commit) -> Failure:
    """Return why `commit` ends the task as failed or rejected."""
    end, was_tried = commit.failed, head.turn.token is not None or commit.token is not None
    reason = end.reason if end else "" if was_tried else NOT_STARTED
    return Failure(
        reason=reason, correlation_id=commit.reference or (end.correlation_id if end else "")
    )


def _current(head: Head, turn: Turn, now_ms: int, timing: Timing) -> Head:
    """Make `turn` the current turn: unclaimed, and due in `timing.waiting_s` seconds."""
    due_at = now_ms + int(timing.waiting_s * 1000)
    return replace(head, turn=turn, next_turn=0, due_at=due_at)


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
    if head.turn.is_open:
        return False
    enough = max(SNAPSHOT_BYTES, head.snapshot.length // 32)
    return head.size - head.snapshot.size >= enough


def is_behind(created_at: int, until: int) -> bool:
    """Return True if what was, or would be, created then is behind a barrier that counts `until`.

    It is deleted, however late it is stored: the barrier need not be up any more.
    """
    return created_at < until


def is_last_look(*, began: int, ended: int, since: int, until: int, settles_ms: int) -> bool:
    """Return True if a look that finds nothing behind a barrier says that nothing is left.

    The barrier has been up from `since` to the look's end, and what was stored in front of it is in
    the index by the look's beginning.
    """
    return began >= since + settles_ms and ended < until
