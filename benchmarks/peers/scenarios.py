"""The scenarios that `benchmarks.peers` runs with each system, and their measurements.

Every scenario checks the answers: one that gets a wrong answer, or does not end, has no figure.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import httpx

from benchmarks.peers.client import ENDED, Client, Event, WrongAnswerError, connected
from benchmarks.peers.systems import System

MS: Final = 1e6
NS: Final = 1e9
STREAMS: Final = 5
GAP_S: Final = 0.25
LONG_CHUNKS: Final = 800
LONG_CHUNK_BYTES: Final = 100
CANCEL_PATIENCE_S: Final = 15.0
KILLED_TASK_S: Final = 3.0
ENDED_TASKS: Final = 5
"""Tasks that have ended before a kill, and are looked for after it."""
LOST: Final = "lost"
POLL_S: Final = 0.1
SCENARIO_S: Final = 45.0
"""The longest time of a scenario; for kills `Size.kill_patience_s` is added."""
LATE_START_S: Final = 1.0
"""Time for an agent that starts once more after its task has ended."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Size:
    """The numbers of tasks, messages and chunks of a run."""

    echoes: int
    chunks: int
    tasks: int
    senders: int
    cancels: int
    victims: int
    """Tasks that run when a process is killed."""
    kill_patience_s: float


SHORT: Final = Size(
    echoes=10, chunks=10, tasks=60, senders=20, cancels=1, victims=4, kill_patience_s=75
)
LONG: Final = Size(
    echoes=20, chunks=20, tasks=200, senders=20, cancels=1, victims=12, kill_patience_s=90
)


@dataclass(kw_only=True)
class Figures:
    """The results of a system in one round: the values of each row, or why there are none."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One round with one running system."""

    system: System
    restart: Callable[[], AbstractContextManager[System]]
    """Starts the system once more on what it has kept, and ends it."""
    size: Size
    figures: Figures = field(default_factory=Figures)
    http: httpx.AsyncClient | None = None

    def client(self, number: int = 0) -> Client:
        """Return the client of one of the servers, on the connections of `run`."""
        assert self.http is not None
        return Client(http=self.http, url=self.system.urls[number], dialect=self.system.dialect)

    def notes(self, what: str) -> dict[str, list[tuple[int, int]]]:
        """Return the processes and times of the agents' notes, for each task."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for line in self.system.notes.read_text().splitlines():
            kind, task_id, pid, at_ns = line.split()
            if kind == what:
                found[task_id].append((int(pid), int(at_ns)))
        return found

    def add(self, row: str, *values: float) -> None:
        """Add values to a row."""
        self.figures.values[row] += values


Scenario = Callable[[Trial], Awaitable[None]]


async def run(scenario: Scenario, trial: Trial) -> None:
    """Run a scenario, which adds its values to the trial's figures.

    Raises:
        WrongAnswerError, httpx.HTTPError, TimeoutError: an answer is wrong, or there is no end.
    """
    async with connected() as http:
        work = scenario(replace(trial, http=http))
        patience_s = trial.size.kill_patience_s if scenario is kills else 0
        await bounded(work, SCENARIO_S + patience_s)


async def bounded(work: Awaitable[None], bound_s: float) -> None:
    """Wait for `work`, which is wrong if it takes longer than the bound."""
    try:
        async with asyncio.timeout(bound_s) as bound:
            await work
    except TimeoutError:
        ensure(not bound.expired(), f"no end within {bound_s:g} s")
        raise


async def together(*work: Coroutine[Any, Any, Result]) -> list[Result]:
    """Return all results; the first one that fails ends the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def asked(**load: float) -> str:
    """Return a message for the agent."""
    return json.dumps(load)


def ensure(holds: bool, what: str) -> None:  # noqa: FBT001 - an assertion
    """Raise WrongAnswerError unless `holds`."""
    if not holds:
        raise WrongAnswerError(what)


async def check(trial: Trial) -> None:
    """Send and wait for the answer: a system that cannot do it is in no table."""
    answer = await trial.client().send(asked())
    ensure(answer.state == "completed", f"a send that waits answered a {answer.state} task")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk, and the times at which it was emitted and came."""

    number: int
    emitted_ns: int
    came_ns: int


@dataclass(kw_only=True)
class Seen:
    """What a client has seen of a task."""

    held: list[int] = field(default_factory=list)
    """The chunks that came with the task before they came as events."""
    live: list[Chunk] = field(default_factory=list)
    """The chunks that came as events."""
    first_ns: int = 0
    last: str = ""
    """The task's last state."""

    @property
    def numbers(self) -> list[int]:
        return [chunk.number for chunk in self.live]


