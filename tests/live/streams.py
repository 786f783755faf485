"""Streams, and what API Gateway does by itself to headers and paths."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.live.subject import VERSION, Check, Figures, NotPossibleError, Subject, ordered, require

STEPS: Final = 8
GAP_S: Final = 0.5
LATE_S: Final = 1.0
"""How much later or sooner a step may reach the client than the agent's clock says."""


@dataclass(frozen=True)
class Arrival:
    """A `data:` line, with the seconds since the request, and the event's id."""

    at_s: float
    data: dict[str, Any]
    id: str = ""

    @property
    def steps(self) -> list[tuple[int, float]]:
        """The steps in it: their numbers, and when the agent took them."""
        update = self.data.get("artifactUpdate")
        shown = [update["artifact"]] if update else self.data.get("task", {}).get("artifacts", [])
        text = "".join(part["text"] for artifact in shown for part in artifact["parts"])
        pairs = (line.split() for line in text.splitlines())
        return [(int(number), float(taken)) for number, taken in pairs]


async def python(subject: Subject) -> Figures:
    return judged(subject, [each async for each in arrivals(subject, "/message:stream")])


async def arrivals(subject: Subject, path: str, **order: float) -> AsyncIterator[Arrival]:
    """Send the agent its steps at `path`, and yield what comes when it comes."""
    body = {"message": ordered("steps", **{"count": STEPS, "gap_s": GAP_S, **order})}
    async for each in _events(subject, path, json=body, headers=VERSION):
        yield each


async def resumed(subject: Subject, task_id: str, after: str) -> AsyncIterator[Arrival]:
    """Subscribe to a task after an event, and yield what comes when it comes."""
    headers = {**VERSION, "Last-Event-ID": after}
    async for each in _events(subject, f"/tasks/{task_id}:subscribe", headers=headers):
        yield each


async def _events(subject: Subject, path: str, **request: Any) -> AsyncIterator[Arrival]:
    began, event_id = time.monotonic(), ""
    async with subject.http.stream("POST", path, **request) as response:
        kind = response.headers.get("content-type", "")
        says = f"{path} was answered with {response.status_code} {kind}"
        require(response.status_code == 200 and kind.startswith("text/event-stream"), says)
        async for line in response.aiter_lines():
            name, _, value = line.partition(":")
            if name == "id":
                event_id = value.strip()
            if name == "data":
                yield Arrival(time.monotonic() - began, json.loads(value), event_id)


def judged(subject: Subject, seen: Sequence[Arrival]) -> Figures:
    """Compare when steps came with when the agent took them.

    Raises:
        BrokenError: steps are missing, or came earlier or later than the agent's gaps say.
    """
    require(seen, "the stream was empty")
    steps = [(arrival.at_s, *step) for arrival in seen for step in arrival.steps]
    numbers = [number for _, number, _ in steps]
    require(numbers == list(range(STEPS)), f"the steps that came are {numbers}")
    first_came, _, first_taken = steps[0]
    worst = max((came - first_came - taken + first_taken for came, _, taken in steps), key=abs)
    figures = {"first byte s": round(seen[0].at_s, 3), "first step s": round(first_came, 3)}
    says = f"a step came {worst:+.1f} s off the agent's time: something buffers"
    require(abs(worst) <= LATE_S * subject.slack, f"{says}: {figures}")
    return figures


async def renamed(subject: Subject) -> None:
    """Ask without a credential: the challenge has another name behind API Gateway."""
    _, stack = subject.behind_gateway()
    if stack.parameters.get("Auth") == "none":
        raise NotPossibleError("the stack lets in everybody (Auth none)")
    response = await subject.anonymous.get("/tasks", headers=VERSION)
    require(response.status_code == 401, f"a stranger was answered {response.status_code}")
    named = [name for name in response.headers if name.endswith("www-authenticate")]
    require(named == ["x-amzn-remapped-www-authenticate"], f"the challenge comes as {named}")


async def encoded(subject: Subject) -> None:
    """Use `%3A` in the path in place of the colon: to stream, and to cancel."""
    judged(subject, [each async for each in arrivals(subject, "/message%3Astream")])
    task_id = await subject.begin("wait")
    await subject.reached(task_id, "WORKING")
    response = await subject.http.post(f"/tasks/{task_id}%3Acancel", headers=VERSION)
    require(
        response.is_success and response.json()["status"]["state"] == "TASK_STATE_CANCELED",
        f"a cancel by %3A was answered with {response.status_code}",
    )


CHECKS: Final = (
    Check("stream-python", "a Python client gets each event of a stream as it happens", python),
    Check("renamed-header", "WWW-Authenticate comes as x-amzn-remapped-www-authenticate", renamed),
    Check("encoded-colon", "%3A in a path is a colon: it streams and it cancels", encoded),
)
