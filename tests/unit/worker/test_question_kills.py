"""Random conversations of code that waits, with kills of its worker and of what wakes it.

A seed names a script: acts, some of them beside one another, and what comes of each. The process
dies before and after requests to the table and to the other agent, in steps and between acts.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import pytest
from a2a.types import Part, SendMessageRequest, Task, TaskArtifactUpdateEvent

from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.signals import signal
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.entries import Caller, Recorded, StatusChanged, StepId, TurnOpened
from a2a_serverless.tasks.fold import Fold, Log, events_of
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.questions import question_texts
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.tasks.waits import CALLBACK, Signal, SignalDecision
from a2a_serverless.wiring import Backends, table_backends
from a2a_serverless.worker import TaskContext, WaitTimeoutError, Worker
from a2a_serverless.worker.context import HistoryMessage, WorkerExecutor
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless_tools.testing import StandIn
from a2a_serverless_tools.testing import agents as stand_ins
from a2a_serverless_tools.testing.clock import PacedClock
from tests.support.databases import LONG, Database, create_table, emulator_client
from tests.support.emulators import dynamodb_local
from tests.support.present import present
from tests.support.workers import Bench, S, answered, artifact_texts, user_request

CHUNKS = 3
"""What a step that streams says, in pieces."""
LATE = "late"
LATE_S = 300
"""The time of what is never answered."""
WEEK_S = 7 * 86_400
MOST_ROUNDS = 1500
"""Looks at a task, of a minute at most."""


class Act(NamedTuple):
    """What the code does at one place of a script: `how` says what comes of it."""

    kind: str
    how: str
    number: int

    @property
    def said(self) -> str:
        """What the code says of it behind it."""
        return LATE if self.how == LATE else f"{_SAYS[self.kind, self.how]} {self.number}"


_ENDS = {
    "step": {"runs": "noted", "streams": "noted"},
    "sleep": {"short": "slept", "long": "slept"},
    "ask": {"text": "answer", "whole number": "number", LATE: ""},
    "callback": {"posted": "paid", LATE: ""},
    "poll": {"soon": "found", "after minutes": "found", LATE: ""},
    "call": {"at once": "did write", "after minutes": "did wait", "asks": "did soft"},
}
_ENDS["call"] |= {"fails": "failed: no paper", "in a step": "did write", LATE: ""}
_SAYS = {(kind, how): says for kind, ends in _ENDS.items() for how, says in ends.items()}
"""All kinds of acts, and what the code says of them."""

Script = tuple[tuple[Act, ...], ...]
"""Acts behind one another; those of one tuple are beside one another."""

SHORT: Script = ((Act("step", "runs", 0), Act("call", "asks", 1)), (Act("callback", "posted", 2),))
STREAMS: Script = (
    tuple(Act("step", "streams", number) for number in range(3)),
    (Act("sleep", "long", 3),),
    tuple(Act("step", "streams", number) for number in range(4, 7)),
)
EVERYTHING: Script = tuple((Act(*each, number),) for number, each in enumerate(_SAYS))


def script_of(seed: int) -> Script:
    """The conversation of a seed: three to six places, a third of them with acts at once."""
    chance = random.Random(f"script {seed}")  # noqa: S311 - a seeded script
    numbers = iter(range(100))

    def acts() -> tuple[Act, ...]:
        at_once = chance.choice((1, 1, 1, 1, 2, 3))
        return tuple(Act(*chance.choice([*_SAYS]), next(numbers)) for _ in range(at_once))

    return tuple(acts() for _ in range(chance.randint(3, 6)))


class Fate:
    """Decides where the process dies: once `at` a point, or at each with the chance `share`."""

    def __init__(self, seed: int, share: float, at: int = 0) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a seeded schedule
        self.share, self.at = share, at
        self.is_armed = False
        self.points = self.kills = 0

    async def may_end(self) -> None:
        """Let the process die here, sometimes."""
        if not self.is_armed:
            return
        self.points += 1
        if self.points == self.at if self.at else self.chance.random() < self.share:
            self.kills += 1
            asyncio.get_running_loop().stop()
            await asyncio.get_running_loop().create_future()


def make_mortal(served: object, fate: Fate, *names: str) -> None:
    """Let the process die before and after these requests, which may be done or not then."""

    def around(request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def made(*args: Any, **options: Any) -> Any:
            await fate.may_end()
            answer = await request(*args, **options)
            await fate.may_end()
            return answer

        return made

    for name in names:
        setattr(served, name, around(getattr(served, name)))


def _does(said: HistoryMessage) -> stand_ins.Outcome:
    """What the other agent makes of a message, by its first word."""
    word, _, number = said.text.partition(" ")
    match word:
        case "ask":
            return stand_ins.Outcome("hard or soft?", "input_required", after_s=5)
        case "fail":
            return stand_ins.Outcome(f"no paper {number}", "failed")
        case "wait":
            return stand_ins.Outcome(f"did {said.text}", after_s=150)
        case "hang":
            return stand_ins.Outcome("never", after_s=10**9)
    return stand_ins.Outcome(f"did {said.text}")


class _Other(StandIn):
    """The other agent: the process that calls it may die before and after each request."""

    def __init__(self, clock: PacedClock, fate: Fate) -> None:
        super().__init__("books", _does, clock)
        make_mortal(self, fate, "send", "look", "cancel")

    async def send(self, request: SendMessageRequest, *, may_be_there: bool = False) -> Task:
        # Most agents take a message twice that was not looked for.
        assert may_be_there or request.message.message_id not in self._by_message
        return await super().send(request, may_be_there=may_be_there)


@dataclass
class Host(Worker):
    """Runs a script, says what comes of each act, and notes what is done outside of the log."""

    script: Script
    fate: Fate
    clock: PacedClock
    calls: Counter[StepId] = field(default_factory=Counter)
    recorded: set[StepId] = field(default_factory=set)
    """The records that stood when the attempt was begun."""
    jobs: dict[int, float] = field(default_factory=dict)
    """When the job of each poll is done."""
    beside: Any = None
    """What happens outside while the code runs."""
    _WORDS: ClassVar = {"at once": "write", "in a step": "write", "after minutes": "wait"}

    def __post_init__(self) -> None:
        self.other = _Other(self.clock, self.fate)
        self.agents = cast("Any", {"books": self.other})

    async def handle(self, ctx: TaskContext) -> None:
        assert (ctx.user_text, ctx.history) == ("hello", [])
        await ctx.emit_text_artifact("begun;", "log")
        for acts in self.script:
            for said in await ctx.gather(*(self._act(ctx, act) for act in acts)):
                await ctx.emit_text_artifact(f"{said};", "log", append=True)
                await self.fate.may_end()
                await self.beside()
        await ctx.complete("done")

    async def _act(self, ctx: TaskContext, act: Act) -> str:
        try:
            return str(await getattr(self, f"_{act.kind}")(ctx, act))
        except WaitTimeoutError:
            assert act.how == LATE
            return LATE

    async def _step(self, ctx: TaskContext, act: Act) -> str:
        name = f"step {act.number}"
        if act.how == "streams":
            return str(await ctx.step(name, self._stream, ctx, act))
        return str(await ctx.step(name, self._note, act))

    async def _stream(self, ctx: TaskContext, act: Act) -> str:
        said = await self._note(act)
        for number in range(CHUNKS):
            await ctx.emit_text_artifact(f"{number};", f"of {act.number}", append=True)
            for _ in range(self.fate.chance.randrange(12)):
                await asyncio.sleep(0)
            await self.fate.may_end()
        return said

    async def _note(self, act: Act) -> str:
        step_id = StepId(f"step {act.number}", "", 1)
        self.calls[step_id] += 1
        assert step_id not in self.recorded, f"{step_id} has run again though it was recorded"
        await self.fate.may_end()
        await self.beside()
        return act.said

    async def _sleep(self, ctx: TaskContext, act: Act) -> str:
        await ctx.sleep(5 if act.how == "short" else 90, key=f"sleep {act.number}")
        return act.said

    async def _ask(self, ctx: TaskContext, act: Act) -> str:
        name, timeout_s = f"q{act.number}", LATE_S if act.how == LATE else None
        if act.how == "whole number":
            return f"number {(await ctx.ask(name, id=name, schema=int)).data}"
        return (await ctx.ask(name, id=name, timeout_s=timeout_s)).text

    async def _callback(self, ctx: TaskContext, act: Act) -> str:
        callback = await ctx.callback(f"paid {act.number}")
        await self.beside()
        timeout_s = LATE_S if act.how == LATE else WEEK_S  # a wake that is lost ends no run
        return (await callback.wait(timeout_s=timeout_s)).text

    async def _poll(self, ctx: TaskContext, act: Act) -> str:
        every_s = 5 if act.how == "soon" else 90
        return str(
            await ctx.poll(f"job {act.number}", self._look, act, every_s=every_s, timeout_s=LATE_S)
        )

    async def _look(self, act: Act) -> str | None:
        takes_s = {"soon": 9.0, "after minutes": 100.0}.get(act.how, 10.0**9)
        done_at = self.jobs.setdefault(act.number, self.clock.monotonic() + takes_s)
        await self.fate.may_end()
        return act.said if self.clock.monotonic() >= done_at else None

    async def _call(self, ctx: TaskContext, act: Act) -> str:
        key, number = str(act.number), act.number
        match act.how:
            case "in a step":
                return str(await ctx.step(f"step {number}", self._tool, ctx, act))
            case "asks":
                reply = await ctx.call_agent("books", f"ask {number}", key=key)
                assert reply.question == "hard or soft?"
                return (await reply.answer(f"soft {number}")).text
            case "fails":
                reply = await ctx.call_agent("books", f"fail {number}", key=key)
                return f"{reply.state}: {reply.text}"
            case "late":
                await ctx.call_agent("books", f"hang {number}", key=key, timeout_s=LATE_S)
        said = f"{self._WORDS[act.how]} {number}"
        return (await ctx.call_agent("books", said, key=key)).text

    async def _tool(self, ctx: TaskContext, act: Act) -> str:
        assert await self._note(act)
        return (await ctx.call_agent("books", f"write {act.number}")).text


class _Outside:
    """Answers questions and posts to callbacks, at random times, and may die at that."""

    def __init__(self, host: Host, backends: Backends) -> None:
        self._host, self._backends, self._chance = host, backends, host.fate.chance
        self.acts = {act.number: act for acts in host.script for act in acts}
        self.posts = [n for n, act in self.acts.items() if act[:2] == ("callback", "posted")]
        """Those whose first POST has not come, or died."""
        self.misled: set[int] = set()
        """Questions that had a wrong answer."""

    async def posts_beside(self) -> None:
        """Post while the code runs, sometimes."""
        if self._chance.random() < 0.3:
            await self.post()

    async def post(self) -> None:
        """Post to a callback, be it waited for or not; in a third of all cases wake nobody."""
        for number in self._chance.sample(self.posts, min(1, len(self.posts))):
            decision = await self._posted(number, is_silent=self._chance.random() < 1 / 3)
            assert decision is not SignalDecision.OVER
            self.posts.remove(number)

    async def _posted(self, number: int, *, is_silent: bool = False) -> SignalDecision:
        storage = self._backends.storage.for_scope(self._backends.storage.scope)
        if is_silent:
            storage = replace(storage, observer=replace(storage.observer, send=None))
        return await signal(
            storage,
            self.task.task_id,
            self.task.incarnation,
            turn=1,
            step_id=StepId(f"{CALLBACK}paid {number}", "", 1),
            given=Signal(self.acts[number].said.encode()),
        )

    def begin(self, task: Head) -> None:
        self.task = task
        self._host.beside = self.posts_beside

    async def refused(self) -> None:
        """Post to each callback once more."""
        for number, act in self.acts.items():
            if act.kind == "callback":
                assert await self._posted(number) is not SignalDecision.TAKE

    def answers(self, log: Log) -> dict[str, str]:
        """What the client may say to what is asked: the answers by the questions' ids."""
        asked = question_texts(log.fold().status.message.parts)
        acts = {name: self.acts[int(name[1:].partition("#")[0])] for name in asked}
        words = {"text": "answer {}", "whole number": "{}"}
        known = {name: act for name, act in acts.items() if act.how in words}
        return {name: words[act.how].format(act.number) for name, act in known.items()}

    async def answer(self, worker: Bench, task: Head, answers: dict[str, str]) -> None:
        """Answer all that is asked, or a part of it, sometimes wrongly; or die after the commit."""
        chance = self._chance
        names = [*answers] if chance.random() < 0.5 else [chance.choice([*answers])]
        parts = [Part(text=answers[name]) for name in names]
        for part, name in zip(parts, names, strict=True):
            number = int(name[1:].partition("#")[0])
            is_number = self.acts[number].how == "whole number"
            if is_number and number not in self.misled and chance.random() < 0.3:
                self.misled.add(number)
                part.text = "many"
            part.metadata.update({"questionId": name})
        message, storage = user_request(*parts), worker.storage_of(task)
        if chance.random() < 1 / 3:
            await storage.commit(task, Commit(entries=(TurnOpened(message, Caller()),)))
        else:
            await worker.go_on(task, message, caller=Caller(), scope=worker.storage.scope)


