"""Every interleaving of a deletion: creations, a barrier, an index that lags, deaths, a sweep.

The world is a few messages of one person and her deletion. What an API, the deletion and a sweep do
is cut into their requests, between which anything else may happen. A process that has read that
there is no barrier goes by that until `KEPT` has passed, and the index shows a task at any time up
to `LAG` after its write; both are steps of the deletion's wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from a2a_serverless.tasks.rules import is_behind, is_last_look
from tests.model.search import Game, Report, Step

_IDLE = ("sent", "refused", "dead")
"""Where a creation does nothing more."""

_UP, _ENDED, _OLD, _NEW = 9, 5, 1, 5
"""Times: until when a barrier that is up counts, when one ended, births before and since then."""


class Creation(NamedTuple):
    """A message that opens a task, and the process that has it."""

    at: str = "look"
    """`look`, `write`, `second`, then `sent`, `refused` or `dead`."""
    knows: str = ""
    """What its process has read: `none` or `barrier`; empty: nothing, or too long ago."""
    is_old: bool = False
    """It began before the barrier came down."""
    stored: str = ""
    """`hidden`, `due` (hidden, and written in front of the barrier) or `shown` by the index."""


class World(NamedTuple):
    """What is stored, who is at work, and what may still come."""

    creations: tuple[Creation, ...] = ()
    barrier: str = ""
    """`up`, or `down` once it has counted."""
    deletion: str = "barrier"
    """Its next step: `barrier`, `kept`, `lag`, `look`, `delete`, `lower`; `done`."""
    found: frozenset[int] = frozenset()
    messages: int = 0
    deaths: int = 0
    lapses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionJob:
    """A deletion beside a few messages, deaths of their processes, and lapses of the barrier."""

    messages: int = 3
    deaths: int = 0
    lapses: int = 0

    def explore(self) -> Report:
        """Visit every state; see `Game.explore`.

        After the deletion has ended no message that was accepted before is stored, and nothing at
        all once every process has done what it does; a message that came after the end is accepted.
        """
        first = World(messages=self.messages, deaths=self.deaths, lapses=self.lapses)
        return Game(first, _steps, _broken, _is_over, "a task is left for ever").explore()


def _broken(world: World) -> str:
    for one in world.creations:
        if one.at == "refused" and not one.is_old and world.barrier != "up":
            return "a new message is refused"
        if world.deletion == "done" and one.is_old and one.at == "sent" and one.stored:
            return "a task is left"
    return ""


def _is_over(world: World) -> bool:
    is_done = world.deletion == "done" and all(one.at in _IDLE for one in world.creations)
    return is_done and not any(one.is_old and one.stored for one in world.creations)


def _steps(world: World) -> Iterator[Step[World]]:
    if world.messages:
        came = (*world.creations, Creation())
        yield "a message", world._replace(creations=came, messages=world.messages - 1), False
    for number, one in enumerate(world.creations):
        for name, changed in _of_creation(world, one):
            yield f"{number} {name}", _with(world, number, changed), True
        if world.deaths and one.at not in _IDLE:
            after = _with(world, number, one._replace(at="dead"))
            yield f"{number} dies", after._replace(deaths=world.deaths - 1), False
    if world.lapses and world.barrier == "up":  # the process was held up, or has died
        lapses = world.lapses - 1
        after = _down(world)._replace(lapses=lapses, found=frozenset(), deletion="barrier")
        yield "the barrier lapses", after, False
    if world.deletion != "done":
        yield *_of_deletion(world), True


def _of_creation(world: World, one: Creation) -> Iterator[tuple[str, Creation]]:
    if one.stored in ("hidden", "due"):
        yield "is shown", one._replace(stored="shown")
    match one.at:
        case "look" | "second":
            looked = _looked(world, one)
            if _is_behind(world, looked):
                yield "is refused", looked._replace(at="refused", stored="")
            else:
                yield one.at, looked._replace(at="write" if one.at == "look" else "sent")
        case "write":
            yield "is written", one._replace(at="second", stored="hidden")
        case "dead" if one.stored:  # nothing was sent: it is overdue
            if _is_behind(world, _looked(world, one._replace(knows=""))):
                yield "is swept", one._replace(stored="")


def _looked(world: World, one: Creation) -> Creation:
    return one if one.knows else one._replace(knows="barrier" if world.barrier else "none")


def _is_behind(world: World, one: Creation) -> bool:
    if one.knows != "barrier":
        return False
    born = _OLD if one.is_old or world.barrier == "up" else _NEW
    return is_behind(born, _UP if world.barrier == "up" else _ENDED)


def _of_deletion(world: World) -> tuple[str, World]:
    name, found = world.deletion, world.found
    every = world.creations
    match name:
        case "barrier":
            # What a process had read of an earlier barrier says nothing of this one.
            read = (
                one._replace(knows="none") if (one.knows, one.is_old) == ("barrier", False) else one
                for one in every
            )
            return name, world._replace(barrier="up", deletion="kept", creations=tuple(read))
        case "kept":
            kept = [one._replace(knows="" if one.knows == "none" else one.knows) for one in every]
            due = (o._replace(stored="due") if o.stored == "hidden" else o for o in kept)
            return name, world._replace(deletion="lag", creations=tuple(due))
        case "lag":
            shown = (o._replace(stored="shown") if o.stored == "due" else o for o in every)
            return name, world._replace(deletion="look", creations=tuple(shown))
        case "look":
            seen = frozenset(n for n, one in enumerate(every) if one.stored == "shown")
            # By then both waits are over, and the barrier is the one that was put up before them.
            until = _UP if world.barrier == "up" else _ENDED
            is_last = is_last_look(began=4, ended=6, since=2, until=until, settles_ms=2)
            at = "delete" if seen else "lower" if is_last else "barrier"
            return name, world._replace(deletion=at, found=seen)
        case "delete":
            after = world
            for number in found:
                after = _with(after, number, every[number]._replace(stored=""))
            return name, after._replace(deletion="look", found=frozenset())
        case _:
            return name, _down(world)._replace(deletion="done")


def _down(world: World) -> World:
    """Return the world after the end of the barrier: all that has begun is older."""
    old = tuple(one._replace(is_old=True) for one in world.creations)
    return world._replace(barrier="down", creations=old)


def _with(world: World, number: int, one: Creation) -> World:
    creations = list(world.creations)
    creations[number] = one
    return world._replace(creations=tuple(creations))