async def _read(events: AsyncIterator[Event], task_id: asyncio.Future[str] | None = None) -> Seen:
    """Read a stream until its task has ended; `task_id` is set with the first event."""
    seen = Seen()
    async for event in events:
        seen.first_ns = seen.first_ns or event.at_ns
        seen.last = event.state or seen.last
        if task_id and not task_id.done():
            task_id.set_result(event.task_id)
        if event.kind == "artifact":
            seen.live += _chunks(event)
        elif event.kind == "task":
            known = {*seen.held, *seen.numbers}
            seen.held += [chunk.number for chunk in _chunks(event) if chunk.number not in known]
        if seen.last in ENDED:
            break
    return seen


def _chunks(event: Event) -> list[Chunk]:
    try:
        read = [tuple(map(int, text.split()[:2])) for text in event.texts]
        return [
            Chunk(number=number, emitted_ns=emitted_ns, came_ns=event.at_ns)
            for number, emitted_ns in read
        ]
    except ValueError:
        raise WrongAnswerError(f"no chunk of the agent: {event.texts}"[:200]) from None


def _ensure_completed(seen: Seen) -> None:
    ensure(seen.last == "completed", f"a stream ended in {seen.last or 'no state'}")


# -- latency and throughput ------------------------------------------------------------------


async def echo(trial: Trial) -> None:
    """Send and wait for the answer, one message after the other."""
    client = trial.client()
    for number in range(trial.size.echoes + 3):
        began = time.monotonic_ns()
        answer = await client.send(asked())
        ensure(answer.state == "completed", f"a send that waits answered a {answer.state} task")
        if number >= 3:  # noqa: PLR2004 - the first ones warm up
            trial.add("echo", (time.monotonic_ns() - began) / MS)


async def first_byte(trial: Trial) -> None:
    """Send, and measure the time until the first event of the stream."""
    client = trial.client()
    for _ in range(trial.size.echoes):
        began = time.monotonic_ns()
        async with client.stream(asked()) as events:
            seen = await _read(events)
        _ensure_completed(seen)
        trial.add("first byte", (seen.first_ns - began) / MS)


async def throughput(trial: Trial) -> None:
    """Complete many tasks, several at a time."""
    size, client = trial.size, trial.client()
    left = iter(range(size.tasks))

    async def sender() -> None:
        for _ in left:
            answer = await client.send(asked())
            ensure(answer.state == "completed", f"a task ended in {answer.state}")

    began = time.monotonic()
    await together(*(sender() for _ in range(size.senders)))
    trial.add("tasks a second", size.tasks / (time.monotonic() - began))


# -- streams ---------------------------------------------------------------------------------


async def chunks(trial: Trial) -> None:
    """Stream from the first server, and follow at the others, several tasks at once.

    If the agent did not run in the server that sent a chunk, that chunk went to another process.
    """
    text = asked(chunks=trial.size.chunks, gap_s=GAP_S)
    followed = await together(*(_followed(trial, text) for _ in range(STREAMS)))
    started = trial.notes("started")
    for task_id, clients in followed:
        ensure(bool(started[task_id]), "no agent has noted the task of a stream")
        agent = started[task_id][-1][0]
        for server, seen in zip(trial.system.servers, clients, strict=True):
            row = "chunk, same process" if server.process.pid == agent else "chunk, another process"
            trial.add(row, *((chunk.came_ns - chunk.emitted_ns) / MS for chunk in seen.live))


async def _followed(trial: Trial, text: str) -> tuple[str, list[Seen]]:
    """Return a task, and what the client of each server has seen of it: every chunk and the end."""
    task_id: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    others = range(1, len(trial.system.servers))
    seen = await together(
        _streamed(trial, text, task_id), *(_follow(trial, server, task_id) for server in others)
    )
    return await task_id, seen


async def _streamed(trial: Trial, text: str, task_id: asyncio.Future[str]) -> Seen:
    async with trial.client().stream(text) as events:
        seen = await _read(events, task_id)
    _ensure_completed(seen)
    ensure(seen.numbers == list(range(trial.size.chunks)), f"chunks came as {seen.numbers}")
    return seen