def run(
    seed: int, table: Table, clock: Any, *, script: Script = (), share: float = 0.03, at: int = 0
) -> Fate:
    """Run a conversation to its end; its process dies at a `share` of points, or once `at` one."""
    fate = Fate(seed, share, at)
    options: dict[str, Any] = {"max_attempts": 100, "retry_base_s": 0.001}
    options["public_url"] = "http://agent.example"
    make_mortal(table, fate, "load", "write")
    host = Host(script or script_of(seed), fate, clock)
    backends = table_backends(Settings(visibility_s=60, **options), table, clock)
    outside = _Outside(host, backends)

    def bench() -> Bench:
        return Bench(WorkerExecutor(host), clock=clock, backends=backends, **options)

    task = _alive(bench().send())
    outside.begin(task)
    for _ in range(MOST_ROUNDS):
        worker = bench()
        log = present(_alive(worker.storage_of(task).read(task.task_id)))
        if log.head.is_terminal:
            _alive(outside.refused())
            _check(log, host)
            return fate
        if fate.chance.random() < 0.2:
            _alive(outside.post())
            continue
        host.recorded = {e.id for r in log.replayed() for e in r.entries if _is_result(e)}
        handles = _alive(worker.operations.pull(1, 0))
        if handles:
            fate.is_armed = True
            with answered(clock) as during:
                _mortal(during(worker.adapter.process(handles[0])))
            fate.is_armed = False
            clock.forget_sleepers()
        elif log.head.turn.asks and (answers := outside.answers(log)):
            _alive(outside.answer(worker, log.head, answers))
        else:
            _alive(_passed(backends, clock))
    raise AssertionError(f"the task of seed {seed} does not come to an end: {host.script}")


