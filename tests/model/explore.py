"""Breadth-first search through every interleaving, and the shortest way to a broken promise."""

from __future__ import annotations

import gc
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.model.readers import Readers
from tests.model.rules import Rules
from tests.model.scenarios import Scenario
from tests.model.services import Services
from tests.model.state import IDLE, Move, Reader, State
from tests.model.workers import Attempts
from tests.model.world import World, inc_of, summary

SHOWN = 12
"""Steps that a trace shows of what goes on without an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A promise that is broken, and the steps that lead there."""

    promise: str
    trace: tuple[str, ...]
    """One line a step: who did what, and HEAD after it."""

    @property
    def steps(self) -> int:
        return len(self.trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an exploration came across."""

    scenario: str
    states: int
    moves: int
    seconds: float
    """Of one core, so that they say the same on a busy machine."""
    finding: Finding | None


def explore(scenario: Scenario, rules: Rules | None = None, *, most: int = 10**9) -> Report:
    """Visit every state that can be reached; stop at the first broken promise.

    Then look for states from which the task never comes to rest: from every one of them there has
    to be a way without faults and without the client's doing. As the steps that are left are finite
    in number, a system in which each of them happens in the end comes to rest from everywhere.
    """
    return _Exploration(scenario, rules or Rules()).run(most)


class _Exploration:
    def __init__(self, scenario: Scenario, rules: Rules) -> None:
        self._scenario = scenario
        self._world = World(rules, scenario.turns, scenario.most_attempts)
        self._attempts = Attempts(self._world, scenario)
        self._services = Services(self._world, scenario)
        self._readers = Readers(self._world)
        self._numbers: dict[State, int] = {}
        self._parents = array("q")
        self._sources, self._targets = array("l"), array("l")
        self._resting = array("l")
        self._moves = 0

    def run(self, most: int) -> Report:
        began = time.process_time()
        gc.disable()  # nothing here is garbage before the end
        try:
            finding = self._search(most) or self._stuck()
        finally:
            gc.enable()
        return Report(
            scenario=self._scenario.name,
            states=len(self._numbers),
            moves=self._moves,
            seconds=time.process_time() - began,
            finding=finding,
        )

    def _search(self, most: int) -> Finding | None:
        first = State(
            workers=(IDLE,) * self._scenario.workers,
            budget=self._scenario.budget,
            reader=Reader() if self._scenario.has_reader else None,
        )
        waiting = deque([(first, self._add(first, -1))])
        while waiting:
            state, number = waiting.popleft()
            for move in self._moves_of(state):
                self._moves += 1
                after = move.state
                known = self._numbers.get(after)
                if known is None:
                    known = self._add(after, number)
                    if after.wrong:
                        return self._finding(known, after.wrong)
                    if len(self._numbers) > most:
                        raise RuntimeError(f"more than {most} states")
                    waiting.append((after, known))
                if move.is_fair:
                    self._sources.append(number)
                    self._targets.append(known)
        return None

    def _add(self, state: State, parent: int) -> int:
        number = self._numbers[state] = len(self._numbers)
        self._parents.append(parent)
        if is_at_rest(state):
            self._resting.append(number)
        return number

    def _moves_of(self, state: State) -> Iterator[Move]:
        yield from self._services.moves(state)
        yield from self._attempts.moves(state)
        if state.reader is not None:
            yield from self._readers.moves(state)

    # -- coming to rest ------------------------------------------------------------------------

    def _stuck(self) -> Finding | None:
        """The first state from which no fair step leads to rest."""
        comes_to_rest = self._backwards()
        for number, rests in enumerate(comes_to_rest):
            if not rests:
                stuck = self._finding(number, "the task never comes to rest")
                return replace(stuck, trace=(*stuck.trace, *self._goes_on(number)))
        return None

    def _goes_on(self, number: int) -> Iterator[str]:
        """What happens then, and is of no use."""
        state = next(state for state, n in self._numbers.items() if n == number)
        met = {state}
        while len(met) < SHOWN:
            fair = [m.state for m in self._moves_of(state) if m.is_fair and m.state not in met]
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

    def _line(self, before: State, after: State) -> str:
        label = next(move.label for move in self._moves_of(before) if move.state == after)
        return f"{label:<64} | {summary(after.head)}"


def is_at_rest(state: State) -> bool:
    """Whether nothing is left to do, and nothing promised is outstanding."""
    if state.queue or state.dead:
        return False
    seen = state.head
    if seen is None or seen.head.is_terminal:
        return True
    was_asked = state.asked == inc_of(seen.head)
    return not seen.head.turn_is_open and not was_asked
