"""The fold of random legal logs, and of those that an earlier fold has got wrong."""

from __future__ import annotations

import pytest

from a2a_serverless.tasks.entries import Entry
from a2a_serverless.tasks.fold import Fold, Record
from tests.model.logs import CONTEXT, TASK, Act, History, check, check_logs, history_of
from tests.support.databases import LONG

LOGS = 500 if LONG else 80


@pytest.mark.timeout(600)
def test_random_logs_fold_to_what_the_reference_makes_of_them() -> None:
    """Each legal log folds to the reference's Task, and HEAD agrees with it at every version."""
    tally = check_logs(LOGS)
    assert tally["logs"] >= LOGS
    assert tally["to records"] >= LOGS // 20, tally
    assert tally["snapshots"] >= LOGS // 8, tally
    assert tally["in several turns"] >= LOGS // 20, tally


def restarted_turns(turns: int) -> History:
    """A log of turns in each of which a first attempt dies, and a second one pauses the task."""
    chunk, asks = (("artifact", 1),), (("artifact", 2), ("input", 2))
    turn = (Act("claim", chunk), Act("claim"), Act("attempt", asks), Act("message"))
    history = history_of(turn * turns)
    assert len(history.records) == 1 + 4 * turns
    return history


def applied_for(history: History, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many entries a fold of the log applies."""
    applied = 0
    apply = Fold.apply

    def counted(fold: Fold, entry: Entry, record: Record) -> None:
        nonlocal applied
        applied += 1
        apply(fold, entry, record)

    with monkeypatch.context() as patched:
        patched.setattr(Fold, "apply", counted)
        fold = Fold(TASK, CONTEXT)
        for record in history.records:
            fold.add(record)
    return applied


@pytest.mark.long
@pytest.mark.parametrize("turns", [4, 8])
def test_twice_as_many_restarted_turns_are_twice_the_work(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart costs what its own turn has written, not what the task has."""
    once = restarted_turns(turns)
    twice = restarted_turns(2 * turns)
    check(twice)
    assert applied_for(twice, monkeypatch) <= 2 * applied_for(once, monkeypatch)