async def _passed(backends: Backends, clock: PacedClock) -> None:
    """Let a minute pass, in which messages become visible; sweep."""
    clock.forget_sleepers()
    await clock.pass_time(61)
    await Sweeper(backends.storage, backends.operations, clock=clock).sweep()


_dead: list[object] = []
"""What is left of dead processes: collected, their tasks would run their `finally` blocks."""
# Not even at the interpreter's end, when the modules that those blocks call are gone.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_dead))


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


def _is_result(entry: object) -> bool:
    return isinstance(entry, Recorded) and entry.form == "json"


def _check(log: Log, host: Host) -> None:
    task, entries = log.fold().task(), [e for record in log.records for e in record.entries]
    acts = [act for acts in host.script for act in acts]
    said = "".join(f"{act.said};" for act in acts)
    expected = {"log": f"begun;{said}", "final-answer": "done"}
    streamed = "".join(f"{number};" for number in range(CHUNKS))
    expected |= {f"of {act.number}": streamed for act in acts if act.how == "streams"}
    texts = {name: "".join(parts) for name, parts in artifact_texts(task).items()}
    assert (log.head.state, texts) == (S.TASK_STATE_COMPLETED, expected), (host.script, texts)
    assert shown(log) == expected, (host.script, shown(log))
    asked = [e for e in entries if isinstance(e, StatusChanged) and e.status.message.parts]
    assert len(task.history) == len(asked) + sum(isinstance(e, TurnOpened) for e in entries)
    ways = Counter(act.how for act in acts if act.kind == "call")
    assert len(host.other.said) == ways.total() + ways["asks"], host.other.said
    assert len(set(host.other.canceled)) == ways[LATE]


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


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        ("memory", 200 if LONG else 1),
        ("file", 60 if LONG else 1),
        pytest.param("dynamodb", 40 if LONG else 1, marks=pytest.mark.emulators),
    ],
)
def test_random_kills_repeat_no_step_and_no_question(kind: str, seeds: int, tmp_path: Path) -> None:
    """Answers come to their questions, what is said or streamed is exact, nothing is stuck."""
    kills = 0
    with tables(kind, tmp_path) as made:
        for seed in range(seeds):
            for script, share in (((), 0.03), (STREAMS, 0.08)):
                clock = PacedClock()
                kills += run(seed, made(clock), clock, script=script, share=share).kills
    assert kills > 0


@pytest.mark.parametrize(
    ("script", "least", "step"),
    [
        (SHORT, 40, 1 if LONG else 11),
        pytest.param(EVERYTHING, 400, 1 if LONG else 211, marks=pytest.mark.long),
    ],
    ids=["short", "everything"],
)
def test_a_kill_at_each_point_changes_nothing(script: Script, least: int, step: int) -> None:
    """Before and after a request, and in a step: at some of the points, and at all in LONG."""

    def killed(at: int) -> Fate:
        clock, table = PacedClock(), MemoryTable(INDEXES)
        return run(0, table, clock, script=script, share=0, at=at)

    points = killed(10**6).points
    assert points > least
    for at in range(1, points, step):
        assert killed(at).kills == 1
