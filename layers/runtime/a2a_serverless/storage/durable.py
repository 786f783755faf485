"""The storage of tasks, on one table.

A commit is one transaction: HEAD moves to the next version if it is still the one that the rules
saw, and the commit's entries are put beside it as EVENT items, which are never rewritten. So a
commit costs the same however long the task is, and to read a task without history and artifacts is
to read one small item.

What a reader may rely on:

- A commit whose answer was lost is recognised by its id in the EVENT at its version, also when
  another writer has committed since. A commit has lost only if its condition on HEAD failed and
  its id is not there.
- A read returns complete commits in unbroken order up to HEAD's version, never half a commit.
- What has expired is not found from the first millisecond on, although DynamoDB removes it later.
- Listings find their candidates in indexes, which lag behind by milliseconds, but show every task
  as its HEAD says it is now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import KW_ONLY, field, replace
from functools import partial
from typing import Any, Final, Self, TypeVar

from a2a.types import SendMessageRequest, Task, TaskPushNotificationConfig
from google.protobuf.message import Message as AnyMessage

from a2a_serverless.clock import Clock, SystemClock, pause_s
from a2a_serverless.errors import (
    A2AServerlessError,
    BeingDeletedError,
    CommitTooLargeError,
    ConditionFailedError,
    ConfigurationError,
    InvalidArgumentError,
    RepeatedKeyError,
    TaskNotAcceptingMessagesError,
    TaskNotFoundError,
    TaskTerminalStateError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage import conversation, layout
from a2a_serverless.storage.blobs import WHOLE, InlineLimits, put_whole, show, store, whole
from a2a_serverless.storage.changes import Change, change, changing, marked
from a2a_serverless.storage.codec import (
    Commits,
    event_items,
    gone,
    head_item,
    live_head,
    replaced,
    sent_item,
)
from a2a_serverless.storage.contexts import Contexts, context_conflict
from a2a_serverless.storage.snapshots import ListedTasks, NearSnapshots, snapshot_of
from a2a_serverless.storage.table import (
    NEW,
    Item,
    Key,
    Put,
    Range,
    Table,
    Write,
)
from a2a_serverless.storage.webhooks import Webhooks, push_item
from a2a_serverless.tasks.blobs import (
    BlobOwner,
    blob_at,
    blob_of,
    check_without_store,
    offload,
    refers,
)
from a2a_serverless.tasks.conversation import Position
from a2a_serverless.tasks.entries import (
    OFFLOAD_BYTES,
    Caller,
    Entry,
    Recorded,
    advice_on_size,
    check_readable,
    content_of,
    decode_entries,
    encode_entries,
    is_plain,
    parts_of,
    with_content,
)
from a2a_serverless.tasks.fold import (
    Log,
    Record,
    Snapshot,
    belonging_to,
    check_history_length,
    task_of_head,
)
from a2a_serverless.tasks.head import ASLEEP, Head, Reason
from a2a_serverless.tasks.identity import (
    ANONYMOUS,
    Dialect,
    Scope,
    TaskKey,
    check_context_id,
    check_task_id,
    is_task_id,
    keyed_task_id,
    new_id,
    new_incarnation,
)
from a2a_serverless.tasks.push import inline_push
from a2a_serverless.tasks.rules import (
    Commit,
    NewTask,
    Step,
    Timing,
    advance,
    canceling,
    check_open,
    conflict,
    is_applied,
    is_behind,
    key_digest,
    open_task,
    parking,
    postponing,
    requeueing,
)
from a2a_serverless.values import dataclass

M = TypeVar("M", bound=AnyMessage)

logger = logging.getLogger(__name__)

Joining = Callable[[Head], Awaitable[list[Change[Any]]]]
"""Takes the HEAD that a commit makes; returns changes to the same table for its transaction."""

MAX_COMMIT_BYTES: Final = 4_000_000
"""Below the 4 MB of a DynamoDB transaction, with room for keys and HEAD."""

_HASHED_HERE: Final = 1_000_000
"""The most bytes of a message whose digests the event loop waits for: they take milliseconds."""

_INSERTS: Final = 5
"""How often a creation is tried while its id changes between taken and free."""

LOOK_AT_ONCE: Final = 100
"""Tasks of one `look`: DynamoDB reads as many items in one request."""

_NEWEST: Final = 8
"""The items that a read looks at before it knows of a snapshot, and then reads the others since."""

_TORN_READS: Final = 10
"""How often a read goes on when HEAD and events do not fit together yet."""


@dataclass(frozen=True, slots=True)
class Observer:
    """What the process adds to its commits, and what it is told of them; by default nothing."""

    trace: Callable[[], str | None] = lambda: None
    """Returns the writer's trace context, which the commit keeps."""
    ended: Callable[[Head, Step, Commit], None] = lambda *_: None
    """Is called by the process whose commit has ended a turn or a task: with HEAD before it, the
    commit as it is stored, and as it was wanted, which says why the task has failed."""
    send: Callable[[Head], Awaitable[None]] | None = None
    """Sends the operation of a turn that was requeued; None: this process has no queue."""


