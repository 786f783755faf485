"""Questions in the middle of an agent's code: asked, answered, asked again, and timed out."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part
from pydantic import BaseModel, StrictBool, StrictInt

from a2a_serverless.storage.signals import signal
from a2a_serverless.tasks.entries import Caller, StepId
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.waits import Signal, SignalDecision
from a2a_serverless.worker import Answer, TaskContext, WaitTimeoutError
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.turn import BUSY_S
from tests.support.messages import said
from tests.support.workers import S, user_request
from tests.unit.worker.stand import Log, Patch, Stand, beside, run


async def answered(stand: Stand, *parts: Part | str) -> Head:
    """Answer the question of the stand's task, and work on what follows."""
    message = user_request(*(Part(text=it) if isinstance(it, str) else it for it in parts))
    scope = stand.bench.storage.scope
    stand.task = await stand.bench.go_on(stand.task, message, caller=Caller("pat"), scope=scope)
    return await stand.work()


def named(part: Part, question: str) -> Part:
    part.metadata.update({"questionId": question})
    return part


async def question(stand: Stand) -> list[tuple[str, dict[str, Any]]]:
    """The parts that the task's status asks with."""
    parts = (await stand.shown()).status.message.parts
    return [(part.text, dict(part.metadata)) for part in parts]


async def finals(stand: Stand) -> list[str]:
    return (await stand.artifacts())["final-answer"]


async def test_the_code_goes_on_behind_its_question() -> None:
    """Its steps run once each, and each run of it begins with the first message."""
    ran, seen = list[str](), list[tuple[str, int, str]]()

    async def bank(ctx: TaskContext) -> None:
        seen.append((ctx.user_text, len(ctx.history), ctx.user))
        await ctx.emit_text_artifact("begun;", "log")
        await ctx.step("plan", ran.append, "plan")
        account = await ctx.ask("Which account?", data={"accounts": ["a", "b"]})
        await ctx.emit_text_artifact(f"account {account.text};", "log", append=True)
        await ctx.step("reserve", ran.append, f"reserve {account.text}")
        sure = await ctx.ask("Are you sure?")
        await ctx.step("pay", ran.append, f"pay {sure.text}")
        await ctx.complete("paid")

    stand, head = await run(bank)
    assert (head.state, head.turn.asks) == (S.TASK_STATE_INPUT_REQUIRED, True)
    asked = {"questionId": "#1"}
    assert await question(stand) == [("Which account?", asked), ("", asked)]
    assert (head.turn.is_claimed, head.turn.parked, head.due_at) == (False, "", None)
    assert (await answered(stand, "b")).state == S.TASK_STATE_INPUT_REQUIRED
    head = await answered(stand, "yes")
    assert (head.state, head.turn.begun, head.needs) == (S.TASK_STATE_COMPLETED, 0, 0)
    assert ran == ["plan", "reserve b", "pay yes"]
    assert seen == [("hello", 0, "")] * 3
    assert await stand.artifacts() == {"log": ["begun;account b;"], "final-answer": ["paid"]}
    history = [text for text in said(await stand.shown()) if text]
    assert history == ["hello", "Which account?", "b", "Are you sure?", "yes"]


async def test_an_answer_has_text_data_and_files() -> None:
    """The agent gets what the client has sent, and who has sent it."""
    got: list[Answer] = []

    async def handle(ctx: TaskContext) -> None:
        got.append(await ctx.ask("Which?"))
        file = await ctx.read_file(got[0].files[0])
        await ctx.complete(file.decode())

    stand, _ = await run(handle)
    await answered(stand, "this", "one", new_data_part({"a": 1}), Part(raw=b"scan", filename="s"))
    (answer,) = got
    assert (answer.text, answer.data, answer.user) == ("this\none", {"a": 1}, "pat")
    assert ([each.filename for each in answer.files], await finals(stand)) == (["s"], ["scan"])


async def test_a_message_may_answer_some_of_several_questions() -> None:
    """The others are asked again, and an answer to none of them answers none."""
    ran: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        async def asks(name: str) -> str:
            answer = await ctx.ask(f"{name}?", id=name)
            await ctx.step("note", ran.append, f"{name} {answer.text}", key=name)
            return answer.text

        found = await ctx.gather(asks("day"), asks("hour"), asks("place"))
        await ctx.complete(" ".join(found))

    stand, _ = await run(handle)
    await answered(stand, named(Part(text="noon"), "hour"))
    assert [each for each, _ in await question(stand)] == ["day?", "place?"]
    await answered(stand, named(Part(text="?"), "year"))
    assert [each for each, _ in await question(stand)] == ["day?", "place?"]
    head = await answered(stand, "any")
    assert (head.state, await finals(stand)) == (S.TASK_STATE_COMPLETED, ["any noon any"])
    assert sorted(ran) == ["day any", "hour noon", "place any"]