async def _follow(trial: Trial, server: int, task_id: asyncio.Future[str]) -> Seen:
    """Follow a task; an event may repeat a chunk that the task already had."""
    async with trial.client(server).subscribe(await task_id) as events:
        seen = await _read(events)
    _ensure_completed(seen)
    came = [*seen.held, *(number for number in seen.numbers if number not in seen.held)]
    ensure(came == list(range(trial.size.chunks)), f"chunks came to a follower as {came}")
    return seen


async def long_artifact(trial: Trial) -> None:
    """Stream an artifact of 800 chunks that come as quickly as the agent can emit them."""
    before = trial.system.written() if trial.system.written else 0
    began = time.monotonic()
    text = asked(chunks=LONG_CHUNKS, size=LONG_CHUNK_BYTES)
    async with trial.client().stream(text) as events:
        seen = await _read(events)
    _ensure_completed(seen)
    count = len(seen.live)
    ensure(seen.numbers == list(range(LONG_CHUNKS)), f"{count} of {LONG_CHUNKS} chunks came")
    trial.add("800 chunks", time.monotonic() - began)
    if trial.system.written:
        trial.add("800 chunks, written", (trial.system.written() - before) / 1e6)


async def reconnect(trial: Trial) -> None:
    """Cut a stream after a third of its chunks, and go on at the last server half a second later.

    A chunk counts as received if it came with the task or with an event; the others are lost.
    """
    total = 40
    first: list[int] = []
    task_id = after = ""
    async with trial.client().stream(asked(chunks=total, gap_s=0.05)) as events:
        async for event in events:
            task_id, after = event.task_id, event.event_id or after
            if event.kind == "artifact":
                first += [chunk.number for chunk in _chunks(event)]
            if len(first) >= total // 3:
                break
    await asyncio.sleep(0.5)
    last = trial.client(len(trial.system.servers) - 1)
    async with last.subscribe(task_id, after=after) as events:
        seen = await _read(events)
    live = seen.numbers
    came = {*first, *live, *seen.held}
    trial.add("reconnect, chunks lost", total - len(came))
    # A chunk counts as doubled if an event repeats one that the client already has.
    doubled = len(live) - len(set(live)) + len(set(live) & {*first, *seen.held})
    trial.add("reconnect, chunks doubled", doubled)


# -- lists, cancels, repetitions, kills ------------------------------------------------------


async def lists(trial: Trial) -> None:
    """Get the first page of the tasks that earlier scenarios have left."""
    client = trial.client()
    for row, history in (("page with history", True), ("page without history", False)):
        for _ in range(10):
            began = time.monotonic_ns()
            shown = await client.page(history=history)
            ensure(shown == 50, f"a page has {shown} tasks")  # noqa: PLR2004 - as it was asked
            trial.add(row, (time.monotonic_ns() - began) / MS)


async def cancels(trial: Trial) -> None:
    """Cancel agents that emit and agents that are silent; measure until agent and client know."""
    for row, load in (
        ("cancel, an agent that emits", asked(chunks=1000, gap_s=0.1)),
        ("cancel, a silent agent", asked(silence_s=100)),
    ):
        for _ in range(trial.size.cancels):
            await _canceled(trial, row, load)


async def _canceled(trial: Trial, row: str, load: str) -> None:
    client = trial.client()
    task_id = (await client.send(load, waits=False)).task_id
    await _noted(trial, "started", task_id)
    await asyncio.sleep(1.2)  # claimed, and between two looks for a cancel
    began_ns = time.monotonic_ns()
    heard_ns, known_ns = await together(
        _noted(trial, "heard", task_id), _known_as_canceled(client, task_id)
    )
    trial.add(row, (heard_ns - began_ns) / NS)
    trial.add("cancel, known", (known_ns - began_ns) / NS)


async def _known_as_canceled(client: Client, task_id: str) -> int:
    """Cancel a task, and ask until it is canceled; return the time of the answer that says so."""
    state = (await client.cancel(task_id)).state
    async with asyncio.timeout(CANCEL_PATIENCE_S):
        while state not in ENDED:
            await asyncio.sleep(0.02)
            state = (await client.get(task_id)).state
    ensure(state == "canceled", f"a task that was canceled is {state}")
    return time.monotonic_ns()


