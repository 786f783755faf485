"""Random logs that releases with and without `generation` have written in turns, and their counts.

HEAD is the item that it would be in the table: each commit updates it as its release does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.storage.codec import head_item, head_of
from a2a_serverless.storage.durable import head_update
from a2a_serverless.storage.log import Log
from a2a_serverless.storage.table import Item, changed
from a2a_serverless.tasks.entries import Restarted
from a2a_serverless.tasks.events import events_of
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Timing, advance
from tests.model.logs import CONTEXT, SIZE, TASK, Act, acts_of, commit_of, opening
from tests.model.older import made_by_older, read_by_older

OLDER, COUNTS, PLAIN = "older", "counts", "plain"
"""A writer of the release before; a new one that has read the log; a new one that read HEAD."""

WRITERS = (COUNTS, COUNTS, PLAIN, OLDER)


@dataclass(slots=True)
class Mixed:
    """A log, and after each record HEAD's item and the kind of its writer."""

    records: list[Record] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)

    @property
    def log(self) -> Log:
        """Return HEAD as it is read, with the log from its beginning."""
        return Log(head=head_of(self.items[-1]), records=tuple(self.records))


def mixed_of(acts: Sequence[Act], writers: Sequence[str]) -> Mixed:
    """Return the log that the acts leave, each by one of the writers in turn."""
    step, mixed = opening(), Mixed()
    step = made_by_older(step) if writers[0] == OLDER else step
    mixed.records.append(Record.of(step))
    mixed.items.append(head_item(step.head))
    mixed.writers.append(writers[0])
    for number, act in enumerate(acts, start=1):
        _write(mixed, act, number, writers[number % len(writers)])
    return mixed


def _write(mixed: Mixed, act: Act, number: int, writer: str) -> None:
    """Make one commit; what the rules refuse has not happened."""
    before = _read(mixed.log, writer)
    commit = commit_of(act, before, number)
    if writer == COUNTS and commit.claims and before.token is not None:
        commit = replace(commit, restores=mixed.log.restores())
    try:
        step = advance(before, commit, now_ms=number, timing=Timing())
    except A2AServerlessError:
        return
    step = made_by_older(step) if writer == OLDER else step
    mixed.records.append(Record.of(step))
    mixed.items.append(changed(mixed.items[-1], head_update(before, step.head)) or {})
    mixed.writers.append(writer)


def _read(log: Log, writer: str) -> Head:
    if writer == OLDER:
        return read_by_older(log.head)
    return log.counted().head if writer == COUNTS else log.head


@dataclass(slots=True)
class Counted:
    """What a number of mixed logs were made of."""

    logs: int = 0
    unknown: int = 0
    """HEADs whose generation was unknown."""
    known: int = 0
    known_again: int = 0
    """Commits that have made an unknown generation known."""
    restored: int = 0
    """Restarts that have brought artifacts back."""


def check_mixed(mixed: Mixed, counted: Counted) -> None:
    """Compare each reader's generation with the events, after each record."""
    fold, events, was_known = Fold(TASK, CONTEXT), 0, True
    for record, item, writer in zip(mixed.records, mixed.items, mixed.writers, strict=True):
        assert record.base in (None, events)
        fold.add(record)
        events += len(list(events_of(record, fold)))
        assert fold.generation == events
        log = Log(head=head_of(item), records=tuple(mixed.records[: record.version]))
        known = log.head.generation
        assert known in (None, events)
        assert log.counted().head.generation == events
        if writer != PLAIN:
            assert (known is None) == (writer == OLDER)
        counted.known += known is not None
        counted.unknown += known is None
        counted.known_again += known is not None and not was_known
        is_restart = any(isinstance(entry, Restarted) for entry in record.entries)
        counted.restored += is_restart and bool(fold.restored)
        was_known = known is not None


def check_generations(examples: int) -> Counted:
    """Count the events of random mixed logs; return what the logs were made of.

    Raises:
        AssertionError: a reader has another number; the shortest log found is printed.
    """
    counted = Counted()

    def checked(choices: bytes, writers: list[str]) -> None:
        mixed = mixed_of(acts_of(choices), writers)
        note(mixed)
        counted.logs += 1
        check_mixed(mixed, counted)

    by = st.lists(st.sampled_from(WRITERS), min_size=7, max_size=7)
    settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(given(st.binary(min_size=SIZE, max_size=SIZE), by)(checked))()
    return counted
