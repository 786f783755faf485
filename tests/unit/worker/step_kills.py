"""Random kills of a worker, at its requests to the table and in its steps.

`python -m tests.unit.worker.step_kills SEEDS [file|dynamodb]` prints what many runs have met.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2a.types import TaskArtifactUpdateEvent

from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.entries import Recorded, StepId
from a2a_serverless.tasks.fold import Fold, Log, events_of
from a2a_serverless.wiring import Backends, table_backends
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless_tools.testing.clock import PacedClock
from tests.support.databases import Database, create_table, emulator_client
from tests.support.emulators import dynamodb_local
from tests.support.workers import Bench, artifact_texts

BRANCHES = ("lisbon", "porto", "faro")
ROUNDS = 2
CHUNKS = 3
SLEEP_S = 7200.0


class Fate:
    """Decides where the process dies; a dead process never goes on."""

    def __init__(self, seed: int, share: float) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a seeded schedule
        self.share = share
        self.is_armed = False
        self.kills = 0

    async def may_end(self) -> None:
        """Let the process die here, sometimes."""
        if self.is_armed and self.chance.random() < self.share:
            self.kills += 1
            asyncio.get_running_loop().stop()
            await asyncio.get_running_loop().create_future()


def make_mortal(table: Table, fate: Fate) -> None:
    """Let the process die before and after requests to a table, which may be done or not then."""

    def around(request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(request)
        async def made(*args: Any, **options: Any) -> Any:
            await fate.may_end()
            answer = await request(*args, **options)
            await fate.may_end()
            return answer

        return made

    for name in ("load", "write"):
        setattr(table, name, around(getattr(table, name)))


@dataclass
class Trip(Worker):
    """Three branches that stream at once, each in steps; a sleep; what is said beside them."""

    fate: Fate
    calls: Counter[StepId] = field(default_factory=Counter)
    recorded: set[StepId] = field(default_factory=set)
    """The records that stood when the attempt was begun."""

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.send_status("begun")
        await ctx.emit_text_artifact("plan: ", "plan")
        for number in range(ROUNDS):
            await ctx.gather(*(self._branch(ctx, city, number) for city in BRANCHES))
            await ctx.sleep(0)
            await ctx.emit_text_artifact(f"round {number}; ", "plan", append=True)
            await self.fate.may_end()
            if number == 0:
                await ctx.sleep(SLEEP_S)
        total = await ctx.step("total", self._total, ctx)
        await ctx.complete(f"{total} answers")

    async def _branch(self, ctx: TaskContext, city: str, number: int) -> None:
        said = await ctx.step("ask", self._ask, ctx, city, number, key=city)
        assert said == f"{city}{number}"
        await ctx.sleep(0)
        await ctx.sleep(0, key=city)

    async def _ask(self, ctx: TaskContext, city: str, number: int) -> str:
        self._note(StepId("ask", city, number + 1))
        for chunk in range(CHUNKS):
            await ctx.emit_text_artifact(f"[{number}.{chunk}]", city, append=True)
            for _ in range(self.fate.chance.randrange(12)):
                await asyncio.sleep(0)
            await self.fate.may_end()
        return f"{city}{number}"

    def _total(self, ctx: TaskContext) -> int:
        self._note(StepId("total", "", 1))
        return len(ctx.user_text)

    def _note(self, step_id: StepId) -> None:
        self.calls[step_id] += 1
        assert step_id not in self.recorded, f"{step_id} has run again though it was recorded"


EXPECTED = {
    "plan": "plan: " + "".join(f"round {number}; " for number in range(ROUNDS)),
    **{
        city: "".join(f"[{r}.{c}]" for r in range(ROUNDS) for c in range(CHUNKS))
        for city in BRANCHES
    },
    "final-answer": "5 answers",
}


@dataclass(kw_only=True)
class Outcome:
    """What one task has come across."""

    starts: int
    kills: int
    restarts: int
    calls: Counter[StepId]
    artifacts: dict[str, str]
    seen: dict[str, str]
    """The artifacts as a client has them that applies each event."""
    resends: int


def run(seed: int, table: Table, clock: PacedClock, *, share: float = 0.08) -> Outcome:
    """Run one task to its end, with a kill at each point with a probability of `share`."""
    fate = Fate(seed, share)
    settings = Settings(max_attempts=100, retry_base_s=0.001, visibility_s=60)
    make_mortal(table, fate)
    backends = table_backends(settings, table, clock)
    trip = Trip(fate)
    return _run(backends, settings, clock, fate, trip)


def _run(
    backends: Backends, settings: Settings, clock: PacedClock, fate: Fate, trip: Trip
) -> Outcome:
    def bench() -> Bench:
        options = {name: getattr(settings, name) for name in ("max_attempts", "retry_base_s")}
        return Bench(WorkerExecutor(trip), clock=clock, backends=backends, **options)

    task, starts = _alive(bench().send()), 0
    for _ in range(1000):
        worker = bench()
        log = _alive(worker.storage_of(task).read(task.task_id))
        assert log is not None
        if log.head.is_terminal:
            return _outcome(log, trip, starts, fate)
        trip.recorded = {e.id for r in log.replayed() for e in r.entries if isinstance(e, Recorded)}
        handles = _alive(worker.operations.pull(1, 0))
        if not handles:
            _alive(_passed(backends, clock))
            continue
        starts += 1
        fate.is_armed = True
        _mortal(worker.adapter.process(handles[0]))
        fate.is_armed = False
    raise AssertionError("the task does not come to an end")


async def _passed(backends: Backends, clock: PacedClock) -> None:
    """Let a minute pass, in which messages become visible; sweep."""
    clock.forget_sleepers()
    await clock.pass_time(61)
    await Sweeper(backends.storage, backends.operations, clock=clock).sweep()


_dead: list[object] = []
"""What is left of dead processes: collected, their tasks would run their `finally` blocks."""


def _alive(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def _mortal(work: Awaitable[Any]) -> None:
    """Run `work` in a process of its own, which may die."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work)
    except RuntimeError as error:
        if "stopped before" not in str(error):
            raise
    _dead.append((loop, asyncio.all_tasks(loop)))


