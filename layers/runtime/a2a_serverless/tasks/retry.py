"""When a failed attempt is started again: exponential back-off with full jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from a2a_serverless.tasks.head import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often an agent is started on one turn, and how long to wait in between, in seconds.

    Attempt n is followed by a wait between 0 and `base_s * 2 ** (n - 1)`, at most `cap_s`: the
    bound grows, and the jitter spreads the turns that failed together.
    """

    max_attempts: int = 3
    base_s: float = 2
    cap_s: float = 300
    jitter: Callable[[], float] = random.random

    def is_exhausted(self, attempts: int) -> bool:
        """Whether `attempts` starts are all that a turn gets."""
        return attempts >= self.max_attempts

    def ceiling_s(self, attempts: int) -> float:
        """The longest wait after attempt `attempts`, counted from 1."""
        doublings = min(max(attempts, 1) - 1, 64)  # beyond it every cap is reached
        return float(min(self.cap_s, self.base_s * 2**doublings))

    def delay_s(self, attempts: int) -> float:
        """The wait after attempt `attempts`, counted from 1."""
        return self.jitter() * self.ceiling_s(attempts)


def attempts_started(head: Head, *, is_claimed: bool) -> int:
    """The starts of the agent on the current turn, as an attempt counts them that has started.

    HEAD counts an attempt with its claim. `is_claimed` False: this one is not in there yet.
    """
    return head.attempts + (not is_claimed)
