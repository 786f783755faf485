"""Acts on tasks: one kernel for what commands and console do with one task, or with many.

An act on a task is noted in the journal before and after. What does not fit the task any more is
refused, so that an act that is repeated, or was cut off, is harmless.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, TypeAlias

from a2a.types import SendMessageRequest, TaskState
from pydantic_core import from_json

from a2a_serverless.errors import (
    A2AServerlessError,
    ConfigurationError,
    InvalidArgumentError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnavailableError,
    UnreadableTaskError,
    UnsupportedOperationError,
)
from a2a_serverless.http.intake import Intake, Wait, cancel
from a2a_serverless.storage.deletion import delete_remains, delete_task, has_remains
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.signals import signal
from a2a_serverless.tasks.entries import StepId, TurnOpened, copied
from a2a_serverless.tasks.fold import Log, Record
from a2a_serverless.tasks.head import ASLEEP, FORMAT, Head, plain_state
from a2a_serverless.tasks.identity import Scope, TaskKey, digest, keyed_task_id
from a2a_serverless.tasks.push import Push, pushed
from a2a_serverless.tasks.waits import (
    CALLBACK,
    MAX_SIGNAL_BYTES,
    Signal,
    SignalDecision,
    open_waits,
)
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.operate.filters import TaskFilter
from a2a_serverless_tools.operate.inspector import Inspector, in_line_of
from a2a_serverless_tools.operate.journal import Journal, newest
from a2a_serverless_tools.operate.lists import PAGE, TaskRow, listed
from a2a_serverless_tools.operate.restoring import Restoration
from a2a_serverless_tools.operate.tables import Table
from a2a_serverless_tools.operate.timeline import InLine
from a2a_serverless_tools.operate.wording import in_line, iso, left_at_record
from a2a_serverless_tools.operate.words import step_text

Act: TypeAlias = Literal["cancel", "resend", "retry", "redeliver", "delete"]

ACTS: Final[Mapping[Act, str]] = {
    "cancel": "cancel",
    "resend": "send again the turn of",
    "retry": "try again",
    "redeliver": "redeliver the notifications of",
    "delete": "delete for good",
}
"""What each does with a task, for sentences and questions."""

MOST: Final = 1_000
"""Tasks that one run acts on at most."""
_MOST_PAGES: Final = 200
"""Pages of a list in which one run looks for its tasks."""
AT_ONCE: Final = 8
"""Tasks that a run acts on at the same time."""
NEED_QUEUE: Final[Collection[Act]] = ("cancel", "retry")
"""The acts that send to the queue of turns."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """What an act does with those tasks of a filter that allowed it, and how far it is done."""

    act: Act
    which: TaskFilter
    rows: tuple[TaskRow, ...]
    looked: int
    """Tasks that were looked at."""
    after: str
    """The place behind which the next plan goes on; empty: there are no more tasks."""
    at: int = 0
    """How many of the tasks were taken so far."""
    done: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Why tasks were left as they are, since they have changed: sentences with their numbers."""
    failed: Counter[str] = field(default_factory=Counter)
    """What has kept it from acting on tasks, with their numbers."""

    @property
    def is_over(self) -> bool:
        """Return True if each task was taken."""
        return self.at >= len(self.rows)

    def preview(self) -> str:
        """Return what would be done, as a sentence."""
        return (
            f"{self.which.sentence()}: looked at {self.looked:,}. Tasks to {ACTS[self.act]}:"
            f" {len(self.rows):,}."
        )

    def table(self, most: int, now_ms: int) -> Table:
        """Return the first tasks."""
        names, more = ("task", "state", "changed", "owner"), len(self.rows) - most
        table = listed(self.rows[:most], names, now_ms)
        return replace(table, note=f"And {more:,} more." if more > 0 else "")

    def outcome(self) -> list[str]:
        """Return what was done so far, and why not more, as sentences."""
        so_far = "" if self.is_over else " so far"
        return [f"Done{so_far}: {self.done:,} of {len(self.rows):,}."] + [
            f"{what}: {count:,}. {sentence}"
            for what, counted in (("Skipped", self.skipped), ("Failed", self.failed))
            for sentence, count in counted.most_common()
        ]


