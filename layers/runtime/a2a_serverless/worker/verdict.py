"""What becomes of a delivery."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`is_done`: acknowledge. Else give it back after `delay_s`; None: leave it to expire."""

    is_done: bool
    delay_s: float | None = None


DONE = Verdict(is_done=True)
LOST = Verdict(is_done=False)
"""Somebody else has the delivery, or will: this worker has no say in it any more."""


def again(delay_s: float) -> Verdict:
    """To be delivered again, `delay_s` seconds from now."""
    return Verdict(is_done=False, delay_s=delay_s)