class Table(BaseModel):
    people: int
    smoking: bool = False


async def test_an_answer_is_read_as_its_schema() -> None:
    """The client gets the JSON Schema; data, JSON as text and plain text are read."""
    colour: Any = Literal["red", "blue"]
    asked: list[tuple[Any, Part | str, Any]] = [
        (Table, new_data_part({"people": 4}), Table(people=4)),
        (Table, '{"people": "5", "smoking": true}', Table(people=5, smoking=True)),
        (StrictInt, "7", 7),
        (StrictBool, "true", True),
        (colour, '"red"', "red"),
        (int | None, "null", None),
        (int, "7", 7),
        (colour, "blue", "blue"),
        (str, "42", "42"),
    ]
    got: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        got[:] = [(await ctx.ask("Which?", schema=schema)).data for schema, *_ in asked]
        await ctx.complete()

    stand, _ = await run(handle)
    ((_, about),) = await question(stand)
    assert about["schema"]["properties"]["people"]["type"] == "integer"
    for _, says, _ in asked:
        head = await answered(stand, says)
    assert (head.state, got) == (S.TASK_STATE_COMPLETED, [value for *_, value in asked])


async def test_a_wrong_answer_is_asked_again_three_times() -> None:
    """The client reads why; the third one that does not fit ends the task with a sentence."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(str((await ctx.ask("How many?", schema=int)).data))

    stand, _ = await run(handle)
    assert (await answered(stand, "many")).state == S.TASK_STATE_INPUT_REQUIRED
    assert (await stand.text()).startswith("This answer does not fit: Input should be a valid int")
    assert (await stand.text()).endswith(". How many?")
    await answered(stand, "3")
    assert await finals(stand) == ["3"]

    stand, _ = await run(lambda ctx: ctx.ask("A table?", schema=Table))
    await answered(stand, '{"people": "many"}')  # JSON is told what is wrong within it
    assert (await stand.text()).startswith("This answer does not fit: people: Input should be a")

    stand, _ = await run(handle)
    for _ in range(2):
        head = await answered(stand, "many")
    assert head.state == S.TASK_STATE_INPUT_REQUIRED
    assert (await answered(stand, "many")).state == S.TASK_STATE_FAILED
    assert "None of your answers to the question '#1' fits: Input should be" in await stand.text()


async def test_an_answer_that_was_taken_stays(caplog: Log) -> None:
    """Newer code that takes other answers does not ask again: it fails, and the log says why."""
    kinds: list[Any] = [int]

    async def handle(ctx: TaskContext) -> None:
        found = await ctx.ask("How many?", schema=kinds[0])
        await ctx.step("note", lambda: found.data)
        await ctx.ask("Sure?")
        await ctx.complete()

    stand, _ = await run(handle)
    await answered(stand, "3")
    kinds[0] = Literal["few", "many"]
    assert (await answered(stand, "yes")).state == S.TASK_STATE_FAILED
    assert "does not fit its `schema` any more" in caplog.text


async def test_the_time_of_a_question_ends() -> None:
    """The sweeper opens a turn without a message, in which the code goes on without an answer."""
    ran: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.step("plan", ran.append, "plan")
        try:
            await ctx.ask("Which?", timeout_s=3600)
        except WaitTimeoutError as error:
            await ctx.step("late", ran.append, "late")
            await ctx.ask(f"{error} Shall I?")
        await ctx.complete("done")

    stand, head = await run(handle)
    assert head.due_at == head.started_at + 3_600_000
    await stand.pass_time(3599)
    assert (await stand.work()).state == S.TASK_STATE_INPUT_REQUIRED
    await stand.pass_time(2)
    await stand.work()
    assert await stand.text() == "Nobody has answered the question '#1' in time. Shall I?"
    assert (await answered(stand, "yes")).state == S.TASK_STATE_COMPLETED
    assert (ran, said(await stand.shown())[:2]) == (["plan", "late"], ["hello", "Which?"])


@pytest.mark.parametrize("asks_first", [True, False])
async def test_a_sleep_beside_a_question_waits_for_its_answer(*, asks_first: bool) -> None:
    """The task does not go to and fro between its states; the sleep has lasted meanwhile."""
    ran: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        async def sleeps() -> None:
            await ctx.sleep(600, key="beside")
            ran.append("slept")

        async def asks() -> None:
            ran.append((await ctx.ask("Which?")).text)

        await ctx.gather(*([asks(), sleeps()] if asks_first else [sleeps(), asks()]))
        await ctx.complete()

    stand, head = await run(handle)
    assert (head.state, head.turn.asks) == (S.TASK_STATE_INPUT_REQUIRED, True)
    await stand.pass_time(601)
    assert not ran
    await answered(stand, "a")
    assert sorted(ran) == ["a", "slept"]


async def test_an_answer_that_comes_beside_a_sweep_counts(monkeypatch: Patch) -> None:
    """The sweeper ends no question that was answered after it had seen HEAD."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete((await ctx.ask("Which?", timeout_s=3600)).text)

    stand, _ = await run(handle)
    await stand.last(3601)
    beside(monkeypatch, "read", lambda: stand.follow_up("in time"))
    assert (await stand.sweeper.sweep()).passed == 1
    await stand.work()
    assert await finals(stand) == ["in time"]