async def _noted(trial: Trial, what: str, task_id: str) -> int:
    """Wait until an agent has noted `what` about a task; return the time of that note."""
    async with asyncio.timeout(CANCEL_PATIENCE_S):
        while not (found := trial.notes(what).get(task_id)):  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.02)
    return found[-1][1]


async def duplicates(trial: Trial) -> None:
    """Send each of five messages twice, like a client without an answer; count the starts.

    They are counted when all tasks have ended, because the second start may come late.
    """
    client = trial.client()
    tasks: set[str] = set()
    for _ in range(5):
        ids = {"messageId": uuid.uuid4().hex, "contextId": uuid.uuid4().hex}
        for _ in range(2):
            tasks.add((await client.send(asked(), waits=False, ids=ids)).task_id)
    for task_id in tasks:
        await _noted(trial, "started", task_id)
    while not (states := {*(await _states(client, tasks)).values()}) <= ENDED:
        ensure(LOST not in states, "a task is not there after its send was answered")
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(LATE_START_S)
    started = trial.notes("started")
    trial.add("starts for a message sent twice", sum(len(started[task]) for task in tasks) / 5)


async def _states(client: Client, tasks: Collection[str]) -> dict[str, str]:
    """Return the tasks' states; LOST for those that the server answers with an error."""
    states = dict.fromkeys(tasks, LOST)
    for task in tasks:
        with suppress(WrongAnswerError):
            states[task] = (await client.get(task)).state
    return states


async def kills(trial: Trial) -> None:
    """Kill a process while its agents run; count the tasks that complete, and measure the times.

    A system with no other process of its kind is started again, on what it has kept. One time is
    until the agent of the last task has started again, the other until that task is completed.
    Tasks whose agent had ended before count only as kept or lost.
    """
    clients = [trial.client(number) for number in range(len(trial.system.servers))]
    ended = [(await clients[0].send(asked())).task_id for _ in range(ENDED_TASKS)]
    load = asked(silence_s=KILLED_TASK_S)
    sent = [
        await clients[number % len(clients)].send(load, waits=False)
        for number in range(trial.size.victims)
    ]
    for task in sent:
        await _noted(trial, "started", task.task_id)
    victim = trial.system.victims[-1].process
    victim.kill()
    killed_at = time.monotonic()
    hit = _running(trial, victim.pid, [task.task_id for task in sent])
    ensure(bool(hit), "the killed process ran no agent")
    with ExitStack() as stack:
        if len(trial.system.victims) == 1:
            trial = replace(trial, system=stack.enter_context(trial.restart()))
        await _after_a_kill(trial, hit, victim.pid, killed_at)
        kept = (await _states(trial.client(), ended)).values()
    trial.add("ended tasks, kept", 100 * sum(state == "completed" for state in kept) / len(ended))


async def _after_a_kill(trial: Trial, hit: Collection[str], pid: int, killed_at: float) -> None:
    """Wait until the tasks of a killed process have ended or are lost, or until patience ends."""
    left, finished = set(hit), 0
    while left and time.monotonic() - killed_at < trial.size.kill_patience_s:
        await asyncio.sleep(POLL_S)
        states = await _states(trial.client(), left)
        finished += sum(state == "completed" for state in states.values())
        left = {task for task in left if states[task] not in {*ENDED, LOST}}
    if finished == len(hit):
        trial.add("recovery after a kill", time.monotonic() - killed_at)
        started = trial.notes("started")
        again = [at_ns for task in hit for by, at_ns in started[task] if by != pid]
        ensure(bool(again), "killed tasks are completed, and no agent has started again")
        trial.add("restart after a kill", max(again) / NS - killed_at)
    trial.add("killed tasks, finished", 100 * finished / len(hit))


def _running(trial: Trial, pid: int, tasks: Collection[str]) -> set[str]:
    """Return those of the tasks whose agent a process has started and not ended."""
    started, ended = (
        {task for task, noted in trial.notes(what).items() if pid in {by for by, _ in noted}}
        for what in ("started", "ended")
    )
    return (started - ended).intersection(tasks)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "echo": echo,
    "first byte": first_byte,
    "throughput": throughput,
    "chunks": chunks,
    "800 chunks": long_artifact,
    "lists": lists,
    "cancels": cancels,
    "duplicates": duplicates,
    "reconnect": reconnect,
    "kills": kills,
}
