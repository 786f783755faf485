"""Operators' commands on many tasks, which die at random times and are run again."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from a2a.types import TaskState

from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import task_partition
from a2a_serverless.storage.listing import ListTasksQuery, newest_heads
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Range
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import open_backends
from a2a_serverless_tools.operate.acts import ACTS, AT_ONCE, Act, retry_id
from a2a_serverless_tools.operate.journal import newest
from tests.faults import processes
from tests.faults.harness import AGENT, IS_LONG, SETTLE_S, SHORT, until
from tests.faults.ledger import VARIABLE
from tests.faults.processes import Running
from tests.faults.report import Record
from tests.faults.traps import WRITE_VARIABLE
from tests.faults.webhooks import SETTINGS
from tests.support.commits import failed_task
from tests.support.messages import request
from tests.unit.push.receivers import Receiver

TASKS: Final = 50 if IS_LONG else 30
KILLS: Final = 12 if IS_LONG else 4
"""Kills that a command is made to survive, if it does not end before."""
WITHIN_S: Final = 300 if IS_LONG else SETTLE_S
OWNER: Final = Scope.of("", "ann")
ANN: Final = Caller(user="ann")
WRITES: Final = 2 * AT_ONCE
"""Writes of a run until it dies, at most: an act on a task takes three."""
OPEN: Final[tuple[Act, ...]] = ("cancel", "resend")
DONE: Final[dict[Act, str]] = {
    "cancel": "The task is canceled.",
    "resend": "Its turn is due",
    "retry": "It is tried again as ",
    "redeliver": "Its webhook is told again",
    "delete": "The task is deleted.",
}
"""How the outcome of each act that was done begins."""
LATE: Final = "It was cut off, and finished later."
MUST_KILL: Final = 2
"""Of fewer kills a run has shown nothing."""


@dataclass
class Desk:
    """Tasks of one owner, and the processes of an operator who acts on them."""

    storage: DurableStorage
    variables: dict[str, str]
    folder: Path
    chance: random.Random
    running: list[Running] = field(default_factory=list)
    kills: int = 0

    def start(self, *arguments: str, **variables: str) -> Running:
        """Start a process of the deployment, or a command."""
        name = f"{arguments[0]}-{len(self.running)}"
        output = self.folder / f"{name}.log"
        started = processes.start(name, list(arguments), self.variables | variables, output)
        self.running.append(started)
        return started

    async def made(self, act: Act, url: str) -> dict[str, Head]:
        """The tasks that an act fits, by their ids."""

        async def one(task_id: str) -> Head:
            if act not in OPEN:
                how: Any = {"url": f"{url}/{task_id}", "caller": ANN, "text": "chunks 2 0"}
                return await failed_task(self.storage, task_id, **how)
            said = request("chunks 2 0")
            return (await self.storage.open_task("talk", said, task_id=task_id, caller=ANN)).head

        heads = [await one(f"t-{number}") for number in range(TASKS)]
        return {head.task_id: head for head in heads}

    async def act(self, act: Act) -> None:
        """Run the command until it has done all; let it die at random writes before."""
        while True:
            at = {WRITE_VARIABLE: str(self.chance.randint(1, WRITES))} if self.kills < KILLS else {}
            command = self.start("tasks", act, "--user", "ann", "--yes", **at)
            code = await command.ended(SETTLE_S)
            if at and code == -9:
                self.kills += 1
                continue
            assert code == 0, command.said()
            assert "Failed" not in command.said()
            return

    async def heads(self) -> dict[str, Head]:
        """The tasks that exist, by their ids; each act leaves at most one more of each."""
        found, token = await newest_heads(self.storage, ListTasksQuery(page_size=2 * TASKS))
        assert not token
        return {head.task_id: head for head in found}

    async def all_are(self, state: TaskState, wanted: Collection[str]) -> dict[str, Head]:
        """The tasks of these ids, once they have a state; those that no worker sees get one."""

        async def found() -> dict[str, Head] | None:
            heads = await asyncio.gather(*map(self.storage.head, wanted))
            known = {head.task_id: head for head in heads if head is not None}
            assert known.keys() == set(wanted)
            return known if {head.state for head in known.values()} == {state} else None

        heads: dict[str, Head] = await until(found, f"all are {state}", WITHIN_S)
        return heads

    async def close(self) -> None:
        await processes.close(self.running)


@pytest.fixture
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    variables = {
        **SHORT,
        **SETTINGS,
        "A2A_AUTH": "none",
        "A2A_CANCEL_TIMEOUT_S": "0.1",
        "A2A_MAX_ATTEMPTS": "1",
        "A2A_TABLE": f"file:{tmp_path / 'tasks.db'}",
        "A2A_PUSH_QUEUE": "push",
        VARIABLE: str(tmp_path / "ledger"),
    }
    chance = random.Random(f"{request.node.name} {os.getpid()}")  # noqa: S311 - a kill's time
    storage = open_backends(Settings(table=variables["A2A_TABLE"])).storage
    assert isinstance(storage.table, SqliteTable)
    with closing(storage.table):
        one = Desk(storage.for_scope(OWNER), variables, tmp_path, chance)
        yield one
        await one.close()


@pytest.mark.long(but=1)
@pytest.mark.timeout(1200 if IS_LONG else 300)
@pytest.mark.parametrize("act", ACTS)
async def test_a_killed_act_is_done_once(desk: Desk, act: Act, record_property: Record) -> None:
    """Run again until it ends, it has acted on each task once, and nothing is lost."""
    with Receiver() as receiver:
        made = await desk.made(act, receiver.url())
        await desk.act(act)
        await EFFECTS[act](desk, made, receiver)
    assert desk.kills >= MUST_KILL
    begun, done, late = Counter[str](), Counter[str](), Counter[str]()
    for entry in await newest(desk.storage, limit=100_000):
        assert (entry.act, entry.scope) == (act, OWNER.digest)
        assert entry.task_id in made
        if not entry.outcome:
            begun[entry.task_id] += 1
            continue
        assert entry.outcome.startswith((DONE[act], LATE)), entry
        assert entry.at <= (entry.ended_at or 0)
        (late if entry.outcome == LATE else done)[entry.task_id] += 1
    assert (begun + done + late).keys() == made.keys()
    assert begun.total() <= desk.kills * AT_ONCE
    assert act == "resend" or max(done.values()) == 1
    record_property("kills", {"killed": desk.kills, "cut off": begun.total()})


async def canceled(desk: Desk, made: Mapping[str, Head], _: Receiver) -> None:
    heads = await desk.heads()
    assert heads.keys() == made.keys()
    for head in heads.values():
        assert head.state == TaskState.TASK_STATE_CANCELED
        assert head.cancel is not None
        assert head.cancel.by.startswith("operator ")


async def completed_once(desk: Desk, wanted: Collection[str]) -> None:
    desk.start("worker", "--agent", AGENT)
    desk.start("sweep")
    heads = await desk.all_are(TaskState.TASK_STATE_COMPLETED, wanted)
    assert {head.turn.attempts for head in heads.values()} == {1}


async def resent(desk: Desk, made: Mapping[str, Head], _: Receiver) -> None:
    await completed_once(desk, made.keys())


async def retried(desk: Desk, made: Mapping[str, Head], _: Receiver) -> None:
    new = {retry_id(head): head for head in made.values()}
    await completed_once(desk, new.keys())
    assert {one: head for one, head in (await desk.heads()).items() if one not in new} == made
    for task_id, old in new.items():
        task = await desk.storage.load_task(task_id)
        assert task is not None
        assert list(task.history[0].reference_task_ids) == [old.task_id]


async def redelivered(desk: Desk, made: Mapping[str, Head], receiver: Receiver) -> None:
    """Each receiver gets all from the first one that was given up, in order and once."""
    desk.start("sweep")
    desk.start("push")

    await until(desk.storage.webhooks.count_open, "all are told", WITHIN_S, is_it=(0).__eq__)
    told = defaultdict[str, list[str]](list)
    for one in receiver.requests:
        told[one.target.rsplit("/", 1)[-1]].append(one.state)
    assert told == {one: ["SUBMITTED", "WORKING", "FAILED"] for one in made}


async def deleted(desk: Desk, made: Mapping[str, Head], _: Receiver) -> None:
    for head in made.values():
        partition = task_partition(head.scope, head.task_id)
        assert await desk.storage.table.all(Range(partition=partition)) == []


EFFECTS: Final[Mapping[Act, Callable[[Desk, Mapping[str, Head], Receiver], Awaitable[None]]]] = {
    "cancel": canceled,
    "resend": resent,
    "retry": retried,
    "redeliver": redelivered,
    "delete": deleted,
}
