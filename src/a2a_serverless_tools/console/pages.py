"""The pages of the console, rendered on the server; htmx reloads the live part of a page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from a2a.types import AgentCard
from google.protobuf.json_format import MessageToDict, MessageToJson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from a2a_serverless.errors import A2AServerlessError, PageTokenError, UnreadableTaskError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope, is_task_id
from a2a_serverless.tasks.push import Push
from a2a_serverless_tools.console.cards import faults_of, fetched
from a2a_serverless_tools.console.conversation import IMAGES, conversation, media_type
from a2a_serverless_tools.console.forms import form_of
from a2a_serverless_tools.console.inspector import Inspector, event_lines
from a2a_serverless_tools.console.notes import Notes
from a2a_serverless_tools.console.picture import picture
from a2a_serverless_tools.console.purging import Purging
from a2a_serverless_tools.console.queues import Queues
from a2a_serverless_tools.console.rendering import BASE, page
from a2a_serverless_tools.console.rows import PAGE, STATES, TaskQuery
from a2a_serverless_tools.console.trying import Call, Trying
from a2a_serverless_tools.inspect.cost import WRITE_UNIT_DOLLARS
from a2a_serverless_tools.inspect.timeline import Timeline, with_logs

VIEWS: Final = ("conversation", "timeline", "events", "cost")
EVENTS: Final = 200
"""Events of one page."""
MOST_OF_AN_EVENT: Final = 10_000
"""Characters of one event that a page shows: a chunk may have megabytes."""
OPEN_MS: Final = 10_000
PAUSED_MS: Final = 60_000
"""How old the ages on a page about a task may get, in milliseconds: with an open turn, without."""
_SINCE: Final = {"hour": 3_600_000, "day": 86_400_000, "week": 7 * 86_400_000}

Answer: TypeAlias = Callable[[Request], Awaitable[Response]]


class Pages:
    """The pages about one place.

    Args:
        inspector: reads the tasks of the place.
        endpoint: the agent's URL; empty: the agent cannot be tried.
        card: the agent's card, if this process serves it.
    """

    def __init__(self, inspector: Inspector, *, endpoint: str, card: AgentCard | None) -> None:
        self._inspector = inspector
        self._trying = Trying(endpoint)
        self._card = card
        self._notes = Notes()

    def routes(self) -> Iterator[tuple[str, str, Answer]]:
        """Yield method, path and answer of each page."""
        task = "/task/{scope}/{id}"
        yield "GET", "/tasks", self.tasks
        yield "GET", "/find", self.find
        yield "GET", task, self.task
        yield "GET", f"{task}/live", self.live
        yield "GET", f"{task}/part/{{artifact:int}}/{{part:int}}", self.part
        yield "POST", f"{task}/cancel", self.cancel
        yield "POST", f"{task}/resend", self.resend
        yield "GET", "/try", self.trying
        yield "POST", "/try", self.send
        yield "GET", "/try/{call}", self.trying
        yield "GET", "/try/{call}/wire", self.wire
        yield "POST", "/try/{call}/{verb}", self.on_call
        yield "GET", "/card", self.card
        yield from Queues(self._inspector, BASE, page, self._notes).routes()
        yield from Purging(self._inspector, page).routes()

    # -- tasks -------------------------------------------------------------------------------

    async def tasks(self, request: Request) -> Response:
        """Show one page of tasks; with `live`, only their rows."""
        asked = request.query_params
        scope = asked.get("scope", "").strip()
        user = asked.get("user", "").strip()
        if user:
            scope = Scope.of(asked.get("tenant", "").strip(), user).digest
        now = self._inspector.storage.clock.now_ms()
        since = _SINCE.get(asked.get("since", ""))
        try:
            query = TaskQuery(
                scope=scope or None,
                state=asked.get("state") if asked.get("state") in STATES else None,
                since_ms=None if since is None else now - since,
                limit=PAGE,
                token=asked.get("page", ""),
            )
            rows = await self._inspector.tasks(query)
            counts = await self._inspector.counts(scope) if asked.get("counts") and scope else {}
        except (A2AServerlessError, PageTokenError) as error:
            return page("problem.html", status=400, place=self._inspector.place, text=str(error))
        names = ("user", "tenant", "scope", "state", "since")
        filters = {name: asked.get(name, "").strip() for name in names}
        older = urlencode({**filters, "page": rows.next_token}) if rows.next_token else ""
        return page(
            "rows.html" if asked.get("live") else "tasks.html",
            place=self._inspector.place,
            here="tasks",
            rows=rows.rows,
            looked=rows.looked,
            is_full=len(rows.rows) == PAGE,
            ttl_ms=int(self._inspector.storage.timing.ttl_s * 1000),
            filters=filters,
            states=list(STATES),
            scope=scope,
            counts=counts,
            older=older,
            is_first=not asked.get("page"),
            same=urlencode({**filters, "page": asked.get("page", ""), "live": "1"}),
            every="30s" if query.state and not scope else "2s",  # it looks at many to show a few
            now=now,
        )

    async def find(self, request: Request) -> Response:
        """Redirect to the task with an id; if several owners have one, to a choice between them."""
        task_id = request.query_params.get("id", "").strip()
        found = await self._inspector.timelines(task_id) if is_task_id(task_id) else []
        if len(found) == 1:
            return RedirectResponse(f"{BASE}/task/{found[0].scope}/{task_id}", 303)
        return page(
            "found.html", place=self._inspector.place, here="tasks", id=task_id, found=found
        )

    # -- one task ----------------------------------------------------------------------------

    async def task(self, request: Request) -> Response:
        """Show one of the pages about a task."""
        return await self._shown(request, "task.html")

    async def live(self, request: Request) -> Response:
        """Return the live part of a task's page; 204 while nothing has changed."""
        task_id, scope = request.path_params["id"], request.path_params["scope"]
        storage = self._inspector.storage.for_scope(Scope(scope))
        head = await _head(storage, task_id)
        if head is not None:
            mark = await self._mark(head, await storage.pushes(task_id))
            if mark == request.query_params.get("mark"):
                return Response(status_code=204)
        return await self._shown(request, "live.html")

    async def _mark(self, head: Head, pushes: list[Push]) -> str:
        """Return a text that changes whenever something on a task's page changes.

        It also changes with time, so that `1 min ago` is not said for hours.
        """
        every_ms = OPEN_MS if head.turn_is_open else PAUSED_MS
        ages = self._inspector.storage.clock.now_ms() // every_ms
        moved = [f"{one.version}.{one.index}.{one.failures}.{one.refusals}" for one in pushes]
        logs = self._inspector.logs
        if pushes and logs is not None and logs.is_at_hand:
            about = logs.about(head.task_id, head.created_at)
            moved.append(str(len([line async for line in about])))
        return "-".join(
            map(str, (head.version, head.cancel is not None, head.due_at, ages, *moved))
        )

    async def _shown(self, request: Request, template: str) -> Response:
        task_id, scope = request.path_params["id"], request.path_params["scope"]
        found = await self._inspector.timelines(task_id, scope) if is_task_id(task_id) else []
        if not found:
            return page(
                "found.html",
                status=404,
                place=self._inspector.place,
                here="tasks",
                id=task_id,
                found=[],
            )
        shown = found[0]
        storage = self._inspector.storage.for_scope(Scope(scope))
        head = await _head(storage, task_id)
        pushes = await storage.pushes(task_id) if head is not None else []
        view = request.query_params.get("view", VIEWS[0])
        if view == "timeline":
            shown = await self._with_logs(shown, request)
        values = await self._view(view, shown, request)
        is_owed = any(one.is_failing for one in shown.webhooks)
        return page(
            template,
            place=self._inspector.place,
            here="tasks",
            t=shown,
            view=view if view in VIEWS else VIEWS[0],
            views=VIEWS,
            mark=await self._mark(head, pushes) if head is not None else "",
            is_live=head is not None and (not head.is_terminal or is_owed),
            now=storage.clock.now_ms(),
            said=self._notes.get(request.query_params.get("said", "")),
            can_try=bool(self._trying.endpoint),
            may_join=self._inspector.logs is not None and not self._inspector.logs.is_at_hand,
            logs=request.query_params.get("logs", ""),
            **values,
        )

    async def _with_logs(self, shown: Timeline, request: Request) -> Timeline:
        """Add the deliveries from the logs, if these are at hand or the person asks for them."""
        logs = self._inspector.logs
        if logs is None or not shown.webhooks:
            return shown
        if not logs.is_at_hand and not request.query_params.get("logs"):
            return shown
        about = logs.about(shown.task_id, shown.created_at or 0)
        return with_logs(shown, [(line.at, line.fields) async for line in about])

    async def _view(self, view: str, shown: Timeline, request: Request) -> dict[str, Any]:
        if view == "timeline":
            drawn = picture(shown, self._inspector.storage.clock.now_ms())
            return {"picture": drawn}
        if view == "cost":
            return {"dollars": shown.units * WRITE_UNIT_DOLLARS}
        try:
            log = await self._inspector.log(shown.task_id, shown.scope)
        except UnreadableTaskError as error:
            return {"lines": [], "talk": [], "older": None, "damage": str(error)}
        if log is None:
            return {"lines": [], "talk": [], "older": None, "damage": ""}
        if view == "events":
            lines = list(event_lines(log))
            before = request.query_params.get("before", "")
            end = int(before) if before.isdecimal() else len(lines)
            start = max(0, end - EVENTS)
            shown_lines = [(line.cursor, *_json(line.event)) for line in lines[start:end]]
            return {"lines": shown_lines[::-1], "older": start or None, "damage": ""}
        return {"talk": await asyncio.to_thread(conversation, log), "damage": ""}

    async def part(self, request: Request) -> Response:
        """Return the content of a file in an artifact: a safe image as such, others as download."""
        path = request.path_params
        log = await self._inspector.log(path["id"], path["scope"])
        artifacts = [] if log is None else list(log.fold().artifacts.values())
        if path["artifact"] >= len(artifacts):
            return Response(status_code=404)
        parts = artifacts[path["artifact"]].parts
        if path["part"] >= len(parts) or parts[path["part"]].WhichOneof("content") != "raw":
            return Response(status_code=404)
        found = parts[path["part"]]
        kind = media_type(found)
        headers = {
            "Content-Disposition": f"attachment; filename=part-{path['part']}",
            "Content-Security-Policy": "default-src 'none'; sandbox",
        }
        safe = kind if kind in IMAGES else "application/octet-stream"
        return Response(found.raw, media_type=safe, headers=headers)

    async def cancel(self, request: Request) -> Response:
        """Cancel a task, if the form says that this was confirmed."""
        return await self._write(request, self._inspector.cancel, "The task is {}.")

    async def resend(self, request: Request) -> Response:
        """Make the open turn due, if the form says that this was confirmed."""
        return await self._write(
            request, self._inspector.resend, "The turn is due: the next sweep sends it."
        )

    async def _write(
        self, request: Request, act: Callable[[str, str], Awaitable[object]], text: str
    ) -> Response:
        path = request.path_params
        form = await form_of(request)
        if form.get("confirmed") != "yes":
            said = "Nothing was done: it was not confirmed."
        else:
            try:
                said = text.format(await act(path["id"], path["scope"]))
            except A2AServerlessError as error:
                said = str(error) or "It has moved on meanwhile."
        where = f"{BASE}/task/{path['scope']}/{path['id']}?said={self._notes.keep(said)}"
        return RedirectResponse(where, 303)

    # -- try it ------------------------------------------------------------------------------

    async def trying(self, request: Request) -> Response:
        """Show the form for sending, and what a call has brought so far."""
        call = self._call(request)
        return page(
            "try.html",
            place=self._inspector.place,
            here="try",
            endpoint=self._trying.endpoint,
            call=call,
            task=request.query_params.get("task", call.task_id if call else ""),
            scope=await self._scope_of(call),
        )

    async def wire(self, request: Request) -> Response:
        """Return what a call has brought so far; 204 while there is nothing new."""
        call = self._call(request)
        if call is None:
            return Response(status_code=404)
        if call.is_open and request.query_params.get("count") == str(call.count):
            return Response(status_code=204)
        return page("wire.html", call=call, scope=await self._scope_of(call))

    async def send(self, request: Request) -> Response:
        """Begin a call with the values of the form."""
        form = await form_of(request)
        text, task_id = form.get("text", ""), form.get("task", "")
        if not text or not self._trying.endpoint or (task_id and not is_task_id(task_id)):
            return RedirectResponse(f"{BASE}/try", 303)
        call = self._trying.send(
            text, key=form.get("key", ""), task_id=task_id, streams=form.get("how", "") != "send"
        )
        return RedirectResponse(f"{BASE}/try/{call.id}", 303)

    async def on_call(self, request: Request) -> Response:
        """Cut a call, resume it, or cancel its task, if the form says that this was confirmed."""
        call = self._call(request)
        if call is None:
            return RedirectResponse(f"{BASE}/try", 303)
        verb, form = request.path_params["verb"], await form_of(request)
        if verb == "cut":
            call.cut()
            if call.running is not None:
                await asyncio.wait([call.running], timeout=2)
        elif verb == "resume" and call.task_id:
            call = self._trying.resume(call)
        elif verb == "cancel" and call.task_id and form.get("confirmed") == "yes":
            call = self._trying.cancel(call)
        return RedirectResponse(f"{BASE}/try/{call.id}", 303)

    def _call(self, request: Request) -> Call | None:
        return self._trying.call(request.path_params.get("call", ""))

    async def _scope_of(self, call: Call | None) -> str:
        """Return the owner of a call's task, for the link to it; empty if it is not found."""
        if call is None or not call.task_id:
            return ""
        found = await self._inspector.storage.find(call.task_id)
        return found[0][0] if len(found) == 1 else ""

    # -- card -------------------------------------------------------------------------------------

    async def card(self, _: Request) -> Response:
        """Show the card as clients get it, and its faults."""
        card, text = self._card, ""
        if self._trying.endpoint:
            card, text = await fetched(self._trying.endpoint)
        return page(
            "card.html",
            place=self._inspector.place,
            here="card",
            card=MessageToDict(card) if card is not None else None,
            raw=MessageToJson(card, indent=2, ensure_ascii=False) if card is not None else text,
            faults=list(faults_of(card)) if card is not None else [text] if text else [],
        )


async def _head(storage: DurableStorage, task_id: str) -> Head | None:
    """Return the HEAD of a task; None also if it is damaged, or has what is new."""
    try:
        return await storage.head(task_id)
    except UnreadableTaskError:
        return None


def _json(event: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the beginning of an event as JSON, and True if that is not all of it."""
    text = json.dumps(event, indent=2, ensure_ascii=False)
    return text[:MOST_OF_AN_EVENT], len(text) > MOST_OF_AN_EVENT
