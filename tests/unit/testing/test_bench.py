"""The testing kit: what a test of an agent sees is what production does."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import Message, Part, Role, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent

from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError
from a2a_serverless.worker import FinalError, TaskContext, WaitTimeoutError, Worker
from a2a_serverless_tools.testing import AgentBench, StuckError, file_part, step
from a2a_serverless_tools.testing.bench import AgentSource
from a2a_serverless_tools.testing.fixtures import MakeBench
from tests.support.workers import chunk, status

S = TaskState


class Counting(Worker):
    """Streams three chunks and keeps, by mistake, a number in memory."""

    def __init__(self) -> None:
        self.turns = 0

    async def handle(self, ctx: TaskContext) -> None:
        self.turns += 1
        for number in range(3):
            await ctx.emit_text_artifact(f"{number}", "numbers", append=True)
        await ctx.request_input(f"turn {self.turns} of {ctx.user_text}")


class Executor(AgentExecutor):
    """An executor of the SDK: a chunk, then the end; its cancel says good-bye."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(chunk(context, context.get_user_input()))
        await event_queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(status(context, S.TASK_STATE_CANCELED, "bye"))


def made(handle: Callable[[TaskContext], Any]) -> type[Worker]:
    class Made(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await handle(ctx)

    return Made


def test_a_worker_and_what_came_of_its_turn(agent_bench: MakeBench) -> None:
    """Task, state, text, artifacts, chunks, events and attempts of one turn."""
    run = agent_bench(Counting).send("hello")
    assert (run.state, run.text, run.attempts) == ("input_required", "turn 1 of hello", 1)
    assert run.artifacts["numbers"].text == "012"
    assert run.chunks("numbers") == ["0", "1", "2"]
    kinds = [TaskArtifactUpdateEvent] * 3 + [TaskStatusUpdateEvent]
    assert [type(event) for event in run.events] == kinds
    assert (run.task.history[0].parts[0].text, run.errors) == ("hello", ())
    shown = "input_required: 'turn 1 of hello', artifacts: numbers, attempts: 1"
    assert str(run) == repr(run) == shown


def test_an_executor_of_the_sdk(agent_bench: MakeBench) -> None:
    """It runs as it is; a paused or waiting task of it is cancelled by its own `cancel()`."""
    bench = agent_bench(Executor())
    run = bench.send("hi")
    assert (run.state, run.text, run.artifacts["a"].text) == ("completed", "done", "hi")
    stopped = bench.send("hi", cancel_after=1)
    assert (stopped.state, stopped.text) == ("canceled", "bye")


def test_turns_follow_one_another(agent_bench: MakeBench) -> None:
    """A reply is the task's next turn; its events are those of that turn alone."""
    run = agent_bench(Counting).send("one").reply("two")
    assert run.text == "turn 1 of two"  # a new agent: nothing of the first turn is in memory
    assert [message.text for message in run.history] == ["one", "turn 1 of one", "two"]
    assert (len(run.events), run.artifacts["numbers"].text) == (4, "012012")


def test_turns_have_new_agents_unless_one_is_given(agent_bench: MakeBench, tmp_path: Path) -> None:
    """A class, a function and FILE.py:NAME make one for each turn; an instance serves all."""
    source = "from tests.unit.testing.test_bench import Counting\nagent = Counting()\n"
    (tmp_path / "agent.py").write_text(source, encoding="utf-8")
    sources: dict[str, AgentSource] = {
        "class": Counting,
        "function": lambda: Counting(),  # noqa: PLW0108 - a function it is to be
        "file": f"{tmp_path / 'agent.py'}:agent",
    }
    for kind, agent in sources.items():
        assert agent_bench(agent).send("a").reply("b").text == "turn 1 of b", kind
    assert agent_bench(Counting()).send("a").reply("b").text == "turn 2 of b"
    with pytest.raises(TypeError, match="neither an AgentExecutor nor a Worker"):
        agent_bench(lambda: "agent").send("a")  # type: ignore[arg-type,return-value]


def test_a_message_has_what_a_client_sends(agent_bench: MakeBench) -> None:
    """Texts, files, metadata, accepted types, sender, tenant and extensions reach the agent."""
    seen: dict[str, Any] = {}

    async def handle(ctx: TaskContext) -> None:
        seen.update(
            text=ctx.user_text,
            files=[(f.filename, f.content, f.media_type) for f in ctx.files],
            metadata=ctx.metadata,
            accepts=(ctx.accepts("text/plain"), ctx.accepts("image/png")),
            who=(ctx.user, ctx.tenant, ctx.context_id),
            extensions=ctx.requested_extensions,
        )
        await ctx.respond()

    said: list[str | Part] = ["Read this:", file_part("a.csv", "x,y")]
    options: dict[str, Any] = {"context_id": "c", "user": "ann", "tenant": "acme"}
    options |= {"metadata": {"k": 1}, "accepts": ["text/plain"], "extensions": ["urn:x"]}
    bench = agent_bench(made(handle))
    run = bench.send(said, **options)
    assert seen == {
        "text": "Read this:",
        "files": [("a.csv", b"x,y", "text/csv")],
        "metadata": {"k": 1},
        "accepts": (True, False),
        "who": ("ann", "acme", "c"),
        "extensions": {"urn:x"},
    }
    assert (run.state, run.task.context_id) == ("completed", "c")
    own = Message(message_id="mine", role=Role.ROLE_USER, parts=[Part(text="hi")])
    assert bench.send(own).task.history[0].message_id == "mine"


def test_others_do_not_find_the_task(agent_bench: MakeBench) -> None:
    """A reply is by the same user; another user's is refused, as is one to an ended task."""
    run = agent_bench(Counting).send("one", user="ann", tenant="acme")
    with pytest.raises(TaskNotFoundError):
        run.reply("two", user="bob")
    assert run.reply("two").reply("three").state == "input_required"
    ended = agent_bench(Executor).send("hi")
    with pytest.raises(TaskTerminalStateError):
        ended.reply("again")
    with pytest.raises(TaskTerminalStateError):
        ended.cancel()


@pytest.mark.parametrize("after", [0, 1, 3, 4])
def test_a_kill_loses_and_doubles_nothing(agent_bench: MakeBench, after: int) -> None:
    """A worker dies after each number of events; the task is as without the crash.

    A turn whose last attempt dies fails; one that dies before it has begun is no attempt.
    """
    run = agent_bench(Counting).send("hello", kill_after=after)
    assert (run.state, run.text) == ("input_required", "turn 1 of hello")
    assert (run.artifacts["numbers"].text, run.attempts) == ("012", 2 if after < 4 else 1)
    last = agent_bench(Counting, max_attempts=1).send("hello", kill_after=after)
    assert last.state == ("failed" if 0 < after < 4 else "input_required")


class Researcher(Worker):
    """Plans, sleeps for hours and searches; its steps are the calls that cost."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("intro,", "notes")
        await ctx.step("plan", self.ran.append, "plan")
        await ctx.sleep(5 * 3600)
        for page in "12":
            await ctx.step("search", self.search, ctx, page, key=page)
        await ctx.respond("done")

    async def search(self, ctx: TaskContext, page: str) -> None:
        self.ran.append(page)
        await ctx.emit_text_artifact(page, "notes", append=True)


@pytest.mark.parametrize(
    ("point", "attempts"),
    [
        (None, 2),
        (step("plan"), 3),
        (step("ctx.sleep"), 2),  # the message of the dead worker finds the turn asleep
        (step("search", key="2"), 3),
        (step("search", number=3), 2),
    ],
)
def test_a_kill_at_a_record_costs_none(agent_bench: MakeBench, point: Any, attempts: int) -> None:
    """A turn sleeps to the end of its sleep, and goes on behind the record that was stored last."""
    agent = Researcher()
    bench = agent_bench(agent)
    run = bench.send("hello", kill_after=point)
    assert (run.state, run.text, run.attempts) == ("completed", "done", attempts)
    assert (agent.ran, run.steps) == (["plan", "1", "2"], ("plan", "ctx.sleep", "search", "search"))
    assert run.artifacts["notes"].text == "intro,12"
    assert bench.clock.monotonic() >= 5 * 3600
    assert "steps: plan, ctx.sleep, search, search, attempts" in str(run)


def test_a_kill_stops_all_that_the_agent_does(agent_bench: MakeBench) -> None:
    """No `except`, no `finally` and no other task of the dead worker's agent runs on."""
    ran: list[str] = []

    async def beside(name: str) -> None:
        while True:
            await asyncio.sleep(0)
            ran.append(name)

    class Tidy(Worker):
        attempts = 0

        async def handle(self, ctx: TaskContext) -> None:
            Tidy.attempts += 1
            if Tidy.attempts > 1:
                ran.clear()
                await ctx.respond()
                return
            other = asyncio.create_task(beside("beside"))
            try:
                await ctx.send_status("at work")
            except BaseException:
                ran.append("except")
                raise
            finally:
                ran.append("finally")
                other.cancel()

    run = agent_bench(Tidy).send("hi", kill_after=1)
    assert (run.state, run.attempts, ran) == ("completed", 2, [])


def test_a_dead_worker_says_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    """What the end of the test does with a killed worker's tasks is in no log."""
    with AgentBench(Counting) as bench:
        bench.send("hello", kill_after=1)
        caplog.clear()
    assert (caplog.records, logging.root.manager.disable) == ([], logging.NOTSET)


def test_a_cancel_raises_in_the_agent_at_its_point(agent_bench: MakeBench) -> None:
    """The call that emits the n-th event raises CancelledError; then `cancel()` is called."""
    seen: list[str] = []

    class Careful(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            try:
                await ctx.send_status("one")
                seen.append("one")
                await ctx.send_status("two")
                seen.append("two")
            except asyncio.CancelledError:
                seen.append(f"cancelled: {ctx.is_cancelled}")
                raise

        async def cancel(self, ctx: TaskContext) -> None:
            seen.append("cancel()")

    run = agent_bench(Careful).send("hi", cancel_after=2)
    assert (seen, run.state) == (["one", "cancelled: True", "cancel()"], "canceled")


def test_a_cancel_before_the_start_and_after_the_end(agent_bench: MakeBench) -> None:
    """Before a worker has the turn its agent sees nothing; a pause at the point is canceled.

    The point may be a condition: the first event for which a function returns True.
    """

    def says_one(event: object) -> bool:
        return isinstance(event, TaskArtifactUpdateEvent) and event.artifact.parts[0].text == "1"

    bench = agent_bench(Counting)
    early = bench.send("hi", cancel_after=0)
    assert (early.state, early.attempts, early.artifacts) == ("canceled", 0, {})
    run = bench.send("hello", cancel_after=says_one)
    assert (run.state, run.artifacts["numbers"].text) == ("canceled", "01")
    assert bench.send("hi", cancel_after=4).state == "canceled"
    assert bench.send("hi").cancel().state == "canceled"
    assert agent_bench(Executor).send("hi", cancel_after=2).state == "completed"


def test_an_agent_that_raises_is_tried_again(agent_bench: MakeBench) -> None:
    """As deployed: three attempts with waits in between; the test sees the exceptions."""
    began = time.monotonic()
    run = agent_bench(made(_raises(ValueError("no model"))), retry_base_s=60).send("hi")
    assert (run.state, run.attempts) == ("failed", 3)
    assert [str(error) for error in run.errors] == ["no model"] * 3
    assert "no model" not in run.text
    assert "ValueError('no model')" in str(run)
    assert time.monotonic() - began < 20  # the waits are the clock's


class Stop(BaseException):
    """What a framework raises past `except Exception`, as pytest's own do."""


@pytest.mark.parametrize("error", [Stop, asyncio.CancelledError])
def test_what_is_no_exception_is_shown(agent_bench: MakeBench, error: type[BaseException]) -> None:
    """It fails the attempt, and the test sees it; CancelledError if the agent itself raises it.

    So does the exit of a task at which the agent does not look.
    """
    run = agent_bench(made(_raises(error("enough"))), max_attempts=1).send("hi")
    assert (run.state, [type(one) for one in run.errors]) == ("failed", [error])

    async def leave() -> None:
        sys.exit(3)

    async def handle(ctx: TaskContext) -> None:
        await asyncio.gather(ctx.step("leave", leave), return_exceptions=True)
        await ctx.complete()

    run = agent_bench(made(handle), max_attempts=1).send("hi")
    assert (run.state, [repr(one) for one in run.errors]) == ("failed", ["SystemExit(3)"])


def test_a_cancel_is_no_error_of_the_agent(agent_bench: MakeBench) -> None:
    """Neither that of the client, nor that with which a sleep ends an attempt."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.sleep(3600)
        await ctx.send_status("awake")
        await ctx.sleep(1)

    run = agent_bench(made(handle)).send("hi", cancel_after=1)
    assert (run.state, run.attempts, run.errors) == ("canceled", 2, ())
    assert agent_bench(made(_raises(FinalError("never")))).send("hi").attempts == 1


def _raises(error: BaseException) -> Callable[[TaskContext], Any]:
    async def handle(ctx: TaskContext) -> None:
        raise error

    return handle


def test_time_is_the_clocks(agent_bench: MakeBench) -> None:
    """`ctx.sleep` takes no time; what expires does so when the test lets time pass."""
    began = time.monotonic()

    async def handle(ctx: TaskContext) -> None:
        await ctx.gather(ctx.sleep(30), ctx.sleep(40))
        await ctx.sleep(600)
        await ctx.request_input("?")

    bench = agent_bench(made(handle), ttl_days=1)
    run = bench.send("hi")
    assert run.attempts == 2
    assert 680 <= bench.clock.monotonic() < 700
    bench.pass_time(2 * 86_400)
    with pytest.raises(TaskNotFoundError):
        run.reply("late")
    assert time.monotonic() - began < 20


def test_a_turn_that_outlasts_its_worker_starts_over(agent_bench: MakeBench) -> None:
    """As on Lambda: a turn is given back before the worker's time is over, three times."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.sleep(50)
        await ctx.sleep(50)
        await ctx.respond()

    run = agent_bench(made(handle), run_limit_s=60).send("hi")
    assert (run.state, run.attempts) == ("failed", 3)


def test_threads_and_real_waits_are_waited_for(agent_bench: MakeBench) -> None:
    """The clock does not go on to the end of a sleep while a thread of the agent works."""

    async def handle(ctx: TaskContext) -> None:
        gate = threading.Event()
        asyncio.get_running_loop().call_later(0.02, gate.set)
        await ctx.gather(ctx.run_sync(gate.wait, 20), ctx.sleep(50))
        await asyncio.sleep(0.01)
        await ctx.respond(str(gate.is_set()))

    assert agent_bench(made(handle)).send("hi").text == "True"


def test_a_cancel_leaves_the_agent_real_time(agent_bench: MakeBench) -> None:
    """What the agent does after CancelledError is not cut short by the test's clock."""
    ended: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.send_status("at work")
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)

    assert agent_bench(made(handle)).send("hi", cancel_after=1).state == "canceled"
    assert ended == [True]


def test_a_turn_that_hangs_is_named(agent_bench: MakeBench) -> None:
    """After the time that the test gives it the sentence says so; the bench still ends."""

    async def handle(ctx: TaskContext) -> None:
        await asyncio.Event().wait()

    place = rf"start 1 waits at .*test_bench.py, line {handle.__code__.co_firstlineno + 1}\."
    with pytest.raises(StuckError, match=rf"turn of 'hi' is not over within 0\.05 s: {place}"):
        agent_bench(made(handle), timeout_s=0.05).send("hi")


REPEATS: dict[str, Callable[[TaskContext], Awaitable[None]]] = {
    "sleeps": lambda ctx: ctx.sleep(3600),
    "hand-overs": lambda ctx: ctx.step("look", ctx.sleep, 50),  # is handed over after 840 s
    "steps": lambda ctx: ctx.step("load", int),
}


@pytest.mark.parametrize("repeats", REPEATS)
def test_a_turn_has_the_time_of_all_its_attempts(agent_bench: MakeBench, repeats: str) -> None:
    """A loop without an end is named although no attempt takes long, and so is the way out."""

    async def handle(ctx: TaskContext) -> None:
        while True:
            await REPEATS[repeats](ctx)

    bench = agent_bench(made(handle), timeout_s=0.5)
    named = r"'look at it' .* start \d+ (sleeps until 2023-|waits at |has ended, and another)"
    with pytest.raises(StuckError, match=named) as stuck:
        bench.send("look at it")
    assert "an end for what it repeats" in str(stuck.value)


class Host(Worker):
    """Asks two questions at once, and one that nobody has to answer."""

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.step("plan", self.ran.append, "plan")
        day, hour = await ctx.gather(ctx.ask("Day?", id="day"), ctx.ask("Hour?", id="hour"))
        await ctx.step("book", self.ran.append, f"{day.text} {hour.text}")
        try:
            await ctx.ask("Sure?", timeout_s=3600)
        except WaitTimeoutError:
            await ctx.complete("late")
        else:
            await ctx.complete("sure")


def test_questions_are_answered_by_their_ids() -> None:
    """All by one text, each by its id, a part of them, and none in time; also behind a kill."""
    ran: list[str] = []
    with AgentBench(lambda: Host(ran)) as bench:
        run = bench.send("a table", kill_after=step("ctx.ask", key="day"))
        assert run.questions == {"day": "Day?", "hour": "Hour?"}
        run = bench.answer(run, {"hour": "noon"})
        assert run.questions == {"day": "Day?"}
        run = bench.answer(run, {"day": "Friday"}, kill_after=step("book"))
        assert (run.questions, run.attempts) == ({"#1": "Sure?"}, 2)
        run = bench.answer(run, None)
        assert (run.state, run.artifacts["final-answer"].text) == ("completed", "late")
        assert ran == ["plan", "Friday noon"]
        ran.clear()
        run = bench.answer(bench.answer(bench.send("a table"), "any"), "yes")
        assert (run.artifacts["final-answer"].text, ran) == ("sure", ["plan", "any any"])


async def test_what_a_bench_cannot_do_is_a_sentence(agent_bench: MakeBench) -> None:
    """A setting that does not exist, and an async test: the bench has loops of its own."""
    with pytest.raises(ValueError, match="attempts"):
        AgentBench(Counting, attempts=1)
    with pytest.raises(RuntimeError, match="call it from a plain test function"):
        agent_bench(Counting).send("hi")
    with pytest.raises(RuntimeError, match="No turn runs"):
        agent_bench(Counting).cancel_running()


def test_an_answer_that_is_none_is_refused() -> None:
    """A value that is no message, and the end of a time that no question has: the task waits on."""
    with AgentBench(lambda: Host([])) as bench:
        run = bench.send("a table")
        with pytest.raises(TypeError, match=r"this is 3: for a JSON value write .*new_data_part"):
            bench.answer(run, {"day": 3})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="No question of the task has a `timeout_s`"):
            bench.answer(run, None)
        assert bench.answer(run, {"day": new_data_part(3)}).questions == {"hour": "Hour?"}