def json_body(text: str) -> bytes:
    """Return a JSON value that a person has typed, as `Acts.signal` takes it.

    Raises:
        InvalidArgumentError: it is none.
    """
    try:
        body = text.encode()
        from_json(body)  # as the agent reads it
    except ValueError as error:
        raise InvalidArgumentError(
            f"JSON: {error}: write a text with its quotes, such as '\"yes\"'."
        ) from error
    return body


class Acts:
    """Does with tasks what an operator may do.

    Args:
        inspector: what looks at the tasks, with the queue for cancels and retries.
        by: the person; None: it is found out before the first act.

    Every method raises:
        ConfigurationError: one sentence says what cannot be reached, and what to do.
        UnavailableError: no answer within the retry budget.
    """

    def __init__(self, inspector: Inspector, *, by: str | None = None) -> None:
        self._inspector = inspector
        self._storage = inspector.storage
        self._journal = None if by is None else Journal(inspector.storage, by)
        self._doing: Mapping[Act, Callable[[DurableStorage, Head], Awaitable[str]]] = {
            "cancel": self._cancel,
            "resend": self._resend,
            "retry": self._retry,
            "delete": self._delete,
        }

    async def journal(self) -> Journal:
        """Return the journal of the person who acts."""
        if self._journal is None:
            self._journal = await Journal.of(self._storage)
        return self._journal

    async def on_one(
        self,
        act: Act,
        task_id: str,
        scope: str,
        *,
        which: TaskFilter | None = None,
        config_id: str = "",
        is_dry: bool = False,
    ) -> str:
        """Do something with one task; return what was done, as a sentence.

        Of a task whose HEAD is gone `delete` deletes the rest. With `which` the task has to be one
        of those still. With `config_id` that webhook alone is redelivered to. With `is_dry` nothing
        is changed, and what cannot be done is raised all the same.

        Raises:
            TaskNotFoundError: there is no such task.
            UnsupportedOperationError: it cannot be done with the task as it is; says why.
            ConcurrencyError: others have changed the task all the time.
        """
        storage = self._storage.for_scope(Scope(scope))
        head = await storage.head(task_id)
        if head is None and act != "delete":
            raise TaskNotFoundError
        if act in NEED_QUEUE:
            self._backends(act)
        if head and (why := await self._why_not(act, storage, head, which, config_id)):
            raise UnsupportedOperationError(why)
        if is_dry:
            if head is None and not await has_remains(storage, task_id):
                raise TaskNotFoundError
            return "It can be done." if head else "What is left of it can be deleted."
        chosen = f"webhook {config_id}" if config_id else ""
        doing: Callable[[], Awaitable[str]]
        if head is None:
            doing = partial(_finish, storage, task_id)
        elif act == "redeliver":
            doing = partial(self._redeliver, storage, head, config_id)
        else:
            doing = partial(self._doing[act], storage, head)
        about = which.sentence() if which else chosen
        return await self._noted(act, scope, task_id, about, doing)

    async def signal(
        self,
        task_id: str,
        scope: str,
        name: str,
        body: bytes,
        *,
        key: str = "",
        is_dry: bool = False,
    ) -> str:
        """End the open wait of a task for a callback with a JSON value; return what was done.

        Of several waits of that name and key the first one ends. With `is_dry` nothing is changed,
        and what cannot be done is raised all the same.

        Raises:
            TaskNotFoundError: there is no such task.
            InvalidArgumentError: the value is too long.
            UnsupportedOperationError: no such wait is open; says which are.
            ConcurrencyError: others have changed the task all the time.
        """
        if len(body) > MAX_SIGNAL_BYTES:
            raise InvalidArgumentError(f"The value is longer than {MAX_SIGNAL_BYTES:,} bytes.")
        seen = self._inspector.backends  # with the queue, if there is one: the turn goes on at once
        storage = (seen.storage if seen else self._storage).for_scope(Scope(scope))
        head = await storage.head(task_id)
        if head and (why := _newer(head)):
            raise UnsupportedOperationError(why)
        log = await storage.read(task_id, is_whole=False)
        if log is None:
            raise TaskNotFoundError
        step_id = _callback(log, name, key)
        if is_dry:
            return "It can be done."
        given = Signal(body, "application/json", (await self.journal()).by)
        doing = partial(self._signal, storage, log.head, step_id, given)
        return await self._noted("signal", scope, task_id, _callback_text(step_id), doing)

    async def restore(
        self, task_id: str, scope: str, source: Inspector, *, is_dry: bool = False
    ) -> str:
        """Put one task back as the table of `source` has it, which was restored beside this one.

        Return what was done. With `is_dry` nothing is changed, and what cannot be done is raised
        all the same.

        Raises:
            TaskNotFoundError: the table beside has no such task, or it has expired since.
            UnreadableTaskError: it is damaged there, or of an earlier release.
            UnsupportedOperationError: it cannot be put back; says why.
        """
        own = Scope(scope)
        beside, target = source.storage.for_scope(own), self._storage.for_scope(own)
        back = await Restoration.of(beside, target, task_id)
        if why := _newer(back.log):
            raise UnsupportedOperationError(why)
        if is_dry:
            return f"It can be done.{back.note}"
        doing = partial(back.put, self._inspector.settings.push_events)
        return await self._noted("restore", scope, task_id, f"from {source.place}", doing)

    async def _noted(
        self, act: str, scope: str, task_id: str, about: str, doing: Callable[[], Awaitable[str]]
    ) -> str:
        """Act on a task, between two notes in the journal; return what was done."""
        journal = await self.journal()
        entry = await journal.begin(act, scope=scope, task_id=task_id, which=about)
        try:
            outcome = await doing()
        except TaskNotFoundError:
            await journal.forget(entry)
            raise
        except A2AServerlessError as error:
            await journal.end(entry, f"not done: {error}")
            raise
        await journal.end(entry, outcome)
        return outcome

    async def _why_not(
        self,
        act: Act,
        storage: DurableStorage,
        head: Head,
        which: TaskFilter | None = None,
        config_id: str = "",
    ) -> str:
        """Return why an act does not fit a task; empty: it does."""
        now_ms = storage.clock.now_ms()
        if which is not None and not await self._inspector.lists.has(which.at(now_ms), head):
            return f"It is {plain_state(head.state)}, and none of those that were chosen."
        waits = await in_line_of(storage, head) if act == "resend" else None
        if why := _refused(act, head, now_ms=now_ms, waits=waits):
            return why
        if act == "retry" and (new_id := await retried_as(storage, head)):
            return f"It was tried again before: as {new_id}."
        hooks = await storage.webhooks.all(head.task_id) if act == "redeliver" else []
        if act == "redeliver" and not _undelivered(hooks, config_id):
            return _NOTHING_GIVEN_UP
        return ""

    def _backends(self, act: Act) -> Backends:
        """Return the backends with the queue.

        Raises:
            ConfigurationError: it is not named.
        """
        if self._inspector.backends is None:
            raise ConfigurationError(
                f"{act} needs the queue of {self._inspector.place}: set A2A_QUEUE, or name the"
                " stack."
            )
        return self._inspector.backends

    # -- the acts ----------------------------------------------------------------------------

    async def _cancel(self, storage: DurableStorage, head: Head) -> str:
        by = f"operator {(await self.journal()).by}"
        tail = await cancel(
            self._backends("cancel"),
            storage.scope,
            head.task_id,
            wait=Wait(None, by),
            timeout_s=self._inspector.settings.cancel_timeout_s,
            by=by,
        )
        return f"The task is {plain_state(tail.head.state)}."

    async def _resend(self, storage: DurableStorage, head: Head) -> str:
        if not await storage.postpone(head, due_at=storage.clock.now_ms(), sends=head.turn.sends):
            raise UnsupportedOperationError("It has moved on meanwhile: look at it again.")
        return "Its turn is due: the sweeper's next run sends it."

    async def _retry(self, storage: DurableStorage, head: Head) -> str:
        log = await storage.read(head.task_id, incarnation=head.incarnation)
        if log is None:
            raise TaskNotFoundError
        opening = _opening_of(log.records)
        if opening is None:
            raise UnsupportedOperationError("Its first message cannot be read.")
        try:
            opened = await Intake(self._backends("retry"), None).create(
                storage,
                _retried(head, opening),
                head.context_id,
                caller=opening.caller,
                idempotency_key=_retry_key(head),
                ttl_s=(head.expires_at - head.created_at) / 1000,
            )
        except InvalidArgumentError as error:
            if storage.table.blobs is None:  # else the sentence is about a file that is gone
                raise InvalidArgumentError(_FILES_ELSEWHERE.format(error)) from error
            raise
        pushes = len(await storage.webhooks.all(head.task_id))
        are = "webhook is" if pushes == 1 else f"{pushes} webhooks are"
        hooks = f"; its {are} not told of it" if pushes else ""
        turns = sum(isinstance(e, TurnOpened) for r in log.records for e in r.entries)
        first = f", with the first of its {turns} messages" if turns > 1 else ""
        return f"It is tried again as {opened.head.task_id}{first}{hooks}."

    async def _redeliver(self, storage: DurableStorage, head: Head, config_id: str) -> str:
        log = await storage.read(head.task_id, incarnation=head.incarnation)
        if log is None:
            raise TaskNotFoundError
        which = self._inspector.settings.push_events
        events = [place for place, _ in pushed("", "", log.records, which)]
        told = 0
        for push in _undelivered(await storage.webhooks.all(head.task_id), config_id):
            told += await self._put_back(storage, push, events)
        if not told:
            raise UnsupportedOperationError(_NOTHING_GIVEN_UP)  # others were faster
        hooks = "Its webhook is" if told == 1 else f"{told} of its webhooks are"
        return f"{hooks} told again, from what was given up on: the sweeper's next run sends it."

    async def _put_back(
        self, storage: DurableStorage, push: Push, events: Sequence[tuple[int, int]]
    ) -> bool:
        """Put a cursor back, and forget the refusals of its URL; False: the webhook is gone."""
        hooks, now_ms = storage.webhooks, storage.clock.now_ms()
        held = {one.config.id: one for one in await hooks.all(push.config.task_id)}
        now = held.get(push.config.id)
        if now is None or not now.may_redeliver:
            return False
        if now.is_given_up:  # the URL is not called while its configurations have ten refusals
            for one in held.values():
                if one.config.url == now.config.url and one.config.id != now.config.id:
                    owed = [event for event in events if event > one.cursor]
                    await hooks.change(one, partial(_forgiven, at=now_ms if owed else None))

        def again(seen: Push) -> Push | None:
            # Another act may have been faster: then nothing is given up any more.
            if seen.given_up is None and seen.mark != now.mark:
                return None
            return seen.redelivered(events).woken(now_ms)

        return await hooks.change(now, again) is not None

    async def _signal(
        self, storage: DurableStorage, head: Head, step_id: StepId, given: Signal
    ) -> str:
        taken = await signal(
            storage,
            head.task_id,
            head.incarnation,
            turn=head.turn.began_with,
            step_id=step_id,
            given=given,
        )
        if taken is not SignalDecision.TAKE:  # others were faster
            raise UnsupportedOperationError(
                f"Its wait for the {_callback_text(step_id)} has ended meanwhile, by an earlier"
                " answer or by its time."
            )
        return f"Its wait for the {_callback_text(step_id)} is over."

    async def _delete(self, storage: DurableStorage, head: Head) -> str:
        if not await delete_task(storage, head.task_id, incarnation=head.incarnation):
            raise TaskNotFoundError
        return "The task is deleted."

    # -- on many -----------------------------------------------------------------------------

    async def plan(self, act: Act, which: TaskFilter, *, most: int = MOST, after: str = "") -> Plan:
        """Return what an act would do with up to `most` of the tasks of a filter; change nothing.

        Looks at `_MOST_PAGES` pages of their list; `after` is the place where a plan has ended.
        """
        if act in NEED_QUEUE:
            self._backends(act)
        found: dict[TaskKey, TaskRow] = {}
        looked = 0
        which = which.at(self._storage.clock.now_ms())
        listed = replace(which, text="")  # `_fits` looks for it, without an end
        for _ in range(_MOST_PAGES):
            limit = min(PAGE, most - len(found))
            page = await self._inspector.lists.page(listed, after=after, limit=limit)
            looked += len(page.rows)
            fits = await asyncio.gather(*(self._fits(act, row, which) for row in page.rows))
            fitting = (row for row, fit in zip(page.rows, fits, strict=True) if fit)
            found |= {row.key: row for row in fitting}
            after = page.after
            if not after or len(found) >= most:
                break
        return Plan(act=act, which=which, rows=tuple(found.values()), looked=looked, after=after)

    async def _fits(self, act: Act, row: TaskRow, which: TaskFilter) -> bool:
        storage = self._storage.for_scope(Scope(row.head.scope))
        head = await storage.head(row.head.task_id)
        return head is not None and not await self._why_not(act, storage, head, which)

    async def step(self, plan: Plan) -> None:
        """Act on the next `AT_ONCE` tasks of a plan, and note in it what came of it.

        A task that has changed since, so that it is none of them any more, is skipped. The errors
        of the class end the run.
        """
        journal = await self.journal()  # once, and not in each of what follows
        if plan.act == "delete" and not plan.at:
            await self._finish(journal)
        some = plan.rows[plan.at : plan.at + AT_ONCE]
        plan.at += len(some)  # before: a page that is loaded twice takes no task twice
        await asyncio.gather(*(self._on_row(plan, row) for row in some))

    async def _finish(self, journal: Journal) -> None:
        """Finish the deletions that were cut off, which no list finds any more."""
        for entry in await newest(self._storage, limit=MOST):
            if entry.act == "delete" and not entry.outcome and entry.task_id:
                storage = self._storage.for_scope(Scope(entry.scope))
                if await storage.head(entry.task_id) is None:
                    await delete_remains(storage, entry.task_id)
                    await journal.end(entry, "It was cut off, and finished later.")

    async def _on_row(self, plan: Plan, row: TaskRow) -> None:
        try:
            scope, task_id = row.key
            head = await self._storage.for_scope(Scope(scope)).head(task_id)
            if head is None or head.incarnation != row.head.incarnation:
                plan.skipped["It has gone meanwhile."] += 1
                return
            await self.on_one(plan.act, task_id, scope, which=plan.which)
            plan.done += 1
        except TaskNotFoundError:
            plan.skipped["It has gone meanwhile."] += 1
        except (TaskNotCancelableError, UnsupportedOperationError) as error:
            plan.skipped[str(error)] += 1
        except (ConfigurationError, UnavailableError):
            raise  # the next task meets it, too
        except A2AServerlessError as error:
            plan.failed[str(error)] += 1


