"""Alarms and the dashboard.

Each alarm rings for its cause, and those that one caller could make do not ring for one.
What the runtime counts is emitted by its own code; the metrics of AWS are given as AWS has them.
"""

import ast
import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.http.errors import count_error, internal_error
from a2a_serverless.http.intake import _sent
from a2a_serverless.observability import metrics
from a2a_serverless.observability.logs import observed_attempt
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit, Timing
from a2a_serverless.worker.agents import deployed_agent, pulling_agent
from a2a_serverless.worker.function import flush_now_and_then
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper
from tests.support import pages
from tests.support.alarms import NAMESPACE, STACK, CloudWatch, alarms_of, rung
from tests.support.messages import request
from tests.support.template import of_type
from tests.support.workers import Agent, Bench, PacedClock, S, complete, params_of, status
from tests.unit.push.world import COMPLETED, World, config

Json = dict[str, Any]

MINUTE_S = 60.0
HOUR_S = 3600.0
ALICE, BOB = Caller(user="alice"), Caller(user="bob")
TENANTS = [Caller(user="alice", tenant=f"tenant-{number}") for number in range(4)]
"""One caller, who names as many tenants as it likes."""

OLDEST = "ApproximateAgeOfOldestMessage"
OWN = frozenset({("service", STACK)})
"""The dimensions of the runtime's metrics."""

NOBODY_LISTENS = "https://10.1.2.3/hook"


class SetClock(PacedClock):
    """A clock that stands still until a test sets it; who sleeps on it sleeps on."""

    def advance(self, seconds: float) -> None:
        self._now += seconds


class Watched:
    """A clock, what CloudWatch has seen, and the alarms."""

    def __init__(self, transformed: Json) -> None:
        self.clock = SetClock()
        self.seen = CloudWatch(self.clock)
        self._resources = transformed
        self._since_ms = self.clock.now_ms()

    def rung(self, *, by_one: bool = False, **parameters: str) -> set[str]:
        """The alarms that ring, of two callers or `by_one`; those are the same by both readings."""
        alarms = alarms_of(self._resources, **parameters)
        # One caller's turns may wait for hours, and are reported at ever longer distances.
        of_one = rung(alarms, self.seen.of_one(), since_ms=self._since_ms, again=not by_one)
        of_two = rung(alarms, self.seen, since_ms=self._since_ms)
        assert of_two <= of_one
        return of_one if by_one else of_two

    def model(self, namespace: str, name: str, *values: float, **dimensions: str) -> None:
        """A value a minute of one of AWS's metrics."""
        begin = self.clock.now_ms()
        for value in values:
            self.seen.put(namespace, name, value, **dimensions)
            self.clock.advance(MINUTE_S)
        self.clock.advance((begin - self.clock.now_ms()) / 1000)


@pytest.fixture
def watched(transformed: Json) -> Watched:
    return Watched(transformed)


@pytest.fixture
def bench(watched: Watched) -> Bench:
    return Bench(Agent(complete), clock=watched.clock)


# -- agents that fail ----------------------------------------------------------------------------


async def raises(context: RequestContext, queue: EventQueue) -> None:
    """Raise, as an agent whose model's key has expired."""
    raise PermissionError("key expired")


async def says_failed(context: RequestContext, queue: EventQueue) -> None:
    """Fail the task, as an executor that catches what its framework raises."""
    await queue.enqueue_event(status(context, S.TASK_STATE_FAILED, "model error"))


async def run_tasks(watched: Watched, agent: AgentExecutor, *callers: Caller) -> None:
    """Run a task of each caller to its end, one attempt after the other."""
    bench = Bench(agent, clock=watched.clock, retry_base_s=0)
    with watched.seen.emitted():
        for caller in callers:
            await bench.send(caller=caller)
            while not await bench.work():
                watched.clock.advance(1)


@pytest.mark.parametrize(
    ("execute", "callers", "rings"),
    [
        (raises, [ALICE, BOB], {"FailedTasksAlarm"}),
        (says_failed, [ALICE, BOB], {"FailedTasksAlarm"}),
        (raises, TENANTS, set()),
    ],
)
async def test_failing_agents_ring(
    watched: Watched,
    execute: Callable[[RequestContext, EventQueue], Awaitable[None]],
    callers: list[Caller],
    rings: set[str],
) -> None:
    """Failing tasks of two callers are taken for the agent's fault; those of one are not.

    Where one is enough (without A2A_ALARM_CALLERS=2) its tasks ring too.
    """
    await run_tasks(watched, Agent(execute), *callers)
    assert watched.rung() == rings
    assert watched.rung(by_one=True) == {"FailedTasksAlarm"}


