"""The delivery of a job: the events that its receiver is owed, sent in order.

A receiver may rely on this:

- It gets every event that it is owed, in the order of the task's log. The cursor moves past an
  event only when the receiver has answered with 2xx, or when the event was given up; a crash in
  between leaves the cursor, and the event is sent again under the same id.
- An event that fails is tried again before any later one is sent. A short wait is the job's
  visibility, so that it holds up no other configuration; a long one is spent in the table, without
  a job (`push/waiting.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from a2a_serverless import faults
from a2a_serverless.addresses import AllowedHosts, Receiver
from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.logs import begun
from a2a_serverless.observability.spans import Span
from a2a_serverless.push.client import Outcome, PushClient, Session
from a2a_serverless.push.destinations import Destination, Destinations
from a2a_serverless.push.jobs import PushBackends, PushDeadLetter, PushJob
from a2a_serverless.push.notifications import Notification, consent_call, owed, read_owed
from a2a_serverless.push.signing import Secrets, SecretsManagerSecret, Signer, process_secret
from a2a_serverless.queues.fifo import DONE, DeliveryOutcome, Handle, acknowledge, again
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.leases import Leases
from a2a_serverless.tasks.attempts import NEWER_DELAY_S, RetryPolicy
from a2a_serverless.tasks.entries import copied
from a2a_serverless.tasks.fold import LAST
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope, caller_number
from a2a_serverless.tasks.push import LONG_WAIT_MS, MAX_REFUSALS, NO_CONSENT, RECEIVER_FAILS, Push
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

_RETRY_CAP_S: Final = 900.0
"""The longest wait between two attempts, unless the receiver asks for a longer one."""

_EARLY_S: Final = 1.0
"""Seconds until a job is delivered again whose commit could not be read yet."""

_NEWER: Final = (
    "a newer release of this service wrote its task, and only PushFunction of that release may"
    " deliver it: deploy that release"
)

_ISSUER: Final = "a2a-serverless"
"""The signer's name, if the agent's URL is not configured."""

GRACE_S: Final = 1.0
"""Seconds that a request may take without a place, unless the attempt before it has failed."""

SHARE: Final = 5
"""One caller may have a fifth of all places."""

_MARGIN_S: Final = 5.0
"""Seconds beyond the longest request after which the place of a process that died comes free."""

_NO_PLACE: Final = Outcome(
    meaning="again", reason="other slow webhooks of the same caller take all its places"
)


@dataclass(frozen=True, slots=True)
class Budget:
    """The time of one invocation.

    Args:
        timeout_s: bound of one request.
        ends_at: the end of the last request, in monotonic seconds; None: no bound.
    """

    timeout_s: float
    ends_at: float | None = None

    def allows_request(self, now: float) -> bool:
        """Return True if a request that begins now ends in time."""
        return self.ends_at is None or now + self.timeout_s <= self.ends_at


class _Places(Leases):
    """Leases of the places that slow requests have: a number for each caller, out of all.

    A request to a webhook occupies a part of PushFunction's concurrency until it is answered. A
    caller with sixty webhooks that never answer would occupy all of it. So a request that is not
    answered within `GRACE_S` needs one of its caller's places, and is ended if they are all taken.
    A quick webhook needs none, and costs no request to the table.
    """

    async def during(
        self,
        request: Callable[[], Awaitable[Outcome]],
        *,
        caller: str,
        has_failed: bool,
        timeout_s: float,
    ) -> Outcome:
        """Make a request, and hold one of the caller's places while it is slow.

        Return `_NO_PLACE` if no place is free: the request was ended, or, with `has_failed`, not
        made. `timeout_s` is the longest time that the request may take.
        """
        running: asyncio.Future[Outcome] | None = None
        if not has_failed:
            running = asyncio.ensure_future(request())
        try:
            if running is not None:
                await asyncio.wait({running}, timeout=GRACE_S)
                if running.done():
                    return running.result()
            lease = await self.take(caller, for_s=timeout_s + _MARGIN_S)
            if lease is None:
                return running.result() if running and running.done() else _NO_PLACE
            try:
                return await (request() if running is None else running)
            finally:
                await self.give_back(lease)
        finally:
            if running is not None and not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


class Deliverer:
    """Delivers jobs to their ends, several at a time.

    Args:
        storage: logs and configurations, seen through any scope.
        push: takes the events that are given up, and publishes the keys.
        settings: which events are pushed, allowed receivers, the source of the signing keys, and
            for how long a receiver may fail.

    Raises:
        ConfigurationError: A2A_PUSH_ALLOWED_HOSTS cannot be parsed.
    """

    def __init__(
        self,
        storage: DurableStorage,
        push: PushBackends,
        settings: Settings,
    ) -> None:
        self.clock = storage.clock
        self.storage = storage
        self.push = push
        self.settings = settings
        self.client = PushClient(AllowedHosts.parse(settings.push_allowed_hosts), clock=self.clock)
        secret: Secrets = process_secret
        name = settings.push_signing_secret
        if name:
            secret = SecretsManagerSecret(name, clock=self.clock).values
        issuer = (settings.push_issuer or settings.public_url).rstrip("/") or _ISSUER
        self.inline = settings.inline(settings.public_url or settings.push_issuer)
        self.signer = Signer(secret, push.keys, issuer=issuer, clock=self.clock)
        per_caller = max(1, settings.push_concurrency // SHARE)
        self.places = _Places(push.slots, per_caller=per_caller, in_all=0) if push.slots else None
        self.retry = RetryPolicy(base_s=settings.push_retry_base_s, cap_s=_RETRY_CAP_S)
        self.destinations = Destinations(
            storage.table, self.client, clock=self.clock, base_s=settings.push_retry_base_s
        )

    async def deliver(self, handle: Handle[PushJob], budget: Budget) -> bool:
        """Send one receiver the events that it is owed; nothing runs on afterwards.

        Return True if the job is done, False if its event source has to deliver it again.
        """
        faults.point("push-received")
        delivery = _Job(self, handle.message, budget)
        with begun():
            return await self._delivered(handle, delivery)

    async def _delivered(self, handle: Handle[PushJob], delivery: _Job) -> bool:
        job = handle.message
        try:
            about, jobs = {"a2a.task.id": job.task_id}, self.push.jobs
            with spans.messaging("process", jobs.name, jobs.system, job.trace, about):
                outcome = await delivery.deliver()
        except Exception:  # noqa: BLE001 - an invocation's edge: the job must not be lost
            outcome = again(min(self.retry.delay_s(handle.attempt), LONG_WAIT_MS / 1000))
            metrics.count("PushErrors")
            delivery.log(logging.ERROR, "push_delivery_failed", "Delivery failed", exc_info=True)
        return await acknowledge(
            handle,
            outcome,
            before_ack=lambda: faults.point("push-before-ack"),
            before_nack=lambda: faults.point("push-before-nack"),
            # The delivery expires by itself.
            on_error=lambda: delivery.log(
                logging.WARNING, "push_queue_not_told", "Queue not told", exc_info=True
            ),
        )


def _call_span(receiver: Receiver, attempt: _Try) -> AbstractContextManager[Span]:
    """Return the span of one call: with the receiver's host, not its URL, which may be secret."""
    about = {
        "http.request.method": "POST",
        "server.address": receiver.host,
        "server.port": receiver.port,
        "http.request.resend_count": attempt.number - 1 or None,
        "a2a.push_config.id": attempt.push.config.id,
    }
    return spans.span("POST", kind="client", attributes=about)