async def _finish(storage: DurableStorage, task_id: str) -> str:
    """Delete what is left of a task that no reader finds."""
    if not await delete_remains(storage, task_id):
        raise TaskNotFoundError
    return "What was left of it is deleted."


async def retried_as(storage: DurableStorage, head: Head) -> str:
    """Return the task in which a failed one was tried again, also a damaged one; empty: none."""
    if head.state != TaskState.TASK_STATE_FAILED:
        return ""
    new_id = retry_id(head)
    with suppress(UnreadableTaskError):
        return new_id if await storage.head(new_id) is not None else ""
    return new_id


_NOTHING_GIVEN_UP: Final = "No notification of it was given up: there is nothing to redeliver."
_FILES_ELSEWHERE: Final = (
    "Its message cannot be sent again from here: {} If its files are stored beside the table, set"
    " A2A_BLOBS as its workers have it, or name the stack."
)


# -- what HEAD allows, and the message of a task that is tried again ---------------------------


def _refused(act: Act, head: Head, *, now_ms: int, waits: InLine | None = None) -> str:
    """Return why HEAD does not allow an act, as a sentence; empty: it does.

    `waits` is the place of the open turn in a line; None: it stands in none.
    """
    if why := _newer(head):
        return why
    if act == "cancel" and head.is_terminal:
        return "It has ended: nothing is left to cancel."
    if act == "retry" and head.state != TaskState.TASK_STATE_FAILED:
        return f"It is {plain_state(head.state)}: only what has failed is tried again."
    return _not_sent(head, now_ms, waits) if act == "resend" else ""


