"""A chat with the agent, as a client has one: what was said, the steps, and the wire.

What is shown is read from the log, so it is still there when another process serves the page. Only
what went over the wire is in the memory of this one.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
from a2a.client.errors import A2AClientError
from a2a.types import AgentCard, Message, Part, Role
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from a2a_serverless.client import upload
from a2a_serverless.sources import UPLOADS_EXTENSION
from a2a_serverless.tasks.entries import json_of
from a2a_serverless.tasks.head import INTERRUPTED, Head
from a2a_serverless.tasks.identity import check_context_id, is_task_id
from a2a_serverless_tools.console.card import card_page, fetched
from a2a_serverless_tools.console.conversation import conversation
from a2a_serverless_tools.console.paging import LogFilter, Place
from a2a_serverless_tools.console.rendering import (
    BASE,
    Route,
    form_of,
    form_with_files,
    page,
)
from a2a_serverless_tools.console.wire import Wire, credentials
from a2a_serverless_tools.operate.filters import TaskFilter
from a2a_serverless_tools.operate.finding import find_tasks
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.timeline import Timeline
from a2a_serverless_tools.operate.view import facts, steps_table

_KEPT: Final = 20
"""The number of conversations whose wire is remembered."""
_TASKS: Final = 10
"""Tasks of a conversation that a page shows, the newest."""
_RAW_BYTES: Final = 2_000_000
"""The bytes of files that go into the message itself, if the agent takes uploads."""
_UPLOAD_S: Final = 60.0
_TOLD: Final = frozenset({"why", "waits"})
"""The facts of a task that stand above its steps."""
_OFTEN, _PAUSED = "400ms", "3s"
"""After how long a page asks again: while the agent works, and while it waits for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A task of a conversation, as a page shows it."""

    id: str
    is_same: bool = False
    """The browser has it as it is: its place alone is sent."""
    seen: Timeline | None = None
    """None: it is the same, or was deleted."""
    entries: Sequence[Any] = ()


class Chat:
    """The pages that talk to one agent.

    Args:
        inspector: reads the tasks of the conversations.
        endpoint: the agent's URL, without a `/` at its end; empty: the agent cannot be called.
        card: the agent's card, if this process serves it.
    """

    def __init__(self, inspector: Inspector, endpoint: str, card: AgentCard | None) -> None:
        self.endpoint = endpoint
        self._inspector = inspector
        self._card = card
        self._wires: dict[str, Wire] = {}

    def routes(self) -> Iterator[Route]:
        """Yield method, path and answer of each page."""
        yield "GET", "/chat", self._shown
        yield "POST", "/chat", self._send
        yield "GET", "/chat/live", self._live
        yield "GET", "/chat/wire", self._wire_page
        yield "POST", "/chat/{verb}", self._on_call
        yield "GET", "/card", partial(card_page, self.endpoint, self._card)

    async def _shown(self, request: Request) -> Response:
        """Show a conversation; without a context one in which nothing was said."""
        context = request.query_params.get("context", "") or str(uuid.uuid4())
        return page("chat.html", endpoint=self.endpoint, **await self._values(context))

    async def _live(self, request: Request) -> Response:
        """Return what has changed since a mark of the page; 204 if nothing has."""
        asked = request.query_params
        values = await self._values(asked.get("context", ""), asked.get("mark", ""))
        if values["mark"] == asked.get("mark"):
            return Response(status_code=204)
        return page("talk.html", is_update=True, **values)

    async def _wire_page(self, request: Request) -> Response:
        """Return what went over the wire so far; 204 while there is nothing new."""
        asked = request.query_params
        wire = self._wires.get(asked.get("context", ""), Wire())
        if wire.is_open and asked.get("count") == str(wire.count):
            return Response(status_code=204)
        return page("wire.html", is_asked=True, wire=wire, context=asked.get("context", ""))

    async def _send(self, request: Request) -> Response:
        form, files = await form_with_files(request)
        context, text = check_context_id(form.get("context", "")), form.get("text", "")
        task_id = form.get("task", "")
        if not (text or files) or not self.endpoint or (task_id and not is_task_id(task_id)):
            return _to(context)
        wire = self._wire(context)
        if key := form.get("key", ""):
            wire.key, wire.scope, wire.task_id = key, "", ""
        heads = await self._heads(context)
        if not task_id and heads and heads[-1].state in INTERRUPTED:
            task_id = heads[-1].task_id
        message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, task_id=task_id)
        message.context_id = context
        try:
            message.parts.extend([Part(text=text)] * bool(text) + await self._parts(wire, files))
        except (A2AClientError, httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
            wire.fail(f"The file was not sent: {error}")
            return _to(context)
        body = {"message": json_of(message)}
        await wire.call("POST", f"{self.endpoint}/message:stream", body)
        return _to(context)

    async def _parts(self, wire: Wire, files: list[Part]) -> list[Part]:
        """Return files as parts of a message; those for which it has no room are uploaded."""
        sizes = [len(one.raw) for one in files]
        card = (await fetched(self.endpoint))[0] if sum(sizes) > _RAW_BYTES else None
        if card is None or all(
            one.uri != UPLOADS_EXTENSION for one in card.capabilities.extensions
        ):
            return files
        parts = []
        async with httpx.AsyncClient(
            trust_env=False, timeout=_UPLOAD_S, headers=credentials(wire.key)
        ) as http:
            for number, one in enumerate(files, 1):
                if sum(sizes[:number]) <= _RAW_BYTES:
                    parts.append(one)
                    continue
                wire.add("said", f"{one.filename} is uploaded, {len(one.raw):,} bytes.")
                file, kind = io.BytesIO(one.raw), one.media_type
                parts.append(await upload(http, card, file, media_type=kind, filename=one.filename))
        return parts

    async def _on_call(self, request: Request) -> Response:
        """Cut the call of a conversation, resume it, or cancel the task that runs."""
        form = await form_of(request)
        context = check_context_id(form.get("context", ""))
        wire, heads = self._wire(context), await self._heads(context)
        task = f"{self.endpoint}/tasks/{heads[-1].task_id if heads else ''}"
        match request.path_params["verb"]:
            case "cut":
                await wire.cut()
            case "resume" if heads:
                since = {"Last-Event-ID": wire.last_event_id} if wire.last_event_id else {}
                await wire.call("GET", f"{task}:subscribe", headers=since)
            case "stop" if heads:
                await wire.call("POST", f"{task}:cancel", {})
        return _to(context)

    def _wire(self, context: str) -> Wire:
        """Return the wire of a conversation; the one that is used least recently is forgotten."""
        wire = self._wires[context] = self._wires.pop(context, Wire())
        for old in list(self._wires)[:-_KEPT]:
            del self._wires[old]
        return wire

    async def _scope_of(self, context: str) -> str:
        """Return the owner of a conversation: of the task of its calls, else who needs no key."""
        wire = self._wires.get(context)
        if wire is not None and not wire.scope:
            found = await find_tasks(self._inspector.storage, wire.task_id)
            wire.scope = found[0][0] if len(found) == 1 else ""
        return (wire and wire.scope) or self._inspector.storage.scope.digest

    async def _heads(self, context: str) -> list[Head]:
        """Return the newest tasks of a conversation in the order of their creation."""
        which = TaskFilter(scope=await self._scope_of(context), context=context)
        rows = (await self._inspector.lists.page(which, limit=_TASKS)).rows
        return sorted((row.head for row in rows), key=lambda head: (head.created_at, head.task_id))

    async def _values(self, context: str, mark: str = "") -> dict[str, Any]:
        """Return what a page shows of a conversation; `mark`: what the browser has of it."""
        check_context_id(context)
        heads = await self._heads(context)
        wire = self._wires.get(context, Wire())
        marks = [f"{head.task_id}:{head.version}" for head in heads]
        now = f"{'~'.join(marks)}~{wire.is_open}{bool(wire.problem)}"
        values: dict[str, Any] = {"context": context, "wire": wire, "mark": now}
        if now == mark:
            return values
        old = set(mark.split("~"))
        tasks = [
            _Task(id=head.task_id, is_same=True)
            if known in old and head is not heads[-1]
            else await self._task(head)
            for head, known in zip(heads, marks, strict=True)
        ]
        last = tasks[-1].seen if tasks else None
        every = _OFTEN if wire.is_open else ""
        if last is not None:
            told = () if last.question else facts(last)
            values["table"] = steps_table(last)
            values["told"] = [fact for fact in told if fact.name in _TOLD]
            if not (every or last.head.is_terminal):
                every = _PAUSED if last.question else _OFTEN
        return {**values, "tasks": tasks, "last": last, "every": every}

    async def _task(self, head: Head) -> _Task:
        seen = await self._inspector.seen(head.scope, head.task_id)
        if seen is None:  # deleted meanwhile
            return _Task(id=head.task_id)
        shown = await conversation(seen, Place(), LogFilter(), self._inspector.show)
        return _Task(id=head.task_id, seen=seen, entries=shown.entries)


def _to(context: str) -> Response:
    return RedirectResponse(f"{BASE}/chat?{TaskFilter(context=context).query}", 303)
