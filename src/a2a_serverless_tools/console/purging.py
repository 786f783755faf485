"""The page that deletes all data of a caller: it counts, asks, and then deletes step by step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage.deletion import Counted
from a2a_serverless.tasks.identity import Scope, is_task_id
from a2a_serverless_tools.console.forms import form_of
from a2a_serverless_tools.console.inspector import Inspector
from a2a_serverless_tools.console.rendering import visible

COUNTS: Final = 10
"""Steps of counting for one page: a thousand tasks. Beyond that the page says there are more."""

Page = Callable[..., Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """The owner of the data, as a form or a link names it."""

    user: str
    tenant: str
    scope: str

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Whose:
        """Return the owner that the fields of a form or a link name."""
        return cls(**{name: asked.get(name, "").strip() for name in ("user", "tenant", "scope")})

    @property
    def digest(self) -> str:
        """Return the scope's digest."""
        return Scope.of(self.tenant, self.user).digest if self.user else self.scope

    @property
    def name(self) -> str:
        """Return the name that the person has to type."""
        return self.user or self.scope

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields of a form that name this owner."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def link(self) -> str:
        """Return the fields as the query of a link."""
        return urlencode(self.fields)

    def check(self) -> None:
        """Refuse fields that name no caller.

        Raises:
            InvalidArgumentError: says what is wrong.
        """
        if not is_task_id(self.digest):
            raise InvalidArgumentError("Name the caller whose data is to be deleted.")


class Purging:
    """Counts and deletes for the pages of one place.

    Args:
        inspector: counts and deletes the data.
        page: renders a template.
    """

    def __init__(self, inspector: Inspector, page: Page) -> None:
        self._inspector = inspector
        self._page = page

    def routes(self) -> Iterator[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Yield method, path and answer of each page."""
        yield "GET", "/purge", self.shown
        yield "POST", "/purge", self.step

    async def shown(self, request: Request) -> Response:
        """Show how much data there is, and the form to confirm."""
        whose = Whose.of(request.query_params)
        whose.check()
        return self._answer(whose, counted=await self._counted(whose))

    async def step(self, request: Request) -> Response:
        """Do a step of deleting if the name was typed; the returned page requests the next step."""
        form = await form_of(request)
        whose = Whose.of(form)
        whose.check()
        if form.get("name") not in (whose.name, visible(whose.name)):
            said = f"Nothing was deleted: {whose.name} was not typed."
            return self._answer(whose, counted=await self._counted(whose), said=said)
        deleted = await self._inspector.delete_data(whose.digest)
        before = form.get("gone", "")
        gone = (int(before) if before.isdecimal() else 0) + deleted.tasks
        return self._answer(whose, gone=gone, is_done=deleted.is_done, is_step=True)

    async def _counted(self, whose: Whose) -> Counted:
        counted = await self._inspector.count_data(whose.digest)
        for _ in range(COUNTS - 1):
            if not counted.after:
                break
            counted += await self._inspector.count_data(whose.digest, after=counted.after)
        return counted

    def _answer(self, whose: Whose, **values: Any) -> Response:
        place = self._inspector.place
        return self._page("purge.html", place=place, here="tasks", whose=whose, **values)