def _newer(head: Head | Log) -> str:
    """Return that a newer release alone may act on a task; empty: this one may, too."""
    if not head.needs_newer:
        return ""
    return (
        f"A newer release wrote it, and it needs more than format {FORMAT}, which this release"
        " knows: act with the newest release that has run here."
    )


def _callback(log: Log, name: str, key: str) -> StepId:
    """Return the first open wait for a callback.

    Raises:
        UnsupportedOperationError: there is none; says which waits for callbacks are open.
    """
    waits = {of: until for of, until in open_waits(log).items() if of.name.startswith(CALLBACK)}
    for each in waits:
        if (each.name, each.key) == (f"{CALLBACK}{name}", key):
            return each
    if not waits:
        raise UnsupportedOperationError("It waits for no callback.")
    wanted = _callback_text(StepId(f"{CALLBACK}{name}", key, 1))
    found = ", ".join(f"{_callback_text(of)} until {iso(u.at)}" for of, u in waits.items())
    raise UnsupportedOperationError(f"It does not wait for the {wanted}, but for {found}.")


def _callback_text(step_id: StepId) -> str:
    return f"callback {step_text(step_id).removeprefix(CALLBACK)}"


def _not_sent(head: Head, now_ms: int, waits: InLine | None) -> str:
    if not head.turn.is_open:
        return "It has no open turn: there is nothing to send."
    if waits is not None and waits.place != 1:
        return (
            "The turn has no message to send: it stands in line, and starts when its place"
            f" comes ({in_line(waits)})."
        )
    released = head.turn.released
    if released is None or released.until <= now_ms:
        return ""
    if head.turn.parked == ASLEEP:
        return f"The turn is {left_at_record(ASLEEP, released.until)}, and goes on then."
    return (
        f"The turn waits until {iso(released.until)} for {released.reason}: its message is in the"
        " queue, and starts it then."
    )


