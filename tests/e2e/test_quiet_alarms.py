"""One client tries for minutes to ring the alarms: none of them rings."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from pydantic import SecretStr

from a2a_serverless.http.card import load_card
from a2a_serverless.observability import metrics
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker.agents import load_agent
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless_tools.local.background import Background
from tests.e2e.hostile_agent import PREFIX
from tests.support.a2a_calls import message
from tests.support.alarms import STACK, CloudWatch, alarms_of, rung
from tests.support.permissions import transform
from tests.support.queues import aside, done, left
from tests.support.simulation.environments import Environments, ThrottledError
from tests.support.simulation.front import front
from tests.support.simulation.pumps import QueuePump, StreamFilter
from tests.support.simulation.pushing import PushSources, pushing
from tests.support.simulation.sources import MemoryStream, TableSource
from tests.support.simulation.web_adapter import WebAdapter
from tests.support.template import TEMPLATE
from tests.unit.push.receivers import Receiver, status

BEGIN_MS: Final = 1_700_000_000_000
ATTACK_S: Final = 600
CONNECTIONS: Final = 20
WORKERS: Final = 10
SPEED: Final = 60
"""Seconds of the clock in one second of a machine that does nothing else."""
ENOUGH_REQUESTS: Final = 300
ENOUGH_FAILED: Final = 20
"""A slow machine has asked less by the end of the attack, which then goes on until it has."""
MOST_OTHERS: Final = 6
"""Other processes slow the clock down, this many for each core at most: the test has a limit."""

AGENT: Final = Path(__file__).with_name("hostile_agent.py")
CARD: Final = Path(__file__).parents[2] / "functions/api/agent_card.json"
FUNCTIONS: Final = {
    "worker": "WorkerFunction",
    "push": "PushFunction",
    "push-stream": "PushFunction",
}
"""Functions by the names of their environments here; the others have the template's."""

TEXTS: Final = (
    *("answer", "large", "ask", "slow", "fail", "wrong", "final", "leave", "silent"),
    "background",
)


