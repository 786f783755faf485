"""The worlds: that of one task, with its actors; and lines, deletions, blobs and snapshots."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

from tests.model import scenarios
from tests.model.blobs import FIRST, UPLOADED, Files
from tests.model.deletion import DeletionJob
from tests.model.lines import Lines
from tests.model.readers import Readers
from tests.model.scenarios import Scenario
from tests.model.search import Game, Report, Small, fields_of, table
from tests.model.services import Services
from tests.model.snapshots import Turns
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

    workers, reader = (IDLE,) * scenario.workers, Reader() if scenario.budget.torn else None
    first = State(workers=workers, budget=scenario.budget, reader=reader)
    wrong, stuck = attrgetter("wrong"), "the task never comes to rest"
    return Game(first, steps, wrong, is_at_rest, stuck, lambda it: summary(it.head)).explore()


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


_KINDS: Final[dict[str, Lines | DeletionJob | Files]] = {
    "talk": Lines(is_late=False, is_serial=True),  # a conversation, whose turns wait for no share
    "prompt": Lines(is_late=False, is_serial=True, sweeps=False),  # and nothing dies
    "shares": Lines(),
    "deletion": DeletionJob(),
    "blobs": Files(),
    "snapshots": Turns(),
}
_LINKS: Final = {"uploaded": UPLOADED, "first": FIRST}


def world_of(words: str) -> Lines | DeletionJob | Files:
    """The world of a kind, with other values of its fields; a link is named."""
    kind, _, more = words.partition(" ")
    fields: dict[str, Any] = fields_of(more)
    if "link" in fields:
        fields["link"] = _LINKS[fields["link"]]
    return replace(_KINDS[kind], **fields)


def _of_one_task(scenario: Scenario) -> Small:
    return Small(scenario.name, scenario.least, partial(explore, scenario))


def _worlds(rows: str) -> tuple[Small, ...]:
    """Worlds by rows: the name, the states that it has at the least, and what it is."""
    return tuple(Small(name, int(least), world_of(it).explore) for name, least, it in table(rows))


SHORT = (
    *map(_of_one_task, scenarios.SHORT),
    *_worlds("""
two messages of a conversation | 300 | prompt
a death beside a conversation | 2_500 | talk deaths
a cancel in a conversation | 1_000 | talk accepted=2 places cancels
turns that wait for a share | 1_000 | shares lags
shares without a sweep | 1_000 | shares lags sweeps=0
a death among turns that wait for a share | 2_000 | shares accepted=2 deaths
a cancel of a turn that waits for a share | 4_000 | shares accepted=2 cancels
a deletion of a turn that waits for a share | 5_000 | shares accepted=2 deletions
shares of three turns, of two callers | 100 | shares callers=aab accepted=3 places
a deletion beside messages | 1_000 | deletion
deaths beside a deletion | 1_000 | deletion deaths=2
a barrier that lapses | 1_000 | deletion lapses
a barrier that lapses, and a death | 1_000 | deletion deaths lapses
blobs of attempts that die | 3_000 | blobs attempts=2 deletions deaths
blobs of attempts at a task that is deleted | 3_000 | blobs attempts=2 deletions
blobs of two tasks of one id | 2_000 | blobs creations=2 attempts deletions
blobs beside a transaction that is seen in part | 5_000 |
    blobs creations=2 attempts deletions halves
blobs of a caller that is deleted | 400 | blobs creations=2 purges deaths limit=1 link=uploaded
a link to a blob of a task that is deleted | 200 | blobs creations=2 deletions link=first
blobs that expire | 1_000 | blobs creations=2 attempts days=2
snapshots of two turns at once | 300 | snapshots deaths
snapshots beside a reader | 2_500 | snapshots readings
snapshots and a transaction seen in part | 500 | snapshots halves
snapshots of two tasks of one id | 4_000 | snapshots creations=2 turns=1 deletions deaths
snapshots that expire | 300 | snapshots turns=1 days=2
"""),
)

LONG = (
    *map(_of_one_task, scenarios.LONG),
    *_worlds("""
three messages of a conversation | 10_000 | prompt callers=aaa
a cancel beside a conversation | 50_000 | talk cancels
two deaths beside a conversation | 10_000 | talk deaths=2
a deletion in a conversation | 1_000 | talk accepted=2 deletions
a conversation whose turns wait for a share | 200 | shares is_serial accepted=2 deaths places
three turns that wait for a share | 10_000 | shares callers=aaa accepted=3
a death, and indexes that lag | 10_000 | shares accepted=2 places deaths lags
a hasty sweep | 10_000 | shares accepted=2 hasty
two deaths | 3_000 | shares accepted=2 places deaths=2
blobs of two tasks and two attempts | 40_000 | blobs creations=2 attempts=2 deletions
blobs of three tasks of one id | 100_000 | blobs creations=3 deletions=2
blobs of a caller that is deleted twice at once | 40_000 |
    blobs creations=2 purges=2 limit=2 link=uploaded
blobs that expire beside a deletion | 200_000 | blobs creations=2 attempts deletions days=2
snapshots of three turns at once | 100_000 | snapshots turns=3
snapshots beside a deletion | 100_000 | snapshots deletions
a reader of two tasks of one id that have snapshots | 20_000 |
    snapshots creations=2 turns=1 deletions readings
"""),
)
