"""Calls to the agent as a client makes them, with everything that goes over the wire.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx

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

Look = Literal["sent", "came", "said"]


@dataclass(slots=True, kw_only=True)
class Call:
    """One call, and what went over the wire."""

    id: str
    lines: deque[tuple[Look, str]] = field(default_factory=deque)
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

    def add(self, look: Look, text: str) -> None:
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
    """Makes calls to one agent.

    Args:
        endpoint: the agent's URL, without a `/` at its end.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._calls: dict[str, Call] = {}

    def call(self, call_id: str) -> Call | None:
        """Return a call; None if it is not remembered."""
        return self._calls.get(call_id)

    def send(self, text: str, *, key: str, task_id: str = "", streams: bool = True) -> Call:
        """Begin to send a message; with `task_id` as a follow-up."""
        message: dict[str, Any] = {
            "messageId": str(uuid.uuid4()),
            "role": "ROLE_USER",
            "parts": [{"text": text}],
        }
        if task_id:
            message["taskId"] = task_id
        path = "/message:stream" if streams else "/message:send"
        return self._begin("POST", path, {"message": message}, key=key, task_id=task_id)

    def resume(self, call: Call) -> Call:
        """Begin to read the events of a call's task after the last one that has come."""
        more = {"Last-Event-ID": call.last_event_id} if call.last_event_id else {}
        path = f"/tasks/{call.task_id}:subscribe"
        return self._begin("GET", path, None, key=call.key, task_id=call.task_id, headers=more)

    def cancel(self, call: Call) -> Call:
        """Begin to cancel a call's task."""
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
    ) -> Call:
        call = Call(id=secrets.token_urlsafe(9), task_id=task_id, key=key)
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


async def _run(call: Call, request: httpx.Request) -> None:
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


def _take(call: Call, line: str) -> None:
    call.add("came", line)
    if line.startswith("id:"):
        call.last_event_id = line[3:].strip()
        return
    text = line.removeprefix("data:")
    try:
        _note(call, json.loads(text))
    except ValueError:
        return


def _note(call: Call, said: object) -> None:
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
