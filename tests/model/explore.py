"""The explored world of one task: its actors, and when it is at rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter

from tests.model.readers import Readers
from tests.model.scenarios import Scenario
from tests.model.search import Game, Report, Small
from tests.model.services import Services
from tests.model.state import IDLE, Move, Reader, State
from tests.model.workers import Attempts
from tests.model.world import World, inc_of, summary


def explore(scenario: Scenario) -> Report:
    """Visit every state of a scenario that can be reached; see `Game.explore`."""
    world = World(scenario.turns, scenario.attempts)
    attempts, services = Attempts(world, scenario), Services(world, scenario)
    readers = Readers(world)

    def steps(state: State) -> Iterator[Move]:
        yield from services.moves(state)
        yield from attempts.moves(state)
        if state.reader is not None:
            yield from readers.moves(state)

    first = State(
        workers=(IDLE,) * scenario.workers,
        budget=scenario.budget,
        reader=Reader() if scenario.budget.torn else None,
    )
    game = Game(
        first=first,
        steps=steps,
        wrong=attrgetter("wrong"),
        rests=is_at_rest,
        stuck="the task never comes to rest",
        shown=lambda state: summary(state.head),
    )
    return game.explore()


def explored(scenarios: Iterable[Scenario]) -> tuple[Small, ...]:
    """Scenarios as worlds to explore."""
    return tuple(Small(one.name, one.least, partial(explore, one)) for one in scenarios)


def is_at_rest(state: State) -> bool:
    """Whether nothing is left to do, and nothing promised is outstanding."""
    if state.queue or state.dead:
        return False
    seen = state.head
    if seen is None or seen.head.is_terminal:
        return True
    was_asked = state.asked == inc_of(seen.head)
    has_time = seen.head.turn.asks and seen.head.due_at is not None
    return not (seen.head.turn.is_open or was_asked or has_time)