async def test_rare_failures_do_not_ring(watched: Watched) -> None:
    """Two failures among ten tasks that complete are below the rate."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        assert context.call_context is not None
        tenant = context.call_context.tenant
        await (says_failed if tenant == "bad" else complete)(context, queue)

    bad = [Caller(user=name, tenant="bad") for name in ("alice", "bob")]
    await run_tasks(watched, Agent(execute), *bad, *[ALICE, BOB] * 5)
    assert watched.rung() == set()


async def test_an_agent_that_cannot_be_loaded_rings(watched: Watched, tmp_path: Path) -> None:
    """At the start of the process, before any client has sent anything; and its tasks fail soon."""
    (tmp_path / "agent.py").write_text("import a_framework_that_is_not_there\n")
    with watched.seen.emitted():
        agent = deployed_agent("agent.py:agent", folder=tmp_path)
    assert watched.rung() == {"AgentNotLoadedAlarm"}
    began = watched.clock.monotonic()
    await run_tasks(watched, agent, ALICE, BOB)
    assert watched.rung() == {"AgentNotLoadedAlarm", "FailedTasksAlarm"}
    assert watched.clock.monotonic() - began < MINUTE_S


def test_an_agent_that_a_pull_worker_cannot_load_rings(watched: Watched) -> None:
    """The worker ends with its sentence, and tells of it before it does."""
    with watched.seen.emitted(), pytest.raises(ConfigurationError, match=r"nowhere\.py"):
        pulling_agent("nowhere.py:agent", prepare=lambda: None)
    assert watched.rung() == {"AgentNotLoadedAlarm"}


async def die(bench: Bench, head: Head, times: int) -> None:
    """Attempts that have claimed the turn, and were never heard of again."""
    for number in range(times):
        claim = Commit(token=f"attempt-{number}", claims=True)
        head = await bench.storage.commit(head, claim)


@pytest.mark.parametrize(
    ("callers", "rings"),
    [([ALICE, BOB], {"AttemptsUsedUpAlarm", "FailedTasksAlarm"}), (TENANTS, set())],
)
async def test_attempts_that_die_ring(
    watched: Watched, bench: Bench, callers: list[Caller], rings: set[str]
) -> None:
    """A worker that dies of every turn; one caller's poisonous input alone does not call."""
    with watched.seen.emitted():
        for caller in callers:
            await die(bench, await bench.send(caller=caller), 3)
            assert await bench.work()
    assert watched.rung() == rings


async def test_a_worker_that_dies_of_one_callers_turns_does_not_ring(watched: Watched) -> None:
    """An attempt is counted before its agent runs; its task fails, which is the caller's matter."""
    told: list[bool] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        told.append((NAMESPACE, "Attempts", OWN) in watched.seen.points)
        await complete(context, queue)

    await run_tasks(watched, Agent(execute), ALICE)
    assert told == [True]
    watched.model("AWS/Lambda", "Errors", *[10] * 4, FunctionName="WorkerFunction")
    assert watched.rung() == set()


# -- turns that nothing works on ------------------------------------------------------------------


async def sweep_for(watched: Watched, bench: Bench, minutes: int, *, retry_s: float = 0) -> None:
    sweeper = Sweeper(bench.storage, bench.operations, clock=watched.clock, retry_s=retry_s)
    with watched.seen.emitted():
        for _ in range(minutes):
            watched.clock.advance(MINUTE_S)
            await sweeper.sweep()
            metrics.flush()


async def test_workers_that_do_not_start_ring(watched: Watched, bench: Bench) -> None:
    """The event source is off: the sweeper sends turns again, and nothing takes them."""
    await bench.send()
    await sweep_for(watched, bench, 10)
    assert watched.rung() == {"StuckTasksAlarm"}


async def test_turns_that_wait_for_busy_workers_do_not_ring(watched: Watched, bench: Bench) -> None:
    """A caller that sends more than the workers take: its own turns wait, and attempts begin."""
    for _ in range(2):
        await bench.send(caller=ALICE)
    with watched.seen.emitted():
        await bench.work()
    await sweep_for(watched, bench, 8)
    with watched.seen.emitted():
        await bench.work()
    watched.model("AWS/SQS", OLDEST, *[3000] * 3, QueueName="OperationsQueue")
    assert watched.rung() == set()


