"""The pages of the console, rendered on the server; htmx reloads the live part of a page."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from a2a.types import AgentCard, Message
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from a2a_serverless.errors import A2AServerlessError, InvalidArgumentError, UnreadableTaskError
from a2a_serverless.storage.blobs import disposition
from a2a_serverless.storage.deletion import Owner
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.blobs import blob_of, linked_blob
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope, is_task_id
from a2a_serverless.tasks.push import Push
from a2a_serverless_tools.console.act_pages import ActPages
from a2a_serverless_tools.console.chat import Chat
from a2a_serverless_tools.console.conversation import SPEAKERS, content_of, conversation
from a2a_serverless_tools.console.events import KINDS, events
from a2a_serverless_tools.console.paging import LogFilter, Place
from a2a_serverless_tools.console.parts import IMAGES, MOST_IMAGE, media_type
from a2a_serverless_tools.console.queues import queues_page
from a2a_serverless_tools.console.rendering import BASE, Notes, Route, form_of, page, visible
from a2a_serverless_tools.operate.acts import Acts, retried_as
from a2a_serverless_tools.operate.filters import ATTENTIONS, STATES, TaskFilter
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.journal import about
from a2a_serverless_tools.operate.lists import COLUMNS, LATE_MS, PAGE, Rows, listed
from a2a_serverless_tools.operate.purge import Purge
from a2a_serverless_tools.operate.status import WELL, status_of
from a2a_serverless_tools.operate.timeline import Timeline, with_logs
from a2a_serverless_tools.operate.view import (
    cost_table,
    facts,
    steps_table,
    tree,
    versions_table,
)

VIEWS: Final = ("conversation", "timeline", "steps", "events", "cost")
_KINDS: Final = {"conversation": SPEAKERS, "events": KINDS}
"""What the filter of a view chooses."""
OPEN_MS: Final = 10_000
PAUSED_MS: Final = 60_000
"""How old the ages on a page about a task may get, in milliseconds: with an open turn, without."""
_OFTEN_S: Final = 2
_SELDOM_S: Final = 30
"""Seconds after which a list is read again: seldom, if that looks at more than it shows."""
_BILLED_A_SECOND: Final = 5
"""About how many requests a second an open list may send to a table that bills each."""
_VERSIONS: Final = 500
"""Versions that the view of a cost shows, the newest."""
_WAIT_S: Final = 2.0
"""The longest wait of one step of a deletion, for what an index may show late."""
_COUNTS: Final = 10
"""Steps of counting for one page: a thousand tasks. Beyond that the page says there are more."""


class Pages:
    """The pages about one place.

    Args:
        inspector: reads the tasks of the place.
        endpoint: the agent's URL; empty: the agent cannot be called.
        card: the agent's card, if this process serves it.
    """

    def __init__(self, inspector: Inspector, *, endpoint: str, card: AgentCard | None) -> None:
        self._inspector = inspector
        self._chat = Chat(inspector, endpoint, card)
        self._notes = Notes()
        self._acts = Acts(inspector)
        self._purges: dict[str, Purge] = {}

    def routes(self) -> Iterator[Route]:
        """Yield method, path and answer of each page."""
        task = "/task/{scope}/{id}"
        yield "GET", "/status", self._status
        yield "GET", "/tasks", self._tasks
        yield "GET", "/find", self._find
        yield "GET", task, self._task
        yield "GET", f"{task}/live", self._live
        yield "GET", f"{task}/part/{{entry}}/{{part:int}}", self._part
        yield "GET", "/purge", self._purge
        yield "POST", "/purge", self._purge_step
        yield from ActPages(self._inspector, self._acts, self._notes).routes()
        yield "GET", "/queues", partial(queues_page, self._inspector)
        yield from self._chat.routes()

    async def _status(self, request: Request) -> Response:
        """Show whether it is well; with `live`, only the part that changes."""
        is_live = bool(request.query_params.get("live"))
        return page(
            "numbers.html" if is_live else "status.html",
            s=await status_of(self._inspector),
            well=WELL,
        )

    # -- tasks -------------------------------------------------------------------------------

    async def _tasks(self, request: Request) -> Response:
        """Show one page of tasks; with `live`, only their rows."""
        asked, lists = request.query_params, self._inspector.lists
        now = self._inspector.storage.clock.now_ms()
        try:
            which = TaskFilter.of(asked)
            scope = which.owner
            rows = await lists.page(which, after=asked.get("after", ""))
            described = await lists.described(rows)
            counts = await lists.counts(scope) if asked.get("counts") and scope else {}
        except A2AServerlessError as error:
            return page("problem.html", status=400, text=str(error))
        fixed = which.at(now).fields  # the place is one of the list since this time
        older = urlencode({**fixed, "after": rows.after}) if rows.after else ""
        return page(
            "rows.html" if asked.get("live") else "tasks.html",
            rows=[(row.key, row.cells(now)) for row in described],
            columns=COLUMNS,
            looked=rows.looked,
            search=rows.search(),
            attentions=ATTENTIONS,
            is_full=len(rows.rows) == PAGE,
            ttl_ms=int(self._inspector.storage.timing.ttl_s * 1000),
            filters=asdict(which),
            states=list(STATES),
            scope=scope,
            which=which,
            counts=counts,
            older=older,
            is_first=not asked.get("after") and rows.searched is None,
            same=urlencode({**which.fields, "live": "1"}),
            every_s=_pause_s(rows, self._inspector.storage.table),
            now=now,
        )

    async def _find(self, request: Request) -> Response:
        """Redirect to the task with an id, to an owner's tasks, or to those with a text.

        If several owners have a task with this id, return a choice between them.
        """
        task_id = request.query_params.get("id", "").strip()
        found = await self._inspector.timelines(task_id) if is_task_id(task_id) else []
        if len(found) == 1:
            return RedirectResponse(f"{BASE}/task/{found[0].head.scope}/{task_id}", 303)
        if not found and task_id:
            return RedirectResponse(f"{BASE}/tasks?{TaskFilter.about(task_id).query}", 303)
        now = self._inspector.storage.clock.now_ms()
        table = listed([one.row for one in found], ("task", "owner", "state", "created"), now)
        return page("found.html", id=task_id, found=table, now=now)

    # -- one task ----------------------------------------------------------------------------

    async def _task(self, request: Request) -> Response:
        return await self._shown(request, "task.html")

    async def _live(self, request: Request) -> Response:
        """Return the live part of a task's page; 204 while nothing has changed."""
        task_id, scope = request.path_params["id"], request.path_params["scope"]
        storage = self._inspector.storage.for_scope(Scope(scope))
        head = await _head(storage, task_id)
        if head is not None:
            view = request.query_params.get("view", "")
            mark = await self._mark(head, await storage.webhooks.all(task_id), view)
            if mark == request.query_params.get("mark"):
                return Response(status_code=204)
        return await self._shown(request, "live.html")

    async def _mark(self, head: Head, pushes: list[Push], view: str) -> str:
        """Return a text that changes whenever something on a task's page changes.

        It also changes with time, so that `1 min ago` is not said for hours.
        """
        every_ms = OPEN_MS if head.turn.is_open else PAUSED_MS
        ages = self._inspector.storage.clock.now_ms() // every_ms
        moved = [f"{one.version}.{one.index}.{one.failures}.{one.refusals}" for one in pushes]
        logs = self._inspector.logs
        if view == "timeline" and logs is not None and logs.is_at_hand:
            about = logs.about(head.task_id, head.created_at)
            moved.append(str(len([line async for line in about])))
        return "-".join(
            map(str, (head.version, head.cancel is not None, head.due_at, ages, *moved))
        )

    async def _shown(self, request: Request, template: str) -> Response:
        """Return a task's page, or its live part without what the browser has already."""
        task_id, scope = request.path_params["id"], request.path_params["scope"]
        storage = self._inspector.storage.for_scope(Scope(scope))
        head = await _head(storage, task_id)
        pushes = await storage.webhooks.all(task_id) if head is not None else []
        seen = await self._inspector.seen(scope, task_id) if is_task_id(task_id) else None
        if seen is None:
            return page("found.html", status=404, id=task_id, found=listed((), (), 0))
        asked = request.query_params
        view = asked.get("view", VIEWS[0])
        view = view if view in VIEWS else VIEWS[0]
        if view == "timeline":
            seen = await self._with_logs(seen, request)
        tag, _, version = asked.get("since", "").partition(".")
        since = int(version) if tag == seen.tag and version.isdecimal() else 0
        kinds = _KINDS.get(view, {})
        place, which = Place.of(asked, _openings(seen)), LogFilter.of(asked, kinds)
        values = await self._view(view, seen, place, which, since)
        same = {"view": view, **place.fields, **which.fields}
        now = storage.clock.now_ms()
        return page(
            template,
            t=seen,
            facts=[one for one in facts(seen) if one.name not in ("task", "asked")],
            view=view,
            views=VIEWS,
            same=urlencode(same | ({"logs": "1"} if asked.get("logs") else {})),
            at_end=urlencode({"view": view, **which.fields}),
            which=which,
            kinds=kinds,
            turns=len(_openings(seen)),
            is_update=since > 0,
            since=f"{seen.tag}.{seen.head.version}",
            mark=await self._mark(head, pushes, view) if head is not None else "",
            every=_asked_every(head, seen, now, often="3s" if which.text else "700ms"),
            now=now,
            said=self._notes.get(asked.get("said", "")),
            can_chat=bool(self._chat.endpoint),
            **await self._around(storage, seen.head) if template == "task.html" else {},
            can_log=self._inspector.logs is not None,
            may_join=self._inspector.logs is not None and not self._inspector.logs.is_at_hand,
            logs=asked.get("logs", ""),
            **values,
        )

    async def _around(self, storage: DurableStorage, head: Head) -> dict[str, Any]:
        """Return the values of a task's page that its live part does not have."""
        return {
            "acted": await about(storage, head.scope, head.task_id, limit=10),
            "retried_as": await retried_as(storage, head),
        }

    async def _with_logs(self, shown: Timeline, request: Request) -> Timeline:
        """Add what the logs tell, if these are at hand or the person asks for them."""
        logs = self._inspector.logs
        if logs is None or not (logs.is_at_hand or request.query_params.get("logs")):
            return shown
        about = logs.about(shown.head.task_id, shown.head.created_at)
        return with_logs(shown, [line async for line in about])

    async def _view(
        self, view: str, seen: Timeline, place: Place, which: LogFilter, since: int
    ) -> dict[str, Any]:
        show = self._inspector.show
        match view:
            case "timeline":
                return {"tree": tree(seen)}
            case "steps":
                return {"table": steps_table(seen)}
            case "cost":
                cost, newest = self._inspector.cost(seen), seen.commits[-_VERSIONS:][::-1]
                tables = (cost_table(cost), versions_table(newest))
                return {"cost": cost, "tables": tables, "left_out": len(seen.commits) - len(newest)}
            case "events":
                return {"shown": await events(seen, place, which, show, since=since)}
            case _:
                return {"shown": await conversation(seen, place, which, show, since=since)}

    async def _part(self, request: Request) -> Response:
        """Return the content of a file: a safe image as such, others as a download.

        Redirect to one that is stored elsewhere: its signed address is in no page.
        """
        path = request.path_params
        seen = await self._inspector.seen(path["scope"], path["id"])
        said = None if seen is None else await asyncio.to_thread(content_of, seen, path["entry"])
        parts = [] if said is None else said.parts[path["part"] : path["part"] + 1]
        if not parts:
            return Response(status_code=404)
        alone, kind, blob = Message(parts=parts), media_type(parts[0]), blob_of(parts[0])
        if kind in IMAGES and blob is not None and blob.size <= MOST_IMAGE:
            # From here, as no page shows an image of another origin.
            await self._inspector.storage.show(alone)
        else:
            await self._inspector.show(alone)
        found = alone.parts[0]
        if linked_blob(found.url) is not None:
            return RedirectResponse(found.url, 303)
        if found.WhichOneof("content") != "raw":
            return Response(status_code=404)
        headers = {
            "Content-Disposition": disposition(found.filename or f"part-{path['part']}"),
            "Content-Security-Policy": "default-src 'none'; sandbox",
        }
        safe = kind if kind in IMAGES else "application/octet-stream"
        return Response(found.raw, media_type=safe, headers=headers)

    # -- a caller's data ---------------------------------------------------------------------

    async def _purge(self, request: Request) -> Response:
        return await self._purge_page(_whose(request.query_params))

    async def _purge_step(self, request: Request) -> Response:
        """Do a step of deleting if the name was typed; the returned page requests the next step."""
        form = await form_of(request)
        whose = _whose(form)
        if form.get("name") not in (whose.name, visible(whose.name)):
            return await self._purge_page(
                whose, f"Nothing was deleted: {whose.name} was not typed."
            )
        new = Purge(self._inspector.storage, Owner(whose.owner))
        purge = self._purges.setdefault(whose.owner, new)
        await purge.step(await self._acts.journal(), longest_s=_WAIT_S)
        if purge.deleted.is_done:
            del self._purges[whose.owner]
        return page("purge.html", whose=whose, purge=purge)

    async def _purge_page(self, whose: TaskFilter, said: str = "") -> Response:
        """Count what a caller has."""
        purge = Purge(self._inspector.storage, Owner(whose.owner))
        counted, _ = await purge.count(most=_COUNTS)
        return page("purge.html", whose=whose, counted=counted, said=said)


