"""The scenarios that `benchmarks.peers` runs with each system, and their measurements.

Every scenario checks the answers: a system that answers wrongly has no figure.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx

from benchmarks.peers.client import ENDED, Client, Event, WrongAnswerError
from benchmarks.peers.systems import System

MS: Final = 1e6
NS: Final = 1e9
STREAMS: Final = 5
GAP_S: Final = 0.25
LONG_CHUNKS: Final = 1600
LONG_CHUNK_BYTES: Final = 100
CANCEL_PATIENCE_S: Final = 15.0
KILLED_TASK_S: Final = 3.0
POLL_S: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class Size:
    """The numbers of tasks, messages and chunks of a run."""

    echoes: int
    chunks: int
    tasks: int
    senders: int
    cancels: int
    victims: int
    """Tasks that run when a worker is killed; 0: none is killed."""
    kill_patience_s: float


SHORT: Final = Size(
    echoes=20, chunks=20, tasks=100, senders=20, cancels=2, victims=0, kill_patience_s=0
)
LONG: Final = Size(
    echoes=60, chunks=80, tasks=500, senders=20, cancels=5, victims=12, kill_patience_s=120
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
    http: httpx.AsyncClient
    size: Size
    figures: Figures = field(default_factory=Figures)

    def client(self, number: int = 0) -> Client:
        """Return the client of one of the servers."""
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


async def run(trial: Trial, *, kills: bool) -> Figures:
    """Run all scenarios; those that fail have a reason instead of figures.

    Raises:
        WrongAnswerError, httpx.HTTPError, TimeoutError: the system does not pass `check`.
    """
    await check(trial)
    chosen = {name: scenario for name, scenario in SCENARIOS.items() if kills or name != "kills"}
    for name, scenario in chosen.items():
        try:
            await scenario(trial)
        except (WrongAnswerError, httpx.HTTPError, TimeoutError) as error:
            trial.figures.missing[name] = f"{type(error).__name__}: {error}"[:200]
    return trial.figures


def asked(**load: float) -> str:
    """Return a message for the agent."""
    return json.dumps(load)


def ensure(holds: bool, what: str) -> None:  # noqa: FBT001 - an assertion
    """Raise WrongAnswerError unless `holds`."""
    if not holds:
        raise WrongAnswerError(what)


async def check(trial: Trial) -> None:
    """Stream a short task: every chunk once and in order, then the end."""
    numbers, last = await _streamed(trial.client(), asked(chunks=5, gap_s=0.05))
    ensure(numbers == list(range(5)), f"chunks came as {numbers}")
    ensure(last == "completed", f"a stream ended in {last}")


async def _streamed(client: Client, text: str) -> tuple[list[int], str]:
    numbers, last = [], ""
    async with client.stream(text) as events:
        async for event in events:
            last = event.state or last
            if event.kind == "artifact":
                numbers += _numbers(event)
            if last in ENDED:
                break
    return numbers, last


def _numbers(event: Event) -> list[int]:
    return [int(text.split()[0]) for text in event.texts]


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
            first_ns = 0
            async for event in events:
                first_ns = first_ns or event.at_ns
                if event.state in ENDED:
                    break
        ensure(bool(first_ns), "a stream had no event")
        trial.add("first byte", (first_ns - began) / MS)


async def throughput(trial: Trial) -> None:
    """Complete many tasks, several at a time."""
    size, client = trial.size, trial.client()
    left = iter(range(size.tasks))

    async def sender() -> None:
        for _ in left:
            answer = await client.send(asked())
            ensure(answer.state == "completed", f"a task ended in {answer.state}")

    began = time.monotonic()
    await asyncio.gather(*(sender() for _ in range(size.senders)))
    trial.add("tasks a second", size.tasks / (time.monotonic() - began))


# -- streams ---------------------------------------------------------------------------------


async def chunks(trial: Trial) -> None:
    """Stream from the first server, and follow at the others, several tasks at once.

    If the agent did not run in the server that sent a chunk, that chunk went to another process.
    """
    size = trial.size
    text = asked(chunks=size.chunks, gap_s=GAP_S)
    seen = await asyncio.gather(*(_followed(trial, text) for _ in range(STREAMS)))
    agents = {task_id: noted[-1][0] for task_id, noted in trial.notes("started").items()}
    for task_id, server, event in (one for followed in seen for one in followed):
        is_same = trial.system.servers[server].process.pid == agents[task_id]
        emitted_ns = int(event.texts[0].split()[1])
        row = "chunk, same process" if is_same else "chunk, another process"
        trial.add(row, (event.at_ns - emitted_ns) / MS)


async def _followed(trial: Trial, text: str) -> list[tuple[str, int, Event]]:
    """Return the task, the server and the event of every chunk that came live."""
    seen: list[tuple[str, int, Event]] = []

    async def follow(task_id: str, server: int) -> None:
        async with trial.client(server).subscribe(task_id) as events:
            async for event in events:
                if event.kind == "artifact":
                    seen.append((task_id, server, event))
                if event.state in ENDED:
                    break

    followers: list[asyncio.Task[None]] = []
    numbers: list[int] = []
    async with trial.client().stream(text) as events:
        async for event in events:
            if not followers:
                others = range(1, len(trial.system.servers))
                followers = [asyncio.create_task(follow(event.task_id, at)) for at in others]
            if event.kind == "artifact":
                numbers += _numbers(event)
                seen.append((event.task_id, 0, event))
            if event.state in ENDED:
                break
    ensure(numbers == list(range(len(numbers))), f"chunks came as {numbers}")
    await asyncio.wait_for(asyncio.gather(*followers), CANCEL_PATIENCE_S)
    return seen


async def long_artifact(trial: Trial) -> None:
    """Stream an artifact of 1,600 chunks that come as quickly as the agent can emit them."""
    before = trial.system.written() if trial.system.written else 0
    began = time.monotonic()
    text = asked(chunks=LONG_CHUNKS, size=LONG_CHUNK_BYTES)
    numbers, last = await _streamed(trial.client(), text)
    ensure(last == "completed", f"the stream ended in {last or 'nothing'}")
    ensure(numbers == list(range(LONG_CHUNKS)), f"{len(numbers)} of {LONG_CHUNKS} chunks came")
    trial.add("1,600 chunks", time.monotonic() - began)
    if trial.system.written:
        trial.add("1,600 chunks, written", (trial.system.written() - before) / 1e6)


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
                first += _numbers(event)
            if len(first) >= total // 3:
                break
    await asyncio.sleep(0.5)
    live: list[int] = []
    held: set[int] = set()
    async with trial.client(len(trial.system.servers) - 1).subscribe(
        task_id, after=after
    ) as events:
        async for event in events:
            if event.kind == "artifact":
                live += _numbers(event)
            elif event.kind == "task":
                held.update(_numbers(event))
            if event.state in ENDED:
                break
    came = {*first, *live, *held}
    trial.add("reconnect, chunks lost", total - len(came))
    # A chunk counts as doubled if an event repeats one that the client already has.
    doubled = len(live) - len(set(live)) + len(set(live) & {*first, *held})
    trial.add("reconnect, chunks doubled", doubled)


# -- lists, cancels, repetitions, kills ------------------------------------------------------


async def lists(trial: Trial) -> None:
    """Get the first page of the tasks that earlier scenarios have left."""
    client = trial.client()
    for row, history in (("page with history", True), ("page without history", False)):
        for _ in range(10):
            began = time.monotonic_ns()
            shown = await client.page(history=history)
            trial.add(row, (time.monotonic_ns() - began) / MS)
            ensure(shown == 50, f"a page has {shown} tasks")  # noqa: PLR2004 - as it was asked


async def cancels(trial: Trial) -> None:
    """Cancel agents that emit and agents that are silent; measure the time until they notice."""
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
    canceling = asyncio.create_task(client.cancel(task_id))
    heard_ns = await _noted(trial, "heard", task_id)
    trial.add(row, (heard_ns - began_ns) / NS)
    await canceling
    trial.add("cancel, answered", (time.monotonic_ns() - began_ns) / NS)


async def _noted(trial: Trial, what: str, task_id: str) -> int:
    """Wait until an agent has noted `what` about a task; return the time of that note."""
    async with asyncio.timeout(CANCEL_PATIENCE_S):
        while not (found := trial.notes(what).get(task_id)):  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.02)
    return found[-1][1]


async def duplicates(trial: Trial) -> None:
    """Send each of five messages twice, like a client without an answer; count the starts."""
    client = trial.client()
    tasks: set[str] = set()
    for _ in range(5):
        ids = {"messageId": uuid.uuid4().hex, "contextId": uuid.uuid4().hex}
        for _ in range(2):
            tasks.add((await client.send(asked(), waits=False, ids=ids)).task_id)
    for task_id in tasks:
        await _noted(trial, "started", task_id)
    started = trial.notes("started")
    trial.add("starts for a message sent twice", sum(len(started[task]) for task in tasks) / 5)


async def kills(trial: Trial) -> None:
    """Kill a process while its agents run; count the tasks that complete, and measure the time."""
    ensure(len(trial.system.victims) > 1, "one process does everything: with it all is lost")
    count = trial.size.victims
    servers = len(trial.system.servers)
    load = asked(silence_s=KILLED_TASK_S)
    sent = [await trial.client(n % servers).send(load, waits=False) for n in range(count)]
    tasks = [task.task_id for task in sent]
    for task_id in tasks:
        await _noted(trial, "started", task_id)
    victim = trial.system.victims[-1].process
    victim.kill()
    killed_at = time.monotonic()
    hit = [task for task in tasks if trial.notes("started")[task][-1][0] == victim.pid]
    ensure(bool(hit), "the killed process ran no agent")
    left = set(hit)
    while left and time.monotonic() - killed_at < trial.size.kill_patience_s:
        await asyncio.sleep(POLL_S)
        states = {task: (await trial.client().get(task)).state for task in left}
        left = {task for task in left if states[task] not in ENDED}
    if not left:
        trial.add("recovery after a kill", time.monotonic() - killed_at)
    trial.add("killed tasks, finished", 100 * (len(hit) - len(left)) / len(hit))


Scenario = Callable[[Trial], Awaitable[None]]

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "echo": echo,
    "first byte": first_byte,
    "throughput": throughput,
    "chunks": chunks,
    "1,600 chunks": long_artifact,
    "lists": lists,
    "cancels": cancels,
    "duplicates": duplicates,
    "reconnect": reconnect,
    "kills": kills,
}
