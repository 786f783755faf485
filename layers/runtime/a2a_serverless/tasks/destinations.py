"""Decisions about the destinations of notifications: who has to be asked first, and when.

Three circuit breakers stand before each notification, all of one caller: what one caller's webhooks
meet holds up no other caller's. That of consent is closed once the receiver at a URL has consented.
That of a host is closed until `MOST_FAILURES` requests in a row had no answer, that of a URL until
so many were answered by an error that passes, such as 503. Where one is open, one process at a time
asks by a small call; the waits between these calls double.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from a2a_serverless.tasks.push import MAX_REFUSALS
from a2a_serverless.values import dataclass

MOST_FAILURES: Final = 5
"""Requests that may fail in a row before a host or a URL is asked first."""

REFUSED_S: Final = 3600.0
"""Seconds for which a URL that has refused `MAX_REFUSALS` times is not asked again."""

CONSENT_S: Final = 30 * 86_400
"""Seconds for which a consent holds."""

KEPT_S: Final = 86_400
"""Seconds for which it is known that a destination fails or has not consented."""

LONGEST_S: Final = 900.0
"""The longest wait between two calls, unless the receiver asks for a longer one."""

Kind = Literal["consent", "host", "url"]
BreakerState = Literal["closed", "half-open", "open", "refused"]
"""closed: send; half-open: ask by a small call first; open: wait; refused: give up what is owed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """What is known of one destination; times in milliseconds since the epoch."""

    kind: Kind
    has_consented: bool = False
    failures: int = 0
    """Calls in a row that have failed, or were refused."""
    refusals: int = 0
    """Calls in a row that were refused: answered for good, with another status than 2xx."""
    next_call_at: int = 0
    """The earliest time of the next call, if the breaker is open."""
    answer: str = ""
    """How the last call ended that did not succeed, such as `status 503`."""

    @property
    def is_closed(self) -> bool:
        """Return True if notifications pass."""
        return self.has_consented if self.kind == "consent" else self.failures < MOST_FAILURES

    def state(self, now_ms: int) -> BreakerState:
        """Return what a notification has to do here, as of a time."""
        if self.is_closed:
            return "closed"
        if now_ms >= self.next_call_at:
            return "half-open"
        return "refused" if self.refusals >= MAX_REFUSALS else "open"

    def asked(self, until_ms: int) -> CircuitBreaker:
        """Return the breaker while one process asks, which has died if it is not done by then."""
        return replace(self, next_call_at=until_ms)

    def failed(
        self, answer: str, now_ms: int, *, base_s: float, pause_s: float = 0, is_refused: bool
    ) -> CircuitBreaker:
        """Return the breaker after a call that has failed, or was refused.

        A URL that refuses `MAX_REFUSALS` times in a row has taken its consent back.
        """
        failures, refusals = self.failures + 1, self.refusals + 1 if is_refused else 0
        is_final = refusals >= MAX_REFUSALS
        counted = failures if self.kind == "consent" else failures - MOST_FAILURES + 1
        doublings = min(max(counted, 1) - 1, 64)
        wait_s = max(min(LONGEST_S, base_s * 2**doublings), pause_s)
        return replace(
            self,
            has_consented=self.has_consented and not is_final,
            failures=failures,
            refusals=refusals,
            next_call_at=now_ms + round((REFUSED_S if is_final else wait_s) * 1000),
            answer=answer,
        )

    def passed(self) -> CircuitBreaker:
        """Return the breaker after a call that has succeeded."""
        return CircuitBreaker(kind=self.kind, has_consented=self.kind == "consent")

    def expires_s(self, now_ms: int) -> int:
        """Return the second at which it is forgotten."""
        return now_ms // 1000 + (CONSENT_S if self.has_consented else KEPT_S)
