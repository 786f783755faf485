"""The page of turns that are due and messages that were set aside, which it can also delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from a2a_serverless.console.forms import form_of
from a2a_serverless.console.letters import ASIDE, Aside, Letter
from a2a_serverless.console.notes import Notes
from a2a_serverless.console.stored import StoredInspector
from a2a_serverless.errors import A2AServerlessError

SHOWN: Final = 50
"""The most turns or messages of one list."""

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


class Queues:
    """Shows what is due and what was set aside for the pages of one place.

    Args:
        inspector: reads what is due and what was set aside.
        base: the path of the console.
        page: renders a template.
        notes: keeps what a deletion has done.
    """

    def __init__(self, inspector: StoredInspector, base: str, page: Page, notes: Notes) -> None:
        self._inspector = inspector
        self._path = f"{base}/queues"
        self._page = page
        self._notes = notes

    def routes(self) -> Iterator[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Yield method, path and answer of each page."""
        yield "GET", "/queues", self.shown
        yield "POST", "/queues/{queue}/delete", self.delete

    async def shown(self, request: Request) -> Response:
        """Show the turns that are due, and each queue."""
        storage = self._inspector.storage
        now = storage.clock.now_ms()
        return self._page(
            "queues.html",
            place=self._inspector.place,
            here="queues",
            due=await storage.due(now, limit=SHOWN),
            cancels=await storage.overdue_cancels(now, limit=SHOWN),
            aside=await asyncio.gather(*map(self._shown, ASIDE)),
            deletable=DELETABLE,
            now=now,
            said=self._notes.get(request.query_params.get("said", "")),
        )

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
