"""The page of what waits to be worked on, and of what was set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless_tools.console.rendering import page
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.queues import (
    DEAD_LETTER_QUEUES,
    WORKING,
    DeadLetterQueue,
    dead_letters,
    queues_of,
)
from a2a_serverless_tools.operate.status import depths
from a2a_serverless_tools.operate.waiting import open_turns

SHOWN: Final = 50
"""The most turns or messages of one list."""

LOOKED: Final = 500
"""The most open turns that are looked at: those that are due next."""


async def queues_page(inspector: Inspector, _: Request) -> Response:
    """Show what is known of work that waits, and each queue of what was set aside.

    The quarantine is left out where none is named, and where it is empty and no turns share a
    worker here.
    """
    settings, backends = inspector.settings, inspector.backends
    now = inspector.storage.clock.now_ms()
    turns = await open_turns(inspector.storage, LOOKED)
    working = [
        one
        for one in await queues_of(WORKING, settings, backends)
        if one.name != "quarantine_queue"
        or one.fault
        or one.waiting
        or one.received
        or (one.waiting is not None and settings.worker_turns > 1)
    ]
    is_empty = all(one.waiting == 0 for one in working if one.name != "push_queue")
    return page(
        "queues.html",
        working=depths(working, now),
        turns=turns,
        waiting=turns.table(SHOWN),
        is_calm=turns.is_calm and is_empty,
        dead_letter_queues=await asyncio.gather(
            *(_dead_letter_queue(inspector, name) for name in DEAD_LETTER_QUEUES)
        ),
        now=now,
    )


async def _dead_letter_queue(inspector: Inspector, name: DeadLetterQueue) -> Mapping[str, Any]:
    """Return the first messages of a queue; `count` None: there is none, or a fault."""
    queue = {"what": DEAD_LETTER_QUEUES[name], "count": None}
    try:
        found = await dead_letters(name, inspector.settings, inspector.backends)
    except A2AServerlessError as error:
        return queue | {"fault": str(error)}
    return queue if found is None else queue | {"count": len(found), "dead_letters": found[:SHOWN]}
