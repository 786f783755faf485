"""Storage in the process's memory: for development, and as the model that other backends match.

Bodies are kept encoded, so that no stored object is ever shared with a caller. Safe under threads,
because each HTTP server of the local stack runs an event loop of its own. `on_commit` stands in for
the table's stream.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, TypeVar

from a2a.types import TaskPushNotificationConfig

from a2a_serverless.clock import Clock, SystemClock, Waker
from a2a_serverless.errors import TaskNotFoundError
from a2a_serverless.storage.deletion import Erased, Place
from a2a_serverless.storage.durable import DurableStorage, context_conflict
from a2a_serverless.storage.listing import Found, Listing
from a2a_serverless.storage.log import (
    HOUR_MS,
    Created,
    Due,
    Log,
    Look,
    OverdueCancel,
    Survey,
    TaskKey,
)
from a2a_serverless.tasks.attempts import may_renew
from a2a_serverless.tasks.entries import copied, decode_entries
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import AttemptEnd, CancelMark, Head, Spared, state_name
from a2a_serverless.tasks.identity import ANONYMOUS, Scope
from a2a_serverless.tasks.push import Push, check_room, tallied
from a2a_serverless.tasks.rules import ContextWrite, Step, Timing, check_writable, expiry
from a2a_serverless.tasks.storing import (
    check_open,
    conflict,
    counts_for,
    deadline_ms,
    is_applied,
    is_overdue,
    is_still,
    may_postpone,
    may_remove,
)

D = TypeVar("D", bound=Due)
Key = tuple[str, str]
"""(scope digest, task id or context id)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedCommit:
    """A commit as the table's stream tells of it: ids and no content."""

    scope: str
    """Digest of the owner."""
    task_id: str
    incarnation: str
    version: int
    state: str
    """The state after a commit that changes the status, as `TASK_STATE_WORKING`; else empty."""
    trace: str | None = None
    """X-Ray's header of the writer."""


@dataclass(frozen=True, slots=True)
class _Context:
    """JSON, version, and when it expires, in milliseconds."""

    value: str
    version: int
    expires_at: int


_NO_CONTEXT = _Context("", 0, 0)


@dataclass(frozen=True, slots=True)
class _Logged:
    """A commit in the log, encoded: each reader decodes objects of its own."""

    record: Record
    """Without its entries."""
    body: bytes

    @classmethod
    def of(cls, step: Step, body: bytes) -> _Logged:
        return cls(replace(Record.of(step), entries=()), body)

    def read(self) -> Record:
        """Return the record with its entries."""
        return replace(self.record, entries=decode_entries(self.body))


@dataclass(frozen=True, slots=True)
class _Flag:
    """A raised cancel flag; its deadline is in milliseconds since the epoch."""

    deadline: int
    incarnation: str


