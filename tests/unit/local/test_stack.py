"""`api`, `worker`, `sweep` and `push` in one process, on one file; and the rounds of `sweep`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import httpx
import pytest
from pydantic import SecretStr

from a2a_serverless import aws
from a2a_serverless.queues.fifo import FifoQueue, Handle
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Write
from a2a_serverless.tasks.head import Operation, OperationParams
from a2a_serverless.wiring import aws_backends, memory_backends
from a2a_serverless.worker import heartbeat
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.heartbeat import Heartbeat
from a2a_serverless_tools.local.background import Background
from a2a_serverless_tools.local.stack import (
    GATEWAY_HEADER_BYTES,
    Options,
    Stack,
    _Places,
    _Worker,
)
from a2a_serverless_tools.local.sweeping import SqsDeadLetterSource, SweepRounds
from tests.support.a2a_calls import Caller
from tests.support.clocks import ManualClock
from tests.support.commits import FAILED, claim, opened
from tests.support.present import present
from tests.support.simulation.simulated_aws import simulated_aws

T = TypeVar("T")

ROOT = Path(__file__).parents[3]
AGENT = f"{ROOT / 'functions' / 'worker' / 'agent.py'}:agent"
CARD = ROOT / "functions" / "api" / "agent_card.json"
KEY = "a-key-of-twenty-characters"
FOREIGN = {"Origin": "https://elsewhere.example"}


@pytest.mark.parametrize("auth", ["none", "api-key"])
def test_pages_are_refused_where_callers_are_not_known(auth: str) -> None:
    """Another origin's page gets 403 without keys; long headers are refused as when deployed."""
    settings = Settings.model_validate({"auth": auth, "api_keys": SecretStr(f"ann={KEY}")})
    options = Options(agent=AGENT, card=CARD)
    with Stack(settings, options) as stack, httpx.Client(trust_env=False, timeout=60) as http:
        headers = {"A2A-Version": "1.0", "X-API-Key": KEY}
        assert http.get(f"{stack.url}/tasks", headers=headers).status_code == 200
        foreign = http.get(f"{stack.url}/tasks", headers=headers | FOREIGN)
        long = {"X-Long": "x" * GATEWAY_HEADER_BYTES}
        assert http.get(f"{stack.url}/tasks", headers=headers | long).status_code == 431
    assert foreign.status_code == (403 if auth == "none" else 200)


def test_a_turn_whose_thread_has_ended_frees_its_place() -> None:
    """A turn that cannot begin leaves its place to the next one; its delivery comes back."""

    async def no_turn(*_: object) -> None: ...

    async def begun() -> None:
        places = _Places([worker], 1, no_turn)
        assert places.take()
        places.begin(cast("Handle[Operation]", SimpleNamespace()))
        assert places.take()

    with Background("ended") as thread:
        heard = SimpleNamespace(heartbeat=SimpleNamespace(is_blocked=False))
        worker = _Worker(cast("WorkerAdapter", heard), thread)
    asyncio.run(begun())


AGENT_OF = """
import asyncio, time
from pathlib import Path
from a2a_serverless.worker import TaskContext, Worker

class Agent(Worker):
    def __init__(self):
        self._met = asyncio.Barrier(3)

    async def handle(self, ctx: TaskContext) -> None:
        match ctx.user_text:
            case "ask":
                await ctx.request_input("What?")
            case "meet two others":
                await self._met.wait()
            case "meet five others":
                Path(f"FOLDER/{ctx.task_id}.met").touch()
                while len([*Path("FOLDER").glob("*.met")]) < 6:
                    await asyncio.sleep(0.01)
            case "block":
                while not Path("FOLDER/gate").exists():
                    time.sleep(0.02)
        if ctx.user_text != "ask":
            await ctx.complete("Done.")
"""


@contextmanager
def stacked(
    folder: Path, concurrency: int, turns: int = 0, **settings: Any
) -> Iterator[tuple[Stack, Caller]]:
    """A stack of an agent that does what its message says, and its caller."""
    source = folder / "agent.py"
    source.write_text(AGENT_OF.replace("FOLDER", str(folder)))
    options = Options(agent=f"{source}:Agent", card=CARD, concurrency=concurrency, turns=turns)
    deployed = Settings(**{"auth": "none"} | settings)
    with Stack(deployed, options) as stack, Caller(stack.url) as caller:
        yield stack, caller


def test_turns_share_a_local_worker(tmp_path: Path) -> None:
    """One worker runs as many turns at a time as a deployed one."""
    with stacked(tmp_path, 1, worker_turns=5, turn_limit_s=60) as (_, caller):
        for task in [caller.send("meet two others", waits=False) for _ in range(3)]:
            caller.until("COMPLETED", task["id"])


def test_more_turns_than_threads_run_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They share the agents that were loaded at the start; the queue is not looked at for them."""
    looks, receive = list[int](), TableQueue._receive

    def noted(queue: TableQueue[Any], limit: int) -> Any:
        looks.append(limit)
        return receive(queue, limit)

    with stacked(tmp_path, 2, turns=16) as (_, caller):
        for task in [caller.send("meet five others", waits=False) for _ in range(6)]:
            caller.until("COMPLETED", task["id"])
        monkeypatch.setattr(TableQueue, "_receive", noted)
        for _ in range(6):
            caller.send()
        assert len(looks) <= 1  # it is looked at now and then


def test_a_turn_that_breaks_its_process_costs_no_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Its error is logged, and later turns run."""

    async def breaks(*_: Any, **__: Any) -> bool:
        raise RuntimeError

    def has_failed(times: int) -> bool:
        return [line.message for line in caplog.records].count("A turn has failed") == times

    with stacked(tmp_path, 2) as (_, caller):
        with monkeypatch.context() as patch:
            patch.setattr(WorkerAdapter, "process", breaks)
            for number in (1, 2, 3):
                caller.send(waits=False)
                until(partial(has_failed, number))
        assert caller.send()["status"]["state"] == "TASK_STATE_COMPLETED"


