"""A small deployment on one file, whose processes are killed at random moments, or at points."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pytest
from a2a.types import Task, TaskState

from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, newest_heads
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.wiring import Backends, open_backends
from tests.faults import processes, traps
from tests.faults.agent import BRANCHES
from tests.faults.clients import Patient
from tests.faults.harness import ARTIFACT, IS_LONG, SHORT, check_log, command_of, until
from tests.faults.ledger import VARIABLE, Ledger
from tests.faults.processes import Running
from tests.faults.report import Record
from tests.support.messages import texts
from tests.unit.push.receivers import Receiver

TASKS: Final = 2000 if IS_LONG else 12
KILLS_LEFT: Final = 60 if IS_LONG else 4
"""Kills that are made at least, also if all tasks have ended."""
CHUNKS: Final = 8
PLAIN: Final = f"steps {CHUNKS} 0.02"
MIX: Final = (
    PLAIN,
    f"{PLAIN} 0.5",  # tried again, one of them asleep
    f"steps {CHUNKS} 0.25",  # handed over: it takes longer than `LIMIT_S`
    f"steps {CHUNKS} 0.1",  # canceled meanwhile
    f"{PLAIN} 0.5",  # canceled meanwhile
)
"""What the tasks do, by their numbers."""
CANCELED: Final = {3, 4}
LIMIT_S: Final = 2
"""Seconds that one process may work on a turn."""
SENDERS: Final = 12
WITHIN_S: Final = 1800 if IS_LONG else 150

APART: Final = ("api", "worker 1", "worker 2", "sweep", "push")
TOGETHER: Final = ("serve",)


@dataclass
class Deployment:
    """The processes on one file; each one that is killed is started again."""

    folder: Path
    table: str
    http: httpx.AsyncClient
    running: dict[str, Running] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    starts: int = 0

    async def start(self, name: str, point: str = "") -> None:
        """Start a process, which dies at `point` where one is named; return when it has started."""
        kind = name.split(maxsplit=1)[0]
        variables = {
            **SHORT,
            "A2A_MAX_ATTEMPTS": "100",
            "A2A_TABLE": self.table,
            "A2A_AUTH": "none",
            "A2A_PUSH_QUEUE": "push",
            "A2A_PUSH_ALLOWED_HOSTS": "127.0.0.1",
            "A2A_PUSH_RETRY_BASE_S": "0.2",
            "A2A_WEBHOOKS_PER_CALLER": "0",
            "A2A_TURN_LIMIT_S": str(LIMIT_S),
            processes.PARK: "1",
            processes.PUSH_HIDDEN: "10",
            VARIABLE: str(self.folder / "ledger"),
            traps.POINT_VARIABLE: point,
        }
        self.starts += 1
        output = self.folder / f"{name.replace(' ', '-')}-{self.starts}.log"
        arguments, ready = command_of(kind, 4)
        if kind == "serve":
            arguments += ["--file", self.table.removeprefix("file:")]
        started = processes.start(name, arguments, variables, output)
        self.running[name] = started
        said = await started.says(ready)
        if kind in {"api", "serve"}:
            self.http.base_url = httpx.URL(said)

    async def kill(self, name: str) -> None:
        """Let a process die as by a crash, and start the next one."""
        victim = self.running[name]
        victim.process.kill()
        await victim.ended()
        self.killed[name] += 1
        await self.start(name)

    async def close(self) -> None:
        await processes.close([*self.running.values()])
        await self.http.aclose()


async def send(client: Patient, number: int, hook: str) -> str:
    """Send a message, and cancel its task if it is one of these; return the task's id."""
    answer = await client.send(MIX[number % len(MIX)], webhook=f"{hook}/{number}")
    task_id = str(answer.task["id"])
    if number % len(MIX) in CANCELED:
        await asyncio.sleep(random.Random(number).uniform(0, 2))  # noqa: S311
        answer = await client.call("CancelTask", {"id": task_id})
        has_ended = answer.reason == "TASK_NOT_CANCELABLE"  # before, or its answer was lost
        # It may be completed, if the agent ends it at that moment.
        assert answer.response.is_success or has_ended, answer
    return task_id