@pytest.mark.long
async def test_turns_of_five_hours_ring_nothing(watched: Watched) -> None:
    """One caller fills the only worker outside of Lambda, and its other turns wait for hours.

    No attempt begins meanwhile. The leases that are renewed say that a worker works, so that
    neither the turn that runs nor those that are sent again count as stuck, whatever WorkerTimeout
    is. The turn is claimed, sent, started and counted once.
    """
    clock = watched.clock

    async def slow(context: RequestContext, queue: EventQueue) -> None:
        await clock.sleep(5 * HOUR_S)
        await complete(context, queue)

    agent = Agent(slow)
    bench = Bench(agent, clock=clock, visibility_s=600)
    bench.adapter.has_heartbeat = True
    bench.adapter.poller._interval_s = HOUR_S
    with watched.seen.emitted():
        async with asyncio.TaskGroup() as processes:
            work = [
                processes.create_task(bench.adapter.serve(concurrency=1)),
                processes.create_task(flush_now_and_then(clock)),
            ]
            task = await bench.send(caller=ALICE)
            await clock.pass_time(1)
            for _ in range(2):
                await bench.send(caller=ALICE)
            sweeper = Sweeper(bench.storage, bench.operations, clock=clock)
            for minute in range(5 * 60 - 1):
                await clock.pass_time(MINUTE_S)
                await sweeper.sweep()
                age_s = MINUTE_S * minute
                watched.seen.put("AWS/SQS", OLDEST, age_s, QueueName="OperationsQueue")
            running = await bench.head(task)
            assert (running.turn.attempts, running.turn.sends, len(agent.started)) == (1, 0, 1)
            await clock.pass_time(2 * MINUTE_S)
            assert (await bench.head(task)).state == S.TASK_STATE_COMPLETED
            for process in work:
                process.cancel()
    assert len(watched.seen.points[NAMESPACE, "StuckTurns", OWN]) > 5
    ended = watched.seen.points[NAMESPACE, "TasksEnded", OWN | {("state", "completed")}]
    assert [value for _, value in ended] == [1]
    for longest_s in ("60", "300", "900", "1800"):
        assert watched.rung(WorkerTimeout=longest_s) == set(), longest_s


CAPACITY = [
    # workers' share of what comes, in words, minutes until the first alarm, alarms
    (0.0, "none", 7, {"LateStartsAlarm", "StuckTasksAlarm"}),
    (0.5, "half", 10, {"LateStartsAlarm"}),
    (0.9, "nine tenths", 10, {"LateStartsAlarm"}),
    (1.0, "all", 0, set[str]()),
]


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("share", "words", "minutes", "rings"), CAPACITY)
async def test_turns_that_begin_late_ring(
    watched: Watched, bench: Bench, share: float, words: str, minutes: int, rings: set[str]
) -> None:
    """Ten callers send two turns a minute each, and workers begin a share of them.

    The table of the page has the minutes, for each longest run of a worker.
    """
    row = f"| {words} | {' | '.join([str(minutes)] * 3)} |"
    assert (row in pages.part("operate")) is bool(rings)
    callers = [Caller(user=f"caller-{number}") for number in range(10)]
    waiting: list[Head] = []
    begun = 0.0
    first = dict[str, int]()
    for minute in range(16):
        for number in range(20):
            waiting.append(await bench.send(caller=callers[number % 10]))
            watched.clock.advance(MINUTE_S / 20)
            begun += share
            with watched.seen.emitted():
                while begun >= 1 and waiting:
                    begun -= 1
                    log = await bench.storage.read(waiting.pop(0).task_id)
                    assert log is not None
                    with observed_attempt(log, clock=watched.clock, timing=Timing()):
                        pass
                    claim = Commit(token=log.head.task_id, claims=True)
                    await bench.storage.commit(log.head, claim)
        with watched.seen.emitted():
            await Sweeper(bench.storage, bench.operations, clock=watched.clock).sweep()
        for longest_s in ("60", "300", "900"):
            if longest_s not in first and watched.rung(WorkerTimeout=longest_s):
                first[longest_s] = minute + 1
    for longest_s in ("60", "300", "900"):
        assert watched.rung(WorkerTimeout=longest_s) == rings
        assert bool(rings) is (longest_s in first)
        assert first.get(longest_s, 0) <= minutes