class FastClock:
    """A clock that is up to `SPEED` times as fast as this machine's.

    It is slower where other programs use the processor too: the client does as much in a minute.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        others = os.getloadavg()[0] / (os.cpu_count() or 1)
        self._speed = SPEED / min(max(others, 1), MOST_OTHERS)

    def now_ms(self) -> int:
        return BEGIN_MS + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return (time.monotonic() - self._began) * self._speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)


class Account:
    """The metrics that AWS itself counts, derived from the local stack."""

    def __init__(self, seen: CloudWatch) -> None:
        self._seen = seen
        self._sent: dict[str, float] = {}

    def lambda_counts(self, name: str, metric: str, value: float = 1) -> None:
        function = FUNCTIONS.get(name, name)
        self._seen.put("AWS/Lambda", metric, value, FunctionName=function)

    def answered(self, code: int) -> None:
        self._seen.put("AWS/ApiGateway", "Count", 1, ApiName=STACK)
        self._seen.put("AWS/ApiGateway", "5XXError", code >= 500, ApiName=STACK)

    def watch(self, patched: pytest.MonkeyPatch, operations: TableQueue[Operation]) -> None:
        """Count invocations, errors and throttles, and note when operations are sent."""
        invoke, stream, send = Environments.invoke, WebAdapter.invoke, operations.send

        def invoked(environments: Environments, event: dict[str, Any]) -> Future[Any]:
            try:
                answer = invoke(environments, event)
            except ThrottledError:
                self.lambda_counts(environments.name, "Throttles")
                raise
            answer.add_done_callback(lambda future: self._ended(environments.name, future))
            return answer

        async def streamed(adapter: WebAdapter, *arguments: Any) -> None:
            self.lambda_counts(adapter.name, "Invocations")
            try:
                await stream(adapter, *arguments)
            except ThrottledError:
                self.lambda_counts(adapter.name, "Throttles")
                raise
            except Exception:
                self.lambda_counts(adapter.name, "Errors")
                raise

        async def sent(operation: Operation) -> None:
            now = self._seen.clock.monotonic()
            self._sent.setdefault(operation.deduplication_id, now)
            await send(operation)

        patched.setattr(Environments, "invoke", invoked)
        patched.setattr(WebAdapter, "invoke", streamed)
        patched.setattr(operations, "send", sent)

    def _ended(self, name: str, future: Future[Any]) -> None:
        self.lambda_counts(name, "Invocations")
        if not future.cancelled() and future.exception() is not None:
            self.lambda_counts(name, "Errors")

    def look_at(self, operations: TableQueue[Operation]) -> None:
        """What SQS tells each minute."""
        now = self._seen.clock.monotonic()
        ages = [now - self._sent.get(it.deduplication_id, now) for it in left(operations)]
        oldest, depth = "ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible"
        self._seen.put("AWS/SQS", oldest, max(ages, default=0), QueueName="OperationsQueue")
        undecodable = len(done(aside(operations).waiting()))
        self._seen.put("AWS/SQS", depth, undecodable, QueueName="UndecodableQueue")


class Client:
    """One caller; every connection goes on with what another one has begun."""

    def __init__(self, http: httpx.AsyncClient, webhooks: list[str], seed: int) -> None:
        self._http = http
        self._webhooks = webhooks
        self._random = random.Random(seed)  # noqa: S311 - the same on each run
        self._tasks = ["00000000-0000-4000-8000-000000000000"]
        self._numbers = itertools.count()
        self.codes: Counter[int] = Counter()

    @property
    def operations(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            *([self.send] * 4),
            self.jsonrpc,
            self.stream,
            self.follow_up,
            self.get,
            self.list_tasks,
            self.cancel,
            self.subscribe,
            self.webhook,
            self.webhooks,
            self.delete_webhook,
            self.card,
            self.nonsense,
        ]

    async def attack(self, stop: asyncio.Event) -> None:
        """Choose one operation after the other until `stop` is set."""
        while not stop.is_set():
            await self._random.choice(self.operations)()

    async def request(self, verb: str, path: str, **options: Any) -> httpx.Response:
        headers = {"A2A-Version": "1.0", **options.pop("headers", {})}
        answer = await self._http.request(verb, path, headers=headers, **options)
        self.codes[answer.status_code] += 1
        return answer

    def body(self, **fields: Any) -> dict[str, Any]:
        number = next(self._numbers)
        text = PREFIX + self._random.choice(TEXTS)
        return {"message": message(text, **{"messageId": f"m-{id(self)}-{number}", **fields})}

    @property
    def task(self) -> str:
        return self._random.choice(self._tasks[-40:])

    @property
    def tenant(self) -> str:
        """A tenant, of which the caller names as many as it likes."""
        number = self._random.randrange(60)
        return f"/tenant-{number}" if number < 30 else ""

    async def send(self) -> None:
        body = self.body()
        if self._random.random() < 0.8:
            body["configuration"] = {"returnImmediately": True}
            if self._random.random() < 0.2:
                hook = {"url": self._random.choice(self._webhooks)}
                body["configuration"]["taskPushNotificationConfig"] = hook
        answer = await self.request("POST", f"{self.tenant}/message:send", json=body)
        if answer.status_code == 200:
            self._tasks.append(answer.json()["task"]["id"])

    async def jsonrpc(self) -> None:
        method = self._random.choice(
            ["SendMessage", "GetTask", "ListTasks", "Nothing", "CancelTask"]
        )
        params = self.body() if method == "SendMessage" else {"id": self.task}
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        await self.request("POST", "/", json=call)

    async def stream(self) -> None:
        await self.request("POST", "/message:stream", json=self.body())

    async def follow_up(self) -> None:
        await self.request("POST", "/message:send", json=self.body(taskId=self.task))

    async def get(self) -> None:
        await self.request("GET", f"{self.tenant}/tasks/{self.task}")

    async def list_tasks(self) -> None:
        query = self._random.choice(
            ["pageSize=100&includeArtifacts=true", "pageSize=0", "status=bad", "pageToken=%00"]
        )
        await self.request("GET", f"/tasks?{query}")

    async def cancel(self) -> None:
        await self.request("POST", f"/tasks/{self.task}:cancel")

    async def subscribe(self) -> None:
        last = {"Last-Event-ID": self._random.choice(["", "1", "garbage", "9" * 400])}
        await self.request("POST", f"/tasks/{self.task}:subscribe", headers=last)

    async def webhook(self) -> None:
        url = self._random.choice([*self._webhooks, "https://10.0.0.1/", "gopher://x", ""])
        path = f"/tasks/{self.task}/pushNotificationConfigs"
        await self.request("POST", path, json={"id": "hook", "url": url})

    async def webhooks(self) -> None:
        await self.request("GET", f"/tasks/{self.task}/pushNotificationConfigs")

    async def delete_webhook(self) -> None:
        await self.request("DELETE", f"/tasks/{self.task}/pushNotificationConfigs/hook")

    async def card(self) -> None:
        path = self._random.choice(
            ["/.well-known/agent-card.json", "/extendedAgentCard", "/no/such"]
        )
        await self.request(self._random.choice(["GET", "POST"]), path)

    async def nonsense(self) -> None:
        content = self._random.choice([b"{", b"[]", b"\xff" * 100, b"[" * 5000, b'{"message": 7}'])
        headers = {"Content-Type": self._random.choice(["application/json", "text/html"])}
        path = self._random.choice(["/", "/message:send", "/api/a2a/tasks"])
        await self.request("POST", path, content=content, headers=headers)


@contextmanager
def system(settings: Settings, backends: Backends, account: Account) -> Iterator[Any]:
    """All functions but the sweeper; yield the API, which counts its answers."""
    operations = backends.operations
    assert isinstance(operations, TableQueue)
    assert isinstance(backends.storage.table, MemoryTable)

    def worker(environment: ExitStack) -> Any:
        agent = load_agent(f"{AGENT}:agent")
        function = WorkerFunction(backends, agent, settings)
        return environment.enter_context(closing(function)).handle

    commits = MemoryStream(backends.storage.table)
    jobs = backends.pushing().jobs
    assert isinstance(jobs, TableQueue)
    sources = PushSources(
        stream=lambda: commits, queue=lambda: TableSource(jobs), filter=StreamFilter()
    )
    with (
        closing(commits),
        closing(Environments("worker", worker, limit=WORKERS, timeout_s=900)) as workers,
        pushing(backends, settings, sources, concurrency=10),
        Background("pump", QueuePump(lambda: TableSource(operations), workers).run),
        front(settings, backends, load_card(CARD)) as gateway,
    ):

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            async def sending(sent: Any) -> None:
                if sent["type"] == "http.response.start":
                    account.answered(sent["status"])
                await send(sent)

            await gateway(scope, receive, sending)

        yield counted


async def every_minute(
    seen: CloudWatch, backends: Backends, account: Account, is_enough: Callable[[], bool]
) -> None:
    """Sweep, and put SQS's own metrics, each minute until the attack is over and `is_enough`."""
    sweeper = Sweeper(backends.storage, backends.operations, clock=seen.clock)
    assert isinstance(backends.operations, TableQueue)
    for minute in itertools.count(1):
        if minute > ATTACK_S // 60 and is_enough():
            return
        await seen.clock.sleep(minute * 60 - seen.clock.monotonic())
        await sweeper.sweep()
        account.lambda_counts("SweeperFunction", "Invocations")
        account.look_at(backends.operations)
        metrics.flush()


