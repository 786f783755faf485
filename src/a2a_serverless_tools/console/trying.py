"""The agent as a client meets it: its card, and calls with everything that goes over the wire.

A call runs on while its page shows what has come so far. It can be cut, as by a lost connection,
and resumed after the last event that has come.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx
from a2a.types import AgentCard
from google.protobuf.json_format import Parse, ParseError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from a2a_serverless.http.card import missing_fields
from a2a_serverless.tasks.entries import json_of
from a2a_serverless.tasks.identity import is_task_id
from a2a_serverless_tools.console.rendering import BASE, Route, form_of, page
from a2a_serverless_tools.operate.finding import find_tasks
from a2a_serverless_tools.operate.inspector import Inspector

_KEPT: Final = 20
"""The number of calls that are remembered."""
_LINES: Final = 4_000
"""Lines of one call that are remembered."""
_MOST: Final = 400_000
"""Characters of them, the newest: a page asks for all of them while more come."""
_LONG: Final = 20_000
"""The number of characters of a line that are remembered."""
_WAIT_S: Final = 330.0
"""The time-out of requests in seconds: longer than the longest stream."""
_TASK: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_CARD: Final = "/.well-known/agent-card.json"
_CARD_S: Final = 10.0
"""Seconds that the agent has to answer with its card."""
_HERE: Final = ("127.0.0.1", "localhost", "::1")

_Look = Literal["sent", "came", "said"]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One call, and what went over the wire."""

    id: str
    lines: deque[tuple[_Look, str]] = field(default_factory=deque)
    task_id: str = ""
    state: str = ""
    last_event_id: str = ""
    is_open: bool = True
    running: asyncio.Task[None] | None = None
    key: str = field(default="", repr=False)
    """The credentials that the operator has given; calls that follow this one send them as well."""
    count: int = 0
    """Lines so far, also those that are forgotten."""
    length: int = 0
    """Characters that are remembered."""

    @property
    def forgotten(self) -> int:
        """Return the number of lines that are remembered no more."""
        return self.count - len(self.lines)

    def add(self, look: _Look, text: str) -> None:
        """Remember a line that went over the wire."""
        self.lines.append((look, text[:_LONG]))
        self.count += 1
        self.length += min(len(text), _LONG)
        while self.length > _MOST or len(self.lines) > _LINES:
            self.length -= len(self.lines.popleft()[1])

    def cut(self) -> None:
        """Drop the connection, as if the network had failed."""
        if self.running is not None:
            self.running.cancel()


class Trying:
    """The pages that call one agent, and show its card.

    Args:
        inspector: finds the tasks of calls.
        endpoint: the agent's URL, without a `/` at its end; empty: the agent cannot be tried.
        card: the agent's card, if this process serves it.
    """

    def __init__(self, inspector: Inspector, endpoint: str, card: AgentCard | None) -> None:
        self.endpoint = endpoint
        self._inspector = inspector
        self._card = card
        self._calls: dict[str, Exchange] = {}

    def routes(self) -> Iterator[Route]:
        """Yield method, path and answer of each page."""
        yield "GET", "/try", self._shown
        yield "POST", "/try", self._send
        yield "GET", "/try/{call}", self._shown
        yield "GET", "/try/{call}/wire", self._wire
        yield "POST", "/try/{call}/{verb}", self._on_call
        yield "GET", "/card", self._card_page

    async def _shown(self, request: Request) -> Response:
        call = self._call(request)
        return page(
            "try.html",
            endpoint=self.endpoint,
            call=call,
            task=request.query_params.get("task", call.task_id if call else ""),
            scope=await self._scope_of(call),
        )

    async def _wire(self, request: Request) -> Response:
        """Return what a call has brought so far; 204 while there is nothing new."""
        call = self._call(request)
        if call is None:
            return Response(status_code=404)
        if call.is_open and request.query_params.get("count") == str(call.count):
            return Response(status_code=204)
        return page("wire.html", call=call, scope=await self._scope_of(call))

    async def _send(self, request: Request) -> Response:
        form = await form_of(request)
        text, task_id = form.get("text", ""), form.get("task", "")
        if not text or not self.endpoint or (task_id and not is_task_id(task_id)):
            return RedirectResponse(f"{BASE}/try", 303)
        before = self._calls.get(form.get("call", ""))  # which it answers
        key = form.get("key", "") or (before.key if before else "")
        streams = form.get("how", "") != "send"
        call = self._begin_to_send(text, key=key, task_id=task_id, streams=streams)
        return RedirectResponse(f"{BASE}/try/{call.id}", 303)

    async def _on_call(self, request: Request) -> Response:
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
            call = self._resume(call)
        elif verb == "cancel" and call.task_id and form.get("confirmed") == "yes":
            call = self._cancel(call)
        return RedirectResponse(f"{BASE}/try/{call.id}", 303)

    def _call(self, request: Request) -> Exchange | None:
        return self._calls.get(request.path_params.get("call", ""))

    async def _scope_of(self, call: Exchange | None) -> str:
        """Return the owner of a call's task, for the link to it; empty if it is not found."""
        if call is None or not call.task_id:
            return ""
        found = await find_tasks(self._inspector.storage, call.task_id)
        return found[0][0] if len(found) == 1 else ""

    async def _card_page(self, _: Request) -> Response:
        card, text = self._card, ""
        if self.endpoint:
            card, text = await _fetched(self.endpoint)
        return page(
            "card.html",
            card=json_of(card) if card is not None else None,
            raw=json.dumps(json_of(card), indent=2, ensure_ascii=False)
            if card is not None
            else text,
            faults=list(_faults_of(card)) if card is not None else [text] if text else [],
        )

    def _begin_to_send(
        self, text: str, *, key: str, task_id: str = "", streams: bool = True
    ) -> Exchange:
        message: dict[str, Any] = {
            "messageId": str(uuid.uuid4()),
            "role": "ROLE_USER",
            "parts": [{"text": text}],
        }
        if task_id:
            message["taskId"] = task_id
        path = "/message:stream" if streams else "/message:send"
        return self._begin("POST", path, {"message": message}, key=key, task_id=task_id)

    def _resume(self, call: Exchange) -> Exchange:
        more = {"Last-Event-ID": call.last_event_id} if call.last_event_id else {}
        path = f"/tasks/{call.task_id}:subscribe"
        return self._begin("GET", path, None, key=call.key, task_id=call.task_id, headers=more)

    def _cancel(self, call: Exchange) -> Exchange:
        path = f"/tasks/{call.task_id}:cancel"
        return self._begin("POST", path, {}, key=call.key, task_id=call.task_id)

    def _begin(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        key: str,
        task_id: str,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        call = Exchange(id=secrets.token_urlsafe(9), task_id=task_id, key=key)
        self._calls[call.id] = call
        for old in list(self._calls)[:-_KEPT]:
            self._calls.pop(old).cut()
        own = {"A2A-Version": "1.0", "Accept": "text/event-stream, application/json"}
        shown = {**own, **(headers or {})}
        call.add("sent", f"{method} {self.endpoint}{path}")
        for name, value in shown.items():
            call.add("sent", f"{name}: {value}")
        held = _credentials(key)
        for name in held:
            call.add("sent", f"{name}: (yours)")
        if body is not None:
            call.add("sent", json.dumps(body, indent=2, ensure_ascii=False))
        try:
            request = httpx.Request(
                method,
                self.endpoint + path,
                headers={**shown, **held},
                json=body,
            )
        except (UnicodeEncodeError, httpx.InvalidURL):
            call.add("said", "It was not sent: address and headers have to be plain ASCII.")
            call.is_open = False
            return call
        call.running = asyncio.get_running_loop().create_task(_run(call, request))
        return call


def _credentials(key: str) -> dict[str, str]:
    """Return the header with what the operator has given: a key, or `Bearer` and a token."""
    if not key:
        return {}
    is_token = key.lower().startswith("bearer ")
    return {"Authorization": key} if is_token else {"X-API-Key": key}


async def _run(call: Exchange, request: httpx.Request) -> None:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_WAIT_S) as client:
            answer = await client.send(request, stream=True)
            try:
                call.add("came", f"HTTP {answer.status_code} {answer.reason_phrase}")
                call.add("came", f"content-type: {answer.headers.get('content-type', '')}")
                async for line in answer.aiter_lines():
                    _take(call, line)
            finally:
                await answer.aclose()
        call.add("said", "The answer is complete.")
    except asyncio.CancelledError:
        call.add("said", "The connection was cut here.")
    except httpx.HTTPError as error:
        call.add("said", f"The connection has failed: {type(error).__name__}.")
    finally:
        call.is_open = False