async def test_a_caller_waits_for_itself(watched: Watched, bench: Bench) -> None:
    """A caller that sends more than the workers take sets off nothing where two are needed."""
    for _ in range(4):
        await bench.send(caller=ALICE)
    await sweep_for(watched, bench, 1)
    assert watched.rung() == set()
    assert watched.rung(by_one=True) == {"LateStartsAlarm"}


@pytest.mark.long
async def test_a_turn_that_is_given_up_rings(watched: Watched, bench: Bench) -> None:
    """A task that no worker could start for A2A_GIVE_UP_HOURS was failed."""
    await bench.send()
    watched.clock.advance(25 * 3600)
    await sweep_for(watched, bench, 1)
    assert watched.rung() == {"TurnsGivenUpAlarm"}


@pytest.mark.parametrize(
    ("minutes", "retry_h", "rings"),
    [(30, 0, set()), (155, 0, {"OldestTurnAlarm"}), (155, 3, set()), (305, 3, {"OldestTurnAlarm"})],
)
async def test_a_task_that_works_for_too_long_rings(
    watched: Watched, bench: Bench, minutes: int, retry_h: int, rings: set[str]
) -> None:
    """A task whose worker is gone rings after twice the time of all its attempts, not before.

    What A2A_RETRY_MINUTES allows of waits between attempts is no reason to ring.
    """
    await die(bench, await bench.send(), 1)
    watched.clock.advance(minutes * MINUTE_S)
    await sweep_for(watched, bench, 1, retry_s=retry_h * HOUR_S)
    assert watched.rung() == rings


async def refuses(*_: object, **__: object) -> str:
    raise UnavailableError


