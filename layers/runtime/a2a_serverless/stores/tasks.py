"""The SDK's versioned task store over a table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final

from a2a.server.cluster import ConcurrentTaskModificationError, StoredTask, TaskVersion
from a2a.server.cluster.task_store import VersionedTaskStore
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks.task_store import TaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Task, TaskState
from a2a.utils.proto_utils import to_stream_response

from a2a_serverless.clock import Clock, now_s
from a2a_serverless.errors import ConditionFailedError, UnreadableTaskError
from a2a_serverless.storage.table import NEW, Check, Delete, Put, Range, Table, When, are
from a2a_serverless.stores import layout
from a2a_serverless.stores.content import Change, change_of, contents_of, size_of, task_of
from a2a_serverless.stores.listing import page_of
from a2a_serverless.stores.log import WHOLE_TASK, Head, Stored, TaskLog, number_of, sdk_errors
from a2a_serverless.tasks.head import TERMINAL
from a2a_serverless.tasks.identity import new_incarnation
from a2a_serverless.values import dataclass

_ENTRY_BYTES: Final = 200
"""What an item of the log takes beside its content."""
_SPREAD: Final = 4
_SLACK_BYTES: Final = 64_000
"""A log that is longer than four times the task, and this, begins anew with the whole task. So a
read costs no more than that, and what is stored for it no more than a share of what was saved."""

_LOG_TTLS: Final = 2
"""The times to live that an item of the log has: HEADs that are saved later need it, too."""

_CACHE_BYTES: Final = 32_000_000
"""What a process keeps of the tasks that it saved or read last."""
_KNOWN_BYTES: Final = 800
"""What it takes beside the contents of one, and of each content."""
_CONTENT_BYTES: Final = 50


class DynamoDBTaskStore(layout.OwnedStore, VersionedTaskStore):
    """Keeps tasks as the SDK's `VersionedDatabaseTaskStore` does, in DynamoDB.

    A save is one transaction, which writes what has changed, and is refused if another one was
    first. Use one store in one event loop.

    Args:
        table: the name of a DynamoDB table, or a table.
        owner_resolver: returns the owner of a call, as for the SDK's stores.
        ttl_s: the seconds after its last save for which a task is kept; None: for ever.
        bucket: an S3 bucket for changes above 350,000 bytes; None: they are stored in several
            items. All stores of a table need the same one. It is not emptied of expired tasks: give
            it a lifecycle rule of more than twice `ttl_s`, and none without `ttl_s`.
        clock: by default the system's.
    """

    def __init__(
        self,
        table: str | Table,
        *,
        owner_resolver: OwnerResolver = resolve_user_scope,
        ttl_s: int | None = None,
        bucket: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(table, owner_resolver=owner_resolver, ttl_s=ttl_s, clock=clock)
        self._log = TaskLog(self._table, bucket, self._clock)
        self._known: OrderedDict[str, Stored] = OrderedDict()
        self._known_bytes = 0

    @property
    def as_task_store(self) -> TaskStore:
        """Return the same tasks without versions, for what takes a plain `TaskStore`.

        The last save wins, as with the SDK's `DatabaseTaskStore`.
        """
        return _LastSaveWins(self)

    async def initialize(self) -> None:
        """Ask the table once for an item, and once for each index, so that a start fails early.

        Raises:
            InternalError: the table cannot be used.
        """
        with sdk_errors():
            await self._log.head("none")
            for index in layout.OWN_INDEXES:
                await self._table.first(1, Range(partition="none", index=index))

    async def save(
        self,
        task: Task,
        *,
        event: Event | None = None,
        prev: Task | None = None,  # noqa: ARG002 - the server changes it in place, so that it tells nothing
        prev_version: TaskVersion,
        context: ServerCallContext,
    ) -> TaskVersion:
        """Store a task and its event in one transaction; return the new version.

        A save that cancels replaces any version of a task that has not ended. Every other one
        replaces `prev_version`, or creates the task if that is `TaskVersion.MISSING`.

        Raises:
            ConcurrentTaskModificationError: another version is stored, or the id is another
                owner's; for a cancel: the task has ended, or there is none.
            InvalidParamsError: the id does not fit.
            InternalError: the table cannot be used.
        """
        is_cancel = task.status.state == TaskState.TASK_STATE_CANCELED
        expected = None if is_cancel else number_of(prev_version)
        return await self._save(task, event, self._owner(context), expected, only_open=is_cancel)

    async def overwrite(self, task: Task, context: ServerCallContext) -> TaskVersion:
        """Store a task, whichever version is stored; return the new version.

        Raises:
            ConcurrentTaskModificationError: the id is another owner's, or another save has created
                the task at the same time.
            InvalidParamsError: the id does not fit.
            InternalError: the table cannot be used.
        """
        return await self._save(task, None, self._owner(context), None, only_open=False)

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Return the caller's task and its version; None: the caller has none with this id.

        Raises:
            InternalError: the table cannot be used, or the task cannot be read.
        """
        with sdk_errors():
            stored = await self._stored(task_id, self._owner(context), None)
            return stored and StoredTask(task_of(stored.contents), TaskVersion(stored.head.version))

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return one page of the caller's tasks, newest status first.

        The indexes show a save after a moment. Each page counts all tasks that pass its filters,
        at about half a read unit for 20 of them.

        Raises:
            InvalidParamsError: the page token is none.
            InternalError: the table cannot be used.
        """
        with sdk_errors():
            return await page_of(self._log, params, self._owner(context), self._filled)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete the caller's task with its events; nothing is wrong if there is none.

        Raises:
            InternalError: the table cannot be used. A deletion that was cut off leaves no task, and
                its content until the next one.
        """
        owner = self._owner(context)
        with sdk_errors():
            item = await self._log.item(task_id)
            if item is None or (head := Head.of(item)).owner != owner:
                return
            key, same = layout.head_key(task_id), are(incarnation=head.incarnation)
            # Expired, but there until its log is deleted: else nothing would name what is left.
            expired = key._asdict() | asdict(replace(head, expires_at=0))
            if await self._table.did(Put(item=expired, when=same)):
                await self._log.delete(task_id, head)
                await self._table.did(Delete(key=key, when=same))

    # -- reading -------------------------------------------------------------------------------

    async def _stored(self, task_id: str, owner: str, version: int | None) -> Stored | None:
        """Return a task of an owner, if it is stored in this version; None: in whichever it is."""
        known = self._known.get(task_id)
        if known is not None and (known.head.version, known.head.owner) == (version, owner):
            return known
        head = await self._log.head(task_id)
        if head is None or head.owner != owner or version not in (None, head.version):
            return None
        return await self._filled(task_id, owner, head)

    async def _filled(self, task_id: str, owner: str, head: Head) -> Stored | None:
        """Return the task of a HEAD, or a later version; None: it was deleted meanwhile."""
        known = self._known.get(task_id)
        if known is not None and known.head == head:
            return known
        contents = await self._log.contents(task_id, head)
        if contents is not None:
            return self._keep(task_id, Stored(head, contents))
        newer = await self._log.head(task_id)
        if newer is None or newer.owner != owner:
            return None
        if newer == head:
            raise UnreadableTaskError(f"Items of the task {task_id} are missing.")
        return await self._filled(task_id, owner, newer)

    def _keep(self, task_id: str, stored: Stored) -> Stored:
        """Remember a task, so that its next save knows what it changes without a read."""
        self._forget(task_id)
        self._known[task_id] = stored
        self._known_bytes += _taken_by(stored)
        while self._known_bytes > _CACHE_BYTES:
            self._forget(next(iter(self._known)))
        return stored

    def _forget(self, task_id: str) -> None:
        known = self._known.pop(task_id, None)
        self._known_bytes -= 0 if known is None else _taken_by(known)

    # -- writing -------------------------------------------------------------------------------

    async def _save(
        self, task: Task, event: Event | None, owner: str, expected: int | None, *, only_open: bool
    ) -> TaskVersion:
        """Store a task in the place of a version; 0: it is new; None: of whichever is stored.

        With `only_open` a task that has not ended is replaced, and none is created.
        """
        while True:
            with sdk_errors():
                stored = await self._stored(task.id, owner, expected) if expected != 0 else None
                is_over = stored is None or stored.head.state in TERMINAL
                if (expected and stored is None) or (only_open and is_over):
                    raise ConcurrentTaskModificationError(task.id)
                try:
                    return await self._replaced(stored, task, event, owner)
                except ConcurrentTaskModificationError:
                    # If any version may be replaced, the one that came first is, in the next round.
                    if expected is not None or stored is None:
                        raise

    async def _replaced(
        self, before: Stored | None, task: Task, event: Event | None, owner: str
    ) -> TaskVersion:
        """Store the next version of a task, or the first one.

        Raises:
            ConcurrentTaskModificationError: another one was stored before.
        """
        contents = contents_of(task)
        # The server's event of a new turn is the task itself, which the log has already.
        is_whole = isinstance(event, Task) and event == task
        sent = b"" if event is None or is_whole else to_stream_response(event).SerializeToString()
        head, change = self._next(before, task, contents, sent, owner)
        length = WHOLE_TASK if is_whole else len(sent)
        expires_at = self._expires_at(_LOG_TTLS)
        entry, *parts = await self._log.written(task.id, head, change, length, expires_at)
        for part in parts:
            await self._table.write(part)
        item = layout.head_key(task.id)._asdict() | asdict(head)
        is_same: When = [[NEW, Check("expires_at", "<=", now_s(self._clock))]]
        if before is not None:
            same = are(incarnation=before.head.incarnation, version=before.head.version)
            is_same = [*same, layout.living(self._clock)]
        try:
            await self._table.write(Put(item=item, when=is_same), entry)
        except ConditionFailedError as error:
            self._forget(task.id)
            await self._table.delete([part.key for part in parts])
            raise ConcurrentTaskModificationError(task.id) from error
        self._keep(task.id, Stored(head, contents))
        return TaskVersion(head.version)

    def _next(
        self, before: Stored | None, task: Task, contents: Sequence[bytes], event: bytes, owner: str
    ) -> tuple[Head, Change]:
        """Return the HEAD of the next version, and what it changes."""
        status = task.status
        at_ns = status.timestamp.ToNanoseconds() if status.HasField("timestamp") else None
        log_until = self._expires_at(_LOG_TTLS)
        none = Head(owner=owner, incarnation=new_incarnation(), log_until=log_until)
        old, stored = before or (none, ())
        change = change_of(stored, contents, event)
        head = replace(
            old,
            version=old.version + 1,
            state=int(status.state),
            log_until=min(log_until, old.log_until),
            logged=old.logged + _ENTRY_BYTES + len(change.body),
            expires_at=self._expires_at(),
            scope_key=layout.owner_partition(owner, task.id),
            context_key=layout.context_partition(owner, task.context_id),
            status_key=layout.list_place(at_ns, layout.check_id(task.id, "task")),
        )
        # Another replica, or this one before it was set anew, may have had a shorter time to live.
        is_kept = head.expires_at <= head.log_until
        if is_kept and head.logged <= _SPREAD * size_of(contents) + _SLACK_BYTES:
            return head, change
        change = change_of((), contents, event)
        logged = _ENTRY_BYTES + len(change.body)
        return replace(head, base=head.version, log_until=log_until, logged=logged), change


def _taken_by(stored: Stored) -> int:
    """Return the bytes of memory that a task takes."""
    return _KNOWN_BYTES + _CONTENT_BYTES * len(stored.contents) + size_of(stored.contents)


@dataclass(frozen=True)
class _LastSaveWins(TaskStore):
    """A store's tasks without their versions."""

    _store: DynamoDBTaskStore

    async def save(self, task: Task, context: ServerCallContext) -> None:
        await self._store.overwrite(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        stored = await self._store.get(task_id, context)
        return None if stored is None else stored.task

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        return await self._store.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        await self._store.delete(task_id, context)