def _tell_span(call: Span, outcome: Outcome) -> None:
    call.set({"http.response.status_code": outcome.status})
    if outcome.meaning != "delivered":
        call.fail(str(outcome.status or "not_reached"))


class _Job:
    def __init__(self, deliverer: Deliverer, job: PushJob, budget: Budget) -> None:
        self._deliverer = deliverer
        self._job = job
        self._budget = budget
        self._clock = deliverer.clock
        self._storage = deliverer.storage.for_scope(Scope(job.scope))
        self._head: Head | None = None
        self._principal = Scope(job.scope).principal
        """The caller behind the task, the same in all its tenants."""
        self._destination = Destination(breakers={}, is_trusted=False)
        self._held: Outcome | None = None
        """Why nothing is sent to the destination; None: the events are sent."""

    async def deliver(self) -> DeliveryOutcome:
        """Send the receiver all events that are committed by now."""
        push = await self._push()
        if push is None or push.is_given_up:
            return await self._at_rest(push)
        if (early_s := self._early_s(push)) > 0:
            return again(early_s) if push.due_at is None else DONE
        if (wait := await self._passes(push)) is not None:
            return wait
        which = self._deliverer.settings.push_events
        log = await read_owed(self._storage, push, which)
        if log is None:
            return DONE
        self._head = log.head
        if log.needs_newer:
            self.log(logging.WARNING, "needs_newer", f"Job given back: {_NEWER}")
            return again(NEWER_DELAY_S)
        notifications = owed(log, push, which)
        if not notifications:
            await self._at_rest(push)
        outcome = await self._tell_all(push, notifications)
        # A record of the table's stream may come before a read shows its commit.
        is_early = log.head.version < self._job.version
        return outcome or (again(_EARLY_S) if is_early else DONE)

    async def _at_rest(self, push: Push | None) -> DeliveryOutcome:
        """Wake a configuration no more that has nothing to wait for."""
        if push is not None and push.next_at is not None:
            await self._storage.webhooks.move(push, replace(push, next_at=None, due_at=None))
        return DONE

    async def _tell_all(
        self, push: Push | None, notifications: Sequence[Notification]
    ) -> DeliveryOutcome | None:
        """Attempt the events one after the other; return None if all were settled."""
        async with self._deliverer.client.session() as session:
            for number, notification in enumerate(notifications):
                seen = push
                if number:
                    # It may have been deleted, replaced, or moved by another delivery meanwhile.
                    push = await self._push()
                if push is None or push.is_given_up:
                    return DONE
                if seen is not None and push.cursor < seen.cursor:
                    return again(0)  # an operator has put it back: earlier events come first
                if push.cursor >= notification.position:
                    continue
                if not self._budget.allows_request(self._clock.monotonic()):
                    return again(0)
                # An event that was given up may have opened a breaker.
                has_failed = number and (push.failing_since is not None or push.refusals)
                if has_failed and (hold := await self._passes(push)) is not None:
                    return hold
                wait = await self._tell(session, push, notification)
                if wait is not None:
                    return wait
        return None

    async def _push(self) -> Push | None:
        """Return the configuration as it is now; None if it is gone, or of another task."""
        push = await self._storage.webhooks.get(self._job.task_id, self._job.config_id)
        return push if push is not None and push.incarnation == self._job.incarnation else None

    async def _tell(
        self, session: Session, push: Push, notification: Notification
    ) -> DeliveryOutcome | None:
        """Attempt one event once; return None if the next one may follow."""
        attempt = _Try(push, notification, notification.event_id(push))
        faults.point("push-before-post")
        outcome = self._held or await self._post(session, attempt)
        faults.point("push-after-post")
        if self._held is None and outcome is not _NO_PLACE:
            destinations = self._deliverer.destinations
            # Before the cursor moves: the next event asks the breakers with this outcome.
            await destinations.note(self._destination, outcome, is_consent=False)
        match outcome.meaning:
            case "delivered":
                await self._advance(attempt, outcome, failing_since=None)
                faults.point("push-after-move")
                metrics.count("PushDeliveries")
                if notification.committed_at is not None:
                    metrics.time("PushDelay", self._clock.now_ms() - notification.committed_at)
                self._log(attempt, outcome, logging.INFO, "push_delivered", "Receiver told")
                return None
            case "again":
                return await self._put_off(attempt, outcome)
            case _:  # never
                has_answered = outcome.status is not None
                since = None if has_answered else push.failing_since
                await self._give_up(attempt, outcome, failing_since=since, is_refused=has_answered)
                return None

    async def _passes(self, push: Push) -> DeliveryOutcome | None:
        """Ask the breakers; return None if the event is sent, or given up without a call."""
        self._destination = await self._deliverer.destinations.find(
            self._principal, push.config.url
        )
        self._held = await self._asked(push)
        if self._held is not None and self._held.meaning == "again" and not self._is_overdue(push):
            return await self._hold(push, self._held)
        return None

    async def _asked(self, push: Push) -> Outcome | None:
        """Return why nothing may be sent now, once the receiver was asked if that is due.

        None: the events are sent.
        """
        destinations = self._deliverer.destinations
        state, breaker = self._destination.state(self._clock.now_ms())
        if state == "half-open":
            for_s = 2 * self._budget.timeout_s + _MARGIN_S  # this call, and the event after it
            is_mine = await destinations.claim(self._destination, for_s=for_s)
            if is_mine and self._destination.is_trusted:
                return None  # its next event is the question
            if is_mine:
                outcome = await self._ask(push)
                is_no_call = outcome.meaning == "never" and outcome.status is None
                if is_no_call or outcome is _NO_PLACE:
                    return outcome  # the receiver has not said anything
                await destinations.note(self._destination, outcome, is_consent=True)
                if outcome.meaning == "delivered":
                    return None
            self._destination = await destinations.find(self._principal, push.config.url)
            state, breaker = self._destination.state(self._clock.now_ms())
        if breaker is None:
            return None
        subject = NO_CONSENT if breaker.kind == "consent" else RECEIVER_FAILS
        reason = f"{subject}: {breaker.answer or 'it is being asked'}"
        if state == "refused":
            return Outcome(meaning="never", reason=reason)
        pause_s = max(0, breaker.next_call_at - self._clock.now_ms()) / 1000
        return Outcome(meaning="again", reason=reason, pause_s=pause_s)

    async def _ask(self, push: Push) -> Outcome:
        """Ask a receiver by a small call, which says of the task only that it exists."""
        head = await self._storage.head(self._job.task_id)
        if head is None:
            return Outcome(meaning="again", reason="its task is gone")
        notification = consent_call(head, push)
        attempt = _Try(push, notification, notification.event_id(push))
        async with self._deliverer.client.session() as session:
            outcome = await self._post(session, attempt)
        self._log(attempt, outcome, logging.INFO, "push_asked", "Receiver asked for consent")
        return outcome

    async def _hold(self, push: Push, held: Outcome) -> DeliveryOutcome:
        """Wait for the destination; it was not called for this event."""
        # Not all that wait for it come at once.
        wait_s = held.pause_s + self._deliverer.retry.delay_s(1)
        metrics.count("PushHeld")
        self.log(
            logging.INFO,
            "push_held",
            "Receiver not called",
            reason=held.reason,
            wait_s=round(wait_s, 1),
        )
        return await self._wait(push, push, held, wait_s)

    async def _wait(
        self, push: Push, after: Push, outcome: Outcome, wait_s: float
    ) -> DeliveryOutcome:
        """Store the next attempt's time; `after` is the configuration with the last attempt."""
        now_ms = self._clock.now_ms()
        since = now_ms if push.failing_since is None else push.failing_since
        after = replace(after, failing_since=since)
        next_at = now_ms + round(wait_s * 1000)
        after = after.answered(outcome.reason, now_ms, next_at=next_at)
        left = await self._storage.webhooks.move(push, after)
        # A long wait is that of the table, if the table knows of it: then the sweeper sends a job.
        in_table = left is not None and left.due_at is not None
        return DONE if in_table else again(min(wait_s, LONG_WAIT_MS / 1000))

    def _early_s(self, push: Push) -> float:
        """Return the seconds until the next attempt; a second or less does not matter."""
        left_ms = 0 if push.next_at is None else push.next_at - self._clock.now_ms()
        return left_ms / 1000 if left_ms > _EARLY_S * 1000 else 0

    def _is_overdue(self, push: Push) -> bool:
        """Return True if its receiver has been failing for too long."""
        since, longest_s = push.failing_since, self._deliverer.settings.push_retry_s
        return since is not None and self._clock.now_ms() - since >= longest_s * 1000

    async def _post(self, session: Session, attempt: _Try) -> Outcome:
        push, notification = attempt.push, attempt.notification
        try:
            receiver = Receiver.parse(push.config.url)
            audience = receiver.origin
            # Links are made for this attempt: they live for minutes, and events wait for hours. The
            # contents go with it: many events wait for their turn.
            content = copied(notification.content)
            await self._storage.show(content, self._deliverer.inline)
            body = notification.body(push, content)
        except InvalidArgumentError as error:
            return Outcome(meaning="never", reason=str(error))
        signature = await self._deliverer.signer.sign(
            body, audience=audience, config=push.config, event_id=attempt.event_id
        )
        timeout_s = self._budget.timeout_s

        async def request() -> Outcome:
            with _call_span(receiver, attempt) as call:
                headers = spans.trace_context() | notification.headers(push, signature)
                outcome = await session.post(push.config.url, headers, body, timeout_s=timeout_s)
                _tell_span(call, outcome)
                return outcome

        places = self._deliverer.places
        if places is None:
            return await request()
        return await places.during(
            request, caller=self._principal, has_failed=push.failures > 0, timeout_s=timeout_s
        )

    async def _put_off(self, attempt: _Try, outcome: Outcome) -> DeliveryOutcome | None:
        """Try the event again later, unless the receiver has been failing for too long."""
        push = attempt.push
        if self._is_overdue(push):
            await self._give_up(attempt, outcome, failing_since=push.failing_since)
            return None
        # A delivery that has moved the cursor meanwhile has counted its own attempt.
        wait_s = max(self._deliverer.retry.delay_s(attempt.number), outcome.pause_s)
        # The next attempt reads no log before this event: none of that is owed.
        behind = (attempt.notification.version - 1, LAST)
        version, index = max((push.version, push.index), behind)
        failed = replace(push, version=version, index=index, failures=attempt.number)
        later = await self._wait(push, failed, outcome, wait_s)
        metrics.count("PushFailures")
        known = {"wait_s": round(wait_s, 1)}
        self._log(attempt, outcome, logging.WARNING, "push_failed", "Receiver not told", **known)
        return later

    async def _give_up(
        self,
        attempt: _Try,
        outcome: Outcome,
        *,
        failing_since: int | None,
        is_refused: bool = False,
    ) -> None:
        """Record the event as given up, and move past it.

        A receiver counts as failing until it answers: until then each further event gets at most
        one attempt, and not attempts for hours. After `MAX_REFUSALS` refusals there are none.
        """
        version, index = attempt.notification.position
        record = PushDeadLetter(
            job=self._job,
            event_id=attempt.event_id,
            version=version,
            index=index,
            reason=outcome.reason,
            attempts=attempt.number
            - (self._held is not None),  # a receiver that is held is not called
            failing_since=failing_since,
        )
        # Before the cursor moves: a process that dies in between sends the dead letter once more,
        # under the same deduplication id. The other way round, the event would be lost without
        # a trace.
        faults.point("push-before-dead-letter")
        await self._deliverer.push.dead_letter(record)
        faults.point("push-after-dead-letter")
        refused = int(is_refused)
        await self._advance(attempt, outcome, failing_since=failing_since, refused=refused)
        metrics.count("PushGivenUp")
        metrics.caller(caller_number(self._principal), whose="untold")
        action, text = "push_given_up", "Notification given up"
        if is_refused and attempt.push.url_refusals + 1 == MAX_REFUSALS:
            action = "push_receiver_given_up"
            text = (
                f"Receiver given up: its URL has refused {MAX_REFUSALS} notifications of the task"
            )
        self._log(attempt, outcome, logging.ERROR, action, text)

    async def _advance(
        self,
        attempt: _Try,
        outcome: Outcome,
        *,
        failing_since: int | None,
        refused: int | None = None,
    ) -> None:
        """Move the cursor past the event, unless another delivery has done so.

        `refused` is the number of refusals to add; None: the receiver has taken the event.

        If another writer has replaced the configuration, or counted a failure, the cursor is still
        where it was, and moves all the same. If an operator has put the cursor back, it stays
        there: the event is sent again, behind those that were given up.
        """
        event, seen = attempt.notification.position, attempt.push.cursor

        def moved(push: Push) -> Push | None:
            if not seen <= push.cursor < event:
                return None
            # Another URL than that of this attempt may have to be told of the state.
            is_news = push.set_mark != attempt.push.set_mark or not attempt.notification.tells_state
            after = replace(
                push,
                failures=0,
                failing_since=failing_since,
                set_mark=push.set_mark if is_news else 0,
                refusals=0 if refused is None else push.refusals + refused,
                is_open=push.is_open and not attempt.notification.ends_task,
            )
            is_told = refused is None
            return after.settled(event, outcome.reason, self._clock.now_ms(), is_told=is_told)

        await self._storage.webhooks.change(attempt.push, moved)

    def _log(
        self,
        attempt: _Try,
        outcome: Outcome,
        level: int,
        action: str,
        message: str,
        **more: Any,
    ) -> None:
        """Log a line about an attempt; with the turn, unless the event is of an earlier one."""
        head, version = self._head, attempt.notification.version
        if head is not None and (version > head.turn.base or version == head.turn.number):
            more["turn"] = head.turn.number
        self.log(
            level,
            action,
            message,
            event_id=attempt.event_id,
            version=version,
            attempt=attempt.number,
            reason=outcome.reason,
            **more,
        )

    def log(
        self, level: int, action: str, message: str, *, exc_info: bool = False, **more: Any
    ) -> None:
        """Log a line with the job's ids, but nothing out of a configuration or an event."""
        extra = {"action": action, "task_id": self._job.task_id, "config_id": self._job.config_id}
        if self._head is not None:
            extra["context_id"] = self._head.context_id
        logger.log(level, message, exc_info=exc_info, extra=extra | more)


@dataclass(frozen=True, slots=True)
class _Try:
    push: Push
    notification: Notification
    event_id: str

    @property
    def number(self) -> int:
        """Return the attempt's number, from 1; one whose process died uncounted is left out."""
        return self.push.failures + 1