async def test_repairs_that_fail_ring(
    watched: Watched, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper cannot send: the turn counts in each run. One failed run does not call."""
    await bench.send()
    monkeypatch.setattr(bench.operations, "send", refuses)
    await sweep_for(watched, bench, 2)
    assert watched.rung() == set()
    await sweep_for(watched, bench, 2)
    assert watched.rung() == {"SweepFailuresAlarm"}


@pytest.mark.parametrize(("failures", "rings"), [(1, set()), (3, {"SendFailuresAlarm"})])
async def test_operations_that_cannot_be_sent_ring(
    watched: Watched, bench: Bench, failures: int, rings: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sends that the queue refuses ring the alarm; one, which is repaired, does not."""
    head = await bench.send()
    monkeypatch.setattr(bench.operations, "send", refuses)
    operation = Operation.to_run(OperationParams.of(head, 1))
    with watched.seen.emitted():
        for _ in range(failures):
            assert not await _sent(bench.operations, "turn", operation, head)
    assert watched.rung() == rings


async def test_a_dead_letter_that_failed_its_task_rings(watched: Watched, bench: Bench) -> None:
    """A dead letter that fails its task, because its attempts are used up, rings."""
    head = await bench.send()
    await die(bench, head, 3)
    letters = DeadLetters(bench.storage, bench.operations, retry=bench.settings.retry())
    with watched.seen.emitted():
        await letters.end(Operation.to_run(params_of(head)))
    assert watched.rung() == {"FailedDeadLetterAlarm"}


# -- notifications -----------------------------------------------------------------------------


GIVEN_UP = [([ALICE, BOB], {"PushGivenUpAlarm"}), (TENANTS[:3], set())]


@pytest.mark.parametrize(("callers", "rings"), GIVEN_UP)
async def test_what_is_given_up_rings(
    watched: Watched, callers: list[Caller], rings: set[str]
) -> None:
    """The webhooks of several callers are not reached; one caller may name any, also dead ones."""
    world = World()
    for caller in callers:
        world.storage = world.storage.for_scope(Scope.of(caller.tenant, caller.user))
        opened = await world.storage.open_task("ctx", request(), caller=caller)
        own = config(NOBODY_LISTENS, task_id=opened.head.task_id)
        await world.storage.webhooks.put(own)
        await world.say(opened.head, COMPLETED)
    with watched.seen.emitted():
        await world.run(seconds=7 * 3600, step=600)
    assert watched.seen.points[NAMESPACE, "PushGivenUp", OWN]
    assert watched.rung() == rings


async def test_unsigned_webhooks_ring(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is no key fails every delivery, minute by minute."""
    world = World()
    head = await world.open(NOBODY_LISTENS)
    await world.say(head, COMPLETED)
    monkeypatch.setattr(world.deliverer.signer, "sign", refuses)
    await world.pass_on()
    for _ in range(6):
        with watched.seen.emitted():
            world.clock.advance(600)
            await world.pump()
        watched.clock.advance(MINUTE_S)
    assert watched.rung() == {"PushErrorsAlarm"}


# -- what AWS counts ------------------------------------------------------------------------------

Values = tuple[str, str, list[float], dict[str, str]]
"""A metric: namespace, name, a value for each minute, dimensions."""


def of_lambda(metric: str, function: str, *values: float) -> Values:
    return "AWS/Lambda", metric, list(values), {"FunctionName": function}


def of_api(metric: str, value: float) -> Values:
    return "AWS/ApiGateway", metric, [value], {"ApiName": STACK}


def of_queue(name: str, *values: float) -> Values:
    return "AWS/SQS", "ApproximateNumberOfMessagesVisible", list(values), {"QueueName": name}


def of_table(*values: float, **index: str) -> Values:
    return "AWS/DynamoDB", "WriteThrottleEvents", list(values), {"TableName": "TaskTable", **index}


FAILURES = "FunctionErrorsAlarm"
FUNCTIONS = ["ApiFunction", "StreamFunction", "SweeperFunction", "PushFunction", "WorkerFunction"]
COUNTED_BY_AWS: list[tuple[list[Values], set[str]]] = [
    *(  # the worker, if it dies before any attempt
        ([of_lambda("Invocations", it, 2, 2), of_lambda("Errors", it, 2, 2)], {FAILURES})
        for it in FUNCTIONS
    ),
    # twice in one minute, as Lambda loses an environment
    ([of_lambda("Invocations", "ApiFunction", 5), of_lambda("Errors", "ApiFunction", 2)], set()),
    *(
        ([of_lambda("Throttles", it, *[4] * 6)], {"ThrottlesAlarm"})
        for it in ("WorkerFunction", "SweeperFunction", "PushFunction")
    ),
    (  # a crowd of requests beyond the functions' concurrency gets 503: its senders' choice
        [
            *(of_api("Count", 4000), of_api("5XXError", 900)),
            *(of_lambda("Throttles", it, 500) for it in ("ApiFunction", "StreamFunction")),
        ],
        set(),
    ),
    ([of_api("Count", 40), of_api("5XXError", 3)], {"ServerErrorsAlarm"}),
    ([of_queue("DeadLetterQueue", *[1] * 5)], {"DeadLetterAlarm"}),
    ([of_queue("UndecodableQueue", 1)], {"UndecodableAlarm"}),
    ([of_lambda("IteratorAge", "PushFunction", *[400_000] * 5)], {"PushLagAlarm"}),
    ([of_table(*[3] * 5)], {"TableLimitAlarm"}),
    *(
        ([of_table(*[3] * 5, GlobalSecondaryIndexName=index)], {"TableLimitAlarm"})
        for index in INDEXES
    ),
    ([of_table(*[50] * 4)], set()),  # a burst
]


@pytest.mark.parametrize(("given", "rings"), COUNTED_BY_AWS)
def test_alarms_on_awss_own_metrics(watched: Watched, given: list[Values], rings: set[str]) -> None:
    """Functions, the API, queues, stream and table: what keeps failing rings, a burst does not."""
    for namespace, metric, values, dimensions in given:
        watched.model(namespace, metric, *values, **dimensions)
    assert watched.rung() == rings


@pytest.mark.parametrize(("requests", "rings"), [(40, {"ServerErrorsAlarm"}), (1000, set())])
def test_server_errors_ring_by_their_rate(watched: Watched, requests: int, rings: set[str]) -> None:
    """Four internal errors of JSON-RPC in five minutes: one in a hundred requests calls."""
    watched.model("AWS/ApiGateway", "Count", requests, ApiName=STACK)
    with watched.seen.emitted():
        for _ in range(4):
            count_error(internal_error(ValueError(), "test"))
    assert watched.rung() == rings


@pytest.mark.parametrize(
    ("namespace", "metric", "dimensions"),
    [
        (NAMESPACE, "TasksEnded", {"service": STACK, "state": "failed"}),
        (NAMESPACE, "PushGivenUp", {"service": STACK}),
        ("AWS/SQS", OLDEST, {"QueueName": "OperationsQueue"}),
    ],
)
def test_what_hit_no_caller_rings_no_alarm_of_callers(
    watched: Watched, namespace: str, metric: str, dimensions: dict[str, str]
) -> None:
    """Nothing says whom it hit: the alarms that count callers are quiet, also where one is enough.

    What has no caller has alarms of its own: a turn that nothing starts, a task that is given up.
    """
    watched.model(namespace, metric, 5000, **dimensions)
    assert watched.rung(by_one=True) == set()


def test_every_alarm_has_its_cause_here(transformed: Json, document: Json) -> None:
    """Each alarm of the template, those of a rollout among them, is rung by a test above."""
    rings = set(re.findall(r'"(\w+Alarm)"', Path(__file__).read_text(encoding="utf-8")))
    assert rings == alarms(transformed).keys()
    preference = document["Globals"]["Function"]["DeploymentPreference"]
    assert rings > {each["Ref"] for each in preference["Alarms"]}


# -- what the template says of them ------------------------------------------------------------


@pytest.fixture(scope="module")
def emitted(project: Path) -> set[str]:
    """The metrics that the code emits by itself."""
    paths = (project / "layers/runtime/a2a_serverless").rglob("*.py")
    return {name for path in paths for name in counted_in(path)}


def counted_in(path: Path) -> Iterator[str]:
    """Every call of `metrics.count`, `metrics.time` and `metrics.caller`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="metrics"), attr="count" | "time"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="metrics"), attr="caller")):
                yield "Callers"


