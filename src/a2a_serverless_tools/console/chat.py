"""A chat with the agent, as a client has one: what was said, the steps, and the wire.

What is shown is read from the log, and a page has the names of its conversation, of the owner and
of the question that it shows. So all of it is still there when another process serves the page.
Only the key, what went over the wire, and a text that was refused are in the memory of this one.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from a2a_serverless.tasks.head import INTERRUPTED, RESTING, Head
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
_NOT_ASKED: Final = (
    "The question was answered, or has ended, since this page has shown it. Nothing was sent: read"
    " what the agent says, and send your text again if it fits."
)


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
        asked = dict(request.query_params)
        where = await self._where({**asked, "context": asked.get("context") or str(uuid.uuid4())})
        if where.scope != asked.get("scope", ""):
            return _to(where)
        return page("chat.html", endpoint=self.endpoint, **await self._values(where))

    async def _live(self, request: Request) -> Response:
        """Return what has changed since a mark of the page; 204 if nothing has."""
        asked = request.query_params
        where = await self._where(asked)
        values = await self._values(where, asked.get("mark", ""))
        if values["mark"] == asked.get("mark"):
            return Response(status_code=204)
        answer = page("talk.html", is_update=True, **values)
        if where.scope != asked.get("scope", ""):
            # The browser's address names the owner from here on: the next process needs it.
            answer.headers["HX-Replace-Url"] = _path(where)
        return answer

    async def _wire_page(self, request: Request) -> Response:
        """Return what went over the wire so far; 204 while there is nothing new."""
        asked = request.query_params
        where = await self._where(asked)
        wire = self._wires.get(where.context, Wire())
        if wire.is_open and asked.get("count") == str(wire.count):
            return Response(status_code=204)
        return page("wire.html", is_asked=True, wire=wire, where=where)

    async def _send(self, request: Request) -> Response:
        form, files = await form_with_files(request)
        where, text, task_id = await self._where(form), form.get("text", ""), form.get("task", "")
        if not (text or files) or not self.endpoint or (task_id and not is_task_id(task_id)):
            return _to(where)
        wire = self._wire(where.context)
        await wire.cut()
        wire.key = form.get("key", "") or wire.key
        wire.unsent = text
        if not await self._is_asked(where, task_id, form.get("question", "")):
            wire.fail(_NOT_ASKED)
            return _to(where)
        card, _ = await fetched(self.endpoint)
        message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, task_id=task_id)
        message.context_id = where.context
        try:
            files = await self._parts(wire, files, card)
            message.parts.extend([Part(text=text)] * bool(text) + files)
        except (A2AClientError, httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
            wire.fail(f"The file was not sent: {error}")
            return _to(where)
        said = {"message": json_of(message)}
        if card is None or card.capabilities.streaming:
            await wire.call("POST", f"{self.endpoint}/message:stream", body=said)
        else:  # the page follows the log, and needs no answer
            said["configuration"] = {"returnImmediately": True}
            await wire.call("POST", f"{self.endpoint}/message:send", body=said)
        return _to(where)

    async def _is_asked(self, where: TaskFilter, task_id: str, question: str) -> bool:
        """Return whether a task still asks what a page has shown; `question`: its version then."""
        if not question:
            return True
        seen = await self._inspector.seen(where.scope or self._own, task_id)
        return seen is not None and _asks(seen.head) and str(seen.head.version) == question

    async def _parts(self, wire: Wire, files: list[Part], card: AgentCard | None) -> list[Part]:
        """Return files as parts of a message; those for which it has no room are uploaded."""
        sizes = [len(one.raw) for one in files]
        if card is None or sum(sizes) <= _RAW_BYTES:
            return files
        if all(one.uri != UPLOADS_EXTENSION for one in card.capabilities.extensions):
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
        """Cut the call of a conversation, resume it, or cancel each task that has not ended."""
        where = await self._where(await form_of(request))
        wire, heads = self._wire(where.context), await self._heads(where)
        tasks = f"{self.endpoint}/tasks"
        wire.unsent = ""
        match request.path_params["verb"]:
            case "cut":
                await wire.cut()
            case "resume" if heads:
                since = {"Last-Event-ID": wire.last_event_id} if wire.last_event_id else {}
                await wire.call("GET", f"{tasks}/{heads[-1].task_id}:subscribe", headers=since)
            case "stop":
                open_ids = [head.task_id for head in heads if not head.is_terminal]
                await wire.call("POST", *(f"{tasks}/{one}:cancel" for one in open_ids), body={})
        return _to(where)

    def _wire(self, context: str) -> Wire:
        """Return the wire of a conversation; the one that is used least recently is forgotten."""
        wire = self._wires[context] = self._wires.pop(context, Wire())
        for old in list(self._wires)[:-_KEPT]:
            del self._wires[old]
        return wire

    @property
    def _own(self) -> str:
        """Return the owner of tasks that need no key."""
        return self._inspector.storage.scope.digest

    async def _where(self, asked: Mapping[str, str]) -> TaskFilter:
        """Return the conversation that a page or a form names, with its owner.

        That is the owner of the task of its calls, else the one that was named; empty: `_own`.
        """
        named = {"context": check_context_id(asked.get("context", ""))}
        given = TaskFilter.of({**named, "scope": asked.get("scope", "")})
        wire = self._wires.get(given.context, Wire())
        if not wire.scope:
            found = await find_tasks(self._inspector.storage, wire.task_id)
            wire.scope = found[0][0] if len(found) == 1 else ""
        scope = wire.scope or given.scope
        return replace(given, scope="" if scope == self._own else scope)

    async def _heads(self, where: TaskFilter) -> list[Head]:
        """Return the newest tasks of a conversation in the order of their creation."""
        which = replace(where, scope=where.scope or self._own)
        rows = (await self._inspector.lists.page(which, limit=_TASKS)).rows
        return sorted((row.head for row in rows), key=lambda head: (head.created_at, head.task_id))

    async def _values(self, where: TaskFilter, mark: str = "") -> dict[str, Any]:
        """Return what a page shows of a conversation; `mark`: what the browser has of it."""
        wire = self._wires.get(where.context, Wire())
        # Before the tasks: a call that ends meanwhile may have made one that is not among them.
        is_called = wire.is_open
        heads = await self._heads(where)
        marks = [f"{head.task_id}:{head.version}" for head in heads]
        now = f"{'~'.join(marks)}~{is_called}{bool(wire.problem)}"
        values: dict[str, Any] = {"where": where, "wire": wire, "mark": now}
        if now == mark:
            return values
        old = set(mark.split("~"))
        asking = [head for head in heads if _asks(head)][-1:]
        whole = {head.task_id for head in heads[-1:] + asking}
        tasks = [
            _Task(id=head.task_id, is_same=True)
            if known in old and head.task_id not in whole
            else await self._task(head)
            for head, known in zip(heads, marks, strict=True)
        ]
        last = tasks[-1].seen if tasks else None
        if last is not None:
            told = () if last.question else facts(last)
            values["table"] = steps_table(last)
            values["told"] = [fact for fact in told if fact.name in _TOLD]
        works = is_called or any(head.state not in RESTING for head in heads)
        seen = [one.seen for one in tasks if one.seen and _asks(one.seen.head)]
        values["asks"] = seen[-1] if seen else None
        values["is_open"] = not all(head.is_terminal for head in heads)
        every = _OFTEN if works else _PAUSED if asking else ""
        return {**values, "tasks": tasks, "last": last, "works": works, "every": every}

    async def _task(self, head: Head) -> _Task:
        seen = await self._inspector.seen(head.scope, head.task_id)
        if seen is None:  # deleted meanwhile
            return _Task(id=head.task_id)
        shown = await conversation(seen, Place(), LogFilter(), self._inspector.show)
        return _Task(id=head.task_id, seen=seen, entries=shown.entries)


def _asks(head: Head) -> bool:
    return head.state in INTERRUPTED


def _path(where: TaskFilter) -> str:
    return f"{BASE}/chat?{where.query}"


def _to(where: TaskFilter) -> Response:
    return RedirectResponse(_path(where), 303)
