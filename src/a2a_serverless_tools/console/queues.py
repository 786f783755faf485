"""The page of what waits to be worked on, and of what was set aside, which it can also delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless_tools.console.forms import form_of
from a2a_serverless_tools.console.inspector import Inspector
from a2a_serverless_tools.console.letters import ASIDE, WORKING, Aside, Depth, Letter, Working
from a2a_serverless_tools.console.notes import Notes
from a2a_serverless_tools.console.rows import TaskRow

SHOWN: Final = 50
"""The most turns or messages of one list."""

LOOKED: Final = 500
"""The most open turns that are looked at: those that are due next."""

DELETABLE: Final[tuple[Aside, ...]] = ("undecodable_queue", "push_dead_letter_queue")
"""The queues whose messages can be deleted; on dead letters the sweeper decides."""

Page = Callable[..., Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the page shows of one queue."""

    name: Aside
    what: str
    count: int | None
    """None: there is no such queue, or it cannot be used."""
    letters: tuple[Letter, ...] = ()
    """The first of them."""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """How full a queue of the workers is."""

    what: str
    depth: Depth | None
    """None: it is not named here, or it cannot be used."""
    fault: str = ""


class Queues:
    """Shows what waits and what was set aside for the pages of one place.

    Args:
        inspector: reads what waits and what was set aside.
        base: the path of the console.
        page: renders a template.
        notes: keeps what a deletion has done.
    """

    def __init__(self, inspector: Inspector, base: str, page: Page, notes: Notes) -> None:
        self._inspector = inspector
        self._path = f"{base}/queues"
        self._page = page
        self._notes = notes

    def routes(self) -> Iterator[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Yield method, path and answer of each page."""
        yield "GET", "/queues", self.shown
        yield "POST", "/queues/{queue}/delete", self.delete

    async def shown(self, request: Request) -> Response:
        """Show what is known of work that waits, and each queue of messages that were set aside."""
        storage = self._inspector.storage
        now = storage.clock.now_ms()
        turns = await self._inspector.open_turns(LOOKED)
        waiting = [row for row in turns.rows if _waits(row, now)]
        unclaimed = [row for row in turns.rows if not row.is_claimed]
        working = await asyncio.gather(*map(self._working, WORKING))
        is_calm = turns.is_all and not (waiting or turns.unread or turns.cancels)
        return self._page(
            "queues.html",
            place=self._inspector.place,
            here="queues",
            working=working,
            turns=turns,
            waiting=waiting[:SHOWN],
            unread=turns.unread[:SHOWN],
            hidden=max(0, len(waiting) - SHOWN) + max(0, len(turns.unread) - SHOWN),
            unclaimed=len(unclaimed),
            sent_again=sum(row.sends > 0 for row in turns.rows),
            oldest=min((one.waits_since for one in unclaimed if one.waits_since), default=None),
            cancels=turns.cancels[:SHOWN],
            is_calm=is_calm and all(one.depth and not one.depth.waiting for one in working[:1]),
            aside=await asyncio.gather(*map(self._shown, ASIDE)),
            deletable=DELETABLE,
            now=now,
            said=self._notes.get(request.query_params.get("said", "")),
        )

    async def _working(self, name: Working) -> Full:
        what = WORKING[name]
        try:
            return Full(what=what, depth=await self._inspector.depth(name))
        except A2AServerlessError as error:
            return Full(what=what, depth=None, fault=str(error))

    async def _shown(self, name: Aside) -> Shown:
        letters, what = self._inspector.letters(name), ASIDE[name]
        if letters is None:
            return Shown(name=name, what=what, count=None)
        try:
            found = await letters.all()
        except A2AServerlessError as error:
            return Shown(name=name, what=what, count=None, fault=str(error))
        return Shown(name=name, what=what, count=len(found), letters=tuple(found[:SHOWN]))

    async def delete(self, request: Request) -> Response:
        """Delete a message that was set aside, if the form says that this was confirmed."""
        form = await form_of(request)
        asked = request.path_params["queue"]
        letters = next((self._inspector.letters(name) for name in DELETABLE if name == asked), None)
        if form.get("confirmed") != "yes":
            said = "Nothing was done: it was not confirmed."
        elif letters is not None and await letters.delete(form.get("message", "")):
            said = "The message is deleted."
        else:
            said = "The message is gone already, or held elsewhere."
        return RedirectResponse(f"{self._path}?said={self._notes.keep(said)}", 303)


def _waits(row: TaskRow, now_ms: int) -> bool:
    """Return True if an open turn has no worker, is overdue, or was sent again."""
    is_overdue = row.due_at is not None and row.due_at < now_ms
    return not row.is_claimed or row.sends > 0 or is_overdue
