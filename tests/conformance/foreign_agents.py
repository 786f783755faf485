"""Agents of other frameworks, run in environments of their own, and what was seen of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tests.support.required import run_in

_ONE_PIECE = ("in one piece", "streamed")
_CONVERTERS = ("older converter", "newer converter")

ANSWERS: dict[str, dict[str, list[str]]] = {
    "google_adk": {
        **{
            f"{case}, {converter}": answers
            for converter in _CONVERTERS
            for case, answers in {
                "a text": ["task COMPLETED"],
                "a tool call": ["task COMPLETED"],
                "an event without content": ["task COMPLETED"],
                "chunks": ["task COMPLETED"],
                "an error of the model": ["task FAILED"],
                "a model that raises": ["task FAILED"],
                "cancelled": ["task SUBMITTED", "task CANCELED"],
            }.items()
        },
        "a call that waits for a person, older converter": [
            "task INPUT_REQUIRED",
            "task COMPLETED",
        ],
        "a call that waits for a person, newer converter": [
            "task INPUT_REQUIRED",
            "task INPUT_REQUIRED",
            "task COMPLETED",
        ],
    },
    "agent_framework": {
        f"{case}, {way}": answers
        for way in _ONE_PIECE
        for case, answers in {
            "a text": ["task COMPLETED"],
            "a tool call": ["task COMPLETED"],
            "every content": ["task COMPLETED"],
            "a model that raises": ["task FAILED"],
            "cancelled": ["task SUBMITTED", "task CANCELED"],
        }.items()
    },
}
"""The client's answers by framework and case, here and on the SDK's server."""


def observations(framework: str) -> dict[str, dict[str, Any]]:
    """Run all agents of a framework on both servers; by case, `theirs` and `ours`."""
    said = run_in(framework, "tests.foreign.observe", framework)
    seen: dict[str, dict[str, Any]] = json.loads(said)
    return seen


def as_here(theirs: dict[str, Any]) -> dict[str, Any]:
    """What is seen of the SDK's server, with the three differences that foreign agents show.

    Messages name their task and context. A message without parts is none, and its metadata joins
    that of its event and of the task. Text that came in chunks is one part.
    """
    joined: dict[str, Any] = {}
    events = []
    for event in theirs.get("events", []):
        here = event
        if event[0] == "status":
            _, state, message, rest = event
            if _is_wordless(message):
                rest = rest | {"metadata": message.get("metadata", {}) | rest.get("metadata", {})}
                joined |= rest["metadata"]
            here = ["status", state, _status_message(message), rest]
        events.append(here)
    return theirs | {
        "events": events,
        "message": _status_message(theirs["message"]),
        "history": [_bound(said) for said in theirs["history"] if not _is_wordless(said)],
        "metadata": joined | theirs["metadata"],
        "artifacts": {
            name: [title, *_one_text(parts)]
            for name, (title, *parts) in theirs["artifacts"].items()
        },
    }


def _one_text(parts: list[Any]) -> Iterator[Any]:
    for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
        several = list(run)
        yield from ["".join(several)] if is_text else several


def updates(events: list[Any]) -> list[Any]:
    """The events of streams, but for the Tasks that they begin with.

    Of equal ones that follow on each other the first stands: the metadata of a Task is told here by
    a status, and the ADK says it again in its next one.
    """
    return [event for event, _ in groupby(event for event in events if not isinstance(event, str))]


def _is_wordless(message: Any) -> bool:
    return isinstance(message, dict) and message.get("agent") == []


def _status_message(message: Any) -> Any:
    bound = None if _is_wordless(message) else _bound(message)
    return bound.removeprefix("agent: ") if isinstance(bound, str) else bound


def _bound(message: Any) -> Any:
    """Add the ids that a message lacks, and shorten it where it is text alone then."""
    if not isinstance(message, dict):
        return message
    lacks = {name for name in ("contextId", "taskId") if message.get(name, "") is None}
    bound = {name: value for name, value in message.items() if name not in lacks}
    texts = bound.get("agent", [None])
    is_text = set(bound) == {"agent"} and all(isinstance(text, str) for text in texts)
    return f"agent: {''.join(texts)}" if is_text else bound
