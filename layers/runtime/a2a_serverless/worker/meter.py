"""What the models of an attempt use: counted, priced, and held against budgets."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final

from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings
from a2a_serverless.storage.spending import Spending
from a2a_serverless.tasks.usage import (
    MILLION,
    MODEL_LENGTH,
    MOST_TOKENS,
    Budget,
    Prices,
    Usage,
    Used,
    summed,
    total,
)
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import FinalError, WrongCallError, expect, sayable

logger = logging.getLogger(__name__)

_NOTHING: Final = Usage("", calls=0)


class BudgetError(FinalError):
    """A budget is used up: the turn ends before the next call of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What a deployment allows, and its prices."""

    prices: Prices = field(default_factory=Prices)
    task: Budget = field(default_factory=Budget)
    caller: Budget = field(default_factory=Budget)
    """Of one caller in one day (UTC)."""
    is_set: bool = field(init=False)
    """True if there is any budget. A field: each turn asks, also where nothing is counted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_set", self.task.is_set or self.caller.is_set)

    @staticmethod
    def of(settings: Settings) -> Budgets:
        """Return those of the settings; the price list stands beside the agent.

        Raises:
            ConfigurationError: the price list cannot be read; or a budget of money has no prices.
        """
        prices = _prices_in(Path(settings.agent.rpartition(":")[0]).parent / settings.prices)
        if (settings.task_cost or settings.caller_cost_per_day) and not prices.models:
            raise ConfigurationError(
                "A2A_TASK_COST and A2A_CALLER_COST_PER_DAY need prices: write them into"
                f" {settings.prices}, beside the agent (a2a-serverless docs usage)."
            )
        task = Budget(settings.task_tokens, round(settings.task_cost * MILLION))
        caller = Budget(
            settings.caller_tokens_per_day, round(settings.caller_cost_per_day * MILLION)
        )
        return Budgets(prices=prices, task=task, caller=caller)


def _prices_in(path: Path) -> Prices:
    try:
        return Prices.of(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Prices()
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"The price list {path} cannot be used: {error}.") from error


@dataclass(kw_only=True, eq=False)
class Meter:
    """Counts what an attempt uses; each commit takes what was counted since the one before."""

    budgets: Budgets = field(default_factory=Budgets)
    by_task: Callable[[], Used] = tuple
    """Returns what the task has used by the newest HEAD that is known."""
    spending: Spending | None = None
    """What the caller has used today; None: it has no budget."""
    used: Used = field(default=(), init=False)
    """By this attempt."""
    pending: Used = field(default=(), init=False)
    """What the next commit has to store."""
    unsure: Used = field(default=(), init=False)
    """What a commit without an answer has stored, or not: `settle` it before the next one."""
    _expected: Used = field(default=(), init=False)
    """The task's sum by HEAD if the last commit was stored."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _before: Used | None = field(default=None, init=False)
    """By the task before this attempt; None: not asked yet."""
    _today: Usage = field(default=_NOTHING, init=False)
    """By the caller today, with what this attempt has counted."""

    async def begin(self) -> None:
        """Read what the caller has used today, if it has a budget."""
        if self.spending is not None:
            with _log_exceptions():
                self._take_today(await self.spending.read())

    def _take_today(self, counter: Usage) -> None:
        with self._lock:
            self._today = total((counter, *self.pending))

    def count(self, usage: Usage) -> None:
        """Count what a call has used; it may be called in any thread.

        Raises:
            WrongCallError: a number is negative, huge, or none.
            BudgetError: a budget was used up before the call, which counts all the same.
        """
        _check(usage)
        try:
            self.check()
        finally:
            with self._lock:
                self._add(usage)

    def _add(self, usage: Usage) -> None:
        priced = self.budgets.prices.priced(usage)
        priced = replace(priced, model=sayable(usage.model, MODEL_LENGTH))
        self.pending = summed((*self.pending, priced))
        self.used = summed((*self.used, priced))
        self._today = total((self._today, priced))

    @contextmanager
    def taken(self) -> Iterator[Used]:
        """Yield what the commit in the block has to store; if it raises, the next one has to."""
        # Taken out before the commit: what is counted during it belongs to the next one.
        with self._lock:
            taken, self.pending = self.pending, ()
        self._expected = summed((*self.by_task(), *taken))
        try:
            yield taken
        except UnavailableError:
            # It may have been stored: before the next commit HEAD is asked.
            self.unsure = taken
            raise
        except BaseException:
            self._put_back(taken)
            raise

    async def settle(self, on_head: Used) -> None:
        """Leave what is `unsure` to the next commit, unless the task's HEAD has it."""
        unsure, self.unsure = self.unsure, ()
        if on_head == self._expected:
            await self.stored(unsure)
        else:
            self._put_back(unsure)

    def _put_back(self, taken: Used) -> None:
        with self._lock:
            self.pending = summed((*taken, *self.pending))

    async def stored(self, taken: Used) -> None:
        """Count what a commit has stored in the metrics, and in the caller's day."""
        sum_of = total(taken)
        metrics.count("InputTokens", sum_of.input_tokens)
        metrics.count("OutputTokens", sum_of.output_tokens)
        if sum_of.cost:
            metrics.count("ModelCost", sum_of.cost / MILLION)
        if self.spending is not None:
            with _log_exceptions():
                self._take_today(await self.spending.add(sum_of))

    def check(self) -> None:
        """Return if the next call of a model may be made.

        Raises:
            BudgetError: a budget is used up; the client reads which one.
        """
        if not self.budgets.is_set:
            return
        if self._before is None:
            self._before = self.by_task()
        currency = self.budgets.prices.currency
        # Of this attempt all, also what a commit under way is storing.
        of_task = total((*self._before, *self.used))
        for budget, used, whose, setting in (
            (self.budgets.task, of_task, "this task", "A2A_TASK_TOKENS, A2A_TASK_COST"),
            (
                self.budgets.caller,
                self._today,
                "today",
                "A2A_CALLER_TOKENS_PER_DAY, A2A_CALLER_COST_PER_DAY",
            ),
        ):
            if what := budget.exceeded(used, currency):
                raise BudgetError(
                    f"The budget of {whose} is used up: {what} ({setting}).",
                    client_text=f"The budget of {whose} is used up: {what}.",
                )


@contextmanager
def _log_exceptions() -> Iterator[None]:
    """Go on without the caller's counter: what it cannot count stops no turn."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the task has its counts, and the turn goes on
        extra = {"action": "spending_not_counted"}
        logger.warning("A caller's tokens are not counted: %s", error, extra=extra)


def _check(usage: Usage) -> None:
    way = '`ctx.usage("gpt-5", input_tokens=1200, output_tokens=300)`'
    expect(
        usage.model,
        lambda it: isinstance(it, str) and it != "",
        "ctx.usage takes the model's name",
        way,
    )
    for name in ("calls", "input_tokens", "output_tokens", "cached_tokens"):
        takes = f"ctx.usage takes {name} as a whole number from 0 to {MOST_TOKENS:,}"
        expect(getattr(usage, name), _is_count, takes, way)
    if usage.cached_tokens > usage.input_tokens:
        raise WrongCallError(
            f"ctx.usage: {usage.cached_tokens} cached_tokens are a part of input_tokens, of which"
            f" there are {usage.input_tokens}."
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_TOKENS