async def test_a_time_out_that_is_not_caught_fails_the_task() -> None:
    """At once, with a sentence: it would come again in each further attempt."""
    stand, _ = await run(lambda ctx: ctx.ask("Which?", id="account", timeout_s=3600))
    await stand.pass_time(3601)
    head = await stand.work()
    assert (head.state, head.turn.attempts) == (S.TASK_STATE_FAILED, 1)
    assert (await stand.text()).startswith("Nobody has answered the question 'account' in time. ")


async def test_a_question_waits_for_what_is_under_way() -> None:
    """A step and a blocking function beside it come to their ends first."""
    ended, go = list[str](), asyncio.Event()

    async def search() -> str:
        await go.wait()
        ended.append("search")
        return "found"

    async def handle(ctx: TaskContext) -> None:
        asyncio.get_running_loop().call_later(0.01, go.set)
        answer, found = await ctx.gather(ctx.ask("Which?"), ctx.step("search", search))
        await ctx.complete(f"{answer.text} {found}")

    stand, head = await run(handle)
    assert (head.state, ended) == (S.TASK_STATE_INPUT_REQUIRED, ["search"])
    await answered(stand, "a")
    assert (await finals(stand), ended) == (["a found"], ["search"])


async def test_a_question_waits_for_a_short_sleep_beside_it() -> None:
    """Which holds its process; the client is asked once it is over."""
    stand = Stand(lambda ctx: ctx.gather(ctx.ask("Which?"), ctx.sleep(30)))
    working = await stand.begin(29)
    assert await stand.state() == S.TASK_STATE_WORKING
    await stand.clock.pass_time(1 + BUSY_S)
    assert await working
    assert await stand.state() == S.TASK_STATE_INPUT_REQUIRED


