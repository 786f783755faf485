"""The places of slow requests: a number for each caller, out of those that all share.

A request to a webhook occupies a part of PushFunction's concurrency until it is answered. A caller
with sixty webhooks that never answer would occupy all of it. So a request that is not answered
within `GRACE_S` needs one of its caller's places, and is ended if they are all taken. A quick
webhook needs none, and costs no request to the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from a2a_serverless.push.client import Outcome
from a2a_serverless.storage.leases import Leases

GRACE_S: Final = 1.0
"""Seconds that a request may take without a place, unless the attempt before it has failed."""

SHARE: Final = 5
"""One caller may have a fifth of all places."""

MARGIN_S: Final = 5.0
"""Seconds beyond the longest request after which the place of a process that died comes free."""

NO_PLACE: Final = Outcome(
    meaning="again", reason="other slow webhooks of the same caller take all its places"
)


class Places(Leases):
    """Leases of the places that slow requests have."""

    noun: ClassVar[str] = "webhook"

    async def during(
        self,
        request: Callable[[], Awaitable[Outcome]],
        *,
        caller: Callable[[], Awaitable[str]],
        has_failed: bool,
        timeout_s: float,
    ) -> Outcome:
        """Make a request, and hold one of the caller's places while it is slow.

        Return `NO_PLACE` if no place is free: the request was ended, or, with `has_failed`, was not
        made. `caller` returns the caller behind the request, and is only called if a place is
        needed. `timeout_s` is the longest time that the request may take.
        """
        running: asyncio.Future[Outcome] | None = None
        if not has_failed:
            running = asyncio.ensure_future(request())
        try:
            if running is not None:
                await asyncio.wait({running}, timeout=GRACE_S)
                if running.done():
                    return running.result()
            lease = await self.take(await caller(), for_s=timeout_s + MARGIN_S)
            if lease is None:
                return running.result() if running and running.done() else NO_PLACE
            try:
                return await (request() if running is None else running)
            finally:
                await self.give_back(lease)
        finally:
            if running is not None and not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
