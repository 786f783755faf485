"""What the processes of a deployment do: which ones work, and how tasks ended every five minutes.

All of it is one partition of the table, which one query reads. Nothing in it names a caller or a
task. It is written beside tasks, never in their transactions.
"""

from __future__ import annotations

import functools
import math
import os
import random
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Final

from a2a_serverless import __version__
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import is_live, seconds
from a2a_serverless.storage.table import Added, Key, Range, Table, Update
from a2a_serverless.values import dataclass

PARTITION: Final = "ACTIVITY"
TELL_MS: Final = 60_000
"""Milliseconds between two times at which a process tells that it works."""
_SEEN_S: Final = 3600
"""Seconds for which a process is remembered after its last one."""
SPAN_MS: Final = 300_000
"""Milliseconds whose ends are counted together."""
_KEPT_S: Final = 26 * 3600
"""Seconds for which counts are kept: those of a day are read, and clocks differ."""
_STEPS_A_DECADE: Final = 10
"""Steps of a duration from one power of ten to the next: each is 26 % longer than the last."""

_PROCESS: Final = "PROCESS#"
_ENDS: Final = "ENDS#"


@functools.cache
def process_name() -> str:
    """Return the name of this process, as operators look for it.

    On Lambda these are the function, its version and log stream, elsewhere host and process id:
    `code_version` reads the version from them.
    """
    if stream := os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME"):
        version = os.environ.get("AWS_LAMBDA_FUNCTION_VERSION", "")
        return f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', '')}:{version} {stream}"
    return f"{socket.gethostname()} {os.getpid()}"


# -- processes -------------------------------------------------------------------------------


async def tell_of_process(table: Table, *, turns: int, now_ms: int) -> None:
    """Write that this process works, and how many turns it runs now.

    Raises:
        UnavailableError: no answer within the retry budget.
    """
    values = {
        "at": now_ms,
        "turns": turns,
        "release": __version__,
        "expires_at": seconds(now_ms) + _SEEN_S,
    }
    await table.write(Update(key=Key(PARTITION, _PROCESS + process_name()), values=values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A worker, as it has last told of itself."""

    name: str
    release: str
    turns: int
    """The turns that it ran then."""
    at: int
    """When that was by its own clock, in milliseconds since the epoch."""


# -- ends ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a task."""

    at: int
    """Its time, in milliseconds since the epoch."""
    state: str
    """Its plain name, such as `completed`."""
    took_ms: int | None
    """The milliseconds from the task's creation to its end; None: unknown."""
    waited_ms: int | None
    """The milliseconds until an attempt had claimed it; None: none has, or it is unknown."""
    code_version: str = ""
    """As `Head.code`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How the tasks of a time ended."""

    at: int = 0
    """The beginning of its first five minutes, in milliseconds since the epoch."""
    code_version: str = ""
    """As `Head.code`, if all have the same."""
    states: Mapping[str, int] = field(default_factory=dict)
    """How many, by their plain states."""
    took: Mapping[int, int] = field(default_factory=dict)
    """How many tasks took how long, by the step of their duration: see `_step_of`."""
    waited: Mapping[int, int] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """Return how many there are."""
        return sum(self.states.values())


def _step_of(ms: int) -> int:
    """Return the step of a duration: the first one that is not shorter."""
    return max(0, math.ceil(_STEPS_A_DECADE * math.log10(ms) - 1e-9)) if ms > 0 else 0


def _longest_ms(step: int) -> int:
    """Return the longest duration of a step, in milliseconds."""
    return math.floor(10 ** (step / _STEPS_A_DECADE) + 1e-6)


def percentile(counts: Mapping[int, int], share: float) -> int | None:
    """Return the milliseconds that at least a share took no longer than; None: there are none.

    They are those of a step, so that they are up to 26 % more than was measured.
    """
    wanted, passed = share * sum(counts.values()), 0
    for step in sorted(counts):
        passed += counts[step]
        if passed >= wanted:
            return _longest_ms(step)
    return None


async def count_ended(table: Table, ends: Iterable[Ended], now_ms: int) -> None:
    """Add ends to the counts of their five minutes: one write for those of one code version.

    What comes twice counts twice.

    Raises:
        UnavailableError: no answer within the retry budget; some may be counted.
    """
    spans: dict[tuple[int, str], Counter[str]] = {}
    for end in ends:
        place = (end.at // SPAN_MS * SPAN_MS, end.code_version)
        counts = spans.setdefault(place, Counter())
        counts[end.state] += 1
        for name, ms in (("took", end.took_ms), ("waited", end.waited_ms)):
            if ms is not None:
                counts[f"{name}_{_step_of(ms)}"] += 1
    for (at, version), counts in spans.items():
        # DynamoDB takes 1,000 writes a second of one item: the counts are several items.
        shard = random.randrange(layout.SHARDS)  # noqa: S311 - a place, not a secret
        key = Key(PARTITION, f"{_ENDS}{at:015d}#{version}#{shard}")
        values: dict[str, Any] = {name: Added(number) for name, number in counts.items()}
        expires_at = seconds(max(now_ms, at)) + _KEPT_S
        await table.write(Update(key=key, values={**values, "expires_at": expires_at}))


# -- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Activity:
    """What one look at the partition has found."""

    processes: tuple[Process, ...]
    """The newest sign first."""
    ends: tuple[Ends, ...]
    """Those of a day at least, the earliest first; of the same time and version there may be
    several."""


async def activity(table: Table, now_ms: int) -> _Activity:
    """Return which processes work and how the tasks of the last day ended, by one query.

    What is damaged counts as missing.
    """
    items = [item for item in await table.all(Range(partition=PARTITION)) if is_live(item, now_ms)]
    processes = [one for one in map(_process_of, items) if one is not None]
    processes.sort(key=lambda one: (-one.at, one.name))
    ends = [one for one in map(_ends_in, items) if one is not None]
    return _Activity(processes=tuple(processes), ends=tuple(ends))


def _process_of(item: Mapping[str, Any]) -> Process | None:
    at, turns, release = item.get("at"), item.get("turns"), item.get("release")
    is_process = item["SK"].startswith(_PROCESS) and isinstance(at, int)
    if not is_process or not isinstance(turns, int) or not isinstance(release, str):
        return None
    name = item["SK"].removeprefix(_PROCESS)
    return Process(name=name, release=release, turns=turns, at=int(at or 0))


def _ends_in(item: Mapping[str, Any]) -> Ends | None:
    at, _, rest = item["SK"].removeprefix(_ENDS).partition("#")
    if not item["SK"].startswith(_ENDS) or not at.isdecimal():
        return None
    states: dict[str, int] = {}
    durations: dict[str, dict[int, int]] = {"took": {}, "waited": {}}
    for name, number in item.items():
        kind, _, step = name.partition("_")
        if not isinstance(number, int) or name == "expires_at":
            continue
        if kind in durations and step.isdecimal():
            durations[kind][int(step)] = number
        elif not step:
            states[name] = number
    version = rest.rpartition("#")[0]
    return Ends(at=int(at), code_version=version, states=states, **durations)


def summed(every: Iterable[Ends]) -> Ends:
    """Return the sums of ends; their version is that of one of them."""
    first, states, took, waited = Ends(), Counter[str](), Counter[int](), Counter[int]()
    for number, one in enumerate(every):
        first = first if number else one
        states.update(one.states)
        took.update(one.took)
        waited.update(one.waited)
    return replace(first, states=states, took=took, waited=waited)
