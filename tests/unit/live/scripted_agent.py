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


class ScriptedAgent:
    """Takes orders and shows what each came to; no other request is expected."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self.tasks: dict[str, dict[str, Any]] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/a2a")
        if path == "/message:send":
            body = json.loads(request.content)
            task_id = f"task-{len(self.tasks)}"
            order = json.loads(body["message"]["parts"][0]["text"])
            self.tasks[task_id] = {"id": task_id, **self._ends(order)}
            return httpx.Response(200, json={"task": {"id": task_id}})
        return httpx.Response(200, json=self.tasks[path.removeprefix("/tasks/")])
