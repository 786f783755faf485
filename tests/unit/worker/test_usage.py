"""Tokens and money: counted by `ctx.usage`, stored with the turn, and bounded by budgets."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.frameworks.steps import count_tokens
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.spending import Spending
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.tasks.usage import Budget, Prices, Usage, total
from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.failures import WrongCallError
from a2a_serverless.worker.meter import BudgetError, Budgets, Meter
from tests.support.observed import recorded
from tests.support.workers import S
from tests.unit.worker.stand import Log, Patch, Stand, actions, lines, run

PRICES = {"currency": "USD", "models": {"big*": {"input": 2, "output": 10, "cached": 0.5}}}


@pytest.fixture
def priced(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "prices.json").write_text(json.dumps(PRICES))
    return {"prices": f"{tmp_path}/prices.json"}


async def test_usage_is_summed_on_the_task(priced: dict[str, Any]) -> None:
    """HEAD has the sum of each model, with its cost, and the attempt's span the sum of all."""

    async def handle(ctx: TaskContext) -> None:
        ctx.usage("big-1", input_tokens=1000, output_tokens=10, cached_tokens=600)
        ctx.usage("big-1", input_tokens=1, output_tokens=2)
        ctx.usage("own", input_tokens=5)
        await ctx.complete()

    with recorded() as spans:
        _, head = await run(handle, **priced)
        about = spans.named()["invoke_agent"].attributes or {}
    assert head.usage == (
        Usage("big-1", 2, 1001, 12, 600, cost=2 * 401 + 300 + 120),
        Usage("own", 1, 5, unpriced=1),
    )
    tokens = [about[f"gen_ai.usage.{of}_tokens"] for of in ("input", "output")]
    assert (tokens, about["a2a.usage.cost"]) == ([1006, 12], 0.001222)


async def test_each_attempt_counts() -> None:
    """An attempt that fails has used its tokens, also without any other commit."""

    async def handle(ctx: TaskContext) -> None:
        ctx.usage("m", input_tokens=10)
        await ctx.emit_text_artifact("partial")
        ctx.usage("m", output_tokens=1)
        if stand.script.starts < 3:
            raise RuntimeError("again")
        await ctx.complete("whole")

    stand = Stand(handle)
    head = await stand.work()
    assert (head.state, total(head.usage)) == (S.TASK_STATE_COMPLETED, Usage("", 6, 30, 3))
    assert (await stand.artifacts())["final-answer"] == ["whole"]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_commit_without_answer_counts_once(monkeypatch: Patch, *, is_stored: bool) -> None:
    """Whether it was stored or not: HEAD tells it before the next commit counts it again."""
    commit, told = DurableStorage.commit, list[int]()

    async def lossy(storage: DurableStorage, head: Head, wanted: Commit) -> Head:
        is_lost = wanted.token is not None and not told
        after = head if is_lost and not is_stored else await commit(storage, head, wanted)
        if is_lost:
            told.append(after.version)
            raise UnavailableError
        return after

    async def handle(ctx: TaskContext) -> None:
        ctx.usage("m", input_tokens=7)
        await ctx.emit_text_artifact("partial")
        await active_turn(ctx).drain()
        await ctx.complete()

    monkeypatch.setattr(DurableStorage, "commit", lossy)
    stand, head = await run(handle, caller_tokens_per_day=1000)
    assert (head.state, stand.script.starts) == (S.TASK_STATE_COMPLETED, 2)
    assert total(head.usage) == Usage("", 2, 14)
    spending = Spending(stand.storage.table, Scope(head.scope).principal, stand.clock)
    assert (await spending.read()).tokens == 14


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"input_tokens": -1}, "input_tokens as a whole number from 0 to 1,000,000,000, and"),
        ({"output_tokens": 10**10}, "output_tokens"),
        ({"calls": True}, "calls"),
        ({"input_tokens": 1, "cached_tokens": 2}, "2 cached_tokens are a part of input_tokens"),
    ],
)
async def test_counts_that_cannot_be(given: dict[str, Any], what: str) -> None:
    """A negative or huge count is refused with the call to write; nothing is counted."""

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(WrongCallError, match=what):
            ctx.usage("m", **given)
        await ctx.complete()

    _, head = await run(handle)
    assert (head.state, head.usage) == (S.TASK_STATE_COMPLETED, ())


@pytest.mark.parametrize("inputs", [-1, 1.5, 10**12, "12"])
async def test_a_count_that_a_model_makes_up_ends_no_turn(inputs: Any, caplog: Log) -> None:
    """An adapter has its answer, which was paid: a line says that its tokens are not counted."""

    async def handle(ctx: TaskContext) -> None:
        count_tokens(ctx, "m", input_tokens=inputs, output_tokens=2, cached_tokens=1)
        await ctx.complete()

    _, head = await run(handle)
    assert (head.state, head.usage) == (S.TASK_STATE_COMPLETED, ())
    (line,) = lines(caplog, "usage_not_counted")
    assert (line["task_id"], repr(inputs) in line["said"]) == (head.task_id, True)


