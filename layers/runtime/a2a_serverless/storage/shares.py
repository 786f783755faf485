"""The line of turns that wait for a share of the workers, as the index `by-line` shows it.

The index lags behind: it names candidates, and a condition on HEAD decides.
"""

from __future__ import annotations

import asyncio

from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import lives
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import head_keys, readable_heads
from a2a_serverless.storage.table import Check, Item, Range
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope

PAGE = 8
"""Turns of one caller that one look at the line names at most."""


async def waiting(storage: DurableStorage, start: str, most: int) -> dict[str, list[Item]]:
    """Return callers who wait, up to `most` of each shard, each with its first turns in line.

    `start` is any text that callers are compared with: the first ones come from there on, and
    behind the last of them those before it.
    """
    found: dict[str, list[Item]] = {}
    for callers in await asyncio.gather(
        *(_waiting_in(storage, key, start, most) for key in layout.waiting_keys())
    ):
        found |= callers
    return found


async def _waiting_in(
    storage: DurableStorage, key: str, start: str, most: int
) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for first, last in ((start, None), ("", start)):
        place = first
        while len(found) < most:
            entries = await storage.table.first(PAGE, _live(storage, key, place, last))
            if not entries:
                break
            principal = layout.principal_in(entries[0])
            found.setdefault(principal, [e for e in entries if layout.principal_in(e) == principal])
            place = f"{principal}$"
    return found


async def requeued(storage: DurableStorage, *, but: str = "") -> list[Head]:
    """Return HEAD of each turn that has a share and is still on the queue, as they are now.

    `but` is the partition of a task that is left out.
    """
    entries = await storage.table.all(_live(storage, layout.WOKEN))
    keys = head_keys(entry for entry in entries if entry["PK"] != but)
    heads = await readable_heads(storage, keys)
    return [head for head in heads if head.turn.has_share and not head.turn.is_claimed]


async def ahead(storage: DurableStorage, head: Head, most: int) -> int:
    """Return how many turns of its caller stand in line before a turn: up to `most` are counted."""
    principal = Scope(head.scope).principal
    own = layout.line_place(principal, head.turn.waits_since, head.task_id)
    before = _live(storage, layout.waiting_key(principal), f"{principal}#", own)
    found = await storage.table.first(most + 1, before)
    return min(most, len([entry for entry in found if entry["line_at"] < own]))


async def taken(storage: DurableStorage, principal: str) -> int:
    """Return how many turns of a caller have been taken out of the line and have not ended.

    A turn whose worker is dead counts as long as its lease lasts.
    """
    in_time = Check("due_at", ">", storage.clock.now_ms())
    of_caller = Range(partition=layout.share_key(principal), index=layout.BY_LINE, when=[in_time])
    return await storage.table.count(of_caller)


def _live(storage: DurableStorage, key: str, first: str = "", last: str | None = None) -> Range:
    return Range(
        partition=key,
        index=layout.BY_LINE,
        first=first or None,
        last=last,
        # The index has an expired turn until DynamoDB deletes its item: it would hold up others.
        when=[lives(storage.clock.now_ms())],
    )
