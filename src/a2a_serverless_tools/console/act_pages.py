"""The pages that act on one task or on those of a filter, and the page of the journal."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Final, cast

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from a2a_serverless.errors import A2AServerlessError, InvalidArgumentError
from a2a_serverless_tools.console.rendering import BASE, Notes, Route, form_of, page
from a2a_serverless_tools.operate.acts import ACTS, Act, Acts, Plan, json_body
from a2a_serverless_tools.operate.filters import TaskFilter
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.journal import newest
from a2a_serverless_tools.operate.lists import PAGE

_MOST: Final = 200
"""Tasks of one run: what a person waits for in front of a page."""
_PLANS: Final = 20
"""Plans that are remembered, with what was done of them."""
_SHOWN: Final = 20
"""Tasks that a preview names."""


class ActPages:
    """Acts on tasks, for the pages of one place.

    Args:
        inspector: reads the tasks.
        acts: does what a person confirms.
        notes: keeps what an act has done.
    """

    def __init__(self, inspector: Inspector, acts: Acts, notes: Notes) -> None:
        self._inspector = inspector
        self._acts = acts
        self._notes = notes
        self._plans: dict[str, Plan] = {}

    def routes(self) -> Iterator[Route]:
        """Yield method, path and answer of each page."""
        for act in ACTS:
            yield "POST", f"/task/{{scope}}/{{id}}/{act}", partial(self._on_one, act)
        yield "POST", "/task/{scope}/{id}/signal", self._signal
        yield "GET", "/act", self._preview
        yield "POST", "/act", self._step
        yield "GET", "/journal", self._journal

    async def _on_one(self, act: Act, request: Request) -> Response:
        form = await form_of(request)
        doing = partial(self._acts.on_one, act, config_id=form.get("webhook", ""))
        return await self._done(request, form, doing)

    async def _signal(self, request: Request) -> Response:
        form = await form_of(request)

        async def doing(task_id: str, scope: str) -> str:
            body = json_body(form.get("value", ""))
            name, key = form.get("name", ""), form.get("key", "")
            return await self._acts.signal(task_id, scope, name, body, key=key)

        return await self._done(request, form, doing)

    async def _done(
        self,
        request: Request,
        form: Mapping[str, str],
        doing: Callable[[str, str], Awaitable[str]],
    ) -> Response:
        """Act on the task of a page if that is confirmed, and lead to what the page says of it."""
        task_id, scope = request.path_params["id"], request.path_params["scope"]
        if form.get("confirmed") != "yes":
            said = "Nothing was done: it was not confirmed."
        else:
            try:
                said = await doing(task_id, scope)
            except A2AServerlessError as error:
                said = str(error)
        where = f"{BASE}/task/{scope}/{task_id}"
        return RedirectResponse(f"{where}?said={self._notes.keep(said)}", 303)

    async def _preview(self, request: Request) -> Response:
        """Show what an act would do with the tasks of a filter, counted; change nothing."""
        asked = request.query_params
        act, which = _act(asked.get("act", "")), TaskFilter.of(asked)
        if not which.fields:
            raise InvalidArgumentError(
                "Choose tasks by a filter first: an act on all tasks of the place is not offered."
            )
        plan = await self._acts.plan(act, which, most=_MOST, after=asked.get("after", ""))
        key = secrets.token_urlsafe(12)
        self._plans[key] = plan
        for old in list(self._plans)[:-_PLANS]:
            del self._plans[old]
        return self._page(key, plan)

    async def _step(self, request: Request) -> Response:
        """Act on the next tasks of a plan that was shown; the page asks for the next step."""
        form = await form_of(request)
        key = form.get("plan", "")
        plan = self._plans.get(key)
        if plan is None:
            raise InvalidArgumentError("The preview is not known any more: look at it again.")
        if form.get("confirmed") != "yes" and plan.at == 0:
            return self._page(key, plan, said="Nothing was done: it was not confirmed.")
        await self._acts.step(plan)
        return self._page(key, plan)

    def _page(self, key: str, plan: Plan, *, said: str = "") -> Response:
        now = self._inspector.storage.clock.now_ms()
        shown = plan.table(_SHOWN, now)
        return page(
            "act.html", key=key, plan=plan, what=ACTS[plan.act], shown=shown, said=said, now=now
        )

    async def _journal(self, request: Request) -> Response:
        storage = self._inspector.storage
        found = await newest(storage, limit=PAGE, before=request.query_params.get("before", ""))
        older = found[-1].key.SK if len(found) == PAGE else ""
        return page(
            "journal.html",
            entries=found,
            older=older,
            is_first="before" not in request.query_params,
        )


def _act(name: str) -> Act:
    """Return the act with a name.

    Raises:
        InvalidArgumentError: there is none.
    """
    if name not in ACTS:
        raise InvalidArgumentError(f"There is no act {name!r}: choose one of {', '.join(ACTS)}.")
    return cast("Act", name)
