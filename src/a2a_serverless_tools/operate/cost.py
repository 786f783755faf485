"""What a task has cost so far, as far as its log and HEAD tell: lines, their sum, what is missing.

Pure. Dollars are list prices of us-east-1, whatever the place: on one machine they are what the
same work would cost on AWS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from a2a_serverless.tasks.turns import Attempt
from a2a_serverless.tasks.usage import MILLION, total
from a2a_serverless_tools.operate.prices import (
    API_REQUEST,
    GB_SECOND,
    INVOCATION,
    SQS_REQUEST,
    WRITE_UNIT,
)
from a2a_serverless_tools.operate.timeline import Timeline
from a2a_serverless_tools.operate.words import usage_text

NOT_COUNTED: Final = (
    "reads and streams of clients",
    "renewed leases, cancels and webhooks",
    "what is stored, and what is logged",
    "a function's start, and its time beside the attempts",
    "what the agent calls besides the models that it reports",
)
"""What neither log nor HEAD tell."""
_LONGEST_S: Final = 900.0
"""The longest invocation of Lambda, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What is known of the function that runs the agent."""

    memory_mb: int | None = None
    """None: the stack is not named, so that its time has no price."""
    turns: int = 1
    """The turns that share one worker's time."""
    timeout_s: float = _LONGEST_S
    """The end of an invocation: a lost attempt has not run for longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CostLine:
    """One part of a cost."""

    what: str
    amount: str
    """How much of it, with its unit."""
    least: float | None
    """Dollars; None: no price in dollars is known."""
    most: float | None
    """Dollars, if all was used that may have been used; None as `least`."""
    counted_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a task has cost so far, in dollars, between two bounds."""

    lines: tuple[_CostLine, ...]
    models: float | None
    """What its models have cost, in the currency of the owner's price list; None: no price."""
    unpriced: tuple[str, ...]
    """What was counted and has no price, as clauses."""
    not_counted: tuple[str, ...] = NOT_COUNTED

    @property
    def least(self) -> float:
        """Return the sum of what was certainly used."""
        return sum(line.least or 0 for line in self.lines)

    @property
    def most(self) -> float:
        """Return the sum if all was used that may have been used."""
        return sum(line.most or 0 for line in self.lines)

    def sentences(self) -> Iterator[str]:
        """Yield the sum in words, and what is missing in it."""
        spent = dollars(self.least, self.most)
        yield f"{spent} at AWS's prices in us-east-1, for what is counted here."
        if self.models is not None:
            yield f"Models: {self.models:,.4f} in the currency of your price list."
        if self.unpriced:
            yield f"Counted, and not in the sum: {'; '.join(self.unpriced)}."
        yield f"Not counted: {'; '.join(self.not_counted)}."


def dollars(least: float | None, most: float | None) -> str:
    """Return an amount of money, or its bounds; empty if it has no price."""
    if least is None or most is None:
        return ""
    text = f"${least:.7f}"
    return text if f"{most:.7f}" == f"{least:.7f}" else f"{text} to ${most:.7f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSum:
    """What tasks have cost, in dollars and tokens, as `Cost`."""

    day: str
    """The day on which they were created (UTC), such as `2026-11-29`; empty: several."""
    caller: str
    """Empty: several."""
    tasks: int = 1
    least: float
    most: float
    models: float
    tokens: int
    unpriced: int
    """Those of which something has no price."""

    def __add__(self, other: CostSum) -> CostSum:
        counts = ("tasks", "least", "most", "models", "tokens", "unpriced")
        return replace(
            self, **{name: getattr(self, name) + getattr(other, name) for name in counts}
        )


def merged(sums: Iterable[CostSum], by: Literal["day", "caller"]) -> list[CostSum]:
    """Return sums by day, the newest first, or by caller, the dearest first."""
    found: dict[str, CostSum] = {}
    for one in sums:
        kept = replace(one, caller="") if by == "day" else replace(one, day="")
        name = getattr(kept, by)
        found[name] = found[name] + kept if name in found else kept
    if by == "day":
        return sorted(found.values(), key=lambda one: one.day, reverse=True)
    return sorted(found.values(), key=lambda one: (-one.most - one.models, one.caller))