def shown(log: Log) -> dict[str, str]:
    """The texts of the artifacts as a client has them that applies each event."""
    fold, seen = Fold(log.head.task_id, log.head.context_id), dict[str, str]()
    for record in log.records:
        fold.add(record)
        for event in events_of(record, fold):
            if isinstance(event, TaskArtifactUpdateEvent):
                text = "".join(part.text for part in event.artifact.parts)
                before = seen.get(event.artifact.artifact_id, "") if event.append else ""
                seen[event.artifact.artifact_id] = before + text
    return seen


def _outcome(log: Log, trip: Trip, starts: int, fate: Fate) -> Outcome:
    entries = [type(entry).__name__ for record in log.records for entry in record.entries]
    texts = artifact_texts(log.fold().task())
    return Outcome(
        starts=starts,
        kills=fate.kills,
        restarts=entries.count("Restarted"),
        calls=trip.calls,
        artifacts={name: "".join(parts) for name, parts in texts.items()},
        seen=shown(log),
        resends=log.head.turn.resends,
    )


@contextmanager
def tables(kind: str, folder: Path) -> Iterator[Callable[[PacedClock], Table]]:
    """Yield what makes fresh tables of a kind."""
    numbers = iter(range(1_000_000))
    match kind:
        case "memory":
            yield lambda _: MemoryTable(INDEXES)
        case "file":
            yield lambda _: SqliteTable(folder / f"table{next(numbers)}", INDEXES)
        case "dynamodb":
            with dynamodb_local() as emulator, closing(emulator_client(emulator)) as client:
                yield functools.partial(fresh, client, numbers)


def fresh(client: Any, numbers: Iterator[int], clock: PacedClock) -> Table:
    """A table of its own on DynamoDB."""
    name = f"kills{next(numbers)}"
    create_table(client, name)
    return Database(client=client, table=name).opened(clock=clock)


def main(seeds: int, kind: str = "memory") -> None:
    """Print the sums of many runs."""
    logging.disable()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, tables(kind, Path(folder)) as made:
        for seed in range(seeds):
            clock = PacedClock()
            _add(total, seed, run(seed, made(clock), clock))
    sys.stdout.write(f"{dict(total)}\n")
    sys.stdout.flush()
    os._exit(0)  # what is left of the dead processes is not ended


def _add(total: Counter[str], seed: int, outcome: Outcome) -> None:
    assert outcome.artifacts == EXPECTED, (seed, outcome.artifacts)
    assert outcome.seen == EXPECTED, (seed, outcome.seen)
    total["kills"] += outcome.kills
    total["starts"] += outcome.starts
    total["restarts"] += outcome.restarts
    total["steps"] += len(outcome.calls)
    total["calls"] += outcome.calls.total()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
