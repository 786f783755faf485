"""The calls that the console makes as a client, with everything that goes over the wire.

A call runs on while its page shows what has come so far. It can be cut, as by a lost connection,
and resumed after the last event that has come.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx

_LINES: Final = 4_000
"""Lines of one conversation that are remembered."""
_MOST: Final = 400_000
"""Characters of them, the newest: a page asks for all of them while more come."""
_LONG: Final = 20_000
"""The number of characters of a line that are remembered."""
_SHOWN_RAW: Final = 60
"""Characters of a file that are shown, and remembered."""
_WAIT_S: Final = 330.0
"""The time-out of requests in seconds: longer than the longest stream."""
_TASK: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")

_Look = Literal["sent", "came", "said"]


@dataclass(slots=True, kw_only=True)
class Wire:
    """What has gone over the wire in one conversation, one call after the other."""

    lines: deque[tuple[_Look, str]] = field(default_factory=deque)
    task_id: str = ""
    """The task that the newest call has named."""
    scope: str = ""
    """Its owner; empty: it was not looked for, or not found."""
    last_event_id: str = ""
    problem: str = ""
    """Why the newest call was not taken; empty: nothing is known of that."""
    unsent: str = ""
    """The text of the newest message, until the agent has taken it."""
    running: list[asyncio.Task[None]] = field(default_factory=list)
    key: str = field(default="", repr=False)
    """The credentials that the operator has given; calls that follow send them as well."""
    count: int = 0
    """Lines so far, also those that are forgotten."""
    length: int = 0
    """Characters that are remembered."""

    @property
    def is_open(self) -> bool:
        """Return True while a call is answered."""
        return not all(one.done() for one in self.running)

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

    def fail(self, why: str) -> None:
        """Say that the call was not taken."""
        self.problem = why
        self.add("said", why)

    async def cut(self) -> None:
        """Drop the connection, as if the network had failed."""
        for one in self.running:
            one.cancel()
        if self.running:
            await asyncio.wait(self.running, timeout=2)

    async def call(
        self,
        method: str,
        *urls: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Begin a call of each URL at once, and cut those before."""
        await self.cut()
        self.problem = ""
        own = {"A2A-Version": "1.0", "Accept": "text/event-stream, application/json"}
        shown, held = {**own, **(headers or {})}, credentials(self.key)
        for url in urls:
            self.add("sent", f"{method} {url}")
            for name, value in (shown | dict.fromkeys(held, "(yours)")).items():
                self.add("sent", f"{name}: {value}")
            if body is not None:
                self.add("sent", _pretty(body))
        try:
            requests = [httpx.Request(method, url, headers=shown | held, json=body) for url in urls]
        except (UnicodeEncodeError, httpx.InvalidURL):
            self.fail("It was not sent: address and headers have to be plain ASCII.")
            return
        self.running = [asyncio.create_task(self._run(one)) for one in requests]

    async def _run(self, request: httpx.Request) -> None:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=_WAIT_S) as client:
                answer = await client.send(request, stream=True)
                try:
                    self.add("came", f"HTTP {answer.status_code} {answer.reason_phrase}")
                    self.add("came", f"content-type: {answer.headers.get('content-type', '')}")
                    async for line in answer.aiter_lines():
                        self._take(line, is_refusal=answer.is_error)
                finally:
                    await answer.aclose()
            self.add("said", "The answer is complete.")
            if answer.is_error and not self.problem:
                self.problem = f"The agent answers {answer.status_code} {answer.reason_phrase}."
        except asyncio.CancelledError:
            self.add("said", "The connection was cut here.")
        except httpx.HTTPError as error:
            self.fail(f"The connection has failed: {type(error).__name__}.")

    def _take(self, line: str, *, is_refusal: bool) -> None:
        """Remember a line, an event indented; and the task, or why the call was refused."""
        name, text = ("data: ", line[5:]) if line.startswith("data:") else ("", line)
        try:
            said = json.loads(text)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            self.add("came", line)
            if line.startswith("id:"):
                self.last_event_id = line[3:].strip()
            return
        self.add("came", name + _pretty(said))
        if is_refusal:
            error = said.get("error")
            told = error.get("message") if isinstance(error, dict) else None
            self.problem = f"The agent has refused it: {told or text.strip()[:_LONG]}"
        else:
            self.unsent = ""
        for value in (said, *said.values()):
            if not isinstance(value, dict):
                continue
            task_id = value.get("taskId") or (value.get("id") if "status" in value else None)
            if isinstance(task_id, str) and _TASK.fullmatch(task_id) and task_id != self.task_id:
                self.task_id, self.scope = task_id, ""


def credentials(key: str) -> dict[str, str]:
    """Return the header with what the operator has given: a key, or `Bearer` and a token."""
    if not key:
        return {}
    is_token = key.lower().startswith("bearer ")
    return {"Authorization": key} if is_token else {"X-API-Key": key}


def _pretty(said: Mapping[str, Any]) -> str:
    return json.dumps(_without_files(said), indent=2, ensure_ascii=False)


def _without_files(said: Any) -> Any:
    """Return JSON in which each file has its first characters alone."""
    match said:
        case dict():
            return {
                name: f"{value[:_SHOWN_RAW]}… ({len(value):,} characters)"
                if name == "raw" and isinstance(value, str) and len(value) > _SHOWN_RAW
                else _without_files(value)
                for name, value in said.items()
            }
        case list():
            return [_without_files(each) for each in said]
        case _:
            return said