@pytest.mark.long
@pytest.mark.timeout(900)  # on a machine as busy as `MOST_OTHERS` says, it takes 330 s
def test_one_client_rings_no_alarm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty connections of one caller use every operation, rightly and wrongly, for minutes."""
    caplog.set_level(logging.CRITICAL)
    clock = FastClock()
    seen = CloudWatch(clock)
    lock, take = threading.Lock(), seen.take
    settings = Settings(
        auth="api-key",
        api_keys=SecretStr("one=the-key-of-the-one-and-only-client"),
        push_queue="memory",
        push_allowed_hosts="127.0.0.1",
        blocking_limit_s=20,
        retry_base_s=0.5,
    )
    backends = memory_backends(settings, clock)
    account = Account(seen)
    assert isinstance(backends.operations, TableQueue)
    account.watch(monkeypatch, backends.operations)

    def taken(line: str) -> None:
        with lock:
            take(line)

    monkeypatch.setattr(seen, "take", taken)

    async def attack(app: Any, webhooks: list[str]) -> Counter[int]:
        stop = asyncio.Event()
        headers = {"X-API-Key": "the-key-of-the-one-and-only-client"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://agent", headers=headers, timeout=60
        ) as http:
            clients = [Client(http, webhooks, seed) for seed in range(CONNECTIONS)]
            attacks = [asyncio.create_task(client.attack(stop)) for client in clients]

            def codes() -> Counter[int]:
                return sum((client.codes for client in clients), Counter[int]())

            def is_enough() -> bool:
                asked = codes().total() > ENOUGH_REQUESTS and len(failed()) > ENOUGH_FAILED
                return asked and bool(given_up())

            await every_minute(seen, backends, account, is_enough)
            stop.set()
            await asyncio.gather(*attacks)
        return codes()

    def failed() -> list[Any]:
        return list(seen.points["A2AServerless", "TasksEnded", _named(state="failed")])

    def given_up() -> list[Any]:
        return list(seen.points["A2AServerless", "PushGivenUp", _named()])

    with (
        Receiver() as good,
        Receiver(lambda _: status(404)) as refusing,
        Receiver(lambda _: status(500)) as broken,
        seen.emitted(),
        system(settings, backends, account) as app,
    ):
        webhooks = [good.url(), refusing.url(), broken.url(), "http://127.0.0.1:9/"]
        codes = asyncio.run(attack(app, webhooks))

    assert {200, 400, 404} <= codes.keys()
    resources = transform(TEMPLATE)
    assert rung(alarms_of(resources), seen, since_ms=BEGIN_MS) == set(), codes
    # The caller did enough: these alarms would ring if one caller sufficed.
    one = rung(alarms_of(resources), seen.of_one(), since_ms=BEGIN_MS, again=True)
    assert one >= {"FailedTasksAlarm", "PushGivenUpAlarm"}


def _named(**dimensions: str) -> frozenset[tuple[str, str]]:
    return frozenset({"service": STACK, **dimensions}.items())
