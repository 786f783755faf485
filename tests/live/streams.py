"""Streams: when the first byte comes, and whether events come when they happen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from tests.live.findings import Check, Figures, require
from tests.live.subject import VERSION, Subject, ordered

STEPS: Final = 8
GAP_S: Final = 0.5
LATE_S: Final = 1.0
"""How much later or sooner a step may reach the client than the agent's clock says."""


@dataclass(frozen=True)
class Arrival:
    """A `data:` line, with the seconds since the request, and the event's id."""

    at_s: float
    data: str
    id: str = ""


async def python(subject: Subject) -> Figures:
    """Read a stream with httpx."""
    seen = [arrival async for arrival in arrivals(subject, "/message:stream")]
    return judged(seen, LATE_S * subject.slack)


async def arrivals(subject: Subject, path: str, **order: float) -> AsyncIterator[Arrival]:
    """Send the agent its steps at `path`, and yield what comes when it comes."""
    body = {"message": ordered("steps", **{"count": STEPS, "gap_s": GAP_S, **order})}
    async for each in events(subject, path, json=body, headers=VERSION):
        yield each


async def resumed(subject: Subject, task_id: str, after: str) -> AsyncIterator[Arrival]:
    """Subscribe to a task after an event, and yield what comes when it comes."""
    headers = {**VERSION, "Last-Event-ID": after}
    async for each in events(subject, f"/tasks/{task_id}:subscribe", headers=headers):
        yield each


async def events(subject: Subject, path: str, **request: Any) -> AsyncIterator[Arrival]:
    """Open a stream, and yield its events when they come."""
    began, event_id = subject.clock.monotonic(), ""
    async with subject.http.stream("POST", path, **request) as response:
        kind = response.headers.get("content-type", "")
        require(
            response.status_code == 200 and kind.startswith("text/event-stream"),
            f"{path} was answered with {response.status_code} {kind}",
        )
        async for line in response.aiter_lines():
            if line.startswith("id:"):
                event_id = line.removeprefix("id:").strip()
            if line.startswith("data:"):
                at_s = subject.clock.monotonic() - began
                yield Arrival(at_s, line.removeprefix("data:"), event_id)


def judged(seen: Iterable[Arrival], late_s: float = LATE_S) -> Figures:
    """Compare when steps came with when the agent took them.

    Raises:
        BrokenError: steps are missing, or came earlier or later than the agent's gaps say.
    """
    seen = list(seen)
    require(seen, "the stream was empty")
    steps = [(arrival.at_s, *step) for arrival in seen for step in steps_in(arrival)]
    numbers = [number for _, number, _ in steps]
    require(numbers == list(range(STEPS)), f"the steps that came are {numbers}")
    first_came, _, first_taken = steps[0]
    off_s = [came - first_came - (taken - first_taken) for came, _, taken in steps]
    figures = {
        "first byte s": round(seen[0].at_s, 3),
        "first step s": round(first_came, 3),
        "gaps s": [round(later[0] - earlier[0], 3) for earlier, later in pairwise(steps)],
        "agent's gap s": GAP_S,
    }
    worst = max(off_s, key=abs)
    require(
        abs(worst) <= late_s,
        f"a step came {worst:+.1f} s off the agent's time: something buffers",
        **figures,
    )
    return figures


def steps_in(arrival: Arrival) -> list[tuple[int, float]]:
    """The steps of an event: their numbers, and when the agent took them."""
    event = json.loads(arrival.data)
    update = event.get("artifactUpdate")
    shown = [update["artifact"]] if update else event.get("task", {}).get("artifacts", [])
    text = "".join(part["text"] for artifact in shown for part in artifact["parts"])
    pairs = (line.split() for line in text.splitlines())
    return [(int(number), float(taken)) for number, taken in pairs]


CHECKS = (
    Check("stream-python", "a Python client gets each event of a stream as it happens", python),
)