class Approver(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.step("plan", len, ctx.user_text)
        callback = await ctx.callback("approved")
        assert callback.url.startswith("https://agent.example/callbacks/")
        try:
            posted = await callback.wait(timeout_s=3600)
        except WaitTimeoutError:
            await ctx.complete("late")
        else:
            await ctx.step("book", len, "x")
            await ctx.complete(str(posted.data))


@pytest.mark.parametrize(
    ("posted", "shown"),
    [
        ({"value": {"by": "pat"}}, "{'by': 'pat'}"),
        ({"value": {"by": "pat"}, "form": True}, "{'by': 'pat'}"),
        ({"value": b"%PDF"}, "None"),
        (None, "late"),
    ],
    ids=["JSON", "form", "bytes", "nothing"],
)
def test_a_signal_is_posted_when_the_turn_waits(posted: dict[str, Any] | None, shown: str) -> None:
    """The clock does not move to the end of the wait, and a kill changes nothing.

    Without a signal the time of the wait ends, as for any sleep.
    """
    with AgentBench(Approver) as bench:
        bench.signal("another", 1)
        if posted is not None:
            bench.signal("approved", **posted)
        assert bench.send("go", kill_after=step("plan")).artifacts["final-answer"].text == shown
        assert (bench.clock.monotonic() < 3600) is (posted is not None)
