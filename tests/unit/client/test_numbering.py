"""Random runs of the client against servers that number their events in their own ways.

25 runs in each of seven ways in the suite, 5,000 with A2A_FAULTS=long. A failure names its seed.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest
from a2a.types import StreamResponse, TaskState

from a2a_serverless.client.event_ids import Known
from a2a_serverless.tasks.fold import joined
from tests.support.databases import LONG
from tests.unit.client.conftest import World
from tests.unit.client.scripted_server import LOST, Fault, ScriptedServer, chunk, opened, status

pytestmark = pytest.mark.timeout(1800 if LONG else 300)

RUNS = 5000 if LONG else 25
S = TaskState
WAITING = {S.TASK_STATE_AUTH_REQUIRED, S.TASK_STATE_INPUT_REQUIRED}


def random_log(chance: random.Random, ends: list[TaskState], *, texts_repeat: bool) -> Any:
    """A task's events: every status has its own time, and chunks may be equal."""

    def timed(event: StreamResponse, second: int) -> StreamResponse:
        shown = event.task if event.HasField("task") else event.status_update
        shown.status.timestamp.FromSeconds(second)
        return event

    log = [timed(opened(), 0)]
    for second in range(1, chance.randint(2, 12)):
        kind = chance.random()
        if kind < 0.3:
            state = chance.choice([S.TASK_STATE_WORKING, S.TASK_STATE_AUTH_REQUIRED])
            log.append(timed(status(state), second))
            continue
        event = chunk(chance.choice("xxy") if texts_repeat else f"{second} ")
        if kind < 0.5:
            event.artifact_update.artifact.artifact_id = "other"
        if kind > 0.9:
            event.artifact_update.CopyFrom(chunk(f"anew {second}").artifact_update)
            event.artifact_update.append = False
        log.append(event)
    return [*log, timed(status(chance.choice(ends)), 99)]