def _whose(asked: Mapping[str, str]) -> TaskFilter:
    """Return the caller that a form or a link names, as the choice of all its tasks.

    Raises:
        InvalidArgumentError: it names none.
    """
    whose = TaskFilter.of({name: asked.get(name, "") for name in ("user", "tenant", "scope")})
    if not whose.owner:
        raise InvalidArgumentError("Name the caller whose data is to be deleted.")
    return whose


async def _head(storage: DurableStorage, task_id: str) -> Head | None:
    """Return the HEAD of a task; None also if it is damaged, or has what is new."""
    try:
        return await storage.head(task_id)
    except UnreadableTaskError:
        return None


def _asked_every(head: Head | None, shown: Timeline, now_ms: int, *, often: str) -> str:
    """Return after how long a task's page asks again, for htmx; empty: it does not.

    An ended task is followed while a webhook is tried again: seldom, if that is not soon, and no
    more if the time of its next try has passed and no delivery has come.
    """
    if head is None:
        return ""
    if not head.is_terminal:
        return often
    waits = [one.next_at for one in shown.webhooks if one.is_failing and one.next_at is not None]
    waits = [at for at in waits if at + LATE_MS > now_ms]
    if not waits:
        return ""
    return often if min(waits) < now_ms + LATE_MS else f"{_SELDOM_S}s"


def _openings(seen: Timeline) -> dict[int, int]:
    """Return the version that has opened each turn, by the turn's number."""
    return {turn.number: turn.version for turn in seen.turns if turn.version}


def _pause_s(shown: Rows, table: Table) -> int:
    """Return the seconds after which a list that has looked at so much is read again."""
    looked = shown.looked
    if looked is None:
        return _OFTEN_S
    pause = _SELDOM_S if looked.count > PAGE else _OFTEN_S
    billed = looked.requests if isinstance(table, DynamoTable) else 0
    return max(pause, math.ceil(billed / _BILLED_A_SECOND))
