"""The timeline of a task as a picture: lanes for turns, attempts, commits and webhooks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from a2a_serverless.tasks.turns import Wait
from a2a_serverless_tools.operate.timeline import Timeline
from a2a_serverless_tools.operate.webhooks import DeliveryLine, Webhook
from a2a_serverless_tools.operate.wording import (
    delivery,
    duration,
    outcome,
    sentence,
    wait_text,
    webhook,
)

_WIDTH: Final = 960
_LEFT: Final = 96
"""The x at which lanes begin; their names stand to the left of it."""
_LANE: Final = 34
_BAR: Final = 20
_TOP: Final = 22
_TICKS: Final = 5
_HOOKS: Final = 3
"""The first lane of webhooks."""
_LETTER: Final = 6.6
"""The width of a letter of a label."""
_Shape: TypeAlias = Mapping[str, object]
"""What the template draws: of a bar, a length of time in a lane, or a mark, a moment in lanes."""


class _Scale:
    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.length = max(1, end - start)

    def x(self, at: int) -> float:
        share = min(1.0, max(0.0, (at - self.start) / self.length))
        return round(_LEFT + share * (_WIDTH - _LEFT - 8), 1)


def picture(shown: Timeline, now_ms: int) -> Mapping[str, Any] | None:
    """Return what the template draws of a task as of now; None if its commits have no times."""
    times = [commit.at for commit in shown.commits if commit.at is not None]
    if not times:
        return None
    told = [one.at for hook in shown.webhooks for one in hook.deliveries]
    told += [hook.given_up.at for hook in shown.webhooks if hook.given_up is not None]
    is_over = not shown.turn_is_open and not any(one.is_failing for one in shown.webhooks)
    scale = _Scale(times[0], max(*times, *told, times[0] + 1, 0 if is_over else now_ms))
    names = ["turns", "attempts", "commits", *("webhook" for _ in shown.webhooks)]
    lanes = [(name, _TOP + _LANE * (i + 0.5)) for i, name in enumerate(names)]
    end = scale.start + scale.length
    return {
        "height": _TOP + _LANE * len(lanes) + 26,
        "lanes": lanes,
        "bars": [
            *_turns(shown, scale, end),
            *_attempts(shown, scale, end),
            *_webhooks(shown, scale, end),
        ],
        "marks": [
            *_commits(shown, scale),
            *_deliveries(shown, scale),
            *_moments(shown, scale, _LANE * len(lanes)),
        ],
        "ticks": list(_ticks(scale)),
    }


def _bar(
    scale: _Scale, lane: int, start: int, end: int, look: str, title: str, label: str
) -> _Shape:
    x = scale.x(start)
    width = max(3.0, round(scale.x(end) - x, 1))
    fits = len(label) * _LETTER + 8 < width
    y = _TOP + _LANE * lane + (_LANE - _BAR) / 2
    bar = {"x": x, "y": y, "width": width, "look": look, "title": title}
    return bar | {"label": label if fits else ""}


def _mark(x: float, lane: int, look: str, title: str) -> _Shape:
    y = _TOP + _LANE * lane + (_LANE - _BAR) / 2
    return {"x": x, "y": y, "height": _BAR, "look": look, "title": title}


def _turns(shown: Timeline, scale: _Scale, end: int) -> Iterator[_Shape]:
    for turn in shown.turns:
        start = turn.opened_at if turn.opened_at is not None else scale.start
        look = "open" if turn.ended is None else "over"
        by = f" from {turn.by}" if turn.by else ""
        title = f"turn {turn.number}{by}, {look}"
        yield _bar(scale, 0, start, turn.ended_at or end, look, title, f"turn {turn.number}{by}")


def _attempts(shown: Timeline, scale: _Scale, end: int) -> Iterator[_Shape]:
    for turn in shown.turns:
        for wait in (*(attempt.wait for attempt in turn.attempts), turn.wait):
            yield from _wait(wait, scale, end)
        for attempt in turn.attempts:
            if attempt.started_at is None:
                continue
            seen = shown.holder.seen_at if shown.holder is not None else None
            known = seen if attempt.outcome == "running" else None
            over = attempt.over_at or known or attempt.last_at
            last = attempt.last_at if attempt.outcome == "lost" else over
            where = f" on {attempt.worker}" if attempt.worker else ""
            number = attempt.number or "?"
            title = f"turn {turn.number}, attempt {number}{where}: {outcome(attempt)}"
            look = attempt.outcome.replace(" ", "-")
            label = f"{number}  {outcome(attempt)}"
            yield _bar(scale, 1, attempt.started_at, over or end, look, title, label)
            if last is not None and last != over:
                yield _bar(scale, 1, attempt.started_at, last, "was-alive", title, "")


def _wait(wait: Wait | None, scale: _Scale, end: int) -> Iterator[_Shape]:
    """Yield the bar of a wait of which the beginning is known."""
    if wait is None or not wait.is_exact or wait.since is None or not wait.took_ms(end):
        return
    title = wait_text(wait, end)
    until = end if wait.is_open or wait.over_at is None else wait.over_at
    yield _bar(scale, 1, wait.since, until, "waiting", title, title.partition(",")[0])


def _webhooks(shown: Timeline, scale: _Scale, end: int) -> Iterator[_Shape]:
    at_of = {commit.version: commit.at for commit in shown.commits}
    for lane, one in enumerate(shown.webhooks, _HOOKS):
        title, lost = webhook(one), one.given_up
        told = at_of.get(one.told or 0) if one.knows_told else None
        if one.deliveries:
            yield from _waits(one, lane, scale, end)
        elif told is not None:
            yield _bar(scale, lane, scale.start, told, "told", title, f"told to {one.told}")
        if lost is not None and not one.deliveries:
            since = at_of.get(lost.version) or scale.start
            yield _bar(scale, lane, since, lost.at, "failing", title, f"gave up {lost.count}")
        if one.is_given_up:
            last = one.answered_at or scale.start
            yield _bar(scale, lane, last, end, "failing", title, "given up")
        elif one.is_failing and one.failing_since is not None and not one.deliveries:
            label = f"failing, {one.failures} times"
            yield _bar(scale, lane, one.failing_since, end, "failing", title, label)


def _waits(hook: Webhook, lane: int, scale: _Scale, end: int) -> Iterator[_Shape]:
    """Yield a bar for the wait between each failed attempt and the next one."""
    for one, after in zip(hook.deliveries, (*hook.deliveries[1:], None), strict=True):
        if one.wait_ms is not None:
            until = min(one.at + one.wait_ms, end if after is None else after.at)
            label = f"waits {duration(one.wait_ms)}"
            yield _bar(scale, lane, one.at, until, "waiting", delivery(one), label)


def _deliveries(shown: Timeline, scale: _Scale) -> Iterator[_Shape]:
    """Yield one mark for all deliveries at the same place that have ended alike."""
    for lane, hook in enumerate(shown.webhooks, _HOOKS):
        places: dict[tuple[int, str], list[DeliveryLine]] = {}
        for one in hook.deliveries:
            look = "delivered" if one.result == "told" else "undelivered"
            places.setdefault((round(scale.x(one.at)), look), []).append(one)
        for (x, look), told in places.items():
            more = f", and {len(told) - 1} more" if len(told) > 1 else ""
            yield _mark(x, lane, look, delivery(told[0]) + more)


def _commits(shown: Timeline, scale: _Scale) -> Iterator[_Shape]:
    """Yield one mark for all commits at the same place: a task may have thousands of them."""
    places: dict[int, list[int]] = {}
    for commit in shown.commits:
        if commit.at is not None:
            places.setdefault(round(scale.x(commit.at)), []).append(commit.version)
    for x, versions in places.items():
        first, last = versions[0], versions[-1]
        title = f"version {first}" if first == last else f"versions {first} to {last}"
        yield _mark(x, 2, "commit", title)


_MOMENTS: Final = {"cancel asked": "cancel", "took over": "takeover", "went on": "takeover"}


def _moments(shown: Timeline, scale: _Scale, height: float) -> Iterator[_Shape]:
    for one in shown.story:
        if one.what in _MOMENTS and one.at is not None:
            look, title = _MOMENTS[one.what], sentence(one)
            yield {"x": scale.x(one.at), "y": _TOP, "height": height, "look": look, "title": title}


def _ticks(scale: _Scale) -> Iterable[tuple[float, str]]:
    for number in range(_TICKS + 1):
        at = scale.start + scale.length * number // _TICKS
        yield scale.x(at), duration(at - scale.start) if number else "0"