def test_a_turn_is_two_transactions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its operation is sent and received with its message, and acknowledged with its task's end.

    That of a question is acknowledged behind it. Where no worker waits, an operation is sent and
    received by two transactions of its own.
    """
    writes = list[str]()
    write = SqliteTable._write

    def counted(table: SqliteTable, wanted: Sequence[Write]) -> None:
        kinds = {each.key.SK.partition("#")[0] for each in wanted} & {"GROUP", "HEAD"}
        writes.append("+".join(sorted(kinds)))
        write(table, wanted)

    def written(*, reserves: bool, **fields: Any) -> tuple[str, list[str]]:
        """The task of a message, and what the transactions of its turn have written."""
        queue = stack.backends.operations
        assert isinstance(queue, TableQueue)
        reserve, is_done = queue.reserve, lambda: asyncio.run(queue.waiting()) == []
        with monkeypatch.context() as patch:
            waiting = partial(until, partial(reserve, queue._table)) if reserves else lambda: None
            patch.setattr(queue, "reserve", lambda _: waiting())
            patch.setattr(SqliteTable, "_write", counted)
            task = caller.send(**fields)
            until(is_done)
        seen = [kinds for kinds in writes if kinds]  # what else the process does has none
        writes.clear()
        return task["id"], seen

    # One of the two places is for what comes by the queue.
    with stacked(tmp_path, 2) as (stack, caller):
        caller.send()  # the process tells of itself once a minute
        _, of_task = written(reserves=True)
        assert of_task == ["GROUP+HEAD", "GROUP+HEAD"]
        task_id, of_question = written(reserves=True, text="ask")
        assert of_question == ["GROUP+HEAD", "HEAD", "GROUP"]
        _, of_answer = written(reserves=True, text="this", taskId=task_id)
        assert of_answer == ["GROUP+HEAD", "GROUP+HEAD"]
        _, alone = written(reserves=False)
        assert alone == ["HEAD", "GROUP", "GROUP", "GROUP+HEAD"]


def until(found: Callable[[], T]) -> T:
    """What a function returns once that is true."""
    deadline = time.monotonic() + 30
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return value


def test_an_agent_that_blocks_holds_up_no_other_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No turn begins in its thread, however many run, and however they come."""
    beats = list[Heartbeat]()

    def beating() -> Heartbeat:
        beats.append(Heartbeat())
        return beats[-1]

    monkeypatch.setattr(heartbeat, "BLOCKED_S", 0.05)
    monkeypatch.setattr("a2a_serverless_tools.local.stack.Heartbeat", beating)
    with stacked(tmp_path, 2, turns=16, blocking_limit_s=20) as (_, caller):
        caller.send("block", waits=False)
        until(lambda: sum(one.is_blocked for one in beats) == 1)
        for task in [caller.send("meet five others", waits=False) for _ in range(6)]:
            caller.until("COMPLETED", task["id"])
        monkeypatch.setattr(TableQueue, "reserve", FifoQueue.reserve)
        for _ in range(3):
            assert caller.send()["status"]["state"] == "TASK_STATE_COMPLETED"
        (tmp_path / "gate").touch()


async def test_round_sends_a_lost_turn_again() -> None:
    """A task whose message was never sent gets one when its due time has passed."""
    clock, settings = ManualClock(), Settings(waiting_s=1)
    backends = memory_backends(settings, clock)
    head = await opened(backends.storage)
    rounds = SweepRounds(backends, settings, None)
    assert not (await rounds.once()).did_something
    clock.advance(2)
    assert str(await rounds.once()).startswith("sent 1, ")
    handle = await anext(aiter(backends.operations.deliveries()))
    assert handle.message.params.task_id == head.task_id


async def test_round_ends_the_tasks_of_dead_letters() -> None:
    """Each is read once: a task without attempts left fails, what is unreadable is kept."""
    with simulated_aws() as names:
        queues = {"queue": names.queue, "undecodable_queue": names.undecodable_queue}
        settings = Settings(table=names.table, **queues)
        backends = aws_backends(settings)
        head = await opened(backends.storage)
        for attempt in range(settings.max_attempts):
            head = await backends.storage.commit(head, claim(f"attempt-{attempt}"))
        operation = Operation.to_run(OperationParams.of(head, head.turn.number))
        for body in ("not an operation", operation.model_dump_json()):
            ids = dict.fromkeys(("MessageGroupId", "MessageDeduplicationId"), body[:10])
            queue = names.dead_letter_queue
            aws.client("sqs").send_message(QueueUrl=queue, MessageBody=body, **ids)
        source = SqsDeadLetterSource(names.dead_letter_queue, wait_s=0)
        rounds = [await SweepRounds(backends, settings, source).once() for _ in range(2)]
        task = present(await backends.storage.load_task(head.task_id))
    assert [one.dead_letters for one in rounds] == [2, 0]
    assert task.status.state == FAILED
