"""The fold of random legal logs, what it makes of chunks, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from a2a.helpers import get_artifact_text
from a2a.types import Artifact, Part

from a2a_serverless.tasks.entries import ArtifactWritten, Entry, Restarted, TurnEnded, TurnOpened
from a2a_serverless.tasks.fold import Cursor, Fold, Record, incarnation_tag
from tests.model.logs import CONTEXT, TASK, Act, History, check, check_logs, history_of
from tests.support.commits import COMPLETED, status, wrote
from tests.support.databases import LONG
from tests.support.messages import request

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
def test_twice_the_restarts_are_twice_the_work(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart costs what its own turn has written, not what the task has."""
    once = restarted_turns(turns)
    twice = restarted_turns(2 * turns)
    check(twice)
    assert applied_for(twice, monkeypatch) <= 2 * applied_for(once, monkeypatch)


def folded(*commits: tuple[str | None, tuple[Entry, ...]]) -> Fold:
    fold = Fold("t", "c")
    for version, (token, entries) in enumerate(commits, start=1):
        fold.add(Record(version=version, token=token, entries=entries))
    return fold


def shown(fold: Fold) -> list[list[str]]:
    return [[part.text for part in each.parts] for each in fold.task().artifacts]


OPENED = (None, (TurnOpened(request("hi")),))


def test_streamed_text_is_one_part_when_its_artifact_has_ended() -> None:
    """With its last chunk, or its turn, the chunks of an artifact are shown as one text."""
    last = replace(wrote(" answer", name="b"), last_chunk=True)
    fold = folded(OPENED, ("A", (wrote("an"), wrote("an", name="b"), wrote(" answer"), last)))
    assert shown(fold) == [["an", " answer"], ["an answer"]]
    fold.add(Record(version=3, token="A", entries=(status(COMPLETED),)))
    assert [get_artifact_text(each) for each in fold.task().artifacts] == ["an answer"] * 2
    assert [len(each.parts) for each in fold.artifacts.values()] == [2, 2]


def test_only_chunks_of_like_text_are_joined() -> None:
    """What one chunk has in several parts stays so, and so do parts that differ in more."""
    whole, marked = [Part(text="1"), Part(text="2")], Part(text="4", media_type="text/markdown")
    chunks = (
        ArtifactWritten(Artifact(artifact_id="a", parts=parts), append=number > 0)
        for number, parts in enumerate((whole, [Part(text="3"), marked, Part(raw=b"5")]))
    )
    again = ArtifactWritten(Artifact(artifact_id="a", parts=[Part(raw=b"6")]), append=True)
    fold = folded(OPENED, ("A", (*chunks, again, TurnEnded())))
    (joined,) = fold.task().artifacts
    files = [Part(raw=b"5"), Part(raw=b"6")]
    assert list(joined.parts) == [Part(text="1"), Part(text="23"), marked, *files]


def test_a_restart_takes_an_end_of_an_artifact_back() -> None:
    """Chunks that are taken back leave the artifact as it was: ended, or still to go on."""
    ended = replace(wrote("3"), last_chunk=True)
    fold = folded(OPENED, ("A", (wrote("1"), wrote("2"))), ("A", (ended,)), ("B", (Restarted(2),)))
    assert shown(fold) == [["1", "2"]]
    fold.add(Record(version=5, token="B", entries=(wrote("x"), TurnEnded())))
    assert shown(fold) == [["12x"]]
    fold.add(Record(version=6, entries=OPENED[1]))
    fold.add(Record(version=7, token="C", entries=(wrote("y"),)))
    assert shown(fold) == [["12x", "y"]]


def test_a_fold_takes_versions_only_in_unbroken_order() -> None:
    """A gap would show a task that never was."""
    with pytest.raises(ValueError, match="does not follow"):
        folded(OPENED).add(Record(version=3, entries=()))


def test_a_cursor_reads_back_from_its_text() -> None:
    """Garbage, and a cursor with too many digits, are no cursors."""
    cursor = Cursor(12, 3, incarnation_tag("abc"))
    assert Cursor.parse(str(cursor)) == cursor
    wrong = ("", "1", "1.2", "1.2.abc", "-1.2.abcdef", "1.2.abcdef\n", f"{'9' * 13}.1.abcdef")
    assert [Cursor.parse(garbage) for garbage in wrong] == [None] * len(wrong)
