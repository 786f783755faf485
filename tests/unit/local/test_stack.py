"""`api`, `worker`, `sweep` and `push` in one process, on one file; and the rounds of `sweep`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from pydantic import SecretStr

from a2a_serverless import aws
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Write
from a2a_serverless.tasks.head import Operation, OperationParams
from a2a_serverless.wiring import aws_backends, memory_backends
from a2a_serverless_tools.local.stack import GATEWAY_HEADER_BYTES, Options, Stack
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
            case "block":
                while not Path("GATE").exists():
                    time.sleep(0.02)
        if ctx.user_text != "ask":
            await ctx.complete("Done.")
"""


@contextmanager
def stacked(folder: Path, concurrency: int, **settings: Any) -> Iterator[tuple[Stack, Caller]]:
    """A stack of an agent that does what its message says, and its caller."""
    source = folder / "agent.py"
    source.write_text(AGENT_OF.replace("GATE", str(folder / "gate")))
    options = Options(agent=f"{source}:Agent", card=CARD, concurrency=concurrency)
    deployed = Settings(**{"auth": "none"} | settings)
    with Stack(deployed, options) as stack, Caller(stack.url) as caller:
        yield stack, caller


def test_turns_share_a_local_worker(tmp_path: Path) -> None:
    """One worker runs as many turns at a time as a deployed one."""
    with stacked(tmp_path, 1, worker_turns=5, turn_limit_s=60) as (_, caller):
        for task in [caller.send("meet two others", waits=False) for _ in range(3)]:
            caller.until("COMPLETED", task["id"])


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

    with stacked(tmp_path, 1) as (stack, caller):
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


def test_an_agent_that_blocks_holds_up_no_other_turn(tmp_path: Path) -> None:
    """Each worker has a thread, and an instance of the agent."""
    with stacked(tmp_path, 2, blocking_limit_s=20) as (_, caller):
        caller.send("block", waits=False)
        assert caller.send("quick")["status"]["state"] == "TASK_STATE_COMPLETED"
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