def cost_of(shown: Timeline, workers: Workers) -> Cost:
    """Return what a task has cost so far."""
    attempts = [attempt for turn in shown.turns for attempt in turn.attempts]
    on_lambda = [one for one in attempts if one.is_on_lambda]
    elsewhere = [one for one in attempts if not one.is_on_lambda]
    seen_at = shown.holder.seen_at if shown.holder is not None else None
    functions = _Time.of(on_lambda, seen_at, workers.timeout_s)
    others = _Time.of(elsewhere, seen_at, None)
    lines, unpriced = [_storing(shown)], []
    if on_lambda:
        lines.append(_on_lambda(functions, workers))
        lines.append(_priced("Invocations of the worker", len(on_lambda), INVOCATION, "attempts"))
        if workers.memory_mb is None:
            unpriced.append(f"{functions.text} of the function, whose memory --stack NAME tells")
    if elsewhere:
        what = "Time of workers outside of Lambda"
        lines.append(_line(what, others.text, None, None, others.source))
        unpriced.append(f"{others.text} of workers that you pay by the hour")
    lines += _requests(shown, len(attempts))
    used = total(shown.head.usage)
    for one in shown.head.usage:
        of_agent = "the agent's reports, at your prices"
        lines.append(_line(f"Model {one.model}", usage_text((one,)), None, None, of_agent))
    if used.calls and not used.cost:
        unpriced.append(f"{used.tokens:,} tokens without a price")
    elif used.unpriced:
        unpriced.append(f"{used.unpriced:,} calls of models without a price")
    models = used.cost / MILLION if used.cost else None
    return Cost(lines=tuple(lines), models=models, unpriced=tuple(unpriced))


@dataclass(frozen=True, slots=True)
class _Time:
    """How long attempts ran, in seconds: what is certain, and the most that is possible."""

    least: float
    most: float
    source: str

    @classmethod
    def of(cls, attempts: Iterable[Attempt], seen_at: int | None, limit_s: float | None) -> _Time:
        """Return the time of attempts.

        Args:
            attempts: those that are counted.
            seen_at: the last sign of the one that has the turn, in milliseconds.
            limit_s: the longest run of an attempt; None: unknown.
        """
        least, most, doubts = 0.0, 0.0, 0
        for one in attempts:
            if one.took_ms is not None:
                sure = could = one.took_ms / 1000
            elif one.outcome == "running":
                sure = could = _seconds(one.started_at, seen_at or one.last_at)
            else:
                sure = _seconds(one.started_at, one.last_at)
                passed = _seconds(one.started_at, one.over_at) if one.over_at else limit_s
                could = max(sure, min(filter(None, (passed, limit_s)), default=sure))
                doubts += 1
            least, most = least + sure, most + could
        source = "starts and ends of its attempts"
        if doubts:
            lost = "one whose end is" if doubts == 1 else f"{doubts} whose ends are"
            cut = f" or {limit_s:.0f} s" if limit_s is not None else ""
            source += f"; of {lost} unknown from the last sign up to the next attempt{cut}"
        return cls(least, most, source)

    @property
    def text(self) -> str:
        """Return the bounds as a text."""
        is_sure = f"{self.least:.1f}" == f"{self.most:.1f}"
        return f"{self.least:.1f} s" if is_sure else f"{self.least:.1f} to {self.most:.1f} s"


def _seconds(start: int | None, end: int | None) -> float:
    return max(0, end - start) / 1000 if start is not None and end is not None else 0.0


def _line(
    what: str, amount: str, least: float | None, most: float | None, source: str
) -> _CostLine:
    return _CostLine(what=what, amount=amount, least=least, most=most, counted_from=source)


def _priced(what: str, count: int, price: float, source: str) -> _CostLine:
    return _line(what, f"{count:,}", count * price, count * price, source)


def _storing(shown: Timeline) -> _CostLine:
    spent = shown.units * WRITE_UNIT
    source = f"the sizes of its {len(shown.commits):,} commits"
    return _line("Storing its commits", f"{shown.units:,} write units", spent, spent, source)


def _on_lambda(time: _Time, workers: Workers) -> _CostLine:
    """Return the line of the function's time; of turns that share it each has at least its part."""
    if workers.memory_mb is None:
        return _line("Time of the worker", time.text, None, None, time.source)
    of_second = workers.memory_mb / 1024 * GB_SECOND
    amount, source = f"{time.text} of {workers.memory_mb:,} MB", time.source
    if workers.turns > 1:
        source += f"; up to {workers.turns} turns share it"
    least = time.least * of_second / workers.turns
    return _line("Time of the worker", amount, least, time.most * of_second, source)


def _requests(shown: Timeline, attempts: int) -> Iterator[_CostLine]:
    """Yield what clients and workers have asked at least: what HEAD counts is of the last turn."""
    opened = sum(turn.version > 0 for turn in shown.turns)
    ended = sum(turn.ended is not None for turn in shown.turns)
    price = API_REQUEST + INVOCATION
    yield _priced("Requests that sent its messages", opened, price, "messages that opened turns")
    copies = opened + shown.head.turn.resends + shown.head.turn.requeued
    source = "messages and copies sent, attempts that received them, turns that ended"
    yield _priced("Requests to the queue", copies + attempts + ended, SQS_REQUEST, source)