def _retry_key(head: Head) -> str:
    """Return the idempotency key of the new task of a failed one; a client's never equals it.

    It follows from the failed task alone, so that a repeated retry finds the first one's task.
    """
    return digest("retry-key", head.scope, head.task_id, head.incarnation)


def retry_id(head: Head) -> str:
    """Return the id of the task in which a failed one is tried again."""
    return keyed_task_id(Scope(head.scope), head.context_id, _retry_key(head))


def _retried(head: Head, opening: TurnOpened) -> SendMessageRequest:
    """Return the request that opens the new task of a failed one.

    It is the failed task's first one, with an id of its own, in the same context, and names the
    failed task in `referenceTaskIds`. It has no push configuration: none is stored with a message.
    """
    request = copied(opening.request)
    message = request.message
    message.message_id = f"retry-{_retry_key(head)}"
    message.task_id, message.context_id = "", head.context_id
    if head.task_id not in message.reference_task_ids:
        message.reference_task_ids.append(head.task_id)
    return request


def _opening_of(records: Iterable[Record]) -> TurnOpened | None:
    """Return the first message of a task; None if it cannot be read."""
    entries = (entry for record in records for entry in record.entries)
    return next((entry for entry in entries if isinstance(entry, TurnOpened)), None)


def _forgiven(push: Push, *, at: int | None) -> Push:
    """Return a webhook without its refusals, and with a job at a time if events wait for it."""
    forgiven = push.without_refusals()
    return forgiven if at is None else forgiven.woken(at)


def _undelivered(pushes: Iterable[Push], config_id: str = "") -> list[Push]:
    """Return the webhooks that can be told again: all, or the one with this id."""
    return [p for p in pushes if p.may_redeliver and config_id in ("", p.config.id)]