class NumberingServer(ScriptedServer):
    """A server whose log goes on between requests, and whose streams are cut anywhere."""

    texts_repeat = True

    def __init__(self, chance: random.Random, ends: list[TaskState]) -> None:
        super().__init__(random_log(chance, ends, texts_repeat=self.texts_repeat))
        self.chance = chance
        self.joins = chance.random() < 0.5
        """Whether the Task that a stream opens with has one text where the stream had chunks."""
        self.now = 1
        self.has_shown = False
        """True once an event has been sent: a subscription to a task that has ended is refused."""
        end = self.log[-1].status_update.status.state
        self.holds_subscriptions = end == S.TASK_STATE_INPUT_REQUIRED
        self.at_request = self.go_on
        self.set_up()

    def set_up(self) -> None:
        """Choose how this server numbers."""

    def go_on(self) -> None:
        """Let time pass before a request; decide how it is answered."""
        if self.chance.random() < 0.7:
            later = self.now + self.chance.randint(0, 2)
            self.now = min(len(self.log) - (not self.has_shown), later)
        if len(self.requests) < 12 and self.chance.random() < 0.8:
            self.faults.append(self.chance.choice([self.cut, self.cut, self.refused])())

    def as_of(self, count: int) -> StreamResponse:
        event = super().as_of(count)
        if self.joins:
            for each in event.task.artifacts:
                each.CopyFrom(joined(each))
        return event

    def refused(self) -> Fault:
        return Fault(status=self.chance.choice([429, 502, 503, 504]))

    def cut(self) -> Fault:
        """A cut after some events, which have happened then, or in the middle of the next one."""
        tail = self.chance.choice([b"", b": alive\r\n\r\n", b"id: 999\r\n", b'data: {"jso'])
        return Fault(events=self.chance.randint(0, 4), error=LOST, tail=tail)

    def _stream(self, request: httpx.Request, first: int, fault: Fault) -> httpx.Response:
        copies = 2 if self.repeats else 1
        shown = len(self.log) if fault.events is None else -(-fault.events // copies)
        given = first + max(0, shown - 1)
        self.now = min(len(self.log), max(self.now, given))
        self.has_shown = self.has_shown or shown > 0
        is_waiting = self.as_of(given).task.status.state in WAITING
        if fault.events is not None and not is_waiting and self.chance.random() < 0.4:
            fault = Fault(events=fault.events)  # it ends as if it were complete
        return super()._stream(request, first, fault)


class Honest(NumberingServer):
    """One number for each event of the task, and streams that go on after the one asked for."""


class Twice(Honest):
    """The same, but each event comes twice."""

    def set_up(self) -> None:
        self.repeats = True

    def cut(self) -> Fault:
        return Fault(events=self.chance.randint(0, 7), error=LOST)


class PerConnection(NumberingServer):
    """The numbers begin again in each stream, as those of the Java SDK; no id is asked for."""

    def set_up(self) -> None:
        self.resumes = False
        self.begin = self.chance.choice([0, 1])

    def id_of(self, number: int, place: int) -> str:
        return str(self.begin + place)


class WithoutIds(NumberingServer):
    """No event has an id."""

    def set_up(self) -> None:
        self.ids = self.resumes = False


class NewIds(NumberingServer):
    """Each event of each stream has a random id, as those of the Go SDK; no id is asked for."""

    def set_up(self) -> None:
        self.resumes = False

    def id_of(self, number: int, place: int) -> str:
        return f"{self.chance.getrandbits(64):x}"


class Reused(NumberingServer):
    """An id is given to several events: to all, to pairs, to every third one."""

    texts_repeat = False

    def set_up(self) -> None:
        self.kind = self.chance.choice(["all", "pairs", "cycle"])
        self.honours = self.chance.random() < 0.5

    def id_of(self, number: int, place: int) -> str:
        return {"all": "7", "pairs": str((number + 1) // 2), "cycle": str(number % 3)}[self.kind]

    def place_of(self, last_id: str) -> int | None:
        """A server that knows pairs goes on after the first or after the second of a pair."""
        if not self.honours or self.kind != "pairs":
            return None
        return min(self.now, 2 * int(last_id) - self.chance.randint(0, 1)) or 1


class StartingAgain(NumberingServer):
    """The process is replaced now and then; each counts from 1, and knows its own ids alone."""

    def set_up(self) -> None:
        self.start = 0
        self.resumes = self.chance.random() < 0.5

    def go_on(self) -> None:
        super().go_on()
        if self.chance.random() < 0.4:
            self.start = self.chance.randint(0, self.now - 1)

    def id_of(self, number: int, place: int) -> str:
        return str(number - self.start)

    def place_of(self, last_id: str) -> int | None:
        asked = self.start + int(last_id)
        return asked if self.resumes and 1 <= asked <= self.now else None


WAYS = [Honest, Twice, PerConnection, WithoutIds, NewIds, Reused, StartingAgain]


def positions(server: NumberingServer, events: list[StreamResponse]) -> set[int]:
    """Where in the log the events may end, if each follows on the one before; empty for a gap.

    A Task stands for everything before it; every other event must be the log's next one.
    """
    found: set[int] = set()
    for event in events:
        if event.HasField("task"):
            found = {n for n in range(1, len(server.log) + 1) if server.as_of(n) == event}
        else:
            found = {n + 1 for n in found if n < len(server.log) and server.log[n] == event}
    return found


async def followed(way: type[NumberingServer], seed: int) -> tuple[NumberingServer, list[Any]]:
    """One run: a message or a subscription, over one of the bindings."""
    chance = random.Random(f"{way.__name__} {seed}")  # noqa: S311 - repeatable
    sends = chance.random() < 0.5
    ends = [S.TASK_STATE_COMPLETED] * 2 + [S.TASK_STATE_INPUT_REQUIRED] * sends
    world = World(chance.choice(["JSONRPC", "HTTP+JSON"]), way(chance, ends))
    server: Any = world.server
    follow = world.send if sends else world.subscribe
    return server, await asyncio.wait_for(follow(draw=chance.random), 60)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_lost(way: type[NumberingServer]) -> None:
    """Whatever a server does with ids, the caller's events add up to the task, without a gap."""
    connections = 0
    for seed in range(RUNS):
        server, events = await followed(way, seed)
        assert len(server.log) in positions(server, events), f"{way.__name__}, seed {seed}"
        if issubclass(way, Honest):
            assert not any(event.HasField("task") for event in events[1:]), f"seed {seed}"
        connections += len(server.requests)
    assert connections > 2 * RUNS


def test_a_task_is_known_however_its_text_is_cut() -> None:
    """A stream that opens with one text where there were chunks goes on after the newest event."""
    known = Known()
    events = [opened(), *map(chunk, ("on", "e ", "two"))]
    for number, event in enumerate(events):
        known.take(str(number), event)
    task = ScriptedServer(events).as_of(len(events))
    (whole,) = task.task.artifacts
    whole.CopyFrom(joined(whole))
    assert known.ends_at("3", task)
    whole.parts[0].text = "one tw"
    assert not known.ends_at("3", task)
