"""Breadth-first search through every interleaving, and the shortest way to a broken promise."""

import gc
import re
import time
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

SHOWN = 12
"""Steps that a trace shows of what goes on without an end."""
SPINS = "a process goes round, and nothing has changed"
"""The promise that every world breaks in which steps of one process alone lead back to a state."""

S = TypeVar("S", bound=Hashable)
Step: TypeAlias = tuple[str, S, bool]
"""What is done, the state after it, and whether it happens sooner or later without anybody's doing:
faults and the doing of clients do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A promise that is broken, and the steps that lead there."""

    promise: str
    trace: tuple[str, ...]
    """One line a step: who did what, and what the state shows after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an exploration came across."""

    states: int
    moves: int
    seconds: float
    """Of one core, so that they say the same on a busy machine."""
    finding: Finding | None


@dataclass(frozen=True, slots=True)
class Small:
    """A world, and the states that it has at the least: with far fewer something does not act."""

    name: str
    least: int
    explore: Callable[[], Report]


def table(rows: str) -> Iterator[list[str]]:
    """Yield the cells of each row of a text; a row goes on in lines that are indented."""
    for row in re.sub(r"\n +", " ", rows).strip().splitlines():
        yield [cell.strip() for cell in row.split("|")]


def fields_of(words: str) -> dict[str, int | str]:
    """Return the fields that words name, each with its value, or 1."""
    given = (word.partition("=") for word in words.split())
    return {name: value if value.isalpha() else int(value or 1) for name, _, value in given}


@dataclass(frozen=True)
class Game(Generic[S]):
    """A world to explore, and what it promises."""

    first: S
    steps: Callable[[S], Iterable[Step[S]]]
    wrong: Callable[[S], str]
    """The promise that a state breaks; empty: none."""
    rests: Callable[[S], bool]
    """Whether nothing is left to do in a state, and nothing promised is outstanding."""
    stuck: str
    """The promise that a state breaks from which no fair steps lead to rest."""
    shown: Callable[[S], str] = lambda _: ""
    """A state in half a line."""

    def explore(self) -> Report:
        """Visit every state that can be reached; stop at the first broken promise.

        Then look for states from which the world never comes to rest: from every one of them there
        has to be a way of fair steps. As the steps that are left are finite in number, a system in
        which each of them happens in the end comes to rest from everywhere.
        """
        return _Exploration(self).run()


def actor_of(label: str) -> str:
    """Who does a step: what its label has before the colon; empty: no process that is at work.

    What begins a process, or a poll after a wait, is not that process's: such rounds take their
    time.
    """
    actor, colon, _ = label.partition(":")
    return actor if colon else ""


class _Exploration(Generic[S]):
    def __init__(self, game: Game[S]) -> None:
        self._game = game
        self._numbers: dict[S, int] = {}
        self._parents = array("q")
        self._sources, self._targets = array("l"), array("l")
        self._resting = array("l")
        self._moves = 0

    def run(self) -> Report:
        began = time.process_time()
        gc.disable()  # nothing here is garbage before the end
        try:
            finding = self._search() or self._stuck()
        finally:
            gc.enable()
        states, seconds = len(self._numbers), time.process_time() - began
        return Report(states=states, moves=self._moves, seconds=seconds, finding=finding)

    def _search(self) -> Finding | None:
        first, wrong = self._game.first, self._game.wrong
        waiting = deque([(first, self._add(first, -1))])
        while waiting:
            state, number = waiting.popleft()
            for label, after, is_fair in self._game.steps(state):
                self._moves += 1
                known = self._numbers.get(after)
                if known is not None and known <= number and is_fair and actor_of(label):
                    if finding := self._spin(state, number, label, after):
                        return finding
                elif known is None:
                    known = self._add(after, number)
                    if promise := wrong(after):
                        return self._finding(known, promise)
                    waiting.append((after, known))
                if is_fair:
                    self._sources.append(number)
                    self._targets.append(known)
        return None

    def _spin(self, state: S, number: int, label: str, after: S) -> Finding | None:
        """What is wrong if a step leads back, and steps of the same process lead here again.

        States have their numbers in the order in which they are met: each round has such a step.
        """
        actor, before = actor_of(label), {after: after}
        waiting = [after]
        for each in waiting:
            if each == state:
                break
            for other, then, is_fair in self._game.steps(each):
                if is_fair and actor_of(other) == actor and then not in before:
                    before[then] = each
                    waiting.append(then)
        if state not in before:
            return None
        way = [state]
        while way[-1] != after:
            way.append(before[way[-1]])
        finding = self._finding(number, SPINS)
        lines = [self._line(*step) for step in pairwise([state, *reversed(way)])]
        return replace(finding, trace=(*finding.trace, *lines))

    def _add(self, state: S, parent: int) -> int:
        number = self._numbers[state] = len(self._numbers)
        self._parents.append(parent)
        if self._game.rests(state):
            self._resting.append(number)
        return number

    # -- coming to rest ------------------------------------------------------------------------

    def _stuck(self) -> Finding | None:
        """The first state from which no fair step leads to rest."""
        comes_to_rest = self._backwards()
        for number, rests in enumerate(comes_to_rest):
            if not rests:
                stuck = self._finding(number, self._game.stuck)
                return replace(stuck, trace=(*stuck.trace, *self._goes_on(number)))
        return None

    def _goes_on(self, number: int) -> Iterator[str]:
        """What happens then, and is of no use."""
        state = next(state for state, n in self._numbers.items() if n == number)
        met = {state}
        while len(met) < SHOWN:
            fair = [after for _, after, fair in self._game.steps(state) if fair]
            fair = [after for after in fair if after not in met]
            if not fair:
                return
            met.add(fair[0])
            yield self._line(state, fair[0])
            state = fair[0]

    def _backwards(self) -> bytearray:
        into: list[list[int]] = [[] for _ in self._numbers]
        for source, target in zip(self._sources, self._targets, strict=True):
            into[target].append(source)
        rests = bytearray(len(self._numbers))
        waiting = list(self._resting)
        for number in waiting:
            rests[number] = 1
        while waiting:
            for source in into[waiting.pop()]:
                if not rests[source]:
                    rests[source] = 1
                    waiting.append(source)
        return rests

    # -- traces --------------------------------------------------------------------------------

    def _finding(self, number: int, promise: str) -> Finding:
        by_number = {n: state for state, n in self._numbers.items()}
        path = [number]
        while self._parents[path[-1]] >= 0:
            path.append(self._parents[path[-1]])
        states = [by_number[n] for n in reversed(path)]
        lines = [self._line(before, after) for before, after in pairwise(states)]
        return Finding(promise=promise, trace=tuple(lines))

    def _line(self, before: S, after: S) -> str:
        label = next(label for label, state, _ in self._game.steps(before) if state == after)
        shown = self._game.shown(after)
        return f"{label:<64} | {shown}" if shown else label