@pytest.fixture
def dashboard(transformed: Json) -> Json:
    """The dashboard as CloudWatch gets it, references by their names."""
    body = transformed["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    parsed: Json = json.loads(re.sub(r"\$\{([^}]+)\}", r"\1", body))
    return parsed


def alarms(transformed: Json) -> dict[str, Json]:
    return of_type(transformed, "AWS::CloudWatch::Alarm")


def test_alarms_are_explained(transformed: Json) -> None:
    """Each alarm, and no other, has a meaning and a first action in docs/operate."""
    page = pages.part("operate")
    rows = re.findall(r"^\| `(\w+Alarm)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(alarms(transformed))
    assert set(re.findall(r"`(\w+Alarm)`", page)) == alarms(transformed).keys()
    assert all(meaning.strip() and action.strip() for _, meaning, action in rows)


def test_each_alarm_is_heard_and_can_be_worked_out(transformed: Json) -> None:
    """Whoever listens is told when an alarm begins, and when it is over.

    An alarm over an expression reads ten metrics at most, and one expression is its value.
    """
    for name, found in alarms(transformed).items():
        for actions in ("AlarmActions", "OKActions"):
            assert found[actions]["Fn::If"][:2] == ["HasAlarmTopic", [{"Ref": "AlarmTopicArn"}]]
        queries = found.get("Metrics", [])
        assert sum("MetricStat" in query for query in queries) <= 10, name
        assert sum(query.get("ReturnData", True) for query in queries) == bool(queries), name


def test_the_dashboard_shows_what_is_counted(dashboard: Json, emitted: set[str]) -> None:
    """Each metric of ours that a graph reads is emitted by the code.

    API Gateway counts by the API's name: the graphs look for the name that it has.
    """
    rows = [row for widget in dashboard["widgets"] for row in widget["properties"]["metrics"]]
    of_api = [row for row in rows if row[0] == "AWS/ApiGateway"]
    its = ["ApiName", "AWS::StackName"]
    assert of_api == [["AWS/ApiGateway", it, *its] for it in ("Count", "4XXError", "5XXError")]
    graphs = {row[1] for row in rows if row[0] == NAMESPACE}
    expressions = [row[0]["expression"] for row in rows if isinstance(row[0], dict)]
    graphs |= {it for text in expressions for it in re.findall(r'MetricName="(\w+)"', text)}
    assert graphs
    assert graphs <= emitted


def test_what_is_counted_is_shown_and_explained(dashboard: Json, emitted: set[str]) -> None:
    """The dashboard shows every metric that the code emits, and docs/operate names it."""
    text, page = json.dumps(dashboard), pages.part("operate")
    assert {name for name in emitted if f'"{name}' not in text or f"`{name}`" not in page} == set()
