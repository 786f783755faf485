"""What is known of the destinations of notifications: an item for each circuit breaker.

A healthy destination costs a process one read a minute, and no write. A breaker is written when
it changes: a consent, a failure, a success after failures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from a2a_serverless.addresses import Receiver
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConditionFailedError, InvalidArgumentError
from a2a_serverless.push.client import Outcome, PushClient
from a2a_serverless.storage.codec import gone
from a2a_serverless.storage.layout import destination_key
from a2a_serverless.storage.table import Check, Item, Key, Table, Update
from a2a_serverless.tasks.destinations import BreakerState, CircuitBreaker, Kind
from a2a_serverless.values import dataclass

_KNOWN_S: Final = 60.0
"""Seconds for which a process goes by a closed breaker that it has read."""

_MOST_KNOWN: Final = 3000
"""Breakers that a process keeps."""

_TRIES: Final = 8
"""Tries to write a breaker that others write at the same time, such as failures of one host."""

_FORMS: Final = {"failures": int, "refusals": int, "next_call_at": int, "answer": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The breakers of one configuration's URL, as they were read; closed if it has none."""

    breakers: Mapping[Key, CircuitBreaker]
    is_trusted: bool
    """True if the operator has listed the receiver: it is never asked by a small call."""

    def state(self, now_ms: int) -> tuple[BreakerState, CircuitBreaker | None]:
        """Return what a notification has to do, and the breaker that says so; None: none does."""
        found = {breaker.state(now_ms): breaker for breaker in self.breakers.values()}
        order: tuple[BreakerState, ...] = ("refused", "open", "half-open")
        return next(((state, found[state]) for state in order if state in found), _CLOSED)


_CLOSED: Final[tuple[BreakerState, None]] = ("closed", None)


class Destinations:
    """The breakers of all destinations.

    Args:
        table: where they are.
        client: knows which receivers the operator has listed.
        clock: the time.
        base_s: the wait after the first call that does not succeed; it doubles.
    """

    def __init__(self, table: Table, client: PushClient, *, clock: Clock, base_s: float) -> None:
        self._table = table
        self._client = client
        self._clock = clock
        self._base_s = base_s
        self._known: dict[Key, tuple[CircuitBreaker, int]] = {}

    async def find(self, principal: str, url: str) -> Destination:
        """Return the destination of a caller's URL.

        The query does not count: many URLs that differ in it alone are one. A URL that cannot be
        called has no breakers.
        """
        try:
            receiver = Receiver.parse(url)
        except InvalidArgumentError:
            return Destination(breakers={}, is_trusted=False)
        is_trusted = await self._client.is_listed(receiver)
        place = f"{receiver.origin}{receiver.target.partition('?')[0]}"
        kinds: dict[Key, Kind] = {
            destination_key("HOST", principal, receiver.host): "host",
            destination_key("URL", principal, place): "url",
        }
        if not is_trusted:
            kinds[destination_key("CONSENT", principal, place)] = "consent"
        return Destination(breakers=await self._read(kinds), is_trusted=is_trusted)

    async def claim(self, destination: Destination, *, for_s: float) -> bool:
        """Return True if this process alone asks, for `for_s` seconds; False: another one does."""
        until_ms = self._clock.now_ms() + int(for_s * 1000)
        for key, breaker in destination.breakers.items():
            if breaker.is_closed:
                continue
            after = breaker.asked(until_ms)
            if not await self._table.did(self._update(key, after, seen=breaker)):
                return False
            self._keep(key, after)
        return True

    async def note(self, destination: Destination, outcome: Outcome, *, is_consent: bool) -> None:
        """Note the outcome of a request; a success is written only if there were failures.

        `is_consent`: the request was the small call. After one that succeeds an event follows,
        whose outcome closes the breakers, or does not.
        """
        has_answered = outcome.status is not None
        for key, breaker in destination.breakers.items():
            own = self._known.get(key, (breaker, 0))[0]
            match breaker.kind:
                case "consent":
                    has_passed = outcome.meaning == "delivered"
                    has_failed = is_consent or (outcome.meaning == "never" and has_answered)
                case "host":  # whatever it answers, it lives
                    event_follows = is_consent and outcome.meaning == "delivered"
                    has_passed = has_answered and not event_follows
                    has_failed = outcome.meaning == "again" and not has_answered
                case _:  # its URL
                    has_passed = outcome.meaning == "delivered" and not is_consent
                    has_failed = outcome.meaning == "again" and has_answered
            if has_passed:
                if own.failures or not own.is_closed:
                    await self._change(key, own, CircuitBreaker.passed)
            elif has_failed:
                await self._change(key, own, lambda seen: self._failed(seen, outcome))

    def _failed(self, seen: CircuitBreaker, outcome: Outcome) -> CircuitBreaker:
        return seen.failed(
            outcome.reason,
            self._clock.now_ms(),
            base_s=self._base_s,
            pause_s=outcome.pause_s,
            is_refused=outcome.meaning == "never",
        )

    async def _change(
        self, key: Key, seen: CircuitBreaker, change: Callable[[CircuitBreaker], CircuitBreaker]
    ) -> None:
        for _ in range(_TRIES):
            after = change(seen)
            try:
                await self._table.write(self._update(key, after, seen=seen))
            except ConditionFailedError as failed:
                # Another process has noted an outcome meanwhile: this one counts on top of it.
                seen = _breaker_of(seen.kind, failed.items[0])
            else:
                self._keep(key, after)
                return

    async def _read(self, kinds: Mapping[Key, Kind]) -> dict[Key, CircuitBreaker]:
        now_ms = self._clock.now_ms()
        found = {}
        for key in kinds:
            breaker, read_at = self._known.get(key, (None, 0))
            if breaker is not None and breaker.is_closed and now_ms - read_at < _KNOWN_S * 1000:
                found[key] = breaker
        unread = [key for key in kinds if key not in found]
        for key, item in (await self._table.load(unread)).items() if unread else ():
            # DynamoDB deletes an expired item late, perhaps days later: until then it is read.
            is_live = item is not None and item.get("expires_at", 0) > now_ms // 1000
            found[key] = _breaker_of(kinds[key], item if is_live else None)
            self._keep(key, found[key])
        return {key: found[key] for key in kinds}

    def _keep(self, key: Key, breaker: CircuitBreaker) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = breaker, self._clock.now_ms()

    def _update(self, key: Key, after: CircuitBreaker, *, seen: CircuitBreaker) -> Update:
        """Return the update of a breaker that is still as it was seen."""
        now_ms = self._clock.now_ms()
        unseen = gone(now_ms) if seen == CircuitBreaker(kind=seen.kind) else []
        same = ("failures", "next_call_at", "consented")
        values = _values_of(after) | {"expires_at": after.expires_s(now_ms)}
        when = [[Check(name, "=", _values_of(seen)[name]), *unseen] for name in same]
        return Update(key=key, values=values, when=when)


def _values_of(breaker: CircuitBreaker) -> Item:
    values = {name: getattr(breaker, name) for name in _FORMS}
    return values | {"consented": int(breaker.has_consented)}


def _breaker_of(kind: Kind, item: Mapping[str, Any] | None) -> CircuitBreaker:
    """Return the breaker that an item holds; what is missing or damaged counts as not there."""
    item = item or {}
    values = {name: item[name] for name, form in _FORMS.items() if isinstance(item.get(name), form)}
    return CircuitBreaker(kind=kind, has_consented=item.get("consented") == 1, **values)