class DeletionBarriers:
    """What is being deleted, as this process has read it a moment ago; one request reads all of it.

    A creation looks before its write, and after it. A barrier that was put up `KEPT_MS` before a
    write is seen by the look after it, however long the process was held up in between.
    """

    FRESH_MS: Final = 2_000
    """The age up to which what was read is used as it is, counted from before the read."""
    KEPT_MS: Final = 5_000
    """The age up to which it is used while another call reads it again."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._until: Mapping[str, int] = {}
        self.sleepers: Collection[str] = ()
        """The callers whose sleeping turns are counted before a message is accepted."""
        self._read_at = -self.KEPT_MS
        self._is_reading = False

    async def until(self, scope: str, context_id: str) -> int:
        """Return the time up to which all that is created in a context is deleted; 0: no time.

        Raises:
            UnavailableError: no answer within the retry budget.
        """
        age = self._clock.now_ms() - self._read_at
        if not 0 <= age < (self.KEPT_MS if self._is_reading else self.FRESH_MS):
            await self._read()
        return max([self._until.get(one, 0) for one in layout.owners_of(scope, context_id)])

    async def check(self, scope: str, context_id: str, created_at: int) -> None:
        """Refuse what was, or would be, created at `created_at`, if it is deleted.

        Raises:
            BeingDeletedError: it is.
            UnavailableError: as `until`.
        """
        until = await self.until(scope, context_id)
        if is_behind(created_at, until):
            raise BeingDeletedError(max(1, -(-(until - self._clock.now_ms()) // 1000)))

    async def _read(self) -> None:
        self._is_reading = True
        try:
            began = self._clock.now_ms()
            until: dict[str, int] = {}
            sleepers: set[str] = set()
            for item in await self._table.all(Range(partition=layout.FENCE)):
                sort, at = item["SK"], item.get("until")
                if not isinstance(at, int):
                    continue
                if sort.startswith(layout.SLEEPERS):
                    sleepers |= {sort.removeprefix(layout.SLEEPERS)} if at > began else set()
                    continue
                owner = layout.barrier_owner(sort)
                until[owner] = max(at, until.get(owner, 0))
            self._until, self.sleepers, self._read_at = until, sleepers, began
        finally:
            self._is_reading = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateResult:
    """The task that a creation has made, or has found under a repeated key or id (`created` False).

    `log` is that of a created task, so that the caller need not read what was just written.
    """

    head: Head
    created: bool
    log: Log | None = None


@dataclass(eq=False)
class DurableStorage:
    """The tasks of one scope, laid out as the page `format` says. Reads are consistent."""

    table: Table
    """Where they are stored, with those of all other scopes."""
    _: KW_ONLY
    scope: Scope = ANONYMOUS
    """The owner of the tasks."""
    clock: Clock = field(default_factory=SystemClock)
    timing: Timing = field(default_factory=Timing)
    """Lengths of leases, waits and expiries, from which commits set their times."""
    observer: Observer = field(default_factory=Observer)
    """Adds fields to commits, and hears of them."""
    is_serial: bool = False
    """True: the turns of a conversation run one after the other."""
    near: NearSnapshots = field(default_factory=NearSnapshots)
    """Shorter ways to long tasks, in memory."""
    listed: ListedTasks = field(default_factory=ListedTasks)
    """The tasks of the last pages, in memory."""
    joining: Joining | None = None
    """Is asked before each creation and commit; None: no other changes join them."""

    def for_scope(self, scope: Scope) -> Self:
        """Return the same storage seen by another owner; cheap."""
        return replace(self, scope=scope)

    def joined_by(self, joining: Joining) -> Self:
        """Return the same storage, whose creations and commits are joined by other changes."""
        view = copy(self)
        view.joining = joining
        return view

    @property
    def webhooks(self) -> Webhooks:
        """Return the push configurations of the scope's tasks."""
        return Webhooks(self.table, self.scope, self.clock)

    @property
    def contexts(self) -> Contexts:
        """Return the states of the scope's contexts."""
        return Contexts(self.table, self.scope, self.clock, self.timing)

    # -- reads ---------------------------------------------------------------------------------

    async def head(self, task_id: str) -> Head | None:
        """Return HEAD as of now, None when the task does not exist or has expired."""
        if not is_task_id(task_id):
            return None
        item = await self.table.get(layout.head_key(self.scope.digest, task_id))
        return live_head(item, self.clock.now_ms())

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
        """Look at up to `LOOK_AT_ONCE` tasks of all scopes, in one request that is not repeated.

        What is seen may be out of date: a HEAD may be an earlier one, or missing although its task
        was just created. So a look only gives notice, and a consistent read or a commit's condition
        decides. A task that the table had no capacity for is left out.

        Raises:
            UnavailableError: there was no answer; the next look may succeed.
        """
        asked = {layout.task_partition(*task): task for task in tasks if is_task_id(task[1])}
        keys = [Key(partition, layout.HEAD) for partition in asked]
        found = await self.table.load(keys, consistent=False, once=True)
        return {
            asked[key.PK]: readable_head(item, self.clock.now_ms()) for key, item in found.items()
        }

    async def read(
        self,
        task_id: str,
        *,
        after: int = 0,
        incarnation: str | None = None,
        is_whole: bool = True,
    ) -> Log | None:
        """Return HEAD and every commit after version `after`.

        None when the task does not exist, has expired, or is not of `incarnation`, without which
        `after` says nothing. `is_whole` False, for a log from its beginning: a snapshot may take
        the place of the first commits.

        Raises:
            UnreadableTaskError: HEAD or a commit after `after` is damaged or missing.
        """
        if not is_task_id(task_id):
            return None
        commits = Commits(incarnation, after) if incarnation and is_whole else None
        start = layout.event_sort(incarnation, after + 1) if incarnation else layout.EVENTS
        gaps: set[tuple[str, int]] = set()
        for attempt in range(1, _TORN_READS + 1):
            near: Snapshot | None = None
            if commits is None and not is_whole:
                found, near = await self._newest_items(task_id)
            else:
                found = await self.items_of(task_id, start)
            head, commits = self._commits_in(found, commits, near, is_whole=is_whole)
            if head is None or commits is None or incarnation not in (None, head.incarnation):
                return None
            records = belonging_to(head, commits.records, commits.version)
            if records is not None:
                log, since = Log(head=head, records=records), commits.since
                if isinstance(since, Head):
                    return await self._since_snapshot(log, since)
                log = log if since is None else log.behind(since)
                if not is_whole:
                    self.near.keep(log)
                return log
            start = layout.event_sort(commits.incarnation, commits.version + 1)
            gaps.add((commits.incarnation, commits.version + 1))
            await self.clock.sleep(pause_s(attempt))
        if len(gaps) == 1:  # a Query beside a transaction may miss its commit, but not every time
            ((_, version),) = gaps
            msg = f"Version {version} of task {task_id} is not there, or was stored in part."
            raise UnreadableTaskError(msg)
        msg = f"The events of task {task_id} did not reach its version in {_TORN_READS} reads."
        raise UnavailableError(msg)

    async def _since_snapshot(self, log: Log, named: Head) -> Log | None:
        """Return a log with the snapshot that HEAD has named in the place of what it lacks."""
        since = await snapshot_of(self, named)
        # A later snapshot may have taken its place since HEAD was read: the whole log is still
        # there.
        if since is not None and since.last == named.snapshot.version:
            log = log.behind(since)
            self.near.keep(log)
            return log
        return await self.read(log.head.task_id, incarnation=log.head.incarnation)

    def _commits_in(
        self,
        found: list[Item],
        commits: Commits | None,
        near: Snapshot | None,
        *,
        is_whole: bool,
    ) -> tuple[Head | None, Commits | None]:
        """Return HEAD, and its commits: those of `commits` and what a Query has found behind them.

        HEAD sorts behind the events, so that one Query on the partition has both.
        """
        is_head = bool(found) and found[-1]["SK"] == layout.HEAD
        head = live_head(found[-1] if is_head else None, self.clock.now_ms())
        if head is None:
            return None, commits
        # Deleted and created anew between two reads: what was read so far is of another task.
        if commits is None or commits.incarnation != head.incarnation:
            if near is not None:
                commits = Commits(head.incarnation, near.last, near)
            else:
                since = None if is_whole or not head.snapshot.version else head
                commits = Commits(head.incarnation, since.snapshot.version if since else 0, since)
        commits.add(found)
        return head, commits

    async def load_task(
        self,
        task_id: str,
        history_length: int | None = None,
        *,
        include_artifacts: bool = True,
        inline: InlineLimits | None = WHOLE,
    ) -> Task | None:
        """Return the task as the caller's own copy; None when it does not exist or has expired.

        `history_length`: None = all, 0 = none, n = the last n messages. With 0 and without
        artifacts the cost does not depend on the task's size. `inline` says what is shown of large
        files in the task itself; None: it keeps its references.

        Raises:
            InvalidArgumentError: a negative or non-integer `history_length`.
        """
        check_history_length(history_length)
        if history_length == 0 and not include_artifacts:
            head = await self.head(task_id)
            if head is None:
                return None
            if (task := task_of_head(head)) is not None:
                return await self._shown(task, inline)
        log = await self.read(task_id, is_whole=False)
        if log is None:
            return None
        task = log.fold().task(history_length, include_artifacts=include_artifacts)
        return await self._shown(task, inline)

    async def _shown(self, task: Task, inline: InlineLimits | None) -> Task:
        if inline is not None:
            await self.show(task, inline)
        return task

    async def shown(self, log: Log, inline: InlineLimits = WHOLE) -> Log:
        """Return a log that was read here with contents or links in place of references."""
        records = [await self._shown_record(record, inline) for record in log.records]
        return replace(log, records=tuple(records))

    async def _shown_record(self, record: Record, inline: InlineLimits) -> Record:
        if not any(refers(content_of(entry)) for entry in record.entries):
            return record
        entries = decode_entries(encode_entries(record.entries))  # copies
        for entry in entries:
            await self.show(content_of(entry), inline)
        return replace(record, entries=entries)

    async def show(self, message: AnyMessage | None, inline: InlineLimits = WHOLE) -> None:
        """Replace references in a message that was read here by contents or links, in place.

        Raises:
            UnavailableError: no answer within the retry budget.
        """
        if not is_plain(message):
            await show(self.table.blobs, message, inline)

    async def items_of(self, task_id: str, start: str = layout.EVENTS) -> list[Item]:
        """Return the items of a task from the sort key `start` on, HEAD last."""
        wanted = Range(
            partition=layout.task_partition(self.scope.digest, task_id),
            first=start,
            last=layout.HEAD,
        )
        return await self.table.all(wanted)

    async def _newest_items(self, task_id: str) -> tuple[list[Item], Snapshot | None]:
        """Return the items of a task since its snapshot, HEAD last; all, if it has none.

        Return the snapshot as well if it is one in memory.
        """
        partition = layout.task_partition(self.scope.digest, task_id)
        wanted = Range(partition=partition, first=layout.EVENTS, last=layout.HEAD)
        pages = self.table.query(replace(wanted, newest_first=True, page=_NEWEST))
        async with aclosing(pages):
            found: list[Item] = (await anext(pages, []))[::-1]
        is_head = bool(found) and found[-1]["SK"] == layout.HEAD
        head = live_head(found[-1], self.clock.now_ms()) if is_head else None
        if head is None:
            self.near.forget((self.scope.digest, task_id))
            return found, None
        near = self.near.of(head)
        # Fewer items than were asked for need not be all: a page also ends at 1 MB.
        since = head.snapshot.version if near is None else near.last
        start = layout.event_sort(head.incarnation, since + 1, 0)
        oldest = found[0]["SK"]
        if oldest <= start:
            return found, near
        before = await self.table.all(replace(wanted, first=start, last=oldest))
        return [*(item for item in before if item["SK"] < oldest), *found], near

    async def changed(self, task_id: str, version: int, timeout_s: float) -> None:
        """Return when the task may have moved beyond `version`, at the latest after `timeout_s`."""
        with self.table.watch(layout.task_partition(self.scope.digest, task_id)) as watch:
            if self.table.wakes:
                head = await self.head(task_id)
                if head is None or head.version > version:
                    return
            await watch.wait(timeout_s)

    # -- commits -----------------------------------------------------------------------------

    async def offload(self, head: Head, message: M, *, behind: int = 0) -> M:
        """Store the large contents of a message beside the log; return it with references to them.

        `behind` are the raw bytes that the artifact has before those of this chunk. A commit does
        the same: what is offloaded before is not in memory until then.

        Raises:
            InvalidArgumentError: a part refers to another scope's content, or to none.
            ConfigurationError: the store refuses.
            UnavailableError: no answer within the retry budget; nothing refers to what is stored.
        """
        blobs = self.table.blobs
        if blobs is None:
            check_without_store(message)
            return message
        owner = _owner(head)
        offloading = partial(offload, message, owner, behind=behind)
        is_large = message.ByteSize() > _HASHED_HERE
        message, to_store = await asyncio.to_thread(offloading) if is_large else offloading()
        linked = {each.blob.key for each in to_store if each.content == each.blob}
        if linked:
            await self._check_own(head, linked)
        if to_store:
            await store(blobs, [each for each in to_store if each.blob.key not in linked])
        return message

    async def _check_own(self, head: Head, linked: set[str]) -> None:
        """Refuse links that say that a task has files which its log does not name.

        Raises:
            InvalidArgumentError: a key is that of no file of the task.
        """
        log = await self.read(head.task_id, incarnation=head.incarnation, is_whole=False)
        records = () if log is None else log.records
        messages = [content_of(entry) for record in records for entry in record.entries]
        task = None if log is None else log.fold().task()  # also what a snapshot stands for
        blobs = [blob_of(part) for message in (task, *messages) for part in parts_of(message)]
        if linked - {blob.key for blob in blobs if blob is not None and blob.kind == "raw"}:
            raise InvalidArgumentError(
                "A part's link names a file that the task does not have: use the URL of one of its"
                " parts as it is, or send the file itself."
            )

    async def _forget_blobs(self, step: Step) -> None:
        """Delete the blobs of a creation that was refused, or has met an earlier one."""
        if self.table.blobs is not None and not all(map(is_plain, map(content_of, step.entries))):
            # The answer does not depend on it: what is left goes when its time is over.
            with suppress(ConfigurationError, UnavailableError):
                await self.table.blobs.delete(_owner(step.head))

    async def forget_gone(self, head: Head) -> None:
        """Delete the blobs of a task that was deleted after `head` was read, else none.

        A writer that finds its task gone calls this: it may have stored them behind the deletion. A
        task that has expired is not gone. An outage leaves them until their time is over.
        """
        if self.table.blobs is None:
            return
        with suppress(ConfigurationError, UnavailableError):
            stored = await self.table.get(layout.head_key(head.scope, head.task_id))
            # A HEAD that names no incarnation is damaged, and may be restored.
            if stored is None or stored.get("incarnation", head.incarnation) != head.incarnation:
                await self.table.blobs.delete(_owner(head))

    async def offload_record(self, head: Head, entry: Recorded) -> Recorded:
        """Store the value of a long record beside the log; return the record that names it.

        Raises:
            ConfigurationError, UnavailableError: as `offload`.
        """
        blobs = self.table.blobs
        if blobs is None or len(entry.value) <= OFFLOAD_BYTES:
            return entry
        return entry.offloaded((await put_whole(blobs, entry.value, _owner(head))).place)

    async def whole_record(self, head: Head, entry: Recorded) -> Recorded | None:
        """Return a record with its value, wherever that is stored; None if it is missing.

        Raises:
            UnavailableError: no answer within the retry budget.
        """
        if not entry.is_offloaded:
            return entry
        blob = blob_at(entry.value.decode(errors="replace"), _owner(head))
        value = None if blob is None else await whole(self.table.blobs, blob)
        return None if value is None else entry.whole(value)

    async def _offloaded(self, head: Head, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return the entries of a commit that names nothing that is not stored."""
        kept = list(entries)
        for number, entry in enumerate(entries):
            content = content_of(entry)
            if content is not None and not is_plain(content):
                kept[number] = with_content(entry, await self.offload(head, content))
        return tuple(kept)

    async def open_task(
        self,
        context_id: str,
        request: SendMessageRequest,
        *,
        caller: Caller = Caller(),  # noqa: B008 - frozen
        task_id: str | None = None,
        idempotency_key: str | None = None,
        ttl_s: float | None = None,
        push: TaskPushNotificationConfig | None = None,
        push_dialect: Dialect = "1.0",
    ) -> CreateResult:
        """Create a task with its first turn open, in one request.

        The id is `task_id`, or follows from (context, key), or is random. `push`, the configuration
        that came with the message, is ignored if the creation is a repeated one.

        Raises:
            InvalidArgumentError: an id or the configuration cannot be stored.
            ConversationFullError: too many turns wait in the conversation.
        """
        check_context_id(context_id)
        if task_id is None and idempotency_key is not None:
            task_id = keyed_task_id(self.scope, context_id, idempotency_key)
        new = NewTask(
            scope=self.scope.digest,
            task_id=check_task_id(new_id() if task_id is None else task_id),
            context_id=context_id,
            incarnation=new_incarnation(),
            request=request,
            caller=caller,
            idempotency_key=idempotency_key,
            ttl_s=ttl_s,
            push=push,
            push_dialect=push_dialect,
            is_serial=self.is_serial,
        )
        now_ms = self.clock.now_ms()
        trace = self.observer.trace()
        step = open_task(new, now_ms=now_ms, timing=self.timing, trace=trace)
        check_readable(step.entries)
        try:
            step = replace(step, entries=await self._offloaded(step.head, step.entries))
            step, taker = await self._create(step)
        except UnavailableError:
            raise  # it may have been made
        except A2AServerlessError:
            await self._forget_blobs(step)
            raise
        if taker is not None:
            await self._forget_blobs(step)
            return CreateResult(head=taker, created=False)
        log = Log(head=step.head, records=(Record.of(step),))
        return CreateResult(head=step.head, created=True, log=log)

    async def _create(self, step: Step) -> tuple[Step, Head | None]:
        """Store a new task; return it as it is stored, and HEAD of a task that has its id already.

        Raises what `open_task` does; then nothing is stored but blobs. A task that has expired
        leaves its id free.
        """
        step, body = _encoded(step)
        head = step.head
        writes: list[Write] = [Put(item=item) for item in event_items(step, body)]
        if step.push is not None:
            push = inline_push(step.push, step.push_dialect, head)
            writes.append(Put(item=push_item(marked(push))))
        changes = [] if self.joining is None else await self.joining(head)
        if head.serial_from:
            changes.append(conversation.joining(self, head, turn=1))
        for _ in range(_INSERTS):
            # An expired HEAD stands there until DynamoDB deletes it: it does not hold the id.
            free = Put(item=head_item(head), when=[gone(self.clock.now_ms())])
            try:
                await change(self.table, self.clock, *changes, also=[free, *writes])
            except ConditionFailedError as failed:
                found = live_head(failed.items[0], self.clock.now_ms())
                taker = found or await self.head(head.task_id)
                if taker is None:
                    continue
                # It is there by an earlier request of this creation, whose answer was lost.
                is_own = taker.incarnation == head.incarnation
                return step, None if is_own else taker
            return step, None
        msg = f"The id {head.task_id} was taken and free by turns, {_INSERTS} times."
        raise UnavailableError(msg)

    async def commit(self, head: Head, commit: Commit) -> Head:
        """Write `commit` onto `head` as one atomic step; return the new HEAD.

        It is written exactly once: a write whose answer was lost is recognised as applied.

        Raises:
            TaskNotFoundError: the task is gone, or another incarnation took its id.
            ConcurrencyError: another writer has committed since `head`.
            FencedError, TurnFinishedError, TaskTerminalStateError,
            TaskNotAcceptingMessagesError: the rules refuse it.
            RepeatedKeyError: a commit with this idempotency key was made before, however long ago.
            ConversationFullError: too many turns wait in the conversation for this message's to be.
            CommitTooLargeError: more than 4 MB; nothing was written.
            UnavailableError: no answer within the retry budget; the outcome is unknown.
        """
        check_readable(commit.entries)
        entries, state = await self._offloaded(head, commit.entries), commit.context_write
        if state is not None:
            # Before the commit: a blob that no item names is only waste, but an item whose blob is
            # missing could never be read again.
            state = await self.contexts.offload(head.context_id, state)
        commit = replace(commit, entries=entries, context_write=state, is_serial=self.is_serial)
        try:
            step, is_settled = await self._store(head, commit)
        except UnavailableError:
            raise  # it may have been made, and names the state
        except A2AServerlessError as error:
            if state is not None and state.form == "blob":
                await self.contexts.forget(head.context_id, str(state.value))
            if isinstance(error, TaskNotFoundError):
                await self.forget_gone(head)
            raise
        has_ended = step.head.is_terminal and not head.is_terminal
        if has_ended or (head.turn.is_open and step.head.is_over(head.turn.number)):
            # Every end of a turn passes here, in the process that commits it.
            self.observer.ended(head, step, commit)
        # Messages follow the commit: should this process die in between, the sweeper sends them.
        after = step.head.turn
        wakes = head.turn.parked == ASLEEP and commit.token is None and not after.parked
        if (head.next_turn and after.number == head.next_turn) or (wakes and after.is_open):
            await conversation.begin(self, step.head)
        if not is_settled:
            await conversation.start_next_turn(self, head.context_id)
        if state is not None and state.replaced:  # not before: until now readers find it
            await self.contexts.forget(head.context_id, state.replaced)
        return step.head

    async def _store(self, head: Head, commit: Commit) -> tuple[Step, bool]:
        """Make the step of a commit and store it; return what `_apply` does beside it."""
        now_ms, trace = self.clock.now_ms(), self.observer.trace()
        try:
            step = advance(head, commit, now_ms=now_ms, timing=self.timing, trace=trace)
        except (TaskTerminalStateError, TaskNotAcceptingMessagesError):
            # The same message may have come before, and have been taken: its key tells.
            if commit.idempotency_key:
                await self._check_key(head, key_digest(commit.idempotency_key))
            raise
        if head.expires_at <= now_ms:
            raise TaskNotFoundError
        step, body = _encoded(step)
        return step, await self._apply(head, step, body)

    async def _apply(self, before: Head, step: Step, body: bytes) -> bool:
        """Store a commit if HEAD is still `before`; `body` is its entries, encoded.

        Return False if it has ended a turn whose conversation has to go on.

        Raises:
            ConcurrencyError, TaskNotFoundError: HEAD is another one, or gone.
            ConversationFullError: there is no position in the queue of the conversation.
            InvalidArgumentError: the task has no room for the push configuration.
        """
        head = step.head
        writes: list[Write] = [replaced(before, head, self.clock.now_ms())]
        writes += [Put(item=item) for item in event_items(step, body)]
        # HEAD has the key of the creation alone. This item refuses a repeated follow-up, however
        # late it comes.
        if step.key_digest:
            writes.append(Put(item=sent_item(head, step.key_digest), when=[NEW]))
        if step.context_write is not None:
            writes.append(self.contexts.update(head.context_id, step.context_write))
        changes = [] if self.joining is None else await self.joining(head)
        if step.push is not None:
            push = inline_push(step.push, step.push_dialect, head)
            changes.append(await self.webhooks.inline(push))
        ends = before.turn.is_open and head.is_over(before.turn.number) and before.is_serial
        if ends:
            changes.append(conversation.leaving(self, before))
        elif head.serial_from and step.opens_turn:
            changes.append(conversation.joining(self, head, turn=head.version))
        try:
            await change(self.table, self.clock, *changes, also=writes)
        except ConditionFailedError as failed:
            await self._settle(step, failed.items)
            return not ends
        return not ends or changes[-1].before.positions == (Position.of(before),)

    async def _settle(self, step: Step, failed: Mapping[int, Item | None]) -> None:
        """Return if the refused commit was applied by an earlier, unanswered request; else raise.

        The EVENT at the commit's version says so, and goes on to say so when others have
        committed since; HEAD would not.
        """
        head = step.head
        # The first write is that of HEAD, which is as it was.
        if 0 not in failed:
            if step.key_digest:
                await self._check_key(head, step.key_digest)
            raise context_conflict(next(iter(failed.values())))
        event = layout.event_sort(head.incarnation, head.version, 0)
        stored = await self.table.get(Key(layout.task_partition(head.scope, head.task_id), event))
        stored_id = stored.get("commit_id") if stored else None
        if is_applied(stored_id, step.commit_id):
            return
        raise conflict(
            live_head(failed[0], self.clock.now_ms()) or await self.head(head.task_id), head
        )

    async def _check_key(self, head: Head, digest: str) -> None:
        """Raise RepeatedKeyError if a follow-up with this key has opened a turn of the task."""
        sort = layout.sent_sort(head.incarnation, digest)
        sent = await self.table.get(Key(layout.task_partition(head.scope, head.task_id), sort))
        if sent is not None:
            raise RepeatedKeyError(sent["turn"])

    # -- cancels -------------------------------------------------------------------------------

    async def request_cancel(self, task_id: str, *, by: str = "") -> Head:
        """Mark HEAD, and return it: from now on only writers that know of the request can commit.

        The task is due at its deadline, `Timing.cancel_s` from now: the process that was asked ends
        it by then, and if that process died, the sweeper does. Repeating the request changes
        nothing: mark and deadline stay. `by` names the user who asks.

        Raises:
            TaskNotFoundError: there is no such task.
            TaskTerminalStateError: the task has ended.
            NewerReleaseError: only a newer release may change the task.
            UnavailableError: no answer within the retry budget; the mark may have been made.
        """
        asked = partial(canceling, by=by, now_ms=self.clock.now_ms(), timing=self.timing)
        head = await self.change(check_open(await self.head(task_id)), asked)
        if head is None:
            raise TaskNotFoundError
        return head

    # -- HEAD without a commit -----------------------------------------------------------------

    async def change(self, head: Head, decide: Callable[[Head], Head | None]) -> Head | None:
        """Replace HEAD by what `decide` makes of it; return it.

        `head` is HEAD as it was read. If another write came in between, `decide` is asked again,
        with the HEAD which that write has made. If it returns that HEAD as it is, there is nothing
        to do. None when `decide` returns None, or the task is gone.

        Raises:
            UnavailableError: no answer within the retry budget, or too many races were lost.
        """

        def read(item: Item) -> Head | None:
            found = live_head(item, self.clock.now_ms())
            return found if found and found.incarnation == head.incarnation else None

        made = changing(head, decide, partial(replaced, now_ms=self.clock.now_ms()), read)
        await change(self.table, self.clock, made)
        return made.after

    async def _once(self, head: Head, after: Head | None) -> Head | None:
        """Replace HEAD by `after` if it is still the one that was read; else return None."""
        return await self.change(head, lambda now: after if now.mark == head.mark else None)

    async def postpone(self, head: Head, *, due_at: int, sends: int) -> Head | None:
        """Move HEAD's due time; None when HEAD has changed since, or expired, or is canceled."""
        return await self._once(head, postponing(head, due_at=due_at, sends=sends))

    async def park(self, head: Head, reason: Reason, *, at: int | None = None) -> Head | None:
        """Take an unclaimed turn off the queue: from now on it stands in the table alone.

        The caller acknowledges the turn's message afterwards. `at` is its position among those of
        its caller, by default now. None when HEAD has changed since it was read, has expired, or
        is to be canceled.
        """
        now_ms = self.clock.now_ms()
        at = now_ms if at is None else at
        return await self._once(head, parking(head, reason, at=at, now_ms=now_ms))

    async def requeue(self, head: Head) -> Head | None:
        """Put a parked turn on the queue again, of which the caller sends the copy `sends` of HEAD.

        None when HEAD has changed since. If the copy is not sent, the sweeper sends one.
        """
        return await self._once(
            head, requeueing(head, now_ms=self.clock.now_ms(), timing=self.timing)
        )


def _owner(head: Head) -> BlobOwner:
    return BlobOwner(head.scope, head.task_id, head.incarnation)


def readable_head(item: Mapping[str, Any] | None, now_ms: int) -> Head | None:
    """Return the HEAD that an item holds if it is live; None, with a line in the log, if damaged.

    For reads of many tasks, in which a damaged one must not hide the others.
    """
    try:
        return live_head(item, now_ms)
    except UnreadableTaskError as error:
        tell_left_out(error)
        return None


def tell_left_out(error: UnreadableTaskError) -> None:
    """Log a damaged task, which does not hide the others where many are read."""
    logger.error("A task is left out: %s", error, extra={"action": "unreadable_task"})


def _encoded(step: Step) -> tuple[Step, bytes]:
    """Return a step and its entries as they are stored: HEAD counts their bytes, and has a mark.

    Raises:
        CommitTooLargeError: more than `MAX_COMMIT_BYTES` at once.
    """
    body = encode_entries(step.entries)
    size = len(body) + (len(step.context_write.value) if step.context_write else 0)
    if size > MAX_COMMIT_BYTES:
        raise CommitTooLargeError(size, MAX_COMMIT_BYTES, advice_on_size(step.entries))
    head = marked(replace(step.head, size=step.head.size + len(body)))
    return replace(step, head=head), body
