"""The page of what waits to be worked on, and of what was set aside, which it can also delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.tasks.head import ASLEEP
from a2a_serverless_tools.console.rendering import BASE, Notes, Route, form_of, page
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.queues import (
    ASIDE,
    WORKING,
    Aside,
    Letters,
    Queue,
    letters_of,
    queues_of,
)
from a2a_serverless_tools.operate.rows import TaskRow

SHOWN: Final = 50
"""The most turns or messages of one list."""

LOOKED: Final = 500
"""The most open turns that are looked at: those that are due next."""

_DELETABLE: Final[tuple[Aside, ...]] = ("undecodable_queue", "push_dead_letter_queue")
"""The queues whose messages can be deleted; on dead letters the sweeper decides."""


class Queues:
    """Shows what waits and what was set aside for the pages of one place.

    Args:
        inspector: reads what waits and what was set aside.
        notes: keeps what a deletion has done.
    """

    def __init__(self, inspector: Inspector, notes: Notes) -> None:
        self._inspector = inspector
        self._notes = notes

    def routes(self) -> Iterator[Route]:
        """Yield method, path and answer of each page."""
        yield "GET", "/queues", self._shown
        yield "POST", "/queues/{queue}/delete", self._delete

    async def _shown(self, request: Request) -> Response:
        """Show what is known of work that waits, and each queue of messages that were set aside."""
        storage = self._inspector.storage
        now = storage.clock.now_ms()
        turns = await self._inspector.lists.open_turns(LOOKED)
        waiting = [row for row in turns.rows if _waits(row, now)]
        unclaimed = [row for row in turns.rows if not (row.is_claimed or row.left)]
        asleep = sum(row.left == ASLEEP for row in turns.rows)
        left = sum(bool(row.left) for row in turns.rows) - asleep
        working = await self._working()
        is_calm = turns.is_all and not (waiting or turns.unread or turns.cancels)
        is_empty = all(one.waiting == 0 for one in working if one.name != "push_queue")
        return page(
            "queues.html",
            working=working,
            turns=turns,
            waiting=waiting[:SHOWN],
            unread=turns.unread[:SHOWN],
            hidden=max(0, len(waiting) - SHOWN) + max(0, len(turns.unread) - SHOWN),
            unclaimed=len(unclaimed),
            left=left,
            asleep=asleep,
            sent_again=sum(row.sends > 0 for row in turns.rows),
            oldest=min((one.waits_since for one in unclaimed if one.waits_since), default=None),
            cancels=turns.cancels[:SHOWN],
            is_calm=is_calm and is_empty,
            aside=await asyncio.gather(*map(self._aside, ASIDE)),
            deletable=_DELETABLE,
            now=now,
            said=self._notes.get(request.query_params.get("said", "")),
        )

    async def _working(self) -> list[Queue]:
        """Return how full each queue of the workers is.

        The quarantine is left out where none is named, and where it is empty and no turns share a
        worker here.
        """
        settings, backends = self._inspector.settings, self._inspector.backends
        return [
            one
            for one in await queues_of(WORKING, settings, backends)
            if one.name != "quarantine_queue"
            or one.fault
            or one.waiting
            or one.received
            or (one.waiting is not None and settings.worker_turns > 1)
        ]

    async def _aside(self, name: Aside) -> Mapping[str, Any]:
        """Return the first messages of a queue; `count` None: there is none, or a fault."""
        letters, queue = self._letters(name), {"name": name, "what": ASIDE[name]}
        if letters is None:
            return queue | {"count": None}
        try:
            found = await letters.all()
        except A2AServerlessError as error:
            return queue | {"count": None, "fault": str(error)}
        return queue | {"count": len(found), "letters": found[:SHOWN]}

    def _letters(self, name: Aside) -> Letters | None:
        return letters_of(name, self._inspector.settings, self._inspector.backends)

    async def _delete(self, request: Request) -> Response:
        form = await form_of(request)
        asked = request.path_params["queue"]
        letters = next((self._letters(name) for name in _DELETABLE if name == asked), None)
        if form.get("confirmed") != "yes":
            said = "Nothing was done: it was not confirmed."
        elif letters is not None and await letters.delete(form.get("message", "")):
            said = "The message is deleted."
        else:
            said = "The message is gone already, or held elsewhere."
        return RedirectResponse(f"{BASE}/queues?said={self._notes.keep(said)}", 303)


def _waits(row: TaskRow, now_ms: int) -> bool:
    """Return True if an open turn is overdue, was sent again, or is awake without a worker."""
    lacks_worker = not (row.is_claimed or row.left == ASLEEP)
    return lacks_worker or row.sends > 0 or row.is_overdue(now_ms)