async def have_ended(storage: DurableStorage, tasks: list[str]) -> bool:
    heads = [await storage.head(task_id) for task_id in tasks]
    assert None not in heads, "a task is lost"
    return all(head.is_terminal for head in heads if head)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("kinds", [APART, TOGETHER], ids=["apart", "together"])
@pytest.mark.timeout(2 * WITHIN_S)
async def test_kills_of_all_processes_lose_nothing(
    kinds: tuple[str, ...], tmp_path: Path, record_property: Record
) -> None:
    """Every task ends with each chunk once and is told of; no message is left; the file is whole.

    API, workers, sweep and push die at random times, again and again, and are started again; or
    the one process that is all of them, in which operations go with the commits of tasks. Steps
    are tried again meanwhile, turns sleep and are handed over, and tasks are canceled. A step runs
    again only if the one after it has not begun: it was under way at a kill. No turn that has left
    its process at a record runs a step again.
    """
    path = tmp_path / "tasks.db"
    settings = Settings(table=f"file:{path}", push_queue="push")
    backends = open_backends(settings)
    assert isinstance(backends.storage.table, SqliteTable)
    http = httpx.AsyncClient(trust_env=False, timeout=10)
    deployment = Deployment(tmp_path, settings.table, http)
    with Receiver() as receiver, closing(backends.storage.table):
        try:
            await asyncio.gather(*(deployment.start(name) for name in kinds))
            tasks = await under_kills(deployment, kinds, backends.storage, receiver.url())
            await until(lambda: is_quiet(backends, receiver), "all is told", WITHIN_S)
        finally:
            await deployment.close()
        states = Counter[int]()
        ledger = told_in(tmp_path / "ledger")
        for number, task_id in enumerate(tasks):
            task = await backends.storage.load_task(task_id)
            assert task is not None
            states[task.status.state] += 1
            is_whole = task.status.state == TaskState.TASK_STATE_COMPLETED
            may_be_canceled = number % len(MIX) in CANCELED
            assert is_whole or (may_be_canceled and task.status.state == CANCEL), task
            check_chunks(task, is_whole=is_whole)
            ledger[task_id].check(is_whole=is_whole)
        told = {request.target.rsplit("/", 1)[-1] for request in receiver.requests}
        assert told == {str(number) for number in range(TASKS)}
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    record_property("kills", dict(deployment.killed))
    totals = sum((did.counts for did in ledger.values()), Counter[str]())
    again = sum(did.again for did in ledger.values())
    figures = {"canceled": states[CANCEL], "again": again, **totals}
    record_property("figures", figures)
    print(figures, deployment.killed.total())  # noqa: T201
    if IS_LONG:
        assert min(figures[what] for what in ("canceled", "again", "left", "failed")) > 0, figures


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    ("point", "commits"),
    [("after-create", 1), ("before-ack", 2), ("after-receive", 1), ("after-claim", 2)],
)
async def test_an_echo_survives_its_process(point: str, commits: int, tmp_path: Path) -> None:
    """Killed behind either of its two transactions, it is done once; the client sends again.

    The second has removed the operation, too.
    """
    table = f"file:{tmp_path / 'tasks.db'}"
    backends, http = open_backends(Settings(table=table)), httpx.AsyncClient(trust_env=False)
    deployment, storage = Deployment(tmp_path, table, http), backends.storage
    assert isinstance(storage.table, SqliteTable)
    assert isinstance(backends.operations, TableQueue)
    with closing(storage.table):
        try:
            await deployment.start("serve", f"{point}:1")
            sending = asyncio.create_task(Patient(http).send("chunks 1 0", blocks=True))
            assert await deployment.running["serve"].ended() == -signal.SIGKILL
            (head,), _ = await newest_heads(storage, ListTasksQuery())
            assert head.version == commits
            assert commits == 1 or not await backends.operations.waiting()
            await deployment.start("serve")
            answer = await sending
        finally:
            await deployment.close()
        assert (answer.task["id"], answer.state) == (head.task_id, "COMPLETED")
        assert [each["parts"] for each in answer.task["artifacts"]] == [[{"text": "0"}]]
        log = await storage.read(head.task_id)
        assert log is not None
        check_log(log)
        assert not await backends.operations.waiting()
    assert told_in(tmp_path / "ledger")[head.task_id].counts["started"] == 1