@dataclass(slots=True)
class _Tables:
    """What all scoped views share."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    heads: dict[Key, Head] = field(default_factory=dict)
    logs: dict[Key, list[_Logged]] = field(default_factory=dict)
    contexts: dict[Key, _Context] = field(default_factory=dict)
    waiters: defaultdict[Key, set[Waker]] = field(default_factory=lambda: defaultdict(set))
    pushes: dict[Key, dict[str, Push]] = field(default_factory=dict)
    flags: dict[Key, _Flag] = field(default_factory=dict)
    listeners: dict[object, Callable[[StreamedCommit], None]] = field(default_factory=dict)


class MemoryStorage(DurableStorage):
    """Tasks in dictionaries; lost with the process."""

    wakes: ClassVar[bool] = True

    def __init__(
        self,
        *,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        timing: Timing | None = None,
        _tables: _Tables | None = None,
    ) -> None:
        self.scope = scope
        self.clock = clock or SystemClock()
        self.timing = timing or Timing()
        self._tables = _tables or _Tables()

    def for_scope(self, scope: Scope) -> Self:
        return type(self)(scope=scope, clock=self.clock, timing=self.timing, _tables=self._tables)

    def on_commit(self, listener: Callable[[StreamedCommit], None]) -> Callable[[], None]:
        """Tell `listener` of every commit of all scopes from now on; return a function to stop.

        `listener` is called in the writer's thread, for each task's commits in the order of their
        versions. It holds up every writer, so it must only hand over (`SimpleQueue.put`,
        `call_soon_threadsafe`) and return. An exception of it reaches the writer, although the
        commit is stored.
        """
        token = object()
        with self._tables.lock:
            self._tables.listeners[token] = listener

        def stop() -> None:
            with self._tables.lock:
                self._tables.listeners.pop(token, None)

        return stop

    async def head(self, task_id: str) -> Head | None:
        with self._tables.lock:
            return self._live(self._key(task_id))

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Look]:
        with self._tables.lock:
            return {task: self._seen(task) for task in tasks}

    def _seen(self, key: Key) -> Look:
        flag = self._tables.flags.get(key)
        return Look(head=self._live(key), flagged=flag.incarnation if flag else None)

    async def read(
        self, task_id: str, *, after: int = 0, incarnation: str | None = None
    ) -> Log | None:
        with self._tables.lock:
            head = self._live(self._key(task_id))
            if head is None or incarnation not in (None, head.incarnation):
                return None
            logged = self._tables.logs[self._key(task_id)][after:]
            flag = None if after else self._tables.flags.get(self._key(task_id))
        return Log(
            head=head,
            records=tuple(commit.read() for commit in logged),
            flagged=None if flag is None else flag.incarnation,
        )

    async def survey(self, task_id: str) -> Survey | None:
        survey = await super().survey(task_id)
        return survey and replace(survey, pushes=tuple(await self.pushes(task_id)))

    async def due(self, now_ms: int, *, limit: int = 100, after: Due | None = None) -> list[Due]:
        with self._tables.lock:
            overdue = [
                Due(scope=Scope(head.scope), task_id=head.task_id, due_at=head.due_at)
                for head in self._live_heads(now_ms)
                if head.due_at is not None and head.due_at <= now_ms
            ]
        return _page(overdue, limit, after)

    async def postpone(self, head: Head, *, due_at: int, sends: int) -> bool:
        with self._tables.lock:
            current = self._live(self._key(head.task_id))
            if current is None or not may_postpone(current, head):
                return False
            self._tables.heads[self._key(head.task_id)] = replace(
                current, due_at=due_at, sends=sends
            )
        return True

    async def renew(self, head: Head, *, token: str, due_at: int) -> bool:
        key = self._key(head.task_id)
        with self._tables.lock:
            current = self._live(key)
            if current is None or not may_renew(current, incarnation=head.incarnation, token=token):
                return False
            self._tables.heads[key] = replace(current, due_at=due_at)
        return True

    async def release(
        self,
        head: Head,
        end: AttemptEnd,
        *,
        due_at: int | None = None,
        attempts: int | None = None,
        spared: Spared | None = None,
    ) -> bool:
        key, incarnation = self._key(head.task_id), head.incarnation
        with self._tables.lock:
            current = self._live(key)
            if current is None or not may_renew(current, incarnation=incarnation, token=end.token):
                return False
            due_at = current.due_at if due_at is None else due_at
            attempts = current.attempts if attempts is None else attempts
            self._tables.heads[key] = replace(
                current,
                released=end,
                due_at=due_at,
                attempts=attempts,
                spared=current.spared if spared is None else spared,
            )
        return True

    async def changed(self, task_id: str, version: int, timeout_s: float) -> None:
        waker, key = Waker(), self._key(task_id)
        with self._tables.lock:
            head = self._live(key)
            if head is None or head.version > version:
                return
            self._tables.waiters[key].add(waker)
        try:
            await waker.wait(timeout_s)
        finally:
            with self._tables.lock:
                self._tables.waiters[key].discard(waker)
                if not self._tables.waiters[key]:
                    del self._tables.waiters[key]

    async def _insert(self, step: Step, body: bytes, push: Push | None) -> Head | None:
        key = self._key(step.head.task_id)
        with self._tables.lock:
            taker = self._live(key)
            if taker is None:
                self._tables.heads[key] = step.head
                self._tables.logs[key] = [_Logged.of(step, body)]
                self._tables.pushes.pop(key, None)
                self._stored(key, step, push)
            return taker

    async def _apply(self, before: Head, step: Step, body: bytes, push: Push | None) -> None:
        key = self._key(step.head.task_id)
        with self._tables.lock:
            current = self._live(key)
            if current is None or not is_still(current, before):
                stored = self._tables.logs.get(key, [])[before.version :][:1]
                if is_applied(stored[0].record.commit_id if stored else None, step.commit_id):
                    return  # repeated by a writer that did not get its answer
                raise conflict(current, before)
            if push is not None:
                check_room(self._tables.pushes.get(key, {}), push.config.id)
            if step.context_write is not None:
                self._write_context(step.head.context_id, step.context_write)
            self._tables.heads[key] = _postponed(before, step.head, current)
            self._tables.logs[key].append(_Logged.of(step, body))
            self._stored(key, step, push)
            self._wake(key)

    async def _places(self, context_id: str | None, limit: int, after: str) -> list[Place]:
        now_ms = self.clock.now_ms()
        with self._tables.lock:
            tasks = [
                Place(task_id=name, is_live=not head.has_expired(now_ms), at=f"TASK#{name}")
                for (scope, name), head in self._tables.heads.items()
                if scope == self.scope.digest and context_id in (None, head.context_id)
            ]
            contexts = [
                Place(context_id=name, is_live=state.expires_at > now_ms, at=f"CONTEXT#{name}")
                for (scope, name), state in self._tables.contexts.items()
                if scope == self.scope.digest and context_id in (None, name)
            ]
        places = sorted((*tasks, *contexts), key=lambda place: place.at)
        return [place for place in places if place.at > after][:limit]

    async def _erase(
        self,
        task_id: str,
        *,
        incarnation: str | None = None,
        limit: int | None = None,  # noqa: ARG002 - a task is gone at once
    ) -> Erased:
        key = self._key(task_id)
        with self._tables.lock:
            head, was_live = self._tables.heads.get(key), self._live(key) is not None
            if head is None or incarnation not in (None, head.incarnation):
                return Erased()
            del self._tables.heads[key]
            commits, webhooks = self._tables.logs.pop(key), self._tables.pushes.pop(key, {})
            self._tables.flags.pop(key, None)
            self._wake(key)
        return Erased(
            items=1 + len(commits) + len(webhooks),
            webhooks=len(webhooks),
            was_live=was_live,
            context_id=head.context_id,
        )

    async def _webhooks(self, task_id: str) -> int:
        with self._tables.lock:
            return len(self._tables.pushes.get(self._key(task_id), {}))

    async def find(self, task_id: str) -> list[TaskKey]:
        with self._tables.lock:
            live = self._live_heads(self.clock.now_ms())
        return sorted((head.scope, head.task_id) for head in live if head.task_id == task_id)

    async def created_in(self, hour_ms: int, *, before: str = "", limit: int = 100) -> Created:
        with self._tables.lock:
            live = self._live_heads(self.clock.now_ms())
        made = [head for head in live if head.created_at // HOUR_MS == hour_ms // HOUR_MS]
        made = [head for head in made if not before or Created.place(head) < before]
        made.sort(key=Created.place, reverse=True)
        last = Created.place(made[limit - 1]) if len(made) > limit else ""
        return Created(heads=tuple(made[:limit]), before=last)

    # -- cancel flags --------------------------------------------------------------------------

    async def request_cancel(self, task_id: str, *, by: str = "") -> None:
        key = self._key(task_id)
        with self._tables.lock:
            head = check_open(self._live(key))
            raised = self._tables.flags.get(key)
            if raised is None or not counts_for(raised.incarnation, head.incarnation):
                deadline = deadline_ms(self.clock.now_ms(), self.timing.cancel_s)
                self._tables.flags[key] = _Flag(deadline, head.incarnation)
                mark = CancelMark(at=self.clock.now_ms(), by=by)
                self._tables.heads[key] = replace(head, cancel=mark)

    async def is_cancelled(self, task_id: str) -> bool:
        with self._tables.lock:
            return self._seen(self._key(task_id)).is_cancelled

    async def clear_cancel(self, task_id: str, *, incarnation: str | None = None) -> None:
        key = self._key(task_id)
        with self._tables.lock:
            flag = self._tables.flags.get(key)
            if flag is not None and may_remove(flag.incarnation, incarnation):
                del self._tables.flags[key]

    async def overdue_cancels(
        self, now_ms: int, *, limit: int = 100, after: Due | None = None
    ) -> list[OverdueCancel]:
        with self._tables.lock:
            overdue = [
                OverdueCancel(
                    scope=Scope(scope),
                    task_id=task_id,
                    due_at=flag.deadline,
                    incarnation=flag.incarnation,
                )
                for (scope, task_id), flag in self._tables.flags.items()
                if is_overdue(flag.deadline, now_ms=now_ms)
            ]
        return _page(overdue, limit, after)

    # -- push configurations -------------------------------------------------------------------

    async def pushes(self, task_id: str) -> list[Push]:
        key = self._key(task_id)
        with self._tables.lock:
            held = self._tables.pushes.get(key, {}) if self._live(key) else {}
            return tallied(_copy(held[config_id]) for config_id in sorted(held))

    async def move_push(self, before: Push, after: Push) -> bool:
        key = self._key(before.config.task_id)
        with self._tables.lock:
            stored = self._held(key, before)
            if stored is None or replace(stored, config=before.config) != before:
                return False
            self._tables.pushes[key][before.config.id] = replace(after, config=stored.config)
        return True

    async def _put_push(self, config: TaskPushNotificationConfig) -> Push:
        key = self._key(config.task_id)
        with self._tables.lock:
            head = self._live(key)
            if head is None:
                raise TaskNotFoundError
            check_writable(head)
            check_room(self._tables.pushes.get(key, {}), config.id)
            new = Push(
                scope=head.scope, incarnation=head.incarnation, config=config, version=head.version
            )
            return _copy(self._keep_push(key, new, refusals=0))

    async def delete_push(self, task_id: str, config_id: str) -> None:
        key = self._key(task_id)
        with self._tables.lock:
            if self._live(key):
                self._tables.pushes.get(key, {}).pop(config_id, None)

    def _held(self, key: Key, push: Push) -> Push | None:
        """Return the stored configuration if its task is still of the same incarnation."""
        stored = self._tables.pushes.get(key, {}).get(push.config.id)
        is_same = stored is not None and stored.incarnation == push.incarnation
        return stored if is_same and self._live(key) else None

    def _keep_push(self, key: Key, new: Push, *, refusals: int | None = None) -> Push:
        """Store a configuration; it takes over the cursor of a stored one with the same id.

        It takes over the refusals too, unless `refusals` says how many there are from now on.
        """
        held = self._tables.pushes.setdefault(key, {})
        if (old := held.get(new.config.id)) is not None:
            kept = old.refusals if refusals is None else refusals
            new = replace(
                new,
                version=old.version,
                index=old.index,
                refusals=kept,
                told=old.told,
                given_up=old.given_up,
            )
        held[new.config.id] = new
        return new

    # ------------------------------------------------------------------------------------------

    async def _context_heads(self, context_id: str) -> list[Head]:
        return [head for head in self._own_heads() if head.context_id == context_id]

    async def _newest(self, listing: Listing, limit: int) -> Found:
        return listing.found(self._own_heads(), limit)

    async def _load_context_item(self, context_id: str) -> tuple[str, int] | None:
        with self._tables.lock:
            stored = self._context(self._key(context_id))
        return (stored.value, stored.version) if stored.version else None

    async def put_context(self, context_id: str, write: ContextWrite) -> None:
        with self._tables.lock:
            self._write_context(context_id, write)

    async def _delete_context_item(self, context_id: str) -> bool:
        with self._tables.lock:
            return self._tables.contexts.pop(self._key(context_id), None) is not None

    def _write_context(self, context_id: str, write: ContextWrite) -> None:
        key, now_ms = self._key(context_id), self.clock.now_ms()
        version = self._context(key).version
        if write.expected_version not in (None, version):
            raise context_conflict(version)
        expires_at = expiry(now_ms, self.timing.ttl_s)
        self._tables.contexts[key] = _Context(write.value, version + 1, expires_at)

    def _context(self, key: Key) -> _Context:
        stored = self._tables.contexts.get(key, _NO_CONTEXT)
        return stored if stored.expires_at > self.clock.now_ms() else _NO_CONTEXT

    def _key(self, name: str) -> Key:
        return (self.scope.digest, name)

    def _live(self, key: Key) -> Head | None:
        head = self._tables.heads.get(key)
        return None if head is None or head.has_expired(self.clock.now_ms()) else head

    def _own_heads(self) -> list[Head]:
        with self._tables.lock:
            live = self._live_heads(self.clock.now_ms())
        return [head for head in live if head.scope == self.scope.digest]

    def _live_heads(self, now_ms: int) -> list[Head]:
        """Return the live HEADs of all scopes."""
        return [head for head in self._tables.heads.values() if not head.has_expired(now_ms)]

    def _stored(self, key: Key, step: Step, push: Push | None) -> None:
        """Do what comes with a commit that was just stored."""
        if push is not None:
            self._keep_push(key, push)
        head = step.head
        committed = StreamedCommit(
            scope=head.scope,
            task_id=head.task_id,
            incarnation=head.incarnation,
            version=head.version,
            state=state_name(head.state) if step.changes_status else "",
            trace=step.trace,
        )
        for listener in self._tables.listeners.values():
            listener(committed)

    def _wake(self, key: Key) -> None:
        for waker in self._tables.waiters.get(key, ()):
            waker.wake()


def _page(overdue: Iterable[D], limit: int, after: Due | None) -> list[D]:
    """Return the first `limit` of what is due, behind `after`."""
    behind = [due for due in overdue if after is None or due.place > after.place]
    return sorted(behind, key=lambda due: due.place)[:limit]


def _postponed(before: Head, after: Head, current: Head) -> Head:
    """Return HEAD after a commit; what was written since `before` without a commit stays."""
    return replace(
        after,
        released=current.released if after.released == before.released else after.released,
        spared=current.spared if after.spared == before.spared else after.spared,
        sends=current.sends if after.sends == before.sends else after.sends,
        due_at=current.due_at if after.due_at == before.due_at else after.due_at,
    )


def _copy(push: Push) -> Push:
    """Return a configuration that its reader may change."""
    return replace(push, config=copied(push.config))