def _take(call: Exchange, line: str) -> None:
    call.add("came", line)
    if line.startswith("id:"):
        call.last_event_id = line[3:].strip()
        return
    text = line.removeprefix("data:")
    try:
        _note(call, json.loads(text))
    except ValueError:
        return


def _note(call: Exchange, said: object) -> None:
    """Remember the task and its state from an event that has come."""
    if not isinstance(said, dict):
        return
    for value in (said, *said.values()):
        if not isinstance(value, dict):
            continue
        task_id = value.get("taskId") or (value.get("id") if "status" in value else None)
        if isinstance(task_id, str) and _TASK.fullmatch(task_id):
            call.task_id = task_id
        status = value.get("status")
        if isinstance(status, dict) and isinstance(status.get("state"), str):
            call.state = status["state"].removeprefix("TASK_STATE_").lower()


async def _fetched(endpoint: str) -> tuple[AgentCard | None, str]:
    """Return the card of an endpoint; None and the reason if there is none.

    Fields that this release does not know are left out, as clients do.
    """
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_CARD_S) as client:
            answer = await client.get(endpoint + _CARD)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return None, f"{endpoint} does not answer: {type(error).__name__}."
    if answer.status_code != httpx.codes.OK:
        return None, f"{endpoint}{_CARD} answers {answer.status_code}: clients look for it there."
    try:
        return Parse(answer.text, AgentCard(), ignore_unknown_fields=True), ""
    except (ParseError, ValueError) as error:
        return None, f"{endpoint}{_CARD} is not a card: {error}"


def _faults_of(card: AgentCard) -> Iterator[str]:
    """Yield the faults of a card: what breaks the protocol, and what clients stumble over."""
    for name in missing_fields(card):
        yield f"{name} is missing, and the protocol demands it."
    if not card.supported_interfaces:
        yield "supportedInterfaces is empty: no client knows where the agent is."
    for way in card.supported_interfaces:
        if not _is_reached(way.url):
            yield f"The interface {way.url} is not https: clients elsewhere refuse it."
    ids = [skill.id for skill in card.skills]
    for double in sorted({one for one in ids if ids.count(one) > 1}):
        yield f"Two skills have the id {double}: clients cannot tell them apart."
    for skill in card.skills:
        if not skill.tags:
            yield f"The skill {skill.id} has no tags, by which it is found."
    names = {name for one in card.security_requirements for name in one.schemes}
    for name in sorted(names - set(card.security_schemes)):
        yield f"securityRequirements names {name}, which securitySchemes does not have."


def _is_reached(url: str) -> bool:
    """Return True if clients call such a URL: it is https, or http on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _HERE)
