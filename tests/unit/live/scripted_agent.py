"""A deployment's answers over HTTP, as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

Ends = Callable[[dict[str, Any]], dict[str, Any]]
"""The task that an order comes to."""


def completed(text: str, *, said: str = "") -> dict[str, Any]:
    """A completed task with an artifact, and a status message."""
    message = {"message": {"parts": [{"text": said}]}}
    return {
        "status": {"state": "TASK_STATE_COMPLETED", **message},
        "artifacts": [{"parts": [{"text": text}]}],
    }


def failed() -> dict[str, Any]:
    return {"status": {"state": "TASK_STATE_FAILED"}}


class ScriptedAgent:
    """Takes orders and shows what each came to; `others` answers all other requests."""

    def __init__(
        self,
        ends: Ends | None = None,
        others: Callable[[httpx.Request], httpx.Response] | None = None,
    ) -> None:
        self._ends = ends
        self._others = others
        self.tasks: dict[str, dict[str, Any]] = {}
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/a2a")
        if self._ends is not None and path == "/message:send":
            body = json.loads(request.content)
            self.bodies.append(body)
            task_id = f"task-{len(self.tasks)}"
            order = json.loads(body["message"]["parts"][0]["text"])
            self.tasks[task_id] = {"id": task_id, **self._ends(order)}
            return httpx.Response(200, json={"task": {"id": task_id}})
        if path.removeprefix("/tasks/") in self.tasks:
            return httpx.Response(200, json=self.tasks[path.removeprefix("/tasks/")])
        assert self._others is not None, path
        return self._others(request)
