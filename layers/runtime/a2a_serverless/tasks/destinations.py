"""Decisions about the destinations of notifications: who has to be asked first, and when.

Two gates stand before each notification. The gate of a URL is open once its receiver has consented
to the notifications of a caller. The gate of a host is open until requests to it have failed
`MOST_FAILURES` times in a row, over all tasks and callers. Where a gate is not open, one process at
a time asks by a small call; the waits between these calls double.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from a2a_serverless.tasks.push import MAX_REFUSALS

MOST_FAILURES: Final = 5
"""Requests to a host that may fail in a row before it is asked first."""

REFUSED_S: Final = 3600.0
"""Seconds for which a URL that has refused `MAX_REFUSALS` times is not asked again."""

CONSENT_S: Final = 30 * 86_400
"""Seconds for which a consent holds."""

KEPT_S: Final = 86_400
"""Seconds for which it is known that a destination fails or has not consented."""

LONGEST_S: Final = 900.0
"""The longest wait between two calls, unless the receiver asks for a longer one."""

Kind = Literal["consent", "host"]
Passage = Literal["open", "ask", "closed", "refused"]
"""open: send; ask: by a small call first; closed: wait; refused: what is owed is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What is known of one destination; times in milliseconds since the epoch."""

    kind: Kind
    has_consented: bool = False
    failures: int = 0
    """Calls in a row that have failed, or were refused."""
    refusals: int = 0
    """Calls in a row that were refused: answered for good, with another status than 2xx."""
    opens_at: int = 0
    """The earliest time of the next call, if the gate is not open."""
    answer: str = ""
    """How the last call ended that did not succeed, such as `status 503`."""

    @property
    def is_open(self) -> bool:
        """Return True if notifications pass."""
        return self.has_consented if self.kind == "consent" else self.failures < MOST_FAILURES

    def passage(self, now_ms: int) -> Passage:
        """Return what a notification has to do here."""
        if self.is_open:
            return "open"
        if now_ms >= self.opens_at:
            return "ask"
        return "refused" if self.refusals >= MAX_REFUSALS else "closed"

    def asked(self, until_ms: int) -> Gate:
        """Return the gate while one process asks, which has died if it is not done by then."""
        return replace(self, opens_at=until_ms)

    def failed(
        self, answer: str, now_ms: int, *, base_s: float, pause_s: float = 0, is_refused: bool
    ) -> Gate:
        """Return the gate after a call that has failed, or was refused.

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
            opens_at=now_ms + round((REFUSED_S if is_final else wait_s) * 1000),
            answer=answer,
        )

    def passed(self) -> Gate:
        """Return the gate after a call that has succeeded."""
        return Gate(kind=self.kind, has_consented=self.kind == "consent")

    def expires_s(self, now_ms: int) -> int:
        """Return the second at which it is forgotten."""
        return now_ms // 1000 + (CONSENT_S if self.has_consented else KEPT_S)
