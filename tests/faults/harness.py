"""A deployment of its own for each run: table, queues, processes, ledger, and a look at the end."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import httpx
from a2a.types import Artifact, Task, TaskState

from a2a_serverless.clock import SystemClock
from a2a_serverless.storage.directory import DirectoryBlobs
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.entries import ArtifactWritten, StatusChanged
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import TERMINAL, Head, Operation, OperationParams
from a2a_serverless.tasks.rules import Commit, Timing
from a2a_serverless_tools.local.provision import Names, provision
from tests.faults import bad_days, functions, processes, traps
from tests.faults.ledger import VARIABLE, Ledger
from tests.faults.processes import Running
from tests.support.a2a_calls import REST, Agent, Answer
from tests.support.databases import dynamo_storage
from tests.support.emulators import Emulator
from tests.support.messages import request, texts

HERE = Path(__file__).parent
AGENT = f"{HERE / 'agent.py'}:agent"
CARD = str(HERE / "card.json")
ARTIFACT = "out"

Is = Callable[[Any], object]

IS_LONG = os.environ.get("A2A_FAULTS") == "long"
"""`make faults`: every kill point 20 times, and the scenarios that take minutes."""

SETTLE_S = 120.0
"""How long anything may take before it counts as stuck; recovery with `SHORT` takes 2 to 7 s."""

SHORT: Mapping[str, str] = {
    "A2A_VISIBILITY_S": "2",
    "A2A_WAITING_S": "2",
    "A2A_CANCEL_TIMEOUT_S": "2",
    "A2A_RETRY_BASE_S": "0.2",
    "A2A_MAX_ATTEMPTS": "5",
    processes.SWEEP_PERIOD: "0.3",
}
"""A dead worker's message comes back after the visibility: 2 s here, 60 s by default.

So a recovery of at most 2 s + the start of the next attempt here is one of 60 s + the same there:
the bound of 90 s leaves 30 s for that start. A turn that was never sent is found by the sweeper's
round after `A2A_WAITING_S`: 2 s + 0.3 s here, 60 s + a minute by default.
"""

SHORT_VISIBILITY_S = 2
"""Of queues whose messages no consumer prolongs; deployed, the function's timeout and 30 s."""


class NotReachedError(AssertionError):
    """A run whose process did not die at its point: it has shown nothing."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How a task stands when everything has come to rest."""

    head: Head
    task: Task
    log: Log

    @property
    def state(self) -> TaskState:
        return self.head.state

    @property
    def chunks(self) -> list[str]:
        """The chunks that count, of which a reader sees the text."""
        artifact = self.log.fold().artifacts.get(ARTIFACT, Artifact())
        chunks = [part.text for part in artifact.parts]
        assert "".join(texts(self.task, ARTIFACT)) == "".join(chunks)
        return chunks

    @property
    def writers(self) -> list[str | None]:
        """The claim under which each commit with a chunk was made, in order."""
        return [
            record.token
            for record in self.log.records
            if any(isinstance(entry, ArtifactWritten) for entry in record.entries)
        ]


def command_of(kind: str, concurrency: int) -> tuple[list[str], str]:
    """The arguments of a process, and what it says when it has started."""
    at_once, url = ["--concurrency", str(concurrency)], r"A2A at (\S+),"
    function = ([functions.NAME], "function works")
    card = ["--card", CARD, "--port", "0"]
    return {
        "api": (["api", *card], url),
        "worker": (["worker", "--agent", AGENT, *at_once], "turns at a time"),
        "function": function,
        "quarantine": function,
        "serve": (["serve", "--agent", AGENT, *card, "--no-console"], url),
        "push": (["push", *at_once], "webhooks at a time"),
        "sweep": (["sweep"], "sweeping"),
        "purge": (["tasks", "purge", "--yes", "--settle", "0"], ""),
    }[kind]