async def test_many_models_are_bounded() -> None:
    """Sixteen are counted by name, the others together; HEAD stays small."""

    async def handle(ctx: TaskContext) -> None:
        for number in range(100):
            ctx.usage("m" * 200 + str(number) if number == 0 else f"m{number}", input_tokens=1)
        await ctx.complete()

    _, head = await run(handle)
    assert (len(head.usage), total(head.usage).calls) == (17, 100)
    assert (head.usage[-1].model, head.usage[-1].calls) == ("other", 84)
    assert max(len(one.model) for one in head.usage) == 100


def spends(tokens: int) -> Callable[[TaskContext], Awaitable[None]]:
    """An agent that asks its model in two steps, and says what it has heard."""

    async def ask(ctx: TaskContext) -> str:
        ctx.check_budget()
        ctx.usage("big-1", input_tokens=tokens)
        return "pong"

    async def handle(ctx: TaskContext) -> None:
        for number in range(2):
            answer = await ctx.step("ask", ask, ctx, key=str(number))
            await ctx.emit_text_artifact(answer, append=bool(number))
        await ctx.complete()

    return handle


@pytest.mark.parametrize(
    ("tokens", "settings", "says"),
    [(60, {"task_tokens": 50}, "60 of 50 tokens"), (600_000, {"task_cost": 1}, "1.20 of 1.00 USD")],
)
async def test_a_budget_ends_the_turn_before_the_next_call(
    tokens: int, settings: dict[str, Any], says: str, priced: dict[str, Any]
) -> None:
    """What was paid stays, the task fails at once, and the client reads why, in its currency."""
    stand, head = await run(spends(tokens), **settings, **priced)
    assert (head.state, stand.script.starts) == (S.TASK_STATE_FAILED, 1)
    assert (total(head.usage).tokens, await stand.artifacts()) == (tokens, {"answer": ["pong"]})
    told = rf"The budget of this task is used up: {says}\. Correlation id: [0-9a-f]+\."
    assert re.fullmatch(told, await stand.text())


async def test_a_budget_of_a_caller_lasts_a_day() -> None:
    """The next task of the caller fails before its agent starts, until the day is over (UTC)."""
    stand, first = await run(spends(60), caller_tokens_per_day=120)
    assert first.state == S.TASK_STATE_COMPLETED
    await stand.send()
    assert (await stand.work()).state == S.TASK_STATE_FAILED
    assert "The budget of today is used up: 120 of 120 tokens." in await stand.text()
    assert stand.script.starts == 1
    await stand.last(86_400)
    await stand.send()
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED


async def test_an_agent_without_steps_is_stopped_by_its_next_count() -> None:
    """The call that follows a used-up budget raises; `check_budget` does so before the call."""
    asked: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        asked.append("model")
        ctx.usage("m", input_tokens=60)
        with pytest.raises(BudgetError):
            ctx.check_budget()
        asked.append("model")
        ctx.usage("m", input_tokens=60)
        asked.append("never")

    _, head = await run(handle, task_tokens=50)
    assert (head.state, asked) == (S.TASK_STATE_FAILED, ["model", "model"])
    assert total(head.usage).tokens == 120


async def test_a_counter_that_is_not_written_stops_no_turn(monkeypatch: Patch, caplog: Log) -> None:
    """A line says that the caller's tokens are not counted."""
    for method in ("read", "add"):
        monkeypatch.setattr(Spending, method, AsyncMock(side_effect=UnavailableError))
    _, head = await run(spends(60), caller_tokens_per_day=1000)
    assert head.state == S.TASK_STATE_COMPLETED
    assert "spending_not_counted" in actions(caplog)


def test_the_name_of_a_model_is_its_own_price() -> None:
    """Also one that would be a pattern of other names, and one longer than what is kept of it."""
    long = "arn:aws:bedrock:" + "x" * 200
    names = {name: {"input": 2, "output": 0} for name in ("sonnet[1m]", long)}
    meter = Meter(budgets=Budgets(prices=Prices.of({"currency": "USD", "models": names})))
    for name in names:
        meter.count(Usage(name, 1, 10))
    assert [one.cost for one in meter.pending] == [20, 20]


PRICE_OF = '{"currency": "USD", "models": {"m": %s}}'


@pytest.mark.parametrize(
    ("spent", "says"), [(5_000, "0.005 of 0.005 USD"), (1_234_567, "1.234567 of 0.005 USD")]
)
def test_small_money_is_not_rounded_away(spent: int, says: str) -> None:
    """A task may cost half a cent."""
    assert Budget(cost=5_000).exceeded(Usage("", cost=spent), "USD") == says


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "recursion depth"),
        ("{", "Expecting property name"),
        ("[]", 'it needs "currency", a text, and "models", and nothing else'),
        (PRICE_OF % '{"input": 1}', 'needs "input" and "output"'),
        (PRICE_OF % '{"input": -1, "output": 1}', "price input of m is no number from 0 to a mill"),
    ],
)
def test_a_price_list_that_cannot_be_read(tmp_path: Path, text: str, why: str) -> None:
    """The sentence names the file and what is wrong in it; without one no money is a budget."""
    settings = Settings(agent=f"{tmp_path}/agent.py:agent", task_cost=1)
    with pytest.raises(ConfigurationError, match=r"need prices: write them into prices\.json"):
        Budgets.of(settings)
    (tmp_path / "prices.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"The price list .*prices\.json cannot") as raised:
        Budgets.of(settings)
    assert why in str(raised.value)
