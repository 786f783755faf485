"""Push notifications as a Lambda function behind two event sources: table stream and job queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from itertools import takewhile
from typing import Any, Final

from a2a_serverless import faults
from a2a_serverless.errors import (
    A2AServerlessError,
    FullGroupError,
    InvalidArgumentError,
    UndecodableMessageError,
    UnreadableTaskError,
)
from a2a_serverless.observability import spans
from a2a_serverless.push.deliverer import Budget, Deliverer
from a2a_serverless.push.jobs import PushBackends, PushJob
from a2a_serverless.queues.batch import (
    EventFunction,
    left_s,
    partial_response,
    process_batch,
)
from a2a_serverless.queues.fifo import EventRecord, FifoQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.activity import Ended, count_ended
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import event_position, owner_of, push_names, tells_of_push
from a2a_serverless.tasks.head import RESTING, TERMINAL, plain_state, state_name
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.push import PushEvents
from a2a_serverless.values import dataclass

_MARGIN_S: Final = 5.0
_MAX_MARGIN_SHARE: Final = 0.1
"""The largest share of an invocation that is kept free after the last request."""

_MAX_REQUEST_SHARE: Final = 0.6
"""A request gets at most this share of an invocation, so that a short one still makes progress."""

_AT_ONCE: Final = 16
"""Tasks whose configurations are read at the same time."""

_ENDS: Final = frozenset(state_name(state) for state in RESTING)

_PLAIN_ENDS: Final = {state_name(state): plain_state(state) for state in TERMINAL}

_STREAM: Final = "aws:dynamodb"
_QUEUE: Final = "aws:sqs"

logger = logging.getLogger(__name__)


class PushFunction(EventFunction):
    """Turns batches of stream records into jobs, and delivers batches of jobs.

    Several configurations are served at a time, each one's jobs in their order. A connection lives
    as long as a delivery.

    The arguments are those of `Deliverer`.

    Raises:
        ConfigurationError: A2A_PUSH_ALLOWED_HOSTS cannot be parsed.
    """

    def __init__(self, storage: DurableStorage, push: PushBackends, settings: Settings) -> None:
        self._jobs = push.jobs
        self._timeout_s = settings.push_timeout_s
        self._stream = PushStream(storage, push.jobs, settings.push_events)
        self._deliverer = Deliverer(storage, push, settings)
        super().__init__()

    async def _answer(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        records = event.get("Records")
        sources = {r.get("eventSource") for r in records} if isinstance(records, list) else set()
        if not isinstance(records, list) or len(sources) > 1 or sources - {_STREAM, _QUEUE}:
            msg = "The event is neither one of DynamoDB Streams nor one of SQS."
            raise InvalidArgumentError(msg)
        if sources == {_STREAM}:
            return partial_response(await self._stream.process(records))
        return await process_batch(records, partial(self._deliver, self._budget(context)))

    def _budget(self, context: Any) -> Budget:
        seconds = left_s(context)
        if seconds is None:
            return Budget(self._timeout_s)
        margin_s = min(_MARGIN_S, seconds * _MAX_MARGIN_SHARE)
        timeout_s = min(self._timeout_s, seconds * _MAX_REQUEST_SHARE)
        return Budget(timeout_s, self._deliverer.clock.monotonic() + seconds - margin_s)

    async def _deliver(self, budget: Budget, record: EventRecord) -> bool:
        try:
            handle = self._jobs.decode_record(record)
        except UndecodableMessageError as error:
            return await self._keep_undecodable(record, error)
        return await self._deliverer.deliver(handle, budget)

    async def _keep_undecodable(self, record: EventRecord, reason: UndecodableMessageError) -> bool:
        message_id = record["messageId"]
        extra = {"action": "push_undecodable", "message_id": message_id}
        logger.error("Record cannot be read: %s", reason, extra=extra)
        try:
            return await self._jobs.keep_undecodable(
                str(record["body"]), reason=str(reason), message_id=message_id
            )
        except Exception:
            # An invocation's edge: the record is still in its queue, and comes again.
            logger.exception("Record not kept elsewhere", extra=extra)
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamRecord:
    number: str
    """The record's sequence number."""
    scope: str
    task_id: str
    incarnation: str
    version: int
    trace: Mapping[str, str] = field(default_factory=dict)
    """The trace headers of the commit."""

    @property
    def task(self) -> tuple[str, str, str]:
        return self.scope, self.task_id, self.incarnation