CANCEL: Final = TaskState.TASK_STATE_CANCELED


def check_chunks(task: Task, *, is_whole: bool) -> None:
    """Check that a task has each chunk once, up to the cancel if there was one."""
    chunks = list("".join(texts(task, ARTIFACT)))  # each is a digit
    assert chunks == [str(n) for n in range(CHUNKS if is_whole else len(chunks))], task
    for branch in range(BRANCHES):
        said = texts(task, f"branch {branch}")
        assert said == [str(CHUNKS)] or not (is_whole or said), task
        assert not said or len(chunks) == CHUNKS, task


@dataclass
class Did:
    """What the agent has done on a task."""

    steps: list[int] = field(default_factory=list)
    """The numbers of its steps as they were begun; the branches have one number."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often it has started, left its process at a record, failed in a step, and so on."""

    @property
    def again(self) -> int:
        """How many steps have run again."""
        return len(self.steps) - len({*self.steps} - {CHUNKS}) - self._branches

    @property
    def _branches(self) -> int:
        return min(BRANCHES, self.steps.count(CHUNKS))

    def check(self, *, is_whole: bool) -> None:
        """Check that steps have run in order, and again only after a start that was cut off."""
        # A step begins when the record of the one before it is stored.
        assert self.steps == sorted(self.steps), self
        assert {*self.steps} == set(range(max(self.steps, default=-1) + 1)), self
        assert not is_whole or (max(self.steps), self._branches) == (CHUNKS, BRANCHES), self
        cut_off = self.counts["started"] - self.counts["left"] - is_whole
        assert self.again <= BRANCHES * cut_off, self


def told_in(ledger: Path) -> dict[str, Did]:
    """What the agent has done, by the tasks' ids."""
    found = defaultdict[str, Did](Did)
    for entry in Ledger(ledger).entries():
        what, _, number = entry.what.partition(" ")
        if what == "step":
            found[entry.task_id].steps.append(int(number))
        found[entry.task_id].counts[what] += 1
    return found


async def under_kills(
    deployment: Deployment, kinds: Sequence[str], storage: DurableStorage, hook: str
) -> list[str]:
    """Return the tasks, which have ended while processes were killed."""
    places, chance = asyncio.Semaphore(SENDERS), random.Random(1)  # noqa: S311

    async def one(number: int) -> str:
        async with places:
            return await send(client, number, hook)

    async def kill() -> None:
        while not ended.is_set() or deployment.killed.total() < KILLS_LEFT:
            # Where all parts die at once, nothing goes on meanwhile.
            await asyncio.sleep(chance.uniform(0.05, 1.0 if len(kinds) > 1 else 5.0))
            await deployment.kill(chance.choice(kinds))

    ended, client = asyncio.Event(), Patient(deployment.http)
    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        tasks = await asyncio.gather(*(one(number) for number in range(TASKS)))
        await until(lambda: have_ended(storage, tasks), "all tasks end", WITHIN_S)
        ended.set()
    assert len(set(tasks)) == TASKS
    return list(tasks)


async def is_quiet(backends: Backends, receiver: Receiver) -> bool:
    """Whether every operation is done, and the end of each task was told."""
    for queue in (backends.operations, backends.dead_letters, backends.pushing().jobs):
        assert isinstance(queue, TableQueue)
        if await queue.waiting():
            return False
    return len({request.target for request in receiver.requests}) == TASKS
