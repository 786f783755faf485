"""Random kills of a worker, and of what answers, in code that asks its client between its steps.

`python -m tests.unit.worker.question_kills SEEDS [file|dynamodb]` prints what many runs have met.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2a.types import Part

from a2a_serverless.settings import Settings
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.entries import (
    QUESTION,
    Caller,
    Recorded,
    StatusChanged,
    StepId,
    TurnOpened,
)
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.questions import question_texts
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import table_backends
from a2a_serverless.worker import TaskContext, WaitTimeoutError, Worker
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless_tools.testing.clock import PacedClock
from tests.support.workers import Bench, S, artifact_texts, user_request
from tests.unit.worker.step_kills import Fate, _alive, _mortal, _passed, make_mortal, tables

ANSWERS = {"account": "b", "day": "Friday", "hour": "noon", "people": "4"}


class _Client(Fate):
    """Decides what the client does, too.

    With `at` the process dies once, at that point; without it, at each with the fate's share.
    """

    has_misled = False
    """It has given a wrong answer."""

    def __init__(self, seed: int, share: float, at: int = 0) -> None:
        super().__init__(seed, share)
        self.left = at
        self.points = 0

    async def may_end(self) -> None:
        self.points += self.is_armed
        if self.left == 0:
            await super().may_end()
        elif self.is_armed and self.points == self.left:
            self.share = 1
            await super().may_end()


@dataclass
class Host(Worker):
    """Steps between questions: one, two at once, one of a schema, and one without an answer."""

    fate: Fate
    calls: Counter[StepId] = field(default_factory=Counter)
    recorded: set[StepId] = field(default_factory=set)
    """The records that stood when the attempt was begun."""

    async def handle(self, ctx: TaskContext) -> None:
        assert (ctx.user_text, ctx.history) == ("hello", [])
        await ctx.emit_text_artifact("begun;", "log")
        await ctx.step("plan", self._note, "plan")
        account = await ctx.ask("account", id="account")
        await self._say(ctx, f"account {account.text};")
        await ctx.sleep(90)
        day, hour = await ctx.gather(ctx.ask("day", id="day"), ctx.ask("hour", id="hour"))
        await ctx.step("book", self._note, "book")
        await self._say(ctx, f"on {day.text} at {hour.text};")
        people = await ctx.ask("people", id="people", schema=int)
        await self._say(ctx, f"for {people.data};")
        try:
            await ctx.ask("sure", id="sure", timeout_s=600)
        except WaitTimeoutError:
            await self._say(ctx, "late;")
        await ctx.step("pay", self._note, "pay")
        await ctx.complete("done")

    async def _say(self, ctx: TaskContext, text: str) -> None:
        await ctx.emit_text_artifact(text, "log", append=True)
        await self.fate.may_end()

    async def _note(self, name: str) -> str:
        step_id = StepId(name, "", 1)
        self.calls[step_id] += 1
        assert step_id not in self.recorded, f"{step_id} has run again though it was recorded"
        await self.fate.may_end()
        return name


EXPECTED = {
    "log": "begun;account b;on Friday at noon;for 4;late;",
    "final-answer": "done",
}


def run(
    seed: int, table: Table, clock: PacedClock, *, share: float = 0.06, at: int = 0
) -> Counter[str]:
    """Run one task to its end; return what it has come across.

    The process dies at each point with a probability of `share`; with `at` once, at that one. One
    that answers dies before it has sent the turn in a third of all cases.
    """
    fate = _Client(seed, share, at)
    settings = Settings(max_attempts=100, retry_base_s=0.001, visibility_s=60)
    make_mortal(table, fate)
    backends, host = table_backends(settings, table, clock), Host(fate)
    total: Counter[str] = Counter()

    def bench() -> Bench:
        options = {name: getattr(settings, name) for name in ("max_attempts", "retry_base_s")}
        return Bench(WorkerExecutor(host), clock=clock, backends=backends, **options)

    task = _alive(bench().send())
    for _ in range(2000):
        worker = bench()
        log = _alive(worker.storage_of(task).read(task.task_id))
        assert log is not None
        if log.head.is_terminal:
            return total + _outcome(log, host, fate)
        host.recorded = {e.id for r in log.replayed() for e in r.entries if _is_result(e)}
        handles = _alive(worker.operations.pull(1, 0))
        if handles:
            total["starts"] += 1
            fate.is_armed = True
            _mortal(worker.adapter.process(handles[0]))
            fate.is_armed = False
            continue
        if log.head.turn.asks:
            asked = question_texts(log.fold().status.message.parts)
            answers = {name: ANSWERS[name] for name in asked if name in ANSWERS}
            if answers:
                total["answers"] += 1
                _alive(_answer(worker, log.head, answers, fate))
                continue
        _alive(_passed(backends, clock))
    raise AssertionError("the task does not come to an end")


async def _answer(worker: Bench, task: Head, answers: dict[str, str], fate: _Client) -> None:
    """Answer all that is asked, or a part of it, sometimes wrongly; or die after the commit."""
    chance = fate.chance
    names = [*answers] if chance.random() < 0.5 else [chance.choice([*answers])]
    if names == ["people"] and chance.random() < 0.5 and not fate.has_misled:
        fate.has_misled, answers = True, {"people": "many"}
    parts = [Part(text=answers[name]) for name in names]
    for part, name in zip(parts, names, strict=True):
        part.metadata.update({"questionId": name})
    message, storage = user_request(*parts), worker.storage_of(task)
    if chance.random() < 1 / 3:
        await storage.commit(task, Commit(entries=(TurnOpened(message, Caller()),)))
    else:
        await worker.go_on(task, message, caller=Caller(), scope=worker.storage.scope)


def _is_result(entry: object) -> bool:
    return isinstance(entry, Recorded) and entry.form == "json"


def _outcome(log: Log, host: Host, fate: _Client) -> Counter[str]:
    task, entries = log.fold().task(), [e for record in log.records for e in record.entries]
    texts = {name: "".join(parts) for name, parts in artifact_texts(task).items()}
    assert (log.head.state, texts) == (S.TASK_STATE_COMPLETED, EXPECTED), texts
    questions = [e for e in entries if isinstance(e, Recorded) and e.form == QUESTION]
    asked = [e for e in entries if isinstance(e, StatusChanged) and e.status.message.parts]
    assert len(task.history) == len(asked) + sum(isinstance(e, TurnOpened) for e in entries)
    return Counter(
        kills=fate.kills,
        points=fate.points,
        questions=len(questions),
        steps=len(host.calls),
        calls=host.calls.total(),
        resends=log.head.turn.resends,
    )


def main(seeds: int, kind: str = "memory") -> None:
    """Print the sums of many runs."""
    logging.disable()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, tables(kind, Path(folder)) as made:
        for seed in range(seeds):
            clock = PacedClock()
            found: Any = run(seed, made(clock), clock)
            total += found
    sys.stdout.write(f"{dict(total)}\n")
    sys.stdout.flush()
    os._exit(0)  # what is left of the dead processes is not ended


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
