"""A conversation that is played with a kill behind each commit with records, and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from a2a_serverless.tasks.entries import StepId
from a2a_serverless_tools.testing.run import Run, Said

if TYPE_CHECKING:
    from a2a_serverless_tools.testing.bench import AgentBench

Conversation = Sequence[Said | Mapping[str, Said] | None] | Callable[["AgentBench"], object]
"""A function that takes a bench, or the messages of one task in order: the first one opens it, and
each other one is what `AgentBench.answer` takes."""


class Place(NamedTuple):
    """A commit with records: the turn, counted from 1, and the first of its records."""

    turn: int
    step: StepId

    def __str__(self) -> str:
        """Name it as a test reads it."""
        key = f", key {self.step.key!r}" if self.step.key else ""
        return f"record {self.step.number} of {self.step.name!r}{key} in turn {self.turn}"


@dataclass
class Play:
    """One play of a conversation: what it has recorded, and what came of its turns.

    Args:
        dies_at: the commit behind which the worker dies; None: it does not.
    """

    dies_at: Place | None = None
    places: list[Place] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    """The messages that have opened them, as an error names them."""
    runs: list[Run] = field(default_factory=list)

    def dies(self, records: Sequence[StepId]) -> bool:
        """Take the records of the next commit; return True if the worker has to die behind it."""
        if not records:
            return False
        place = Place(len(self.turns), records[0])
        self.places.append(place)
        return place == self.dies_at and self.places.count(place) == 1


def play(conversation: Conversation, bench: AgentBench) -> None:
    """Play a conversation on a bench."""
    if callable(conversation):
        conversation(bench)
        return
    first, *others = conversation
    if first is None or isinstance(first, Mapping):
        raise TypeError("The first message of a conversation opens its task: write a text.")
    run = bench.send(first)
    for said in others:
        if not run.head.is_terminal:  # as a newer agent may have ended it
            run = bench.answer(run, said)


def compare(plain: Play, killed: Play, *, is_newer: bool) -> None:
    """Compare a play with the one without a kill; of a newer agent only what has failed.

    Raises:
        AssertionError: it differs.
    """
    where = "Played twice without a kill"
    if killed.dies_at is not None:
        goes_on = " and the newer agent from there on" if is_newer else ""
        where = f"With a kill behind {killed.dies_at}{goes_on}"
        if killed.dies_at not in killed.places:
            raise AssertionError(
                f"{where.replace('With', 'For', 1)}: the second play does not come to it. Take what"
                " differs from run to run, such as the time or a random number, from a step."
            )
    for number, (expected, found) in enumerate(zip(plain.runs, killed.runs, strict=False)):
        turn = f"turn {number + 1} ({plain.turns[number]})"
        if is_newer:
            if found.state == "failed" != expected.state:
                raise AssertionError(f"{where}, {turn} fails: {found.text}")
            continue
        seen = _seen(found)
        for what, one in _seen(expected).items():
            if seen[what] != one:
                raise AssertionError(
                    f"{where}, {turn} has another {what}: {seen[what]!r} instead of {one!r}."
                )
    if not is_newer and len(plain.runs) != len(killed.runs):
        raise AssertionError(
            f"{where}, it has {len(killed.runs)} turns instead of {len(plain.runs)}."
        )


def _seen(run: Run) -> dict[str, Any]:
    """Return what is compared of a turn."""
    return {
        "state": run.state,
        "text": run.text,
        "content of artifacts": [
            (one.text, one.data, [(file.filename, file.content) for file in one.files])
            for one in run.artifacts.values()
        ],
        "count of records": Counter(run.steps),
    }