class PushStream:
    """Makes a job for each receiver that a commit concerns.

    A record of the table's stream only says that a task was committed up to a version, or that a
    configuration was set. DynamoDB Streams keeps the order for each item, but not for a task: so
    the events to send, and their order, are only decided when a delivery reads the log.

    Args:
        storage: the configurations, seen through any scope.
        jobs: takes the jobs.
        which: the events to push; other commits make no job.
    """

    def __init__(
        self, storage: DurableStorage, jobs: FifoQueue[PushJob], which: PushEvents
    ) -> None:
        self._storage = storage
        self._jobs = jobs
        self._which = which

    async def process(self, records: Sequence[EventRecord]) -> list[str]:
        """Send the jobs of these records, and count the tasks that ended with them.

        Return the sequence numbers of the records whose jobs could not be sent: they have to come
        again. A task gets one job for each configuration, because its delivery reads all commits.
        """
        tasks: dict[tuple[str, str, str], list[_StreamRecord]] = {}
        for committed in _committed_by(records, self._which):
            tasks.setdefault(committed.task, []).append(committed)
        faults.point("push-stream-received")
        slots = asyncio.Semaphore(_AT_ONCE)

        async def send(commits: Sequence[_StreamRecord]) -> list[str]:
            newest = max(commits, key=lambda commit: commit.version)
            try:
                async with slots:
                    await self.send(newest)
            except UnreadableTaskError as error:
                # The task stays unreadable: the stream must not wait for it.
                extra = {"action": "unreadable_task", "task_id": newest.task_id}
                logger.error("Jobs left out: %s", error, extra=extra)  # noqa: TRY400 - its sentence says all
            except Exception:
                # An invocation's edge: the stream holds the records until it is done.
                extra = {"action": "push_stream_failed", "task_id": newest.task_id}
                logger.exception("Jobs not sent", extra=extra)
                return [commit.number for commit in commits]
            return []

        sent = await asyncio.gather(*(send(commits) for commits in tasks.values()))
        failed = [number for numbers in sent for number in numbers]
        # Without those that failed: the stream passes them again, and they are counted then.
        await self._count(records, set(failed))
        return failed

    async def _count(self, records: Iterable[EventRecord], failed: Collection[str]) -> None:
        """Count the tasks that ended, up to the first record that comes again, with all behind it.

        An error is logged: webhooks do not wait for counts.
        """
        done = takewhile(lambda one: one["dynamodb"]["SequenceNumber"] not in failed, records)
        table, now_ms = self._storage.table, self._storage.clock.now_ms()
        try:
            await count_ended(table, _ended_by(done), now_ms)
        except A2AServerlessError as error:
            extra = {"action": "ends_not_counted"}
            logger.warning("Tasks that ended are not counted: %s", error, extra=extra)

    async def send(self, committed: _StreamRecord) -> None:
        """Send a job for each configuration that is owed the commit, or the state as it is.

        A configuration that is set while its task is at work waits for the task's next commit:
        until then its receiver is not even asked for consent.
        """
        storage = self._storage.for_scope(Scope(committed.scope))
        pushes = [
            push
            for push in await storage.webhooks.all(committed.task_id)
            if push.incarnation == committed.incarnation and not push.is_given_up
        ]
        is_set = any(push.set_mark for push in pushes)
        head = await storage.head(committed.task_id) if is_set else None
        rests = head is not None and head.state in RESTING
        for push in pushes:
            is_owed = push.version < committed.version
            if not is_owed and not (rests and push.set_mark):
                continue
            job = PushJob(
                scope=committed.scope,
                task_id=committed.task_id,
                incarnation=committed.incarnation,
                config_id=push.config.id,
                version=committed.version if is_owed else 1,
                # Each setting of a configuration is a job of its own for the queue.
                wake=0 if is_owed else push.set_mark,
                trace=dict(committed.trace),
            )
            with suppress(FullGroupError):  # the jobs that wait there read this commit too
                await self._jobs.send(job)
            faults.point("push-job-sent")


def _committed_by(records: Iterable[EventRecord], which: PushEvents) -> Iterable[_StreamRecord]:
    """Return the commits of `records` that may have an event to push, and set configurations.

    A configuration that was set has version 0. The event source filters by the same rule, so that
    other records cost no invocation.
    """
    for record in records:
        change = record["dynamodb"]
        partition, sort = change["Keys"]["PK"]["S"], change["Keys"]["SK"]["S"]
        image = change.get("NewImage", {})
        place = event_position(sort)
        if tells_of_push(sort, image):
            incarnation, version = push_names(sort)[0], 0
        elif record["eventName"] == "INSERT" and place is not None:
            if not _may_have_event(image.get("state", {}).get("S"), which):
                continue
            incarnation, version, _ = place
        else:
            continue
        scope, task_id = owner_of(partition)
        trace = image.get("trace", {}).get("S")
        yield _StreamRecord(
            number=change["SequenceNumber"],
            scope=scope,
            task_id=task_id,
            incarnation=incarnation,
            version=version,
            trace=spans.loaded(trace),
        )


def _ended_by(records: Iterable[EventRecord]) -> Iterable[Ended]:
    """Return the ends of tasks among `records`."""
    for record in records:
        change = record["dynamodb"]
        image = change.get("NewImage", {})
        state = _PLAIN_ENDS.get(image.get("state", {}).get("S", ""))
        is_commit = event_position(change["Keys"]["SK"]["S"]) is not None
        numbers = {name: image[name].get("N") for name in ("at", "took", "waited") if name in image}
        at = numbers.get("at")
        # Of a commit in several parts only the first one has its time.
        if record["eventName"] != "INSERT" or not is_commit or state is None or at is None:
            continue
        took, waited = numbers.get("took"), numbers.get("waited")
        yield Ended(
            at=int(at),
            state=state,
            took_ms=None if took is None else int(took),
            waited_ms=None if waited is None else int(waited),
            code_version=image.get("code", {}).get("S", ""),
        )


def _may_have_event(state: str | None, which: PushEvents) -> bool:
    """Return True if a commit may have an event to push; `state` None: it changed no status."""
    return which == "all" or (state in _ENDS if which == "ends" else state is not None)