@dataclass
class World:
    """One deployment on the emulators, and what this test did to it."""

    dynamodb: Any
    sqs: Any
    made: Names
    folder: Path
    variables: dict[str, str]
    http: httpx.AsyncClient
    started: list[Running] = field(default_factory=list)
    api: Running | None = None

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / "ledger")
        self.variables[VARIABLE] = str(self.ledger.path)
        self.blobs = self.folder / "blobs"
        timing = Timing(waiting_s=float(self.variables["A2A_WAITING_S"]), cancel_s=1)
        self.storage = dynamo_storage(self.made.table, client=self.dynamodb, timing=timing)
        self.killed_at = 0.0

    # -- processes -----------------------------------------------------------------------------

    async def start(
        self, kind: str, *options: str, point: str = "", concurrency: int = 4, **more: str
    ) -> Running:
        """Start a process, to die at `point` where one is named; return when it has started.

        It is one of `api`, `worker`, `push`, `sweep`, `purge`, or the deployed worker function,
        whose events come from the operations (`function`) or from the quarantine queue
        (`quarantine`).
        `options` are further arguments of its command, `more` variables of its own.
        """
        variables = {**self.variables, **more}
        if point:
            traps.Trap(point)  # a wrong name stops the test, and not its process alone
            variables[traps.POINT_VARIABLE] = point
            variables[traps.MARK_VARIABLE] = str(self._mark(point))
        if kind == "quarantine":
            variables[functions.SOURCE] = "A2A_QUARANTINE_QUEUE"
        arguments, ready = command_of(kind, concurrency)
        name = f"{kind}-{len(self.started)}"
        log = self.folder / f"{name}.log"
        running = processes.start(name, [*arguments, *options], variables, log)
        self.started.append(running)
        # It may reach its point before it says that it is ready.
        said = await running.says(ready, may_end=bool(point))
        bad_days.begin(name, self.variables)
        if kind == "api":
            self.http.base_url = httpx.URL(said)
            self.api = running
        return running

    async def dies(self, victim: Running, point: str, *, within_s: float = SETTLE_S) -> None:
        """Wait until the process died by its own hand at `point`."""
        mark = self._mark(point)
        try:
            code = await victim.ended(within_s)
        except AssertionError as error:
            raise NotReachedError(point) from error
        if code != -9 or not mark.exists():
            msg = f"{victim.name} ended with {code} and not at {point}: {victim.said()}"
            raise NotReachedError(msg)
        self.killed_at = mark.stat().st_mtime

    async def replaced(self, victim: Running, point: str, kind: str = "worker") -> None:
        """Wait until the process died there, and start the next one."""
        await self.dies(victim, point)
        await self.start(kind)

    def _mark(self, point: str) -> Path:
        return self.folder / f"mark-{point.replace(':', '-')}"

    async def close(self) -> None:
        await processes.close(self.started)
        await self.http.aclose()
        await asyncio.to_thread(self.dynamodb.delete_table, TableName=self.made.table)

    # -- a client ------------------------------------------------------------------------------

    @property
    def client(self) -> Agent:
        return Agent(self.http, REST)

    async def send(
        self,
        text: str,
        *,
        message_id: str = "",
        task: Head | None = None,
        context_id: str = "",
        webhook: str = "",
    ) -> str:
        """Send a message and return its task's id, which is known also if there is no answer."""
        message_id = message_id or uuid.uuid4().hex
        context_id = task.context_id if task else context_id or f"context-{message_id}"
        ids: dict[str, Any] = {"messageId": message_id, "contextId": context_id}
        ids |= {"taskId": task.task_id} if task else {}
        told = {"taskPushNotificationConfig": {"url": webhook}} if webhook else {}
        how = {"returnImmediately": True, **told}
        try:
            answer = await self.client.send(text, configuration=how, **ids)
        except httpx.TransportError:  # the API died
            return task.task_id if task else await self._only_task(context_id)
        assert answer.response.status_code == 200, answer
        return str(answer.task["id"])

    async def send_all(self, texts: Sequence[str], at_once: int, **options: Any) -> list[str]:
        """The tasks of so many messages, some of them sent at once."""
        slots = asyncio.Semaphore(at_once)

        async def one(text: str) -> str:
            async with slots:
                return await self.send(text, **options)

        return await asyncio.gather(*map(one, texts))

    async def _only_task(self, context_id: str) -> str:
        (task,) = (await list_tasks(self.storage, ListTasksQuery(context_id=context_id))).tasks
        return str(task.id)

    async def cancel(self, task_id: str) -> Answer | None:
        """Cancel a task; None when the API died over it."""
        try:
            return await self.client.call("CancelTask", {"id": task_id})
        except httpx.TransportError:
            return None

    async def paused(self) -> Head:
        """A task that waits for input, by a worker that is gone again, as is its message."""
        worker = await self.start("worker")
        head = await self.state(await self.send("ask"), TaskState.TASK_STATE_INPUT_REQUIRED)
        await self.drained()
        assert await worker.end() == 0, worker.said()
        return head

    # -- the queue, past the senders ------------------------------------------------------------

    async def put(self, operation: Operation, *, group: str = "") -> None:
        """Send an operation in a group and under a deduplication id that no sender uses."""
        await asyncio.to_thread(
            self.sqs.send_message,
            QueueUrl=self.made.queue,
            MessageBody=operation.model_dump_json(),
            MessageGroupId=group or operation.group,
            MessageDeduplicationId=uuid.uuid4().hex,
        )

    async def receive(self, *, visibility_s: int = 0, must: bool = True) -> dict[str, Any]:
        """Take a message as a consumer that dies at once does; by default it is back at once."""
        answer = await asyncio.to_thread(
            self.sqs.receive_message,
            QueueUrl=self.made.queue,
            MaxNumberOfMessages=1,
            WaitTimeSeconds=2,
            VisibilityTimeout=visibility_s,
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        messages = answer.get("Messages", [])
        assert messages or not must, "the queue is empty"
        return messages[0] if messages else {}

    async def waiting(self, queue: str) -> int:
        """Messages of a queue, those included that somebody works on."""
        counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        asks = partial(self.sqs.get_queue_attributes, QueueUrl=queue, AttributeNames=counts)
        answer = await asyncio.to_thread(asks)
        return sum(int(answer["Attributes"][name]) for name in counts)

    async def drained(self, within_s: float = SETTLE_S) -> None:
        """Wait until every operation and every dead letter is acknowledged."""
        for queue in (self.made.queue, self.made.dead_letter_queue):
            look = partial(self.waiting, queue)
            await until(look, f"{queue} is empty", within_s, is_it=(0).__eq__)

    async def lose(self) -> None:
        """Delete the message in the queue by hand, as soon as no consumer holds it."""

        async def is_lost() -> bool:
            message = await self.receive(visibility_s=30, must=False)
            if message:
                what = {"QueueUrl": self.made.queue, "ReceiptHandle": message["ReceiptHandle"]}
                await asyncio.to_thread(self.sqs.delete_message, **what)
            return bool(message)

        await until(is_lost, "the message is lost")
        assert await self.waiting(self.made.queue) == 0

    # -- what is stored ------------------------------------------------------------------------

    async def create(self, text: str) -> Head:
        """A task whose operation is never sent: what an API leaves that dies in between."""
        return (await self.storage.open_task(f"context-{uuid.uuid4().hex}", request(text))).head

    def stored(self, task_id: str) -> list[Path]:
        return [path for path in self.blobs.glob(f"*.{task_id}/*/*") if path.is_file()]

    async def head(self, task_id: str) -> Head:
        head = await self.storage.head(task_id)
        assert head is not None, f"{task_id} is lost"
        return head

    async def use_up(self, task_id: str) -> None:
        """Claim the turn for each attempt that it has; none of them goes on."""
        head = await self.head(task_id)
        for attempt in range(int(self.variables["A2A_MAX_ATTEMPTS"])):
            head = await self.storage.commit(head, Commit(token=f"a-{attempt}", claims=True))

    async def state(self, task_id: str, *states: TaskState, within_s: float = SETTLE_S) -> Head:
        """HEAD once it shows one of `states`."""
        look, what = partial(self.head, task_id), f"{task_id} in {states}"
        head: Head = await until(look, what, within_s, is_it=lambda head: head.state in states)
        return head

    async def noted(self, task_id: str, what: str, *, times: int = 1) -> None:
        await until(lambda: self.ledger.count(task_id, what) >= times, f"{what} of {task_id}")

    async def end(self, task_id: str, *, within_s: float = SETTLE_S) -> End:
        """The task once it has ended and nothing of it is left: no message, no due time."""
        await self.state(task_id, *TERMINAL, within_s=within_s)
        return await self.look(task_id)

    async def is_being_canceled(self, task_id: str) -> bool:
        return (await self.head(task_id)).is_being_canceled

    async def look(self, task_id: str) -> End:
        """The task and its log, which keep all rules."""
        log = await self.storage.read(task_id)
        task = await self.storage.load_task(task_id)
        assert log is not None, f"{task_id} is lost"
        assert task is not None, f"{task_id} is lost"
        assert "not stored any more" not in str(task), f"a file of {task_id} is lost"
        assert log.head.due_at is None, f"{task_id} has ended and is watched"
        check_log(log)
        return End(head=log.head, task=task, log=log)


def check_log(log: Log) -> None:
    """An unbroken log, one end, nothing behind it, and no write past the fence."""
    versions = [record.version for record in log.records]
    assert versions == list(range(1, log.head.version + 1)), "the log has gaps"
    entries = [(record.version, entry) for record in log.records for entry in record.entries]
    statuses = [(at, entry.status) for at, entry in entries if isinstance(entry, StatusChanged)]
    ends = [at for at, status in statuses if status.state in TERMINAL]
    assert ends == [log.head.version], f"ends at {ends} of {versions}"
    owners: list[str] = []
    for record in log.records:
        if record.token is not None and record.token not in owners[-1:]:
            assert record.token not in owners, f"version {record.version} is past the fence"
            owners.append(record.token)


def lost_and_doubled(chunks: Sequence[str], expected: Sequence[str]) -> tuple[int, int]:
    """How many of the expected chunks are missing, and how many are there too often."""
    found = Counter(chunks)
    lost = sum((Counter(expected) - found).values())
    return lost, sum((found - Counter(expected)).values())


async def until(
    look: Callable[[], Any], what: str, within_s: float = SETTLE_S, *, is_it: Is = bool
) -> Any:
    """What `look` returns, or awaits, once that is true, or what `is_it` says of it."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if is_it(found := await seen if isawaitable(seen) else seen):
            return found
        assert time.monotonic() < deadline, f"stuck: not {what} within {within_s:.0f} s"
        await asyncio.sleep(0.05)


def numbers(count: int) -> list[str]:
    """The chunks of the agent's `chunks COUNT`."""
    return [str(number) for number in range(count)]


def operation_of(head: Head) -> Operation:
    """The run of a turn, as the API sends it."""
    ids: Any = {"scope": head.scope, "task_id": head.task_id, "incarnation": head.incarnation}
    return Operation(operation="run", params=OperationParams(**ids, turn=head.turn.number))


class Emulators:
    """The two emulators of a session, on which worlds are made.

    With `stream` their tables have one, for push; two of them on one DynamoDB Local slow it down.
    """

    def __init__(self, dynamodb: Emulator, sqs: Emulator, *, stream: bool = False) -> None:
        self._stream = stream
        self._variables = {**dynamodb.environment(), **sqs.environment()}
        config = {"max_pool_connections": 64, "read_timeout": 20}
        self.dynamodb = dynamodb.client(**config)
        self.sqs = sqs.client(**config)

    @asynccontextmanager
    async def world(self, folder: Path, **settings: str) -> AsyncIterator[World]:
        """A deployment without processes yet; `settings` replace those of `SHORT`."""
        names = Names.with_prefix(f"faults-{uuid.uuid4().hex[:12]}")
        made = await asyncio.to_thread(self._prepare, names, folder)
        variables = {
            **SHORT,
            **self._variables,
            **made.environment(),
            "A2A_AUTH": "none",
            "A2A_BLOBS": f"file:{folder}/blobs",
            **settings,
        }
        http = httpx.AsyncClient(trust_env=False, timeout=SETTLE_S)
        world = World(self.dynamodb, self.sqs, made, folder, variables, http)
        world.storage.table.blobs = DirectoryBlobs(world.blobs, SystemClock(), keep_s=3600)
        try:
            yield world
        finally:
            await world.close()

    def _prepare(self, names: Names, folder: Path) -> Names:
        made = provision(self.dynamodb, self.sqs, names=names, stream=self._stream)
        folder.mkdir(parents=True, exist_ok=True)
        for queue in (made.dead_letter_queue, made.push_queue):
            hidden = {"VisibilityTimeout": str(SHORT_VISIBILITY_S)}
            self.sqs.set_queue_attributes(QueueUrl=queue, Attributes=hidden)
        return made