async def test_a_question_may_ask_for_credentials() -> None:
    """The task is auth-required, and the next message goes on with the code."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.ask("Please sign in.", auth="https://example.com/login")
        await ctx.complete("signed in")

    stand, head = await run(handle)
    assert head.state == S.TASK_STATE_AUTH_REQUIRED
    part = (await stand.shown()).status.message.parts[1]
    assert part.data.struct_value["authUrl"] == "https://example.com/login"
    await answered(stand, "done")
    assert await finals(stand) == ["signed in"]


async def test_a_state_from_before_a_question_is_not_stored_behind_it(caplog: Log) -> None:
    """Others may have changed it since: the sentence says to load it again."""
    again: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        state = await ctx.load_context() or {"n": 0}
        await ctx.ask("Which?")
        if again:
            state = await ctx.load_context() or {"n": 0}
        await ctx.update_context({"n": state["n"] + 1})
        await ctx.complete()

    stand, _ = await run(handle)
    assert (await answered(stand, "a")).state == S.TASK_STATE_FAILED
    assert "load it again behind the question" in caplog.text
    again.append(True)
    stand, _ = await run(handle)
    head = await answered(stand, "a")
    assert head.state == S.TASK_STATE_COMPLETED
    assert (await stand.storage.contexts.find(head.context_id)).value == {"n": 1}


async def test_a_state_is_stored_with_the_question() -> None:
    """Once: also if the question is asked again; behind it the code loads what is stored then."""
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        state = await ctx.load_context() or {"n": 0}
        await ctx.update_context({"n": state["n"] + 1})
        await ctx.ask("Which?", schema=int)
        seen.append(await ctx.load_context())
        await ctx.complete()

    stand, head = await run(handle)
    contexts = stand.storage.contexts
    assert (await contexts.find(head.context_id)).value == {"n": 1}
    await answered(stand, "a")
    head = await answered(stand, "3")
    assert (head.state, seen) == (S.TASK_STATE_COMPLETED, [{"n": 1}])
    assert (await contexts.find(head.context_id)).value == {"n": 1}


@pytest.mark.parametrize(
    ("name", "before", "says"),
    [
        ("card", "begun", "not asked the question 'account', which its client has answered"),
        ("", "begun", "not asked the question 'account', which its client has answered"),
        ("", "begun", "from a step, and let newer code ask it, too, under the same id."),
        ("account", "started", "said another content of artifact 'log'"),
    ],
)
async def test_code_that_differs_before_its_question_fails(
    name: str, before: str, says: str
) -> None:
    """Code that does not ask any more what was answered; or that says something else before."""
    code = [("account", "begun")]

    async def handle(ctx: TaskContext) -> None:
        question_id, text = code[-1]
        await ctx.emit_text_artifact(text, "log")
        if question_id:
            await ctx.ask("Which?", id=question_id)
        await ctx.complete()

    stand, _ = await run(handle)
    code.append((name, before))
    assert (await answered(stand, "b")).state == S.TASK_STATE_FAILED
    assert says in await stand.text()


PAID = StepId("paid", "", 1)
TAKE, OVER = SignalDecision.TAKE, SignalDecision.OVER


async def paying(ctx: TaskContext) -> None:
    """An agent that waits for `PAID` for ten minutes."""
    await active_turn(ctx).signal(PAID, 600)
    await ctx.complete()


async def send(stand: Stand, *, turn: int = 1, mark: str = "") -> SignalDecision:
    ids, paid = (stand.task.task_id, mark or stand.task.incarnation), Signal(b"7", "text/plain")
    return await signal(stand.storage, *ids, turn=turn, step_id=PAID, given=paid)


async def test_a_signal_that_another_wait_has_heard_is_not_lost() -> None:
    """What one wait of several hears may be for another one, which has looked before that."""
    told: list[str] = []

    async def both(ctx: TaskContext) -> None:
        turn = active_turn(ctx)

        async def paid() -> None:
            found = await turn.signal(PAID, 900)
            told.append("late" if found is None else Signal.of(found).body.decode())

        async def other() -> None:
            await ctx.step("beside", beside)
            await turn.signal(StepId("other", "", 1), 600)

        async def beside() -> None:
            while PAID not in turn._sleeping:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            assert await send(stand) is TAKE

        await ctx.gather(paid(), other())
        await ctx.complete()

    stand = Stand(both)
    head = await stand.work()
    assert (head.turn.parked, told) == ("asleep", ["7"])


async def test_a_sleep_that_a_signal_interrupts_ends_at_its_time() -> None:
    """Its record holds that time, and no other one is written when it is over."""
    ran: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        async def paid() -> None:
            await active_turn(ctx).signal(PAID, 7200)
            ran.append("paid")

        await ctx.gather(ctx.sleep(3600), paid())
        ran.append("slept")
        await ctx.complete()

    stand, _ = await run(handle)
    await stand.last(3590)
    assert await send(stand) is TAKE
    before = (await stand.kinds()).count("Recorded")
    working = asyncio.create_task(stand.work())
    await stand.clock.pass_time(9)
    assert ran == ["paid"]
    await stand.clock.pass_time(1)
    assert (await working).state == S.TASK_STATE_COMPLETED
    assert ran == ["paid", "slept"]
    assert (await stand.kinds()).count("Recorded") == before


async def test_the_end_of_the_time_counts_if_it_comes_first() -> None:
    """The code is told so once and for all, and a signal behind it is refused."""
    attempts: list[str] = []

    async def ends(ctx: TaskContext) -> None:
        found = await active_turn(ctx).signal(PAID, 600)
        attempts.append("late" if found is None else "found")
        if len(attempts) == 1:
            assert await send(stand) is OVER
            raise RuntimeError("no")
        await ctx.complete(attempts[-1])

    stand, head = await run(ends)
    await stand.pass_time(601)
    head = await stand.work()
    assert (head.state, attempts) == (S.TASK_STATE_COMPLETED, ["late", "late"])


async def test_a_signal_is_of_one_code_of_one_task() -> None:
    """None of another turn or incarnation is taken; of a task to be canceled it wakes nothing."""
    stand, _ = await run(paying)
    assert await send(stand, turn=2) is OVER
    assert await send(stand, mark="another") is OVER
    assert (await stand.head()).turn.signaled == 0
    await stand.storage.request_cancel(stand.task.task_id)
    assert await send(stand) is TAKE
    head = await stand.head()
    assert (head.turn.parked, head.turn.signaled) == ("asleep", head.version)


async def test_of_two_signals_at_once_the_first_counts(monkeypatch: Patch) -> None:
    """The other one, whose commit meets it, reads what has come in between."""
    stand, _ = await run(paying)
    before = await stand.kinds()
    beside(monkeypatch, "commit", lambda: send(stand))
    assert await send(stand) is SignalDecision.DONE
    assert await stand.kinds() == [*before, "Recorded"]
