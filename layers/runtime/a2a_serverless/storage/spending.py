"""What one caller has used on one day, over all its tasks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from a2a_serverless.clock import Clock
from a2a_serverless.storage.codec import seconds
from a2a_serverless.storage.table import Added, Key, Table, Update
from a2a_serverless.tasks.usage import Usage

KEPT_S: Final = 2 * 86_400


class Spending:
    """The counter of a caller's day (UTC): one item, which expires two days later.

    An addition whose answer is lost may count twice.

    Args:
        table: where it is.
        principal: the caller in all tenants, as `Scope.principal` names it.
        clock: tells the day.
    """

    def __init__(self, table: Table, principal: str, clock: Clock) -> None:
        self._table = table
        self._principal = principal
        self._clock = clock

    async def read(self) -> Usage:
        """Return what was used today."""
        key = self._key()
        item = (await self._table.load([key]))[key] or {}
        return Usage("", 0, input_tokens=item.get("tokens", 0), cost=item.get("cost", 0))

    async def add(self, usage: Usage) -> Usage:
        """Add usage to today's; return today's sum.

        Raises:
            UnavailableError: there was no answer; it may be counted.
        """
        # The table adds: turns of the same caller run in many processes, and none reads first.
        await self._table.write(
            Update(
                key=self._key(),
                values={
                    "tokens": Added(usage.tokens),
                    "cost": Added(usage.cost),
                    "expires_at": seconds(self._clock.now_ms()) + KEPT_S,
                },
            )
        )
        return await self.read()

    def _key(self) -> Key:
        day = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).date()
        return Key(f"SPENT#{self._principal}", f"DAY#{day}")
